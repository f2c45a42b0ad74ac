"""Promise: neither outputs nor gradients depend on the modes that are switched on around a call, nor on
threads.

Modes are those of the framework (`Setting.modes`), its transformations of functions
(`Compilers.ambient`), a second thread, and two threads at once. In every mode two problems are called one
after the other, and both outputs are compared with the reference. If a mode has an election question, an
error is the answer "raises". Another election says what automatic mixed precision does: it leaves a call
unchanged, or the bound of `MixedPrecision` holds, and it determines the dtype of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import Ambient, PreparedCall
from attention_conformance.suite.judge import elections
from attention_conformance.suite.judge.answer import Answer
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.derivative import (
    asked_of,
    judge_gradients,
    native_cotangent,
    read_gradients,
)
from attention_conformance.suite.judge.elections.modes import modes_of, transformed_calls
from attention_conformance.suite.judge.oracle import Rounding
from attention_conformance.suite.judge.verdict import Deviation, NotApplicable
from attention_conformance.suite.spec.catalogue import Ask, asked, plain, with_plain
from attention_conformance.suite.spec.dtypes import DTYPES, DType, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS
from attention_conformance.suite.test_stateless import changed

ROUNDS = 8
"""The least number of calls of a thread that calls beside another one."""

SECOND, AT_ONCE = "a second thread", "two threads at once"
"""The names of the modes of threads."""

MASKS = (
    "sdpa/none/mha/{dt}/b2h3q17k23d8",
    "sdpa/causal/mha/{dt}/b2h3q17k23d8",
    "sdpa/causalbr/mha/{dt}/b2h3q17k23d8",
    "sdpa/win3.5/mha/{dt}/b2h3q17k23d8",
    "sdpa/pad/mha/{dt}/b2h3q17k23d8",
    "sdpa/bool.bhqk/mha/{dt}/b2h3q17k23d8/dense",
    "sdpa/bool.qk.empty/mha/{dt}/b2h3q17k23d8/dense",
    "sdpa/none/mha/{dt}/b2h3q17k23d8/bias.bhqk/scale0.3",
)
"""One case of every kind of mask, in sizes of other checks."""

GROUPED = "sdpa/causal/gqa2/{dt}/b2h6q17k23d8/bias.bhqk"
"""A causal flag, grouped heads, and a bias of every sample and head."""

LAYERS = (
    "multi-head/none/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/causal/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/pad/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    *plain("rotary"),
)

WIDE = "sdpa/causal/mha/f64/b2h3q17k23d8"
"""Automatic mixed precision leaves float64 alone."""

CASES = with_plain(
    Ask(*MASKS, *LAYERS, dtypes="growing"),
    Ask(GROUPED, dtypes="float32"),
    Ask(WIDE),
    dtypes="half",
)

FEW = (GROUPED, "sdpa/bool.qk.empty/mha/{dt}/b2h3q17k23d8/dense", LAYERS[2], LAYERS[3])

OF_FRAMEWORKS = with_plain(
    Ask(*FEW, dtypes="float32"),
    Ask(*MASKS, *LAYERS, dtypes="float32", since="standard"),
    dtypes="float32",
)
"""Frameworks' own implementations are asked fewer cases: their users call in these modes every day."""


Problem = tuple[Inputs, PreparedCall]


@check(CASES, builtin_cases=OF_FRAMEWORKS)
def test_ambient(cell: Cell) -> None:
    """The message names the wrong modes. If calls by two threads at once are not supported, the other
    modes are judged, and the cell is unsupported."""
    inputs = cell.inputs
    prepared = cell.prepare(inputs)
    cell.judge(cell.read(cell.call(prepared), inputs, prepared), inputs)
    asked_modes = modes(cell, inputs, prepared)
    lacking = cell.implementation.missing(["calls-at-once"])
    if lacking is not None:
        del asked_modes[AT_ONCE]
    expect_in_each(cell, asked_modes)
    if lacking is not None:
        raise NotApplicable(lacking)


def expect_in_each(cell: Cell, asked_modes: Mapping[str, Callable[[], None]]) -> None:
    """Call each function. Raises a Deviation that names the wrong modes, and suggests the claim of a user
    function that is wrong in calls at once, and right in a second thread. A mode may be refused."""
    wrong: dict[str, Deviation] = {}
    for name, expect in asked_modes.items():
        try:
            with suppress(NotApplicable):
                expect()
        except Deviation as deviation:
            wrong[name] = deviation
    if wrong:
        first = next(iter(wrong.values()))
        shares = AT_ONCE in wrong and SECOND not in wrong
        claims = shares and cell.implementation.declared.is_user_code
        hint = "; claim threads=one?" if claims else ""
        message = f"wrong in {', '.join(wrong)}: {first.message}{hint}"
        raise Deviation(first.kind, message, where=tuple(wrong))


