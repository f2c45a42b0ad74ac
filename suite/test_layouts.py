"""Promise: the memory layout of an operand has no influence.

Each operand alone has every non-contiguous arrangement; the other operands are contiguous. A gap lies
along one axis at a time, so that a stride that is worked out from the shape, or from another stride, is
wrong in one of the arrangements. The memory in the gaps stays as it was. Lengths are tails around
blocks of 32 (31, 33, 65), where kernels may read out of bounds, and 1, where strides have no meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attention_conformance.backends.memory import EXPANDED, INNER
from attention_conformance.backends.protocol import PreparedCall
from attention_conformance.suite.judge.answer import swap_heads_and_length
from attention_conformance.suite.judge.arguments import require_unchanged
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.derivative import differentiable_call, judge_gradients, vjp
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.catalogue import (
    Ask,
    cases_of,
    paged_patterns,
    plain_patterns,
    with_plain_cases,
)
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.paged_cases import PLAIN as PAGED
from attention_conformance.suite.spec.operators.paged_write import PLAIN as WRITTEN
from attention_conformance.suite.spec.vocabulary import ARRANGEMENTS, OPERANDS

MASK_ARRANGEMENTS = ("negative", "expanded-rows")
"""Arrangements that only masks and biases are tested in. A wrong row of equal queries or keys would not
show."""

NOT_OUTER = ("contiguous", "scalar", *INNER, *MASK_ARRANGEMENTS)
OUTER = tuple(layout for layout in ARRANGEMENTS if layout not in NOT_OUTER)
"""Arrangements with adjacent components: windows, and strides of 0 or of axes of size 1."""

HEAD_ARRANGEMENTS = ("expanded-heads", "more-heads", "fused", "fused-heads")
"""Arrangements of operands with an axis of heads."""

INDEX_ARRANGEMENTS = {
    "page_table": ("offset", "inner-stride"),
    "key_lengths": ("inner-stride",),
    "query_offsets": ("inner-stride",),
    "slot_mapping": ("inner-stride",),
}
"""Operands of whole numbers that say where tokens lie, with their arrangements. The gaps hold zeros."""

CASES = with_plain_cases(
    "sdpa/none/mha/{dt}/b2h3q33k65d8",
    "sdpa/bool.bhqk/mha/{dt}/b2h3q31k33d16/dense",
    "sdpa/bool.b1qk/mqa/{dt}/b1h2q1k65d8/dense",
    PAGED.format(dt="f32"),
    WRITTEN.format(dt="f32"),
    *plain_patterns("multi-head", "additive", "dot", "rotary"),
    Ask(*paged_patterns(), dtypes="growing", since="standard"),
)
MASKED = cases_of(
    "sdpa/bool.bhqk/mha/{dt}/b2h3q31k33d16/dense",
    "sdpa/bool.b1qk/mqa/{dt}/b1h2q1k65d8/dense",
    "sdpa/none/mha/{dt}/b2h3q31k33d16/bias.bhqk",
    Ask("sdpa/bool.b1qk/gqa4/{dt}/b2h8q16k64d64/dense", dtypes="growing", since="standard"),
)
DIFFERENTIATED = with_plain_cases(
    "sdpa/bool.bhqk/mha/{dt}/b2h2q7k33d8/dense",
    "sdpa/none/mha/{dt}/b2h2q7k33d8/bias.bhqk",
    *plain_patterns("multi-head"),
)


def with_equal_slices(inputs: Inputs, operand: str, layout: str) -> Inputs:
    """Returns the inputs with values of the operand that fit the layout `layout`: if an axis has stride
    0, all slices along this axis are equal."""
    if layout not in EXPANDED:
        return inputs
    array = inputs.dense_mask if operand == "mask" else inputs.arrays[operand]
    assert array is not None
    (axis,) = EXPANDED[layout]
    equal_slices = np.broadcast_to(array.take([0], axis), array.shape)
    if operand == "mask":
        return inputs.with_dense(mask_array=equal_slices)
    names = OPERANDS if inputs.self_attention else [operand]
    return inputs.replace(**dict.fromkeys(names, equal_slices))


def operands_to_arrange(inputs: Inputs) -> tuple[str, ...]:
    """Returns the names of the arrays that are tested in other layouts: operands, and codes of keys,
    values and latents. In self-attention only the first operand, because query, key and value are one
    tensor."""
    if inputs.self_attention:
        return inputs.operands[:1]
    codes = [name for name in inputs.arrays if name.endswith("_codes")]
    return (*inputs.operands, *codes)


def index_operands(cell: Cell) -> tuple[str, ...]:
    """Returns the names in `INDEX_ARRANGEMENTS` that the call takes."""
    prepared = cell.prepare(cell.inputs)
    return tuple(n for n in INDEX_ARRANGEMENTS if prepared.argument(n) in prepared.arguments)


def arranged_call(
    cell: Cell, inputs: Inputs, operand: str, layout: str
) -> tuple[PreparedCall, Any]:
    """Returns two values: the call for `inputs` with one operand in the memory layout `layout`, and the
    larger array that contains the operand and the gaps.

    Raises NotApplicable if the call does not take the operand as an array.
    """
    backend = cell.implementation.backend
    prepared = cell.prepare(inputs)
    argument = prepared.argument(operand)
    if prepared.arguments.get(argument) is None:
        raise NotApplicable(f"the call takes no {operand} as an array")
    values = backend.to_numpy(prepared.arguments[argument])
    is_discrete = operand in INDEX_ARRANGEMENTS or values.dtype.kind == "b"
    dtype = None if is_discrete else inputs.case.dtype_of(operand)
    swaps_axes = prepared.axis_order == "blhd" and operand in OPERANDS
    array, storage = backend.arranged_and_base(
        swap_heads_and_length(values, prepared) if swaps_axes else values, dtype, layout
    )
    array = backend.transpose(array, 0, 2, 1, 3) if swaps_axes else array
    return replace(prepared, arguments=prepared.with_operands({operand: array})), storage


class ArrangedCall(NamedTuple):
    """A call with one operand in an arrangement; the array `storage` contains operand and gaps."""

    operand: str
    layout: str
    inputs: Inputs
    prepared: PreparedCall
    storage: Any


def arrangements(
    cell: Cell, operands: tuple[str, ...], kinds: tuple[str, ...]
) -> Iterator[ArrangedCall]:
    """Yields the calls with each operand in each arrangement of `kinds`."""
    for operand in operands:
        for layout in kinds:
            if layout in HEAD_ARRANGEMENTS and cell.inputs.operator.is_layer:
                continue
            if layout not in INDEX_ARRANGEMENTS.get(operand, kinds):
                continue
            inputs = with_equal_slices(cell.inputs, operand, layout)
            yield ArrangedCall(
                operand, layout, inputs, *arranged_call(cell, inputs, operand, layout)
            )


@contextmanager
def expect_gaps_unchanged(cell: Cell, operand: str, layout: str, storage: Any) -> Iterator[None]:
    """A context for a call with an operand in the layout `layout`. Raises WrongAnswer "mutated-input" if
    the array `storage` has changed. Every WrongAnswer names operand and layout."""
    try:
        with require_unchanged(
            cell.implementation.backend, {"the memory around it": storage}, "the call"
        ):
            yield
    except WrongAnswer as deviation:
        message = f"{operand} laid out {layout}: {deviation.message}"
        raise WrongAnswer(deviation.kind, message, where=(operand, layout)) from deviation


def expect_in_every_layout(cell: Cell, operands: tuple[str, ...], kinds: tuple[str, ...]) -> None:
    """Judge the outputs for each operand in each arrangement of `kinds`. Outputs with the same bits are
    judged once. Raises WrongAnswer."""
    right_arrays: Mapping[str, np.ndarray] = {}
    for operand, layout, inputs, prepared, storage in arrangements(cell, operands, kinds):
        with expect_gaps_unchanged(cell, operand, layout, storage):
            answer = cell.read(cell.call(prepared), inputs, prepared)
            if inputs is cell.inputs and have_same_bits(answer.arrays, right_arrays):
                continue
            cell.judge(answer, inputs)
            if inputs is cell.inputs:
                right_arrays = answer.arrays


def have_same_bits(got: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> bool:
    """True if two answers have the same outputs, bit by bit."""
    return got.keys() == right.keys() and all(
        values.tobytes() == right[name].tobytes() for name, values in got.items()
    )


@check(CASES, needs=("strides", "strided-operands"))
def test_layouts(cell: Cell) -> None:
    """Query, key and value from larger arrays, with stride 0 along samples or heads (pytorch#191937), and
    with odd strides of axes of size 1 (pytorch#116333); page tables from larger arrays."""
    expect_in_every_layout(cell, operands_to_arrange(cell.inputs) + index_operands(cell), OUTER)


@check(CASES, needs=("strides", "strided-operands", "inner-stride"))
def test_inner_layouts(cell: Cell) -> None:
    """Query, key and value with components that are not adjacent (pytorch#187506, ROCm#3230), and
    lengths, slots and page tables whose numbers are not."""
    expect_in_every_layout(cell, operands_to_arrange(cell.inputs) + index_operands(cell), INNER)


@check(CASES, needs=("strides", "strided-operands", "negative-views"))
def test_negative_layouts(cell: Cell) -> None:
    """Query, key and value by negative strides, or by a view that exchanges signs (PyTorch)."""
    expect_in_every_layout(cell, operands_to_arrange(cell.inputs), ("negative",))


def mask_or_bias(cell: Cell) -> tuple[str]:
    """Returns ("bias",) if the case has a bias, else ("mask",)."""
    return ("mask",) if cell.inputs.bias is None else ("bias",)


@check(MASKED, needs=("strides",))
def test_mask_layouts(cell: Cell) -> None:
    """A boolean mask or bias from larger arrays, by negative views, and with strides of 0."""
    expect_in_every_layout(cell, mask_or_bias(cell), (*OUTER, *MASK_ARRANGEMENTS))


@check(MASKED, needs=("strides",))
def test_inner_mask_layouts(cell: Cell) -> None:
    """A boolean mask or bias whose entries in a row are not adjacent.

    Also for implementations without "inner-stride", which is about queries, keys and values.
    """
    expect_in_every_layout(cell, mask_or_bias(cell), INNER)


def expect_gradients_in_every_layout(cell: Cell, kinds: tuple[str, ...]) -> None:
    """Judge the gradients of all operands for each operand in each arrangement of `kinds`. Raises
    WrongAnswer."""
    _, names = differentiable_call(cell)
    operands = tuple(n for n in (*operands_to_arrange(cell.inputs), "bias") if n in names)
    for operand, layout, inputs, prepared, storage in arrangements(cell, operands, kinds):
        with expect_gaps_unchanged(cell, operand, layout, storage):
            _, gradients = vjp(cell, inputs, operands, prepared=prepared)
            judge_gradients(cell, gradients, inputs)


@check(DIFFERENTIATED, ("gradient", "strides", "strided-operands"))
def test_gradient_layouts(cell: Cell) -> None:
    """Gradients for operands from larger arrays and with strides of 0."""
    expect_gradients_in_every_layout(cell, OUTER)


@check(DIFFERENTIATED, ("gradient", "strides", "strided-operands", "inner-stride"))
def test_inner_gradient_layouts(cell: Cell) -> None:
    """Gradients for operands with components that are not adjacent."""
    expect_gradients_in_every_layout(cell, INNER)


EQUAL_LENGTH_CASES = (
    "sdpa/causal/mha/{dt}/b2h3q16k16d16",
    "sdpa/none/mha/{dt}/b2h2q9k9d256",  # kernels choose a path by D
    "sdpa/causal/mha/{dt}/b2h2q9k9d128",
    "sdpa/none/gqa2/{dt}/b2h4q7k7d8",
    "sdpa/causal/gqa4/{dt}/b2h8q16k16d128",
    "multi-head/none/mha/{dt}/b2h4q7k7d3/e12.12.12.12",
    *plain_patterns("packed"),
)
"""Cases with as many keys as queries."""


def operands_in_one_array(inputs: Inputs) -> Iterator[tuple[str, np.ndarray, list[np.ndarray]]]:
    """Yields layouts of query, key and value in one array: the name of the layout, the array, and the
    three views (B, L, H, D). The first two layouts need as many keys as queries."""

    def with_heads(array: np.ndarray) -> np.ndarray:
        """Returns the operand as (B, L, H, D)."""
        if inputs.operator.packing is not None:
            return array[None]
        return array[:, :, None] if array.ndim == 3 else array.swapaxes(1, 2)

    arrays = [with_heads(inputs.arrays[name]) for name in OPERANDS]
    B, L = arrays[0].shape[:2]
    if len({array.shape[1] for array in arrays}) == 1:
        ends = np.cumsum([0, *(array[0, 0].size for array in arrays)])
        rows = np.concatenate([array.reshape(B, L, -1) for array in arrays], -1)
        yield (
            "(B, L, 3 H D)",
            rows,
            [
                rows[:, :, start:stop].reshape(array.shape)
                for start, stop, array in zip(ends[:-1], ends[1:], arrays, strict=True)
            ],
        )
        if len({array.shape[2] for array in arrays}) == 1 < arrays[0].shape[2]:
            heads = np.ascontiguousarray(np.concatenate(arrays, -1))
            edges = np.cumsum([array.shape[-1] for array in arrays])[:-1]
            yield "(B, L, H, 3 D)", heads, np.split(heads, edges, -1)
    flat = np.concatenate([array.ravel() for array in arrays])
    thirds = np.split(flat, np.cumsum([array.size for array in arrays])[:-1])
    shaped = (part.reshape(array.shape) for part, array in zip(thirds, arrays, strict=True))
    yield "(3, B, L, H D)", flat, list(shaped)


def call_on_one_array(
    cell: Cell, prepared: PreparedCall, array: np.ndarray, views: list[np.ndarray]
) -> tuple[PreparedCall, Any]:
    """Returns two values: the call whose query, key and value are `views` (B, L, H, D) of `array`, and
    this array in the framework."""
    inputs, backend = cell.inputs, cell.implementation.backend
    storage = backend.array(array.ravel(), inputs.dtype)
    windows = []
    for name, view in zip(OPERANDS, views, strict=True):
        packed, ndim = inputs.operator.packing is not None, inputs.arrays[name].ndim
        ordered = view if prepared.axis_order == "blhd" else view.swapaxes(1, 2)
        window = view[0] if packed else view[:, :, 0] if ndim == 3 else ordered
        windows.append(backend.window(storage, array, window))
    operands = prepared.with_operands(dict(zip(OPERANDS, windows, strict=True)))
    return replace(prepared, arguments=operands), storage


ONE_ARRAY_CASES = cases_of(
    Ask(*EQUAL_LENGTH_CASES[:2], dtypes="growing"),
    Ask(*EQUAL_LENGTH_CASES[2:], dtypes="growing", since="standard"),
)


@check(ONE_ARRAY_CASES, needs=("strides", "strided-operands"))
def test_fused_operands(cell: Cell) -> None:
    """Query, key and value as views of one array, as a fused projection gives them."""
    original = cell.prepare(cell.inputs)
    for layout, array, views in operands_in_one_array(cell.inputs):
        prepared, storage = call_on_one_array(cell, original, array, views)
        with expect_gaps_unchanged(cell, "query, key and value", f"in one array {layout}", storage):
            cell.judge(cell.read(cell.call(prepared), cell.inputs, prepared))


@check(ONE_ARRAY_CASES, ("gradient", "strides", "strided-operands"))
def test_fused_gradients(cell: Cell) -> None:
    """Gradients of query, key and value that are views of one array."""
    original, _ = differentiable_call(cell)
    for layout, array, views in operands_in_one_array(cell.inputs):
        prepared, storage = call_on_one_array(cell, original, array, views)
        with expect_gaps_unchanged(cell, "query, key and value", f"in one array {layout}", storage):
            _, gradients = vjp(cell, wrt=OPERANDS, prepared=prepared)
            judge_gradients(cell, gradients)
