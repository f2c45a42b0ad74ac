"""Graphs of ONNX operators, recorded by calling a function with symbols in place of arrays.

A model has fixed dtypes and ranks of inputs, and dynamic sizes. Sizes that the function reads become
constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

OPSET = 23
"""The default opset of a graph."""

Shape = tuple[int, ...]

NODES = {
    np.add: "Add", np.subtract: "Sub", np.multiply: "Mul", np.true_divide: "Div",
    np.matmul: "MatMul", np.equal: "Equal",
}  # fmt: skip
"""The nodes of Python's operators."""


class Graph:
    """The nodes of a graph, in recorded order. `opset` is that of the standard; other domains have 1."""

    def __init__(self, opset: int = OPSET) -> None:
        from onnx import helper, numpy_helper

        self.opset = opset
        self._helper, self._from_array = helper, numpy_helper.from_array
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._domains: set[str] = set()

    def input(self, name: str, array: np.ndarray) -> Symbol:
        """Returns an input with the dtype and rank of this array."""
        kind = self._helper.np_dtype_to_tensor_dtype(array.dtype)
        axes = [f"{name}_{axis}" for axis in range(array.ndim)]
        self._inputs.append(self._helper.make_tensor_value_info(name, kind, axes))
        return Symbol(self, name, array.dtype, lambda: array.shape)

    def constant(self, values: Any, dtype: Any = None) -> Symbol:
        """Returns a constant. `dtype` is a NumPy dtype, by default that of the values."""
        array = np.array(values, dtype)
        name = f"constant_{len(self._constants)}"
        self._constants.append(self._from_array(array, name))
        return Symbol(self, name, array.dtype, lambda: array.shape)

    def add(
        self, kind: str, *inputs: Symbol | None, outputs: int = 1, domain: str = "",
        shape: Callable[[], Shape] | None = None, dtype: Any = None, **attributes: Any,
    ) -> Any:  # fmt: skip
        """Record a node. Returns its output, or a tuple of outputs.

        None is an absent input or attribute. `shape()` computes the shape of the first output, if callers
        need it. `dtype` is by default that of the first input.
        """
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        names = [f"{kind}_{len(self._nodes)}_{place}" for place in range(outputs)]
        input_names = ["" if symbol is None else symbol.name for symbol in inputs]
        self._domains.add(domain)
        self._nodes.append(
            self._helper.make_node(kind, input_names, names, domain=domain, **attributes)
        )
        operand = next(symbol for symbol in inputs if symbol is not None)
        symbols = tuple(Symbol(self, name, dtype or operand.dtype, shape) for name in names)
        return symbols[0] if outputs == 1 else symbols

    def model(self, outputs: Sequence[Symbol]) -> bytes:
        """Returns the serialized model that computes `outputs`. Equal graphs give equal bytes."""
        helper = self._helper
        results = []
        for symbol in outputs:
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(symbol.dtype))
            axes = None if symbol.rank is None else [None] * symbol.rank
            results.append(helper.make_tensor_value_info(symbol.name, kind, axes))
        graph = helper.make_graph(self._nodes, "call", self._inputs, results, self._constants)
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(domain, 1) for domain in sorted(self._domains - {""})]
        version = helper.find_min_ir_version_for([opsets[0]])
        model = helper.make_model(graph, opset_imports=opsets, ir_version=version)
        return bytes(model.SerializeToString(deterministic=True))


