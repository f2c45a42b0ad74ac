"""NumPy's arrays: float64 values with a format, because NumPy has no bfloat16.

NumPy has no automatic differentiation, so a call has its own derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends.memory import Shape, view
from attention_conformance.backends.prepared import ForwardOnly, PreparedCall
from attention_conformance.backends.protocol import Ambient, Backend, Setting
from attention_conformance.suite.spec.dtypes import DType, round_to


@dataclass
class Rounded:
    """An array of float64 values that are exact in `fmt`. `fmt` is None for boolean and integer
    arrays."""

    values: np.ndarray
    fmt: DType | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def __getitem__(self, index: Any) -> Rounded:
        return Rounded(self.values[index], self.fmt)

    def __neg__(self) -> Rounded:
        return Rounded(-self.values, self.fmt)

    def __add__(self, other: Any) -> Rounded:
        return rounded(np.add, self.fmt, self, other)

    def __sub__(self, other: Any) -> Rounded:
        return rounded(np.subtract, self.fmt, self, other)

    def __mul__(self, other: Any) -> Rounded:
        return rounded(np.multiply, self.fmt, self, other)

    def __truediv__(self, other: Any) -> Rounded:
        return rounded(np.divide, self.fmt, self, other)

    def __matmul__(self, other: Any) -> Rounded:
        return rounded(np.matmul, self.fmt, self, other)


def rounded(function: Callable[..., Any], fmt: DType | None, *operands: Any) -> Rounded:
    """Returns a NumPy function of the operands' values, rounded once to `fmt` (None: not rounded).
    Operands that are not `Rounded` are passed unchanged."""
    values_of_operands = [x.values if isinstance(x, Rounded) else x for x in operands]
    with np.errstate(all="ignore"):
        values = function(*values_of_operands)
        return Rounded(values if fmt is None else round_to(values, fmt), fmt)


def rounded_to(values: np.ndarray, fmt: DType) -> Rounded:
    """Returns an array of `fmt` with the values, rounded once."""
    return Rounded(round_to(values, fmt), fmt)


class NumpyEngine(Backend):
    """A backend whose arrays are `Rounded`. Subclasses list the implementations."""

    has_strides = True
    distributions = ("numpy",)

    @property
    def settings(self) -> Mapping[str, Setting]:
        warn = {"np.errstate(all='warn')": Ambient(partial(np.errstate, all="warn"))}
        return {"NumPy's errors": Setting(np.geterr, lambda handling: np.seterr(**handling), warn)}

    def array(self, values: np.ndarray, dtype: DType | None) -> Rounded:
        return Rounded(np.array(values), dtype)

    def to_numpy(self, array: Rounded) -> np.ndarray:
        return array.values

    def is_array(self, value: Any) -> bool:
        return isinstance(value, Rounded)

    def dtype_name(self, array: Rounded) -> str:
        return array.fmt.long_name if array.fmt else str(array.values.dtype)

    def device_name(self, array: Rounded) -> str:
        return "cpu"

    def overwrite(self, array: Rounded, values: Rounded) -> bool:
        array.values[...] = values.values
        return True

    def transpose(self, array: Rounded, *axes: int) -> Rounded:
        return Rounded(array.values.transpose(*axes), array.fmt)

    def alias(self, array: Rounded) -> Rounded:
        return Rounded(array.values, array.fmt)

    def view(self, flat: Rounded, shape: Shape, strides: Shape, offset: int) -> Rounded:
        return Rounded(view(flat.values, shape, strides, offset), flat.fmt)

    def multiplied(self, array: Rounded) -> Callable[[], Any]:
        return lambda: array.values @ array.values

    def copied(self, array: Rounded) -> Callable[[], Any]:
        return array.values.copy

    def vjp(
        self, prepared: PreparedCall, wrt: Sequence[str], cotangent: Rounded
    ) -> tuple[Any, dict[str, Any]]:
        output, pull = self.pullback(prepared, wrt)
        return output, pull(cotangent)

    def pullback(
        self, prepared: PreparedCall, wrt: Sequence[str]
    ) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
        derivative, arguments = prepared.vjp, prepared.arguments
        if derivative is None:
            raise ForwardOnly("NumPy differentiates nothing", declared=True)
        names = {name: prepared.argument(name) for name in wrt}

        def pull(cotangent: Any) -> dict[str, Any]:
            gradients = derivative(**arguments, cotangent=cotangent, wrt=[*names.values()])
            return {name: gradients[argument] for name, argument in names.items()}

        return prepared.output(arguments), pull

    def jvp(self, prepared: PreparedCall, tangents: Mapping[str, Any]) -> Any:
        if prepared.jvp is None:
            raise ForwardOnly("NumPy differentiates nothing", declared=True)
        argument_tangents = {prepared.argument(name): array for name, array in tangents.items()}
        return prepared.jvp(**prepared.arguments, tangents=argument_tangents)