DIFFERENTIATED = asked(
    Ask("sdpa/causal/mha/{dt}/b4h4q4k4d4", dtypes="float32"),
    Ask(
        "sdpa/bool.bhqk/mha/{dt}/b4h4q4k4d4/dense",
        "sdpa/causal/gqa2/{dt}/b4h4q4k4d4",
        dtypes="float32",
        since="standard",
    ),
)


@check(DIFFERENTIATED, ("gradient",))
def test_ambient_gradients(cell: Cell) -> None:
    """Gradients in every mode in which there are any, and in a second thread.

    Under automatic mixed precision they have the dtype of the operands.
    """
    plain = in_16_bits(cell.inputs)
    cotangent = round_to(round_to(cell.cotangent, DTYPES["bf16"]), DTYPES["f16"])
    prepared, _ = asked_of(cell, plain)
    backend = cell.implementation.backend
    shaped = native_cotangent(cotangent, plain, prepared)
    native = backend.memory.arranged(shaped, cell.dtype, "contiguous")

    def expect_gradients(mode: Ambient) -> None:
        to = DTYPES[mode.dtype or cell.dtype.name]
        with refusing(cell, mode.question, to):
            with mode.within():
                _, pull = cell.attempt(lambda: backend.pullback(prepared, OPERANDS))
                gradients = None if mode.dtype else cell.attempt(lambda: pull(native))
            if gradients is None:  # outside, as the documentation of torch.autocast recommends
                gradients = cell.attempt(lambda: pull(native))
        read = read_gradients(cell, gradients, plain, prepared, OPERANDS)
        cast = mode.dtype and elected(cell, to) != "unchanged"
        of = (
            MixedPrecision(cell, to)
            if cast
            else Cell(cell.check, plain.case, cell.implementation, cell.seed)
        )
        judge_gradients(of, read, plain.replace(dtype=of.dtype), cotangent)

    def in_a_thread() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(expect_gradients, Ambient(nullcontext)).result()

    expect_gradients(Ambient(nullcontext))
    modes = {n: m for n, m in modes_of(cell.implementation).items() if not m.forward_only}
    expect_in_each(
        cell,
        {name: partial(expect_gradients, mode) for name, mode in modes.items()}
        | {SECOND: in_a_thread},
    )


def in_16_bits(inputs: Inputs) -> Inputs:
    """The inputs with values that are exact in bfloat16 and in float16: autocast then rounds none."""
    of_dtype = (n for n in inputs.arrays if n not in inputs.operator.array_kinds.integers)
    narrow = {
        name: round_to(round_to(inputs.arrays[name], DTYPES["bf16"]), DTYPES["f16"])
        for name in of_dtype
        if inputs.case.dtype_of(name) is inputs.dtype
    }
    return inputs.replace(**narrow)


def modes(cell: Cell, inputs: Inputs, prepared: PreparedCall) -> dict[str, Callable[[], None]]:
    """Functions that call and judge in one mode each, by the names of the modes."""
    implementation = cell.implementation
    asked_modes: dict[str, Callable[[], None]] = {}
    other = changed(inputs)
    plain: list[Problem] = [(inputs, prepared), (other, cell.prepare(other))]
    for name, mode in modes_of(implementation).items():
        within = partial(expect_cast if mode.dtype else expect_in, cell, plain, mode)
        asked_modes[name] = within
    for name in transformed_calls(implementation, inputs, prepared):
        asked_modes[name] = partial(expect_through, cell, inputs, prepared, name)
    asked_modes[SECOND] = partial(expect_in_threads, cell, [plain], 1)
    at_once = [[problem] for problem in plain]
    asked_modes[AT_ONCE] = partial(expect_in_threads, cell, at_once, ROUNDS)
    return asked_modes


@contextmanager
def refusing(cell: Cell, question: str, dtype: DType) -> Iterator[None]:
    """A context that turns an error of a call into the answer "raises", by raising NotApplicable. The
    error stays a Deviation if the mode has no question, or if another answer is promised."""
    try:
        yield
    except Deviation as deviation:
        promised = cell.implementation.elected(question, dtype) if question else "answers"
        if promised not in (None, "raises") or deviation.kind == "forbidden":
            raise
        raise NotApplicable(f"raises in this mode: {deviation.message}") from deviation


class MixedPrecision(Cell):
    """A cell under automatic mixed precision to `to`. Nobody promised a class there: the bound is that of
    the widest class, and every number that is stored may be rounded to both dtypes (`in_both_dtypes`)."""

    def __init__(self, cell: Cell, to: DType) -> None:
        case = cell.inputs.replace(dtype=to).case
        super().__init__(cell.check, case, cell.implementation, cell.seed)
        self.outside = cell

    @property
    def numerics(self) -> str:
        return "working" if "working" in (super().numerics, self.outside.numerics) else "stepwise"

    @property
    def rounding(self) -> Rounding:
        own, other = super().rounding, self.outside
        same = other.dtype is self.dtype
        return own if same else replace(own, beside=(other.dtype, other.flushes))


