"""Promise: an output does not depend on the modes that are switched on around a call, nor on threads.

Modes are those of the framework (`Setting.modes`), its transformations of functions
(`Compilers.ambient`), a second thread, and two threads at once. Every output is compared with the
reference. Autocast may give the output in the dtype of the operands or in its own dtype, or raise; the
bound is that of the dtype in which the output was computed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Barrier, Thread
from typing import Any

import numpy as np

from backends.protocol import Ambient, PreparedCall, set_to
from suite.judge.cell import Cell
from suite.judge.check import check
from suite.judge.verdict import Deviation, NotApplicable
from suite.spec.catalogue import Ask, asked, plain_beside
from suite.spec.dtypes import DTYPES, round_to
from suite.spec.inputs import Inputs, dtype_of
from suite.test_stateless import changed

ROUNDS, MOST_ROUNDS = 8, 400
"""The least and the greatest number of calls of a thread that calls beside another one."""

EAGER_SWITCHES = 1e-6
"""Seconds after which Python changes threads while several threads call."""

MASKS = (
    "sdpa/none/mha/{dt}/b2h3q17k23d8",
    "sdpa/causal/mha/{dt}/b2h3q17k23d8",
    "sdpa/causalbr/mha/{dt}/b2h3q17k23d8",
    "sdpa/win3.5/mha/{dt}/b2h3q17k23d8",
    "sdpa/pad/mha/{dt}/b2h3q17k23d8",
    "sdpa/bool.bhqk/mha/{dt}/b2h3q17k23d8/dense",
    "sdpa/none/mha/{dt}/b2h3q17k23d8/bias.1hqk/scale0.5",
)
"""One case of every kind of mask, in sizes of other checks."""

LAYERS = (
    "multi-head/none/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/causal/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/pad/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "rotary/none/mha/{dt}/b2h3q17k1d16",
)

PLAIN = partial(plain_beside, (*MASKS, *LAYERS), lambda case: True)
"""The plain cases of the other operators."""

CASES = asked(Ask(*MASKS, *LAYERS, dtypes="growing"), Ask(PLAIN, dtypes="half", since="standard"))

FEW = (MASKS[1], "sdpa/bool.bhqk/mha/{dt}/b2h3q17k23d8/dense", LAYERS[2], LAYERS[3])

OF_FRAMEWORKS = asked(
    Ask(*FEW, dtypes="float32"),
    Ask(*MASKS, *LAYERS, PLAIN, dtypes="float32", since="standard"),
)
"""Frameworks' own implementations are asked fewer cases: their users call in these modes every day."""


@check(CASES, builtin_cases=OF_FRAMEWORKS)
def test_ambient(cell: Cell) -> None:
    """The message names the wrong modes."""
    inputs = in_16_bits(cell.inputs)
    prepared = cell.prepare(inputs)
    cell.judge(cell.read(cell.call(prepared), inputs, prepared), inputs)
    wrong: dict[str, Deviation] = {}
    for name, expect in modes(cell, inputs, prepared).items():
        try:
            expect()
        except Deviation as deviation:
            wrong[name] = deviation
    if wrong:
        first = next(iter(wrong.values()))
        raise Deviation(first.kind, f"wrong in {', '.join(wrong)}: {first.message}")


def in_16_bits(inputs: Inputs) -> Inputs:
    """The inputs with values that are exact in bfloat16 and in float16: autocast then rounds none."""
    of_dtype = (n for n in inputs.arrays if n not in inputs.operator.array_kinds.integers)
    narrow = {
        name: round_to(round_to(inputs.arrays[name], DTYPES["bf16"]), DTYPES["f16"])
        for name in of_dtype
        if dtype_of(name, inputs.case) is inputs.dtype
    }
    return inputs.replace(**narrow)


