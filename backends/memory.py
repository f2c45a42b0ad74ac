"""How values lie in memory: the strides and arrangements of an array, axis orders, and the operands of
layers and of packed attention."""

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


class Memory:
    """How the arrays of a backend lie in memory; by default a caller can choose no strides."""

    has_strides = False

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def overwrite(self, array: Any, values: Any) -> bool:
        """Write the values of one of the framework's arrays into another one; False if arrays never
        change."""
        return False

    def transpose(self, array: Any, *axes: int) -> Any:
        """The array with its axes in another order: a view if the framework has views."""
        return array.transpose(*axes)

    def expand(self, array: Any, shape: tuple[int, ...]) -> Any:
        """The array as one of `shape`, with stride 0 along the axis in which it has size 1 instead."""
        raise NotImplementedError

    def restrided(self, array: Any) -> Any:
        """The array with a stride of 7 elements along every axis of size 1."""
        raise NotImplementedError

    def arranged(self, values: np.ndarray, dtype: DType | None, how: str) -> Any:
        """The framework's array with these values, in memory as `ARRANGEMENTS` says.

        Contiguous if the framework has no strides. Raises KeyError for an unknown arrangement, and
        ValueError if slices differ that are to be one (those of `EXPANDED`).
        """
        new = self.backend.array
        if how not in ARRANGEMENTS:
            raise KeyError(f"unknown arrangement {how!r}; valid: {', '.join(ARRANGEMENTS)}")
        if how == "contiguous" or not self.has_strides:
            return new(np.ascontiguousarray(values), dtype)
        axes = list(range(values.ndim))
        if how in ("reversed", "transposed"):
            order = axes[::-1] if how == "reversed" else [*axes[:-2], axes[-1], axes[-2]]
            array = new(np.ascontiguousarray(values.transpose(order)), dtype)
            return self.transpose(array, *order)
        gap = ~values if values.dtype == bool else np.full(values.shape, np.nan)
        if how == "inner-stride":
            wide = np.stack([values, gap], -1).reshape(*values.shape[:-1], -1)
            return new(wide, dtype)[..., ::2]
        if how == "offset":
            wide = np.concatenate([gap[..., :1], values, gap[..., :2]], -1)
            around = np.concatenate([~wide if wide.dtype == bool else wide * np.nan] * 2, -2)
            rows = slice(around.shape[-2], around.shape[-2] + values.shape[-2])
            return new(np.concatenate([around, wide, around], -2), dtype)[..., rows, 1:-2]
        if how in EXPANDED:
            one = values[tuple(slice(1 if a in EXPANDED[how] else None) for a in axes)]
            if not (values == one).all():
                raise ValueError("slices that lie in one place must be equal")
            return self.expand(new(np.ascontiguousarray(one), dtype), values.shape)
        return self.restrided(new(np.ascontiguousarray(values), dtype))

    def operands(self, inputs: Inputs, axis_order: str) -> tuple[Any, Any, Any]:
        """query, key and value as the framework's arrays, (B, H, L, D) or (B, L, H, D).

        Memory follows the case's own axis order: if the two differ, the arrays are transposed views in
        frameworks that have views.
        """
        query, key, value = (
            self.operand(x, inputs, axis_order) for x in (inputs.query, inputs.key, inputs.value)
        )
        return query, key, value

    def operand(self, values: np.ndarray, inputs: Inputs, axis_order: str) -> Any:
        """One (B, H, L, D) operand in an axis order, in memory as the case says.

        An array of another rank is handed on as it is.
        """
        if values.ndim != 4:
            return self.backend.array(values, inputs.dtype)
        order = AXES[inputs.axis_order]
        array = self.backend.array(np.ascontiguousarray(values.transpose(order)), inputs.dtype)
        back = tuple(order.index(axis) for axis in AXES[axis_order])
        return array if back == (0, 1, 2, 3) else self.transpose(array, *back)

    def placed(self, layer: Any, dtype: DType, training: bool = False) -> Any:
        """A person's layer in the dtype, on the device, switched to evaluation or to training, as far as
        the framework's layers have these notions."""
        return layer


class ShapesAlone(Memory):
    """Memory of a framework that decides by itself how arrays lie: an axis order is a shape."""

    def operand(self, values: np.ndarray, inputs: Inputs, axis_order: str) -> Any:
        if values.ndim == 4 and axis_order == "blhd":
            values = values.swapaxes(1, 2)
        return self.backend.array(values, inputs.dtype)


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
