"""Promise: a call is a function of its arguments.

- It returns the framework's own arrays of the right shape, dtype and device.
- A second call and a fresh instance give the same bits.
- Arguments, and masks attached to them, stay unchanged.
- An answer has memory of its own.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import PreparedCall
from attention_conformance.suite.judge.answer import Answer, outputs_by_name
from attention_conformance.suite.judge.arguments import (
    arrays_of,
    change_detector,
    require_unchanged_arguments,
)
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.comparison import expect_bitwise
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.catalogue import Ask, cases, with_plain_cases
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS

CALLS_BETWEEN = 8
"""Calls before an output is read again: kernels may reuse a few buffers in turn."""


def attached_mask(array: Any) -> Any:
    """Returns the mask that Keras attaches to a tensor."""
    return getattr(array, "_keras_mask", None)


@check(cases.share("contract"))
def test_contract(cell: Cell) -> None:
    backend, inputs, implementation = cell.implementation.backend, cell.inputs, cell.implementation
    prepared = cell.prepare(inputs)
    arrays = arrays_of(backend, prepared)
    masks = {name: attached_mask(a) for name, a in arrays.items()}
    with require_unchanged_arguments(backend, prepared, "the call"):
        first = cell.read(cell.call(prepared), inputs, prepared)
    # A kernel may reuse one output buffer, so the first output is copied.
    values_before = {name: array.copy() for name, array in first.arrays.items()}
    for name, array in arrays.items():
        if attached_mask(array) is not masks[name]:
            raise WrongAnswer("mutated-input", f"the call changed the mask attached to {name}")
    second = cell.read(cell.call(prepared), inputs, prepared)
    if implementation.declared.deterministic:
        for name, array in second.arrays.items():
            expect_bitwise(
                array, values_before[name], "not-deterministic", f"a second call's {name}"
            )
    if not implementation.declared.takes_parameters:
        return
    if inputs.parameters and implementation.declared.deterministic:
        fresh = cell.run(inputs)
        expect_bitwise(
            fresh.values, values_before["output"], "not-deterministic", "a fresh layer's first call"
        )
    later = cell.prepare(other_values(inputs))
    later_answer = cell.call(later)
    expect_unchanged(cell, prepared, first, values_before["output"], "a later call")
    del later_answer  # held until here, so that its memory cannot be reused


def expect_unchanged(
    cell: Cell, prepared: PreparedCall, answer: Answer, values_before: np.ndarray, event: str
) -> None:
    """Read an earlier answer of the call again. Raises WrongAnswer "overwritten" if its values differ
    from `values_before`. The message says that this happened after `event`."""
    reread = cell.read(answer.native, cell.inputs, prepared)
    expect_bitwise(reread.values, values_before, "overwritten", f"an answer after {event}")


@check(cases.share("kept_answers"))
def test_kept_answers(cell: Cell) -> None:
    """An output stays the same while later outputs are held: no two outputs share memory.

    A second output is held by another array of the same memory alone, as a slice holds it.
    """
    inputs = cell.inputs
    if not cell.implementation.declared.takes_parameters:
        raise NotApplicable("the layer makes its own parameters")
    prepared = cell.prepare(inputs)
    first = cell.read(cell.call(prepared), inputs, prepared)
    values_before = first.values.copy()
    backend, later = cell.implementation.backend, cell.prepare(other_values(inputs))
    output = outputs_by_name(cell.call(prepared), prepared)["output"]
    before, alias = backend.to_numpy(output).copy(), backend.alias(output)
    del output  # only the alias holds its memory now
    later_answers = [cell.call(later) for _ in range(CALLS_BETWEEN)]
    expect_unchanged(cell, prepared, first, values_before, f"{len(later_answers)} later calls")
    what = f"a view of an answer, which is gone itself, after {len(later_answers)} later calls"
    expect_bitwise(backend.to_numpy(alias), before, "overwritten", what)


MANY_CALLS, SOME_CALLS = 520, 24
"""Calls before an output is read again, of the smallest case and of other cases: more calls than the
buffers that a kernel would reuse in turn."""

SINGLE_PART_CASES = (
    "sdpa/none/mha/{dt}/b2h3q1k1d8",
    "sdpa/none/mha/{dt}/b2h3q5k1d8",
    "sdpa/win0.0/mha/{dt}/b2h3q5k5d8",
    "merge/none/mha/{dt}/b2h3q5k1d8",
)
"""Cases whose output is the value, or the only part of a merge: a kernel may return its argument."""


@check(
    with_plain_cases(
        Ask(SINGLE_PART_CASES[0], dtypes="float32"),
        Ask(*SINGLE_PART_CASES[1:], dtypes="float32", since="standard"),
        dtypes="float32",
    )
)
def test_own_memory(cell: Cell) -> None:
    """An output shares no memory with an argument, or with another output of the same or a later call.

    Arguments and outputs are written to where arrays of the framework can be changed.
    """
    backend, inputs, implementation = cell.implementation.backend, cell.inputs, cell.implementation
    if not implementation.declared.takes_parameters:
        raise NotApplicable("the layer makes its own parameters")
    prepared, later = cell.prepare(inputs), cell.prepare(other_values(inputs))
    written, first = cell.call(prepared), cell.read(cell.call(prepared), inputs, prepared)
    values_before = first.values.copy()
    count = MANY_CALLS if inputs.sizes.Lq == 1 else SOME_CALLS
    later_answers = [cell.call(later) for _ in range(count)]
    expect_unchanged(cell, prepared, first, values_before, f"{count} later calls")
    arrays = arrays_of(backend, prepared)
    changed_arguments = change_detector(backend, arrays)
    with suppress(Exception):  # arrays of inference mode, for example, cannot be written to
        backend.overwrite(
            outputs_by_name(written, prepared)["output"],
            outputs_by_name(later_answers[0], later)["output"],
        )
    if names := changed_arguments():
        raise WrongAnswer("overwritten", f"a write into an answer changed the argument {names[0]}")
    expect_unchanged(cell, prepared, first, values_before, "a write into another answer")
    for name, array in arrays.items():
        backend.overwrite(array, later.arguments[name])
    expect_unchanged(cell, prepared, first, values_before, "writes into the arguments")


def other_values(inputs: Inputs) -> Inputs:
    """Returns the inputs with the last of query, key and value negated, or with the first array negated
    if there are no operands. In self-attention the operands are one array, so all of them are negated."""
    operands = [name for name in OPERANDS if name in inputs.arrays]
    operands = operands or list(inputs.arrays)[:1]
    changed = operands if inputs.self_attention else operands[-1:]
    return inputs.replace(**dict.fromkeys(changed, -inputs.arrays[operands[-1]]))
