"""How values lie in memory: the arrangements of an array, axis orders, and the operands of layers and
of packed attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from suite.spec.dtypes import DType
from suite.spec.inputs import Inputs
from suite.spec.operators.packed import summed
from suite.spec.vocabulary import ARRANGEMENTS, OPERANDS

if TYPE_CHECKING:
    from backends.protocol import Backend

EXPANDED = {"expanded": (0,), "expanded-heads": (1,), "scalar": (0, 1, 2, 3)}
"""The arrangements in which all slices along some axes lie in one place, with the axes."""

INNER = ("reversed", "transposed", "inner-stride")
"""The arrangements in which components do not lie side by side."""

AXES = {"bhld": (0, 1, 2, 3), "blhd": (0, 2, 1, 3), "bhdl": (0, 1, 3, 2)}
"""The axes of (B, H, L, D) in each of `suite.spec.vocabulary.AXIS_ORDERS`."""


def arranged(backend: Backend, values: np.ndarray, dtype: DType | None, how: str) -> Any:
    """The framework's array with these values, in memory as `ARRANGEMENTS` says.

    Contiguous where the framework has no strides. Raises KeyError for an unknown arrangement, and
    ValueError where slices differ that are to be one (those of `EXPANDED`).
    """
    if how not in ARRANGEMENTS:
        raise KeyError(f"unknown arrangement {how!r}; valid: {', '.join(ARRANGEMENTS)}")
    if how == "contiguous" or not backend.has_strides:
        return backend.array(np.ascontiguousarray(values), dtype)
    axes = list(range(values.ndim))
    if how in ("reversed", "transposed"):
        order = axes[::-1] if how == "reversed" else [*axes[:-2], axes[-1], axes[-2]]
        array = backend.array(np.ascontiguousarray(values.transpose(order)), dtype)
        return backend.transpose(array, *order)
    gap = ~values if values.dtype == bool else np.full(values.shape, np.nan)
    if how == "inner-stride":
        wide = np.stack([values, gap], -1).reshape(*values.shape[:-1], -1)
        return backend.array(wide, dtype)[..., ::2]
    if how == "offset":
        wide = np.concatenate([gap[..., :1], values, gap[..., :2]], -1)
        around = np.concatenate([~wide if wide.dtype == bool else wide * np.nan] * 2, -2)
        rows = slice(around.shape[-2], around.shape[-2] + values.shape[-2])
        return backend.array(np.concatenate([around, wide, around], -2), dtype)[..., rows, 1:-2]
    if how in EXPANDED:
        one = values[tuple(slice(1 if a in EXPANDED[how] else None) for a in axes)]
        if not (values == one).all():
            raise ValueError("slices that lie in one place must be equal")
        return backend.expand(backend.array(np.ascontiguousarray(one), dtype), values.shape)
    return backend.restrided(backend.array(np.ascontiguousarray(values), dtype))


def in_order(backend: Backend, values: np.ndarray, inputs: Inputs, axis_order: str) -> Any:
    """One (B, H, L, D) operand in an axis order, in memory as the case says.

    An array of another rank is handed on as it is.
    """
    if values.ndim != 4:
        return backend.array(values, inputs.dtype)
    order = AXES[inputs.axis_order]
    array = backend.array(np.ascontiguousarray(values.transpose(order)), inputs.dtype)
    back = tuple(order.index(axis) for axis in AXES[axis_order])
    return array if back == (0, 1, 2, 3) else backend.transpose(array, *back)


def sequences(backend: Backend, inputs: Inputs) -> dict[str, Any]:
    """query, key and value of a layer, or of packed attention, as the framework's arrays; one array
    thrice where they are one tensor. The axis that the option `squeezed` leaves out is left out."""
    arrays: dict[str, Any] = {}
    for name in OPERANDS:
        if inputs.self_attention and arrays:
            arrays[name] = arrays["query"]
            continue
        values, axes = inputs.arrays[name], inputs.axes(name)
        if inputs.squeezed and inputs.operator.squeezed_axis in axes:
            values = values.take(0, axes.index(inputs.operator.squeezed_axis))
        arrays[name] = backend.array(np.ascontiguousarray(values), inputs.dtype)
    return arrays


def segmented(
    backend: Backend,
    inputs: Inputs,
    names: tuple[str, str] = ("query_offsets", "key_offsets"),
    integers: type[np.signedinteger[Any]] = np.int64,
) -> dict[str, Any]:
    """query, key and value of packed attention, and by `names` the lengths of its segments summed up from
    0 on, (B + 1,) of `integers`, for queries and for keys."""
    arrays = sequences(backend, inputs)
    for name, lengths in zip(names, ("query_lengths", "key_lengths"), strict=True):
        arrays[name] = backend.array(summed(inputs.arrays[lengths]).astype(integers), None)
    return arrays