def modes(cell: Cell, inputs: Inputs, prepared: PreparedCall) -> dict[str, Callable[[], None]]:
    """Functions that call and judge in one mode each, by the names of the modes."""
    implementation = cell.implementation
    backend, compilers = implementation.backend, implementation.backend.compilers
    asked_modes: dict[str, Callable[[], None]] = {
        name: partial(expect_in, cell, inputs, prepared, mode)
        for setting in backend.settings.values()
        for name, mode in setting.modes.items()
        if not mode.dtype or mode.dtype in implementation.declared.dtypes
    }
    mappable = inputs.operator.packing is None and len(prepared.outputs) == 1
    possible = {*compilers.ambient} & {*compilers.of(implementation)} if mappable else ()
    for name in sorted(possible):
        if not {"compiled", cell.dtype.long_name} & compilers.lacking(implementation, name).keys():
            through = partial(compilers.compiled, prepared, name, inputs.sizes.B)
            asked_modes[name] = partial(expect_through, cell, inputs, through)
    asked_modes["a second thread"] = partial(expect_in_threads, cell, [(inputs, prepared)], 1)
    other = changed(inputs)
    with_other = [(inputs, prepared), (other, cell.prepare(other))]
    asked_modes["two threads at once"] = partial(expect_in_threads, cell, with_other, ROUNDS)
    return asked_modes


def expect_in(cell: Cell, inputs: Inputs, prepared: PreparedCall, mode: Ambient) -> None:
    """The output in a mode is right, in the dtype of the operands or in that of the mode."""
    try:
        with mode.within():
            native = cell.call(prepared)
    except (Deviation, NotApplicable):
        if mode.may_raise:
            return
        raise
    if not mode.dtype:
        cell.judge(cell.read(native, inputs, prepared), inputs)
        return
    narrow = inputs.replace(dtype=DTYPES[mode.dtype])
    try:
        answer = cell.read(native, inputs, prepared)
    except Deviation:
        answer = cell.read(native, narrow, prepared)
    else:
        with suppress(Deviation):
            cell.oracle(inputs).judge(answer.arrays)
            return
    cell.oracle(narrow).judge(answer.arrays)


def expect_through(cell: Cell, inputs: Inputs, through: Callable[[], PreparedCall]) -> None:
    """The output of a transformed function is right. A function that cannot be transformed may raise."""
    try:
        prepared = through()
        native = cell.call(prepared)
    except (Deviation, NotApplicable):
        return
    cell.judge(cell.read(native, inputs, prepared), inputs)


def expect_in_threads(
    cell: Cell, calls: Sequence[tuple[Inputs, PreparedCall]], rounds: int
) -> None:
    """The outputs of calls in one thread each, all at once, are right."""
    # What forces a kernel holds for the whole process: it surrounds the threads.
    with calls[0][1].within():
        outcomes = at_once([prepared for _, prepared in calls], rounds)
    for (inputs, prepared), outcome in zip(calls, outcomes, strict=True):
        judged: list[np.ndarray] = []
        for native in outcome:
            if isinstance(native, BaseException):
                cell.attempt(partial(_raise, native))
            answer = cell.read(native, inputs, prepared)
            if not any(np.array_equal(answer.values, values) for values in judged):
                cell.judge(answer, inputs)
                judged.append(answer.values)


def at_once(calls: Sequence[PreparedCall], rounds: int) -> list[list[Any]]:
    """What the calls return, each in a thread of its own; an error instead of what it ended.

    Every thread calls until each thread has called `rounds` times, so that all of them overlap.
    """
    outcomes: list[list[Any]] = [[] for _ in calls]
    start = Barrier(len(calls))

    def waits_for_others() -> bool:
        ended = (n and isinstance(n[-1], BaseException) for n in outcomes)
        return any(len(n) < rounds and not end for n, end in zip(outcomes, ended, strict=True))

    def run(prepared: PreparedCall, outcome: list[Any]) -> None:
        start.wait()
        try:
            while waits_for_others() and len(outcome) < MOST_ROUNDS:
                outcome.append(prepared.function(**prepared.arguments))
        except BaseException as error:
            outcome.append(error)

    threads = [
        Thread(target=run, args=(prepared, outcome), daemon=True)
        for prepared, outcome in zip(calls, outcomes, strict=True)
    ]
    with set_to(EAGER_SWITCHES, sys.getswitchinterval, sys.setswitchinterval):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return outcomes


def _raise(error: BaseException) -> None:
    raise error
