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
from attention_conformance.suite.judge.arguments import unchanged
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.derivative import asked_of, judge_gradients, vjp
from attention_conformance.suite.judge.verdict import Deviation, NotApplicable
from attention_conformance.suite.spec.catalogue import Ask, asked, in_pages, plain, with_plain
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.paged import PLAIN as PAGED
from attention_conformance.suite.spec.operators.paged_write import PLAIN as WRITTEN
from attention_conformance.suite.spec.vocabulary import ARRANGEMENTS, OPERANDS

OF_MASKS = ("negative", "expanded-rows")
"""Arrangements that masks and biases have besides. Equal queries or keys would hide which row is read."""

OUTER = tuple(how for how in ARRANGEMENTS if how not in ("contiguous", "scalar", *INNER, *OF_MASKS))
"""Arrangements with adjacent components: windows, and strides of 0 or of axes of size 1."""

HEADED = ("expanded-heads", "more-heads", "fused", "fused-heads")
"""Arrangements of operands with an axis of heads."""

NUMBERS = {
    "page_table": ("offset", "inner-stride"),
    "key_lengths": ("inner-stride",),
    "query_offsets": ("inner-stride",),
    "slot_mapping": ("inner-stride",),
}
"""Whole numbers that say where tokens lie, and their arrangements. Between them lie zeros."""

CASES = with_plain(
    "sdpa/none/mha/{dt}/b2h3q33k65d8",
    "sdpa/bool.bhqk/mha/{dt}/b2h3q31k33d16/dense",
    "sdpa/bool.b1qk/mqa/{dt}/b1h2q1k65d8/dense",
    PAGED.format(dt="f32"),
    WRITTEN.format(dt="f32"),
    *plain("multi-head", "additive", "dot", "rotary"),
    Ask(*in_pages(), dtypes="growing", since="standard"),
)
MASKED = asked(
    "sdpa/bool.bhqk/mha/{dt}/b2h3q31k33d16/dense",
    "sdpa/bool.b1qk/mqa/{dt}/b1h2q1k65d8/dense",
    "sdpa/none/mha/{dt}/b2h3q31k33d16/bias.bhqk",
)
DIFFERENTIATED = with_plain(
    "sdpa/bool.bhqk/mha/{dt}/b2h2q7k33d8/dense",
    "sdpa/none/mha/{dt}/b2h2q7k33d8/bias.bhqk",
    *plain("multi-head"),
)


def collapsed(inputs: Inputs, operand: str, how: str) -> Inputs:
    """The inputs with equal slices of the operand along the axis that gets stride 0."""
    if how not in EXPANDED:
        return inputs
    array = inputs.dense_mask if operand == "mask" else inputs.arrays[operand]
    assert array is not None
    (axis,) = EXPANDED[how]
    alike = np.broadcast_to(array.take([0], axis), array.shape)
    if operand == "mask":
        return inputs.with_dense(mask_array=alike)
    return inputs.replace(**dict.fromkeys(OPERANDS if inputs.self_attention else [operand], alike))


def laid_out_operands(inputs: Inputs) -> tuple[str, ...]:
    """The operands, and codes of keys, values and latents; only the first one if query, key and value are
    one tensor."""
    if inputs.self_attention:
        return inputs.operands[:1]
    codes = [name for name in inputs.arrays if name.endswith("_codes")]
    return (*inputs.operands, *codes)


def whole_numbers(cell: Cell) -> tuple[str, ...]:
    """Those of `NUMBERS` that the call takes."""
    prepared = cell.prepare(cell.inputs)
    return tuple(name for name in NUMBERS if prepared.argument(name) in prepared.arguments)


