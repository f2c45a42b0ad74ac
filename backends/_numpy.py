"""NumPy: the reference itself behind the adapter protocol, as a control.

Every cell must pass here, or the suite is broken. NumPy has no bfloat16, so an array is carried as
float64 values with the format they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from backends.base import Backend, ForwardOnly, Implementation, Prepared, dense_arguments
from references.definition import attention
from suite.spec.dtypes import DTYPES, DType, round_to
from suite.spec.problem import Inputs


@dataclass
class Rounded:
    """Float64 values that are numbers of `fmt`; `fmt` None for boolean and integer arrays."""

    values: np.ndarray
    fmt: DType | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def __getitem__(self, index: Any) -> Rounded:
        return Rounded(self.values[index], self.fmt)


class NumpyBackend(Backend):
    """The control."""

    name = "numpy"
    has_strides = True

    @property
    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}

    def implementations(self) -> list[Implementation]:
        return [Definition(self)]

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

    def transpose(self, array: Rounded, *axes: int) -> Rounded:
        return Rounded(array.values.transpose(*axes), array.fmt)

    def expand(self, array: Rounded, shape: tuple[int, ...]) -> Rounded:
        return Rounded(np.broadcast_to(array.values, shape), array.fmt)

    def restrided(self, array: Rounded) -> Rounded:
        values = array.values
        strides = [
            7 * values.itemsize if n == 1 else step
            for n, step in zip(values.shape, values.strides, strict=True)
        ]
        return Rounded(np.lib.stride_tricks.as_strided(values, values.shape, strides), array.fmt)

    def differentiate(
        self, prepared: Prepared, wrt: Sequence[str], cotangent: Rounded
    ) -> tuple[Any, dict[str, Any]]:
        if prepared.backward is None:
            raise ForwardOnly("NumPy differentiates nothing", declared=True)
        arguments = prepared.arguments
        asked = [prepared.operands[name] for name in wrt]
        found = prepared.backward(**arguments, cotangent=cotangent, wrt=asked)
        return prepared(), {name: found[prepared.operands[name]] for name in wrt}

    def pushed(self, prepared: Prepared, tangents: Mapping[str, Any]) -> Any:
        if prepared.forward is None:
            raise ForwardOnly("NumPy differentiates nothing", declared=True)
        moving = {prepared.operands[name]: array for name, array in tangents.items()}
        return prepared.forward(**prepared.arguments, tangents=moving)


class Definition(Implementation):
    """`references.definition.attention`, rounded once to the case's dtype."""

    name = "definition"
    numerics = "exact"
    lacks = {
        "native-causal": "masks are predicates here; there is no separate causal flag",
        "native-window": "masks are predicates here; there is no separate window",
        "gradient": "NumPy differentiates nothing",
    }
    elections = {
        "fully-masked-row": "zeros",
        "minus-inf-row": "zeros",
        "no-keys": "zeros",
        "nan-in-masked-key": "blocked",
        "nan-in-masked-value": "blocked",
        "nan-in-attended-value": "reaches-them",
        "nan-in-query": "nan",
        "value-size": "accepted",
        "integer-mask": "raises",
        "subnormal-output": "kept",
        "score-overflow": "finite",
    }

    def prepare(self, inputs: Inputs) -> Prepared:
        return rounded_call(self.backend, inputs, definition)


def rounded_call(backend: Backend, inputs: Inputs, function: Callable[..., np.ndarray]) -> Prepared:
    """A call of a NumPy `function(query, key, value, mask, bias, scale, softcap, fmt)`.

    It is given float64 arrays and must return numbers of `fmt`, (B, H, Lq, Dv).
    """

    def call(**arrays: Rounded | None) -> Rounded:
        plain = {name: None if a is None else a.values for name, a in arrays.items()}
        with np.errstate(all="ignore"):
            out = function(**plain, scale=inputs.scale, softcap=inputs.softcap, fmt=inputs.dtype)
        return Rounded(out, inputs.dtype)

    return Prepared(call, dense_arguments(backend, inputs))


def definition(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray | None,
    bias: np.ndarray | None,
    scale: float | None,
    softcap: float | None,
    fmt: DType,
) -> np.ndarray:
    """The definition in float64 (extended precision for float64), rounded once to `fmt`."""
    found = attention(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        scale=scale,
        softcap=softcap,
        precision=np.longdouble if fmt is DTYPES["f64"] else np.float64,
    )
    return round_to(found.output, fmt)