def call_in(cell: Cell, mode: Ambient, calls: Sequence[PreparedCall]) -> list[Any]:
    """What calls return in a mode."""
    with mode.within():
        return [cell.call(prepared) for prepared in calls]


def expect_in(cell: Cell, problems: Sequence[Problem], mode: Ambient) -> None:
    """The outputs of calls in a mode are right after the last one."""
    with refusing(cell, mode.question, cell.dtype):
        natives = call_in(cell, mode, [prepared for _, prepared in problems])
    for (inputs, prepared), native in zip(problems, natives, strict=True):
        cell.judge(cell.read(native, inputs, prepared), inputs)


def expect_cast(cell: Cell, problems: Sequence[Problem], mode: Ambient) -> None:
    """The output of a call under automatic mixed precision is right, and has the elected dtype, or either
    dtype if there is no election, as for kinds of layers, of which some end without a bias.

    Float64 is left alone. If the election is "narrow", a bias of float32 beside narrow operands is asked,
    too.
    """
    inputs, to = problems[0][0], DTYPES[mode.dtype]
    if cell.dtype.name != "f64":
        inputs = in_16_bits(inputs)
    narrow, prepared = inputs.replace(dtype=to), cell.prepare(inputs)
    with refusing(cell, mode.question, to):
        (native,) = call_in(cell, mode, [prepared])
    plain = inputs.case.option("kind") in (None, inputs.operator.name)
    has_question = plain and "autocast" in inputs.operator.questions.elections
    answer = elected(cell, to) if has_question and cell.dtype.name == "f32" else ""
    if answer == "unchanged" or cell.dtype.name == "f64":
        cell.judge(cell.read(native, inputs, prepared), inputs)
        return
    oracle = MixedPrecision(cell, to).oracle(narrow)
    read_as = {"narrow": [narrow], "narrow-inside": [inputs]}.get(answer, [inputs, narrow])
    oracle.judge(read_as_one_of(cell, native, read_as, prepared).arrays)
    bias = prepared.argument("bias")
    if answer == "narrow" and inputs.bias is not None and bias in prepared.arguments:
        mixed = cell.prepare(narrow)
        mixed = replace(mixed, arguments={**mixed.arguments, bias: prepared.arguments[bias]})
        (native,) = call_in(cell, mode, [mixed])
        oracle.judge(cell.read(native, narrow, mixed).arrays)


def elected(cell: Cell, dtype: DType) -> str:
    """What automatic mixed precision to a dtype does; "" if the check `election` finds it wrong."""
    try:
        return elections.elected("autocast", cell.implementation, dtype)
    except (Deviation, NotApplicable):
        return ""


def read_as_one_of(
    cell: Cell, native: Any, kinds: Sequence[Inputs], prepared: PreparedCall
) -> Answer:
    """An answer in the dtype of the last of `kinds`, or of one before it."""
    *others, last = kinds
    for inputs in others:
        with suppress(Deviation):
            return cell.read(native, inputs, prepared)
    return cell.read(native, last, prepared)


def expect_through(cell: Cell, inputs: Inputs, prepared: PreparedCall, name: str) -> None:
    """The output of a call that is transformed is right."""
    implementation = cell.implementation
    with refusing(cell, implementation.backend.compilers.ambient[name], cell.dtype):
        call = transformed_calls(implementation, inputs, prepared)[name]()
        native = cell.call(call)
    cell.judge(cell.read(native, inputs, call), inputs)


def expect_in_threads(cell: Cell, threads: Sequence[Sequence[Problem]], rounds: int) -> None:
    """The outputs of problems that each thread calls by turns are right. All threads call at once."""
    # What forces a kernel holds for the whole process: it surrounds the threads.
    with threads[0][0][1].within():
        outcomes = cell.implementation.backend.profiler.at_once(
            [[call for _, call in problems] for problems in threads], rounds
        )
    for problems, outcome in zip(threads, outcomes, strict=True):
        judged: list[np.ndarray] = []
        for (inputs, prepared), native in zip(cycle(problems), outcome, strict=False):
            if isinstance(native, BaseException):
                cell.attempt(partial(_raise, native))
            answer = cell.read(native, inputs, prepared)
            if not any(np.array_equal(answer.values, values) for values in judged):
                cell.judge(answer, inputs)
                judged.append(answer.values)


def _raise(error: BaseException) -> None:
    raise error
