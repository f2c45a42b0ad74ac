"""Operators as implementations: the arrays of a call by name, and the outputs for these arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_conformance.backends.implementation import Implementation
from attention_conformance.backends.masks import masked_arrays
from attention_conformance.backends.memory import (
    all_arrays,
    operand_arrays,
    packed_arrays,
    paged_arrays,
    quantized_arrays,
)
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import mask_missing_keys

if TYPE_CHECKING:
    from attention_conformance.backends.protocol import Backend

Arrays = dict[str, Any]
"""A framework's arrays by name."""

CALL_ARRAYS: Mapping[str, Callable[[Backend, Inputs], Arrays]] = {
    "cached": operand_arrays,
    "latent": lambda backend, inputs: masked_arrays(backend, mask_missing_keys(inputs)),
    "merge": all_arrays,
    "packed": packed_arrays,
    "paged": paged_arrays,
    "paged-write": partial(all_arrays, integers=np.int64),
    "quantized": quantized_arrays,
    "quantized-write": quantized_arrays,
}
"""By operator: the function that makes the arrays of a call."""


class OperatorFunction(Implementation):
    """An operator as an implementation: `arguments` makes the arrays of a call, and `compute` the
    outputs."""

    def arguments(self, inputs: Inputs) -> Arrays:
        """Returns the framework's arrays of a call, by name."""
        return CALL_ARRAYS[self.operator.name](self.backend, inputs)

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        """Returns the outputs for the arrays `x`: one array, or a tuple in the order of
        `Inputs.outputs`. Only sizes, dtype and options of `inputs` may be read: calls that agree in
        these share a program."""
        raise NotImplementedError

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.made(inputs, self.arguments(inputs))

    def made(self, inputs: Inputs, arguments: Arrays, *more: Any) -> PreparedCall:
        """Returns the call of `compute` with these arguments. `more`: further constants of its
        program."""
        _ = inputs.letters  # read here, because torch.compile cannot trace a cached property

        def call(**arrays: Any) -> Any:
            return self.compute(arrays, inputs)

        constants = (inputs.sizes, inputs.dtype.name, inputs.case.options, *more)
        outputs = LAYER_OUTPUTS if inputs.operator.is_layer else inputs.outputs
        return self.through(PreparedCall(call, arguments, outputs, constants=constants))

    def through(self, call: PreparedCall) -> PreparedCall:
        """Returns the call unchanged. Subclasses override it to compile the call."""
        return call
