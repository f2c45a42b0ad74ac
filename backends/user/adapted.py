"""A person's function, called with all axes, whatever axes and outputs it has of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attention_conformance.backends.binder import CALLED
from attention_conformance.backends.protocol import Backend
from attention_conformance.suite.spec.binding import Axes, Binding
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS


def called_by(instance: Any) -> Callable[..., Any]:
    """How an instance is called: itself, or by its method `forward` or `call`."""
    if callable(instance):
        return instance
    function: Callable[..., Any] = next(
        getattr(instance, name) for name in CALLED if hasattr(instance, name)
    )
    return function


@dataclass(frozen=True)
class Adapted:
    """A function that is called with all axes, and returns all axes in the order of its operands.

    - `pairs`: its arguments with axes of queries and keys
    - `returned`: the part of a returned pair that is the output
    """

    backend: Backend
    function: Callable[..., Any]
    binding: Binding
    axes: Axes
    pairs: tuple[str, ...]
    inputs: Inputs
    returned: int = 0

    def __call__(self, **arguments: Any) -> Any:
        index, pairs = self.axes.index, self.pairs
        if index:
            for name in (*OPERANDS, *pairs):
                array = arguments.get(name)
                if array is not None and len(array.shape) == 4:
                    arguments[name] = array[index]
        answer = self.function(**arguments)
        if not isinstance(answer, tuple | list) or not answer:
            return self.output(answer)
        binding, lse = self.binding, bool(self.inputs.case.option("lse"))
        if self.returned and len(answer) > self.returned:
            return self.weights(answer[self.returned])
        if lse and len(answer) > 1:
            return (self.output(answer[0]), self.lse(answer[1]), *answer[2:])
        return self.output(answer[0]) if binding.returns else (self.output(answer[0]), *answer[1:])

    def restored(self, array: Any) -> Any:
        """The array with the axes that the function does not have."""
        axes = self.axes.restore
        return array[axes] if axes and hasattr(array, "shape") else array

    def output(self, array: Any) -> Any:
        """The output in the order of the operands."""
        whole = self.restored(array)
        if not self.binding.output_axes or len(getattr(whole, "shape", ())) != 4:
            return whole
        return self.backend.memory.transpose(whole, 0, 2, 1, 3)

    def lse(self, array: Any) -> Any:
        """The natural log-sum-exp in the order of the operands."""
        whole, binding = self.restored(array), self.binding
        if len(getattr(whole, "shape", ())) != 3:
            return whole
        if binding.lse_axes:
            whole = self.backend.memory.transpose(whole, 0, 2, 1)
        return whole * math.log(2) if binding.lse_base else whole

    def weights(self, array: Any) -> Any:
        """Weights (B, H, Lq, Lk) as an output in the dtype of the case, and in the order of the
        operands."""
        backend, dtype = self.backend, self.inputs.dtype
        if not backend.is_array(array):
            return array
        whole = self.restored(array)
        if backend.dtype_name(whole) != dtype.long_name:
            whole = backend.array(round_to(backend.to_numpy(whole), dtype), dtype)
        swaps = self.axes.order == "blhd" and len(whole.shape) == 4
        return backend.memory.transpose(whole, 0, 2, 1, 3) if swaps else whole
