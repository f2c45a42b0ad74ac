"""Memory layout: strides and arrangements of arrays, axis orders, and the operands of layers and packed
attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_conformance.suite.spec.dtypes import Code, DType
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import cumulative_lengths
from attention_conformance.suite.spec.operators.quantized import scale_argument
from attention_conformance.suite.spec.operators.tiles import TILE
from attention_conformance.suite.spec.vocabulary import OPERANDS

if TYPE_CHECKING:
    from attention_conformance.backends.protocol import Backend

EXPANDED = {
    "expanded": (0,),
    "expanded-heads": (1,),
    "expanded-rows": (-2,),
    "scalar": (0, 1, 2, 3),
}
"""The axes that have stride 0, by arrangement."""

INNER = ("reversed", "transposed", "inner-stride")
"""Arrangements in which the last axis is not contiguous."""

Shape = tuple[int, ...]
Window = tuple[Shape, Callable[[np.ndarray], np.ndarray]]
"""How an array of values lies in a larger array: the shape of the larger array, and a function that
returns the view of it that holds the values."""


def _expanded(shape: Shape, axes: tuple[int, ...]) -> Window:
    """Returns the window of an array of `shape` that has stride 0 along `axes`, as far as it has these
    axes. The larger array has size 1 along them."""
    shared = {axis % len(shape) for axis in axes if axis < len(shape)}

    def window(x: np.ndarray) -> np.ndarray:
        strides = [0 if axis in shared else step for axis, step in enumerate(x.strides)]
        return np.lib.stride_tricks.as_strided(x, shape, strides)

    return tuple(1 if axis in shared else n for axis, n in enumerate(shape)), window


def _with_odd_strides(x: np.ndarray) -> np.ndarray:
    """Returns a view of the array with a stride of 7 elements along every axis of size 1."""
    steps = (7 * x.itemsize if n == 1 else s for n, s in zip(x.shape, x.strides, strict=True))
    return np.lib.stride_tricks.as_strided(x, x.shape, list(steps))


def _grown(shape: Shape, axis: int, added: int) -> Shape:
    """Returns the shape with `added` more elements along `axis`."""
    return (*shape[:axis], shape[axis] + added, *shape[len(shape) + axis + 1 :])


WINDOWS: Mapping[str, Callable[[Shape], Window]] = {
    "reversed": lambda s: (s[::-1], lambda x: x.T),
    "transposed": lambda s: ((*s[:-2], s[-1], s[-2]), lambda x: x.swapaxes(-1, -2)),
    "inner-stride": lambda s: ((*s[:-1], 2 * s[-1]), lambda x: x[..., ::2]),
    "offset": lambda s: (
        (*s[:-2], 5 * s[-2], s[-1] + 3),
        lambda x: x[..., 2 * s[-2] : 3 * s[-2], 1:-2],
    ),
    "components": lambda s: ((*s[:-1], 3, s[-1]), lambda x: x[..., 1, :]),
    "cache": lambda s: (_grown(s, -2, 3), lambda x: x[..., :-3, :]),
    "more-heads": lambda s: (_grown(s, -3, 2), lambda x: x[..., :-2, :, :]),
    "fused": lambda s: (
        (*s[:-3], s[-2], 3, s[-3], s[-1]),
        lambda x: x[..., 1, :, :].swapaxes(-2, -3),
    ),
    "fused-heads": lambda s: (
        (*s[:-3], s[-2], s[-3], 3, s[-1]),
        lambda x: x[..., 1, :].swapaxes(-2, -3),
    ),
    "shifted": lambda s: ((int(np.prod(s)) + 1,), lambda x: x[1:].reshape(s)),
    "negative": lambda s: (s, lambda x: x[..., ::-1, :]),
    "odd-strides": lambda s: (s, _with_odd_strides),
    **{arrangement: partial(_expanded, axes=axes) for arrangement, axes in EXPANDED.items()},
}
"""By arrangement: the function from the shape of the values to their `Window`."""

AXES = {"bhld": (0, 1, 2, 3), "blhd": (0, 2, 1, 3), "bhdl": (0, 1, 3, 2)}
"""By axis order of `suite.spec.vocabulary.AXIS_ORDERS`: the permutation of (B, H, L, D) that makes it."""


def view(flat: np.ndarray, shape: Shape, strides: Shape, offset: int) -> np.ndarray:
    """Returns a view of a NumPy array (n,), with `shape`, and with `strides` and `offset` in elements."""
    steps = [step * flat.itemsize for step in strides]
    return np.lib.stride_tricks.as_strided(flat[offset:], shape, steps)


def layer_variables_of(
    layer: Any, path: str = "", visited: set[int] | None = None
) -> Iterator[tuple[str, Any]]:
    """Yields (path, variable) for each variable in a layer's attributes, lists and dictionaries. A
    variable is yielded once. Public attributes come first, so that paths have public names if possible.
    `visited`: the ids of objects found so far."""
    visited = set() if visited is None else visited
    if id(layer) in visited:
        return
    visited.add(id(layer))
    if hasattr(layer, "assign") and hasattr(layer, "shape"):
        yield path, layer
        return
    if isinstance(layer, list | tuple):
        children: dict[str, Any] = {str(n): child for n, child in enumerate(layer)}
    elif isinstance(layer, Mapping):
        children = {str(name): child for name, child in layer.items()}
    elif hasattr(layer, "trainable_variables"):
        children = dict(vars(layer))
    else:
        return
    public = [name for name in children if not name.startswith("_")]
    private = [name for name in children if name.startswith("_")]
    containers = [name for name in private if isinstance(children[name], list | tuple | Mapping)]
    for name in [*public, *(n for n in private if n not in containers), *containers]:
        yield from layer_variables_of(
            children[name], f"{path}.{name.lstrip('_')}".lstrip("."), visited
        )


def wrong_memory(shape: Shape, values: np.ndarray, dtype: DType | None) -> np.ndarray:
    """Returns an array of this shape with wrong numbers for the memory around a view of `values`: NaN,
    the largest code of a whole-number code, 0 for integers, the negated values for booleans."""
    if values.dtype == bool:
        return np.resize(~values, shape)
    if values.dtype.kind == "i":
        return np.zeros(shape, values.dtype)
    if isinstance(dtype, Code) and dtype.is_whole:
        return np.full(shape, dtype.max)
    return np.full(shape, np.nan)


def operand_arrays(backend: Backend, inputs: Inputs) -> dict[str, Any]:
    """Returns query, key and value of a layer or of packed attention, as the framework's arrays. In
    self-attention all three are one array. The axis of the option `squeezed` is left out if the case has
    it."""
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


def packed_arrays(
    backend: Backend,
    inputs: Inputs,
    names: tuple[str, str] = ("query_offsets", "key_offsets"),
    integers: type[np.signedinteger[Any]] = np.int64,
) -> dict[str, Any]:
    """Returns the arrays of packed attention: query, key, value, and the cumulative lengths of query
    and key segments. The latter are (B + 1,), start at 0, have the dtype `integers`, and are called
    `names`."""
    arrays = operand_arrays(backend, inputs)
    for name, lengths in zip(names, ("query_lengths", "key_lengths"), strict=True):
        arrays[name] = backend.array(
            cumulative_lengths(inputs.arrays[lengths]).astype(integers), None
        )
    return arrays


def paged_arrays(
    backend: Backend, inputs: Inputs, integers: type[np.signedinteger[Any]] = np.int32
) -> dict[str, Any]:
    """Returns the arrays of paged attention: query, key, value, and as `integers` the cumulative query
    lengths `query_offsets` (B + 1,), `key_lengths` (B,) and `page_table` (B, T)."""
    inputs_arrays = inputs.arrays
    arrays = {
        "query_offsets": cumulative_lengths(inputs_arrays["query_lengths"]),
        "key_lengths": inputs_arrays["key_lengths"],
        "page_table": inputs_arrays["page_table"],
    }
    integer_arrays = {n: backend.array(array.astype(integers), None) for n, array in arrays.items()}
    return operand_arrays(backend, inputs) | integer_arrays


def all_arrays(
    backend: Backend, inputs: Inputs, integers: type[np.signedinteger[Any]] = np.int32
) -> dict[str, Any]:
    """Returns all arrays of the inputs, as the framework's arrays. Whole numbers have the dtype
    `integers`, other arrays their dtype of the case."""
    integral, dtype_of = inputs.operator.array_kinds.integers, inputs.case.dtype_of
    arrays = dict[str, Any]()
    for name, x in inputs.arrays.items():
        values = (x.astype(integers), None) if name in integral else (x, dtype_of(name))
        arrays[name] = backend.array(*values)
    return arrays


def quantized_arrays(backend: Backend, inputs: Inputs) -> dict[str, Any]:
    """Returns all arrays of attention over codes, or of writing codes. Scales and zero points get axes of
    size 1 to broadcast with keys or values, except those of tiles (see `with_scale_per_component`)."""
    names = [name for name in inputs.arrays if name.endswith(("scale", "zero"))]
    broadcast = {name: scale_argument(inputs, name) for name in names}
    return all_arrays(backend, replace(inputs, arrays={**inputs.arrays, **broadcast}))


def with_scale_per_component(
    arrays: Mapping[str, Any], inputs: Inputs, repeat: Callable[[Any, int, int], Any]
) -> dict[str, Any]:
    """Returns the arrays of `quantized_arrays`, with scales and zero points of tiles repeated to one for
    each component of keys and values. `repeat(array, times, axis)` is the framework's function."""
    sizes = {"key": inputs.sizes.D, "value": inputs.sizes.Dv}
    tiled = inputs.case.option("scales") == "pertile"
    return {
        name: repeat(x, TILE, 3)[..., : sizes[name.partition("_")[0]]]
        if tiled and name.endswith(("scale", "zero"))
        else x
        for name, x in arrays.items()
    }
