"""Promise: an output depends only on the values of the arguments.

It does not depend on which arrays hold these values, on earlier calls, or on old contents of reused
buffers.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from backends.protocol import PreparedCall
from suite.judge.answer import Answer
from suite.judge.cell import Cell
from suite.judge.check import check
from suite.judge.comparison import expect_bitwise
from suite.judge.verdict import Deviation, NotApplicable
from suite.spec.catalogue import with_plain
from suite.spec.inputs import Inputs

CASES = (
    "sdpa/none/mha/{dt}/b3h2q18k34d8",
    "sdpa/bool.bhqk/mha/{dt}/b3h3q11k17d8/dense",
    "sdpa/bool.b1qk/mha/f32/b3h3q11k17d8/bias.b1qk/dense",
    "multi-head/none/mha/{dt}/b2h3q5k9d4/e12.12.12.12",
    "additive/none/mha/{dt}/b2h1q5k9d16v14/e12.10.14.14",
    "dot/none/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6",
    "rotary/none/mha/{dt}/b2h3q17k1d16",
    "rotary/none/mha/f32/b2h3q17k1d16/ntk/at4097",
    "packed/none/mha/{dt}/b3h4q24k24d8/seg5.7.12",
)
"""Sizes of other checks, with a mask and a bias, which kernels may cache."""

TURNS = 3
"""How often two problems of one size alternate, in arrays that may reuse memory."""


def changed(inputs: Inputs) -> Inputs:
    """The same problem with other values; rows attend as many keys as before, but other ones.

    A rotation has another base, because instances must not share tables; at far positions it has a
    shorter sequence. Packed segments are reversed.
    """
    position, first = inputs.arrays.get("position"), inputs.case.option("offset")
    if position is not None and first:
        nearer = np.floor(position / 4)
        return inputs.replace(query=-inputs.query, position=nearer, offset=first // 4)
    if position is not None:
        return inputs.replace(query=-inputs.query, position=position + 7, offset=7, base=500.0)
    if "query" not in inputs.arrays:
        return inputs.replace(**{name: -array for name, array in inputs.arrays.items()})
    query, key, value = -inputs.query, np.flip(inputs.key, -1), -inputs.value
    arrays = {"query": query, "key": key, "value": value}
    if inputs.case.option("segments"):
        queries, keys = (part[::-1] for part in inputs.case.option("segments"))
        lengths = {n: np.flip(inputs.arrays[n]) for n in ("query_lengths", "key_lengths")}
        return inputs.replace(segments=(queries, keys), **arrays, **lengths)
    if inputs.self_attention:
        arrays = dict.fromkeys(arrays, np.flip(query, -1))
    if inputs.bias is not None:
        arrays["bias"] = -inputs.bias
    other = inputs.replace(**arrays)
    if inputs.form == "dense" and inputs.dense_mask is not None:
        other = other.with_dense(mask_array=np.flip(inputs.dense_mask, -1).copy())
    return other


def expect_right(cell: Cell, answer: Answer, inputs: Inputs, what: str) -> None:
    """Judge an output that was right in a first call. Raises Deviation "stale"."""
    try:
        cell.judge(answer, inputs)
    except Deviation as error:
        raise Deviation("stale", f"{what}: {error.message}", error.measured) from error


def overwritten(cell: Cell, call: PreparedCall, other: PreparedCall) -> bool:
    """Write the arrays of `other` into the arrays of `call`, a call of the same function.

    False if arrays cannot be changed, or the function itself holds some of the differing values.
    """
    backend = cell.implementation.backend
    arrays = {n: array for n, array in call.arguments.items() if backend.is_array(array)}
    return call.constants == other.constants and all(
        backend.memory.overwrite(array, other.arguments[name]) for name, array in arrays.items()
    )


@check(with_plain(*CASES))
def test_stateless(cell: Cell) -> None:
    inputs, other = cell.inputs, changed(cell.inputs)
    cell.judge(cell.run(), inputs)
    cell.judge(cell.run(other), other)
    prepared, later = cell.prepare(inputs), cell.prepare(other)
    cell.call(prepared)
    if overwritten(cell, prepared, later):
        answer = cell.read(cell.call(prepared), other, prepared)
        expect_right(cell, answer, other, "after the arguments were changed in place")
    del prepared, later
    for _ in range(TURNS):
        for these in (inputs, other):
            expect_right(
                cell, cell.run(these), these, "after a call with other arrays, which are gone"
            )
    if inputs.self_attention or inputs.dense_mask is not None or inputs.sizes.Lk < 2:
        return
    if inputs.operator.packing is not None:
        few = inputs.select("b", [0])
    else:
        few = inputs.select("k", slice(0, inputs.sizes.Lk // 2))
    try:
        before = cell.run(few).values.copy()
    except NotApplicable:
        return  # the number of keys is not supported
    spoilt = {n: np.full_like(inputs.arrays[n], np.nan) for n in inputs.operands}
    with suppress(Deviation, NotApplicable):  # other checks judge NaN
        cell.run(inputs.replace(**spoilt))
    answer, what = cell.run(few), "over fewer keys, after a call with NaN"
    expect_right(cell, answer, few, what)
    if cell.implementation.declared.deterministic:
        expect_bitwise(answer.values, before, "stale", what)
