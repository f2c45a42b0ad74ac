"""Promise: a call is a function of its arguments: the framework's own arrays of the right shape,
dtype and device; the same bits on a second call and from a fresh instance; and nothing handed in is
changed, nor anything attached to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from suite.judge.cell import Cell
from suite.judge.check import check
from suite.judge.comparison import expect_bitwise
from suite.judge.verdict import Deviation, NotApplicable
from suite.spec.catalogue import cases
from suite.spec.inputs import Inputs
from suite.spec.vocabulary import OPERANDS

LATER = 8
"""Calls after which an answer is looked at again: kernels may hand out a few buffers in turn."""


def attached(array: Any) -> Any:
    """What Keras keeps on a tensor: the mask that travels with it."""
    return getattr(array, "_keras_mask", None)


@check(cases.share("contract"))
def test_contract(cell: Cell) -> None:
    backend, inputs, implementation = cell.implementation.backend, cell.inputs, cell.implementation
    prepared = cell.prepare(inputs)
    arrays = {n: a for n, a in prepared.arguments.items() if backend.is_array(a)}
    before = {name: backend.to_numpy(a).copy() for name, a in arrays.items()}
    masks = {name: attached(a) for name, a in arrays.items()}
    first = cell.read(cell.call(prepared), inputs, prepared)
    # A kernel may hand out one buffer again and again: what was read first must be kept apart.
    kept = {name: array.copy() for name, array in first.arrays.items()}
    for name, array in arrays.items():
        after = backend.to_numpy(array)
        if after.shape != before[name].shape or not np.array_equal(
            after, before[name], equal_nan=after.dtype.kind == "f"
        ):
            raise Deviation("mutated-input", f"the call changed its argument {name}")
        if attached(array) is not masks[name]:
            raise Deviation("mutated-input", f"the call changed the mask attached to {name}")
    second = cell.read(cell.call(prepared), inputs, prepared)
    if implementation.declared.deterministic:
        for name, array in second.arrays.items():
            expect_bitwise(array, kept[name], "not-deterministic", f"a second call's {name}")
    if not implementation.declared.takes_parameters:
        return
    if inputs.parameters and implementation.declared.deterministic:
        fresh = cell.run(inputs)
        expect_bitwise(
            fresh.values, kept["output"], "not-deterministic", "a fresh layer's first call"
        )
    later = cell.prepare(other_values(inputs))
    held = cell.call(later)
    again = cell.read(first.native, inputs, prepared)
    expect_bitwise(again.values, kept["output"], "overwritten", "an answer after a later call")
    del held


@check(cases.share("kept_answers"))
def test_kept_answers(cell: Cell) -> None:
    """An answer stays what it was while later ones are held: nobody else has its memory."""
    inputs = cell.inputs
    if not cell.implementation.declared.takes_parameters:
        raise NotApplicable("it makes parameters of its own")
    prepared = cell.prepare(inputs)
    first = cell.read(cell.call(prepared), inputs, prepared)
    kept = first.values.copy()
    later = cell.prepare(other_values(inputs))
    held = [cell.call(later) for _ in range(LATER)]
    again = cell.read(first.native, inputs, prepared)
    what = f"an answer after {len(held)} later calls"
    expect_bitwise(again.values, kept, "overwritten", what)


def other_values(inputs: Inputs) -> Inputs:
    """The inputs with the signs of the values turned; of what has none, of the query, or of its first
    array."""
    last = [name for name in OPERANDS if name in inputs.arrays]
    last = last or list(inputs.arrays)[:1]
    last = last if inputs.self_attention else last[-1:]
    return inputs.replace(**dict.fromkeys(last, -inputs.arrays[last[-1]]))