def laid_out(cell: Cell, inputs: Inputs, operand: str, how: str) -> tuple[PreparedCall, Any]:
    """The call for `inputs` with one operand in the memory layout `how`, and the array that holds the
    operand.

    Raises NotApplicable if the call does not take the operand as an array.
    """
    backend = cell.implementation.backend
    prepared = cell.prepare(inputs)
    argument = prepared.argument(operand)
    if prepared.arguments.get(argument) is None:
        raise NotApplicable(f"the call takes no {operand} as an array")
    values = backend.to_numpy(prepared.arguments[argument])
    whole = operand in NUMBERS or values.dtype.kind == "b"
    dtype = None if whole else inputs.case.dtype_of(operand)
    heads = prepared.axis_order == "blhd" and operand in OPERANDS
    array, around = backend.memory.within(
        swap_heads_and_length(values, prepared) if heads else values, dtype, how
    )
    array = backend.memory.transpose(array, 0, 2, 1, 3) if heads else array
    return replace(prepared, arguments=prepared.with_operands({operand: array})), around


class Arranged(NamedTuple):
    """The call for inputs with one operand in an arrangement, and the array that holds the operand."""

    operand: str
    how: str
    inputs: Inputs
    prepared: PreparedCall
    whole: Any


def arrangements(
    cell: Cell, operands: tuple[str, ...], kinds: tuple[str, ...]
) -> Iterator[Arranged]:
    """Each operand in each arrangement."""
    for operand in operands:
        for how in kinds:
            if how in HEADED and cell.inputs.operator.is_layer:
                continue
            if how not in NUMBERS.get(operand, kinds):
                continue
            inputs = collapsed(cell.inputs, operand, how)
            yield Arranged(operand, how, inputs, *laid_out(cell, inputs, operand, how))


@contextmanager
def naming(cell: Cell, operand: str, how: str, whole: Any) -> Iterator[None]:
    """A context that adds operand and layout to deviations. The array `whole` must not change."""
    try:
        with unchanged(cell.implementation.backend, {"the memory around it": whole}, "the call"):
            yield
    except Deviation as deviation:
        message = f"{operand} laid out {how}: {deviation.message}"
        raise Deviation(deviation.kind, message, where=(operand, how)) from deviation


def expect_in_every_layout(cell: Cell, operands: tuple[str, ...], kinds: tuple[str, ...]) -> None:
    """Judge the output of every arrangement. An output with the bits of a right one is right."""
    right: Mapping[str, np.ndarray] = {}
    for operand, how, inputs, prepared, whole in arrangements(cell, operands, kinds):
        with naming(cell, operand, how, whole):
            answer = cell.read(cell.call(prepared), inputs, prepared)
            if inputs is cell.inputs and same_bits(answer.arrays, right):
                continue
            cell.judge(answer, inputs)
            if inputs is cell.inputs:
                right = answer.arrays