class Symbol(NDArrayOperatorsMixin):
    """The name of an array in a graph, with the operations of arrays.

    Numbers and NumPy arrays in an operation become constants. `shape` is known for inputs and for most
    results.
    """

    def __init__(
        self, graph: Graph, name: str, dtype: Any, shape: Callable[[], Shape] | None = None
    ) -> None:
        self.graph, self.name, self.dtype, self._shape = graph, name, np.dtype(dtype), shape

    @cached_property
    def shape(self) -> Shape:
        """The shape that the array had when the graph was recorded.

        Raises TypeError if the shape is unknown, ValueError if shapes do not fit.
        """
        if self._shape is None:
            raise TypeError(f"the shape of {self.name} is not known")
        return self._shape()

    @property
    def rank(self) -> int | None:
        """The number of axes; None if the shape is unknown or invalid. The runtime reports invalid
        shapes."""
        with suppress(TypeError, ValueError):
            return len(self.shape)
        return None

    def as_symbol(self, value: Any) -> Symbol:
        """Returns a symbol unchanged. A number or array becomes a constant; a number has this symbol's
        dtype."""
        if isinstance(value, Symbol):
            return value
        return self.graph.constant(value, None if isinstance(value, np.ndarray) else self.dtype)

    def node_of_same_shape(self, kind: str, *inputs: Any, **attributes: Any) -> Symbol:
        """Record a node whose output has this symbol's shape and dtype. Its inputs are this symbol and
        `inputs`. Returns the output."""
        symbols = [self.as_symbol(value) for value in inputs]
        return self.graph.add(kind, self, *symbols, shape=lambda: self.shape, **attributes)

    def __array_ufunc__(self, ufunc: Any, method: str, first: Any, second: Any) -> Symbol:
        a, b = self.as_symbol(first), self.as_symbol(second)

        def shape() -> Shape:
            if ufunc is not np.matmul:
                return np.broadcast_shapes(a.shape, b.shape)
            if a.shape[-1] != b.shape[-2]:
                raise ValueError(f"a product of {a.shape} and {b.shape}")
            return (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])

        dtype = bool if ufunc is np.equal else None
        return self.graph.add(NODES[ufunc], a, b, shape=shape, dtype=dtype)

    __hash__ = object.__hash__

    def __getitem__(self, index: Any) -> Symbol:
        """Slice or index axes. An ellipsis at the front leaves the first axes whole."""
        parts = index if isinstance(index, tuple) else (index,)
        rank = len(self.shape)
        first = rank - len(parts) + 1 if parts[0] is Ellipsis else 0
        parts = parts[1:] if parts[0] is Ellipsis else parts
        out, dropped = self, []
        for axis, part in enumerate(parts, first):
            if not isinstance(part, slice):
                dropped.append(axis)
                part = slice(part, part + 1)
            out = out._sliced(axis, part)
        if not dropped:
            return out
        sizes = tuple(n for axis, n in enumerate(out.shape) if axis not in dropped)
        return out.reshape(sizes)

    def _sliced(self, axis: int, part: slice) -> Symbol:
        start, stop, step = part.indices(self.shape[axis])
        if (start, stop, step) == (0, self.shape[axis], 1):
            return self
        bounds = [self.graph.constant([n], np.int64) for n in (start, stop, axis, step)]
        shape = list(self.shape)
        shape[axis] = len(range(start, stop, step))
        return self.graph.add("Slice", self, *bounds, shape=lambda: tuple(shape))

    def reshape(self, shape: Sequence[int]) -> Symbol:
        """Returns the reshaped array; one size may be -1. Raises ValueError if the shape does not fit."""
        count = int(np.prod(self.shape))
        product = int(np.prod([n for n in shape if n != -1]))
        sizes = tuple(count // product if n == -1 else n for n in shape)
        if int(np.prod(sizes)) != count:
            raise ValueError(f"{self.shape} has no shape {tuple(shape)}")
        target = self.graph.constant(sizes, np.int64)
        # Without allowzero a size of 0 means the input's size.
        return self.graph.add("Reshape", self, target, shape=lambda: sizes, allowzero=1)

    def transpose(self, axes: Sequence[int]) -> Symbol:
        """Returns the array with permuted axes."""
        return self.graph.add(
            "Transpose",
            self,
            shape=lambda: tuple(self.shape[axis] for axis in axes),
            perm=list(axes),
        )

    def reduced(self, kind: str, axis: int) -> Symbol:
        """Returns a reduction that removes one axis."""
        axes = self.graph.constant([axis], np.int64)

        def shape() -> Shape:
            return tuple(n for place, n in enumerate(self.shape) if place != axis % len(self.shape))

        return self.graph.add(kind, self, axes, shape=shape, keepdims=0)

    def expanded(self, shape: Sequence[int]) -> Symbol:
        """Returns the array, broadcast to a shape."""
        sizes = tuple(shape)
        target = self.graph.constant(sizes, np.int64)
        return self.graph.add("Expand", self, target, shape=lambda: sizes)

    def repeated(self, times: int, axis: int) -> Symbol:
        """Returns the array with every slice along an axis repeated `times` times, as `numpy.repeat`."""
        order = np.repeat(np.arange(self.shape[axis]), times)
        indices = self.graph.constant(order, np.int64)
        shape = list(self.shape)
        shape[axis] *= times
        return self.graph.add("Gather", self, indices, shape=lambda: tuple(shape), axis=axis)

    def cast(self, dtype: Any) -> Symbol:
        """Returns the array, cast to a NumPy dtype."""
        to = self.graph._helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return self.graph.add("Cast", self, shape=lambda: self.shape, dtype=dtype, to=to)

    def where(self, condition: Symbol, other: Any) -> Symbol:
        """Returns this array where the condition is true, `other` where it is false."""
        symbol = self.as_symbol(other)

        def shape() -> Shape:
            return np.broadcast_shapes(condition.shape, self.shape, symbol.shape)

        return self.graph.add("Where", condition, self, symbol, shape=shape, dtype=self.dtype)


def concatenated(symbols: Sequence[Symbol], axis: int) -> Symbol:
    """Returns the symbols, concatenated along an axis."""
    first = symbols[0]

    def shape() -> Shape:
        sizes = list(first.shape)
        sizes[axis] = sum(symbol.shape[axis] for symbol in symbols)
        return tuple(sizes)

    return first.graph.add("Concat", *symbols, shape=shape, axis=axis)


class RecordedModel:
    """The model of `function`, which returns a symbol, or a tuple of symbols and None.

    `function` gets a symbol for every array, and all other arguments unchanged.
    """

    def __init__(
        self, function: Callable[..., Any], arrays: Mapping[str, Any], opset: int = OPSET
    ) -> None:
        graph = Graph(opset)
        symbols = {
            name: graph.input(name, array) if isinstance(array, np.ndarray) else array
            for name, array in arrays.items()
        }
        answer = function(**symbols)
        self.single = not isinstance(answer, tuple)
        outputs = (answer,) if self.single else answer
        self.is_present = [output is not None for output in outputs]
        self.model = graph.model([output for output in outputs if output is not None])

    def answer(self, values: Sequence[Any]) -> Any:
        """Returns the outputs of the model, in the structure that the function returns."""
        outputs = iter(values)
        answer = tuple(next(outputs) if present else None for present in self.is_present)
        return answer[0] if self.single else answer
