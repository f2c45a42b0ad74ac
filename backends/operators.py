"""Operators as implementations: the arrays of a call by name, and the outputs for these arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_conformance.backends.implementation import Implementation
from attention_conformance.backends.masks import masked_arrays
from attention_conformance.backends.memory import coded, own_arrays, paged, segmented, sequences
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import mask_missing_keys

if TYPE_CHECKING:
    from attention_conformance.backends.protocol import Backend

Arrays = dict[str, Any]
"""A framework's arrays by name."""

CALL_ARRAYS: Mapping[str, Callable[[Backend, Inputs], Arrays]] = {
    "cached": sequences,
    "latent": lambda backend, inputs: masked_arrays(backend, mask_missing_keys(inputs)),
    "merge": own_arrays,
    "packed": segmented,
    "paged": paged,
    "paged-write": partial(own_arrays, integers=np.int64),
    "quantized": coded,
    "quantized-write": coded,
}
"""The arrays of a call by operator."""


class OperatorFunction(Implementation):
    """An operator: `compute` of `arguments`."""

    def arguments(self, inputs: Inputs) -> Arrays:
        """The arrays of a call."""
        return CALL_ARRAYS[self.operator.name](self.backend, inputs)

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        """The outputs for the arrays `x` of a call. Reads only sizes, dtype and options of `inputs`,
        since calls in which these are equal share a program."""
        raise NotImplementedError

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.made(inputs, self.arguments(inputs))

    def made(self, inputs: Inputs, arguments: Arrays, *more: Any) -> PreparedCall:
        """The call with these arguments; `more` are further constants of its program."""
        _ = inputs.letters  # read here, because torch.compile cannot trace a cached property

        def call(**arrays: Any) -> Any:
            return self.compute(arrays, inputs)

        constants = (inputs.sizes, inputs.dtype.name, inputs.case.options, *more)
        outputs = LAYER_OUTPUTS if inputs.operator.is_layer else inputs.outputs
        return self.through(PreparedCall(call, arguments, outputs, constants=constants))

    def through(self, call: PreparedCall) -> PreparedCall:
        """The call, unless a subclass compiles it."""
        return call