def same_bits(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    """True if two answers have the same arrays."""
    return one.keys() == other.keys() and all(
        values.tobytes() == other[name].tobytes() for name, values in one.items()
    )


@check(CASES, needs=("strides", "strided-operands"))
def test_layouts(cell: Cell) -> None:
    """Query, key and value from larger arrays, with stride 0 along samples or heads (pytorch#191937),
    and with odd strides of axes of size 1 (pytorch#116333). Page tables from larger ones."""
    expect_in_every_layout(cell, laid_out_operands(cell.inputs) + whole_numbers(cell), OUTER)


@check(CASES, needs=("strides", "strided-operands", "inner-stride"))
def test_inner_layouts(cell: Cell) -> None:
    """Query, key and value with components that are not adjacent (pytorch#187506, ROCm#3230), and
    lengths, slots and page tables whose numbers are not."""
    expect_in_every_layout(cell, laid_out_operands(cell.inputs) + whole_numbers(cell), INNER)


@check(CASES, needs=("strides", "strided-operands", "negative-views"))
def test_negative_layouts(cell: Cell) -> None:
    """Query, key and value by negative strides, or by a view that exchanges signs (PyTorch)."""
    expect_in_every_layout(cell, laid_out_operands(cell.inputs), ("negative",))


def added(cell: Cell) -> tuple[str]:
    """The mask or bias of the case."""
    return ("mask",) if cell.inputs.bias is None else ("bias",)


@check(MASKED, needs=("strides",))
def test_mask_layouts(cell: Cell) -> None:
    """A boolean mask or bias from larger arrays, by negative views, and with strides of 0."""
    expect_in_every_layout(cell, added(cell), (*OUTER, *OF_MASKS))


@check(MASKED, needs=("strides",))
def test_inner_mask_layouts(cell: Cell) -> None:
    """A boolean mask or bias whose entries in a row are not adjacent.

    Also for implementations without "inner-stride", which is about queries, keys and values.
    """
    expect_in_every_layout(cell, added(cell), INNER)


def expect_gradients_in_every_layout(cell: Cell, kinds: tuple[str, ...]) -> None:
    """Judge the gradients of all operands, for every arrangement of each operand."""
    _, names = asked_of(cell)
    operands = tuple(n for n in (*laid_out_operands(cell.inputs), "bias") if n in names)
    for operand, how, inputs, prepared, whole in arrangements(cell, operands, kinds):
        with naming(cell, operand, how, whole):
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


ONE_PROJECTION = (
    "sdpa/causal/mha/{dt}/b2h3q16k16d16",
    "sdpa/none/mha/{dt}/b2h2q9k9d256",  # kernels choose a path by D
    "sdpa/causal/mha/{dt}/b2h2q9k9d128",
    "sdpa/none/gqa2/{dt}/b2h4q7k7d8",
    "multi-head/none/mha/{dt}/b2h4q7k7d3/e12.12.12.12",
    *plain("packed"),
)
"""Cases with as many keys as queries."""


def parts_of_one(inputs: Inputs) -> Iterator[tuple[str, np.ndarray, list[np.ndarray]]]:
    """Layouts of query, key and value in one array: name, array, and the three views (B, L, H, D). Rows
    are shared only if there are as many queries as keys."""

    def headed(array: np.ndarray) -> np.ndarray:
        if inputs.operator.packing is not None:
            return array[None]
        return array[:, :, None] if array.ndim == 3 else array.swapaxes(1, 2)

    arrays = [headed(inputs.arrays[name]) for name in OPERANDS]
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


def in_one_array(
    cell: Cell, prepared: PreparedCall, array: np.ndarray, views: list[np.ndarray]
) -> tuple[PreparedCall, Any]:
    """The call with views of one array as query, key and value, and the array."""
    inputs, memory = cell.inputs, cell.implementation.backend.memory
    whole = cell.implementation.backend.array(array.ravel(), inputs.dtype)
    windows = []
    for name, headed in zip(OPERANDS, views, strict=True):
        packed, ndim = inputs.operator.packing is not None, inputs.arrays[name].ndim
        turned = headed if prepared.axis_order == "blhd" else headed.swapaxes(1, 2)
        window = headed[0] if packed else headed[:, :, 0] if ndim == 3 else turned
        windows.append(memory.window(whole, array, window))
    operands = prepared.with_operands(dict(zip(OPERANDS, windows, strict=True)))
    return replace(prepared, arguments=operands), whole


OF_ONE_ARRAY = asked(
    Ask(*ONE_PROJECTION[:2], dtypes="growing"),
    Ask(*ONE_PROJECTION[2:], dtypes="growing", since="standard"),
)


@check(OF_ONE_ARRAY, needs=("strides", "strided-operands"))
def test_fused_operands(cell: Cell) -> None:
    """Query, key and value as views of one array, as a fused projection gives them."""
    plain = cell.prepare(cell.inputs)
    for how, array, views in parts_of_one(cell.inputs):
        prepared, whole = in_one_array(cell, plain, array, views)
        with naming(cell, "query, key and value", f"in one array {how}", whole):
            cell.judge(cell.read(cell.call(prepared), cell.inputs, prepared))


@check(OF_ONE_ARRAY, ("gradient", "strides", "strided-operands"))
def test_fused_gradients(cell: Cell) -> None:
    """Gradients of query, key and value that are views of one array."""
    plain, _ = asked_of(cell)
    for how, array, views in parts_of_one(cell.inputs):
        prepared, whole = in_one_array(cell, plain, array, views)
        with naming(cell, "query, key and value", f"in one array {how}", whole):
            _, gradients = vjp(cell, wrt=OPERANDS, prepared=prepared)
            judge_gradients(cell, gradients)
