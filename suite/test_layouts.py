"""Promise: where an operand lies in memory has no meaning: each one alone in every arrangement that is
not contiguous, the others contiguous.

Lengths are tails around blocks of 32 (31, 33, 65), where kernels read past what is theirs, and axes of
size 1, whose strides mean nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from backends.memory import EXPANDED, INNER
from backends.protocol import PreparedCall
from suite.judge.answer import swap_heads_and_length
from suite.judge.cell import Cell
from suite.judge.check import check
from suite.judge.derivative import asked_of, judge_gradients, vjp
from suite.judge.verdict import Deviation, NotApplicable
from suite.spec.catalogue import asked, with_plain
from suite.spec.inputs import Inputs, dtype_of
from suite.spec.vocabulary import ARRANGEMENTS, OPERANDS

OUTER = tuple(how for how in ARRANGEMENTS if how not in ("contiguous", "scalar", *INNER))
"""Arrangements in which components lie side by side: a window, and strides of 0 or of axes of size 1."""

CASES = with_plain(
    "sdpa/none/mha/{dt}/b2h3q33k65d8",
    "sdpa/bool.bhqk/mha/{dt}/b2h3q31k33d16/dense",
    "sdpa/bool.b1qk/mqa/{dt}/b1h2q1k65d8/dense",
    "multi-head/none/mha/{dt}/b2h3q5k9d4/e12.12.12.12",
    "additive/none/mha/{dt}/b2h1q5k9d16v14/e12.10.14.14",
    "dot/none/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",
    "rotary/none/mha/{dt}/b2h3q17k1d16",
)
MASKED = asked(
    "sdpa/bool.bhqk/mha/{dt}/b2h3q31k33d16/dense",
    "sdpa/bool.b1qk/mqa/{dt}/b1h2q1k65d8/dense",
    "sdpa/none/mha/{dt}/b2h3q31k33d16/bias.bhqk",
)
DIFFERENTIATED = with_plain(
    "sdpa/bool.bhqk/mha/{dt}/b2h2q7k33d8/dense",
    "sdpa/none/mha/{dt}/b2h2q7k33d8/bias.bhqk",
    "multi-head/none/mha/{dt}/b2h3q5k9d4/e12.12.12.12",
)


def collapsed(inputs: Inputs, operand: str, how: str) -> Inputs:
    """The inputs with the operand's slices made equal along the axis in which they shall be one."""
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
    """The operands, the first alone where query, key and value are one tensor."""
    return inputs.operands[:1] if inputs.self_attention else inputs.operands


def laid_out(cell: Cell, inputs: Inputs, operand: str, how: str) -> PreparedCall:
    """The call for `inputs` with one operand in memory as `how` says.

    Raises NotApplicable where the call is not given the operand as an array.
    """
    backend = cell.implementation.backend
    prepared = cell.prepare(inputs)
    argument = prepared.argument(operand)
    if prepared.arguments.get(argument) is None:
        raise NotApplicable(f"the call is given no {operand} as an array")
    values = backend.to_numpy(prepared.arguments[argument])
    dtype = None if operand == "mask" else dtype_of(operand, inputs.case)
    heads = prepared.axis_order == "blhd" and operand in OPERANDS
    array = backend.arranged(
        swap_heads_and_length(values, prepared) if heads else values, dtype, how
    )
    array = backend.transpose(array, 0, 2, 1, 3) if heads else array
    return replace(prepared, arguments=prepared.with_operands({operand: array}))


def arrangements(
    cell: Cell, operands: tuple[str, ...], kinds: tuple[str, ...]
) -> Iterator[tuple[str, str, Inputs, PreparedCall]]:
    """Operand, arrangement, inputs and call for each operand alone in each of the arrangements."""
    for operand in operands:
        for how in kinds:
            if how == "expanded-heads" and cell.inputs.operator.is_layer:
                continue  # its operands have no axis of heads
            inputs = collapsed(cell.inputs, operand, how)
            yield operand, how, inputs, laid_out(cell, inputs, operand, how)


@contextmanager
def naming(operand: str, how: str) -> Iterator[None]:
    """A context whose deviations say which operand lay where."""
    try:
        yield
    except Deviation as deviation:
        message = f"{operand} laid out {how}: {deviation.message}"
        raise Deviation(deviation.kind, message) from deviation


def expect_in_every_layout(cell: Cell, operands: tuple[str, ...], kinds: tuple[str, ...]) -> None:
    """Judge the answer to every arrangement against the oracle."""
    for operand, how, inputs, prepared in arrangements(cell, operands, kinds):
        with naming(operand, how):
            cell.judge(cell.read(cell.call(prepared), inputs, prepared), inputs)


@check(CASES, needs=("strides", "strided-operands"))
def test_layouts(cell: Cell) -> None:
    """Query, key and value out of a larger array, with stride 0 along the first and the second axis,
    attention's samples and heads (pytorch#191937), and with the odd strides of axes of size 1
    (pytorch#116333)."""
    expect_in_every_layout(cell, laid_out_operands(cell.inputs), OUTER)


@check(CASES, needs=("strides", "strided-operands", "inner-stride"))
def test_inner_layouts(cell: Cell) -> None:
    """Query, key and value whose components do not lie side by side (pytorch#187506, ROCm#3230)."""
    expect_in_every_layout(cell, laid_out_operands(cell.inputs), INNER)


def added(cell: Cell) -> tuple[str]:
    """What the case adds to scores or hides them by: its mask or its bias."""
    return ("mask",) if cell.inputs.bias is None else ("bias",)


@check(MASKED, needs=("strides",))
def test_mask_layouts(cell: Cell) -> None:
    """A boolean mask, or a bias, out of a larger array and with strides of 0."""
    expect_in_every_layout(cell, added(cell), OUTER)


@check(MASKED, needs=("strides",))
def test_inner_mask_layouts(cell: Cell) -> None:
    """A boolean mask, or a bias, whose entries for one row do not lie side by side.

    Asked of implementations without "inner-stride", too: that speaks of queries, keys and values.
    """
    expect_in_every_layout(cell, added(cell), INNER)


def expect_gradients_in_every_layout(cell: Cell, kinds: tuple[str, ...]) -> None:
    """Judge the gradients by all operands for every arrangement of each of them."""
    _, names = asked_of(cell)
    operands = tuple(n for n in (*laid_out_operands(cell.inputs), "bias") if n in names)
    for operand, how, inputs, prepared in arrangements(cell, operands, kinds):
        with naming(operand, how):
            _, gradients = vjp(cell, inputs, operands, prepared=prepared)
            judge_gradients(cell, gradients, inputs)


@check(DIFFERENTIATED, ("gradient", "strides", "strided-operands"))
def test_gradient_layouts(cell: Cell) -> None:
    """Gradients by operands out of larger arrays and with strides of 0."""
    expect_gradients_in_every_layout(cell, OUTER)


@check(DIFFERENTIATED, ("gradient", "strides", "strided-operands", "inner-stride"))
def test_inner_gradient_layouts(cell: Cell) -> None:
    """Gradients by operands whose components do not lie side by side."""
    expect_gradients_in_every_layout(cell, INNER)
