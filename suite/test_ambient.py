"""Promise: neither outputs nor gradients depend on the modes that are switched on around a call, nor on
threads.

Modes are those of the framework (`Setting.modes`), its transformations of functions
(`Compilers.ambient`), a second thread, and two threads at once. In every mode two problems are called one
after the other, and both outputs are compared with the reference. Where a mode may be refused, every
dtype must be. An election says what automatic mixed precision does: the dtype of the output, and the
dtype whose bound holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from backends.protocol import Ambient, PreparedCall
from suite.judge import elections
from suite.judge.cell import Cell
from suite.judge.check import check
from suite.judge.derivative import asked_of, judge_gradients, native_cotangent, read_gradients
from suite.judge.elections.modes import modes_of, transformed
from suite.judge.verdict import Deviation, NotApplicable
from suite.spec.catalogue import Ask, asked, plain, with_plain
from suite.spec.dtypes import DTYPES, DType, round_to
from suite.spec.inputs import Inputs
from suite.spec.levels import HALF
from suite.spec.vocabulary import OPERANDS
from suite.test_stateless import changed

ROUNDS = 8
"""The least number of calls of a thread that calls beside another one."""

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
    """The message names the wrong modes."""
    inputs = cell.inputs
    prepared = cell.prepare(inputs)
    cell.judge(cell.read(cell.call(prepared), inputs, prepared), inputs)
    expect_in_each(modes(cell, inputs, prepared))


def expect_in_each(asked_modes: Mapping[str, Callable[[], None]]) -> None:
    """Call each function. Raises a Deviation that names the wrong modes. A mode may be refused."""
    wrong: dict[str, Deviation] = {}
    for name, expect in asked_modes.items():
        try:
            with suppress(NotApplicable):
                expect()
        except Deviation as deviation:
            wrong[name] = deviation
    if wrong:
        first = next(iter(wrong.values()))
        raise Deviation(first.kind, f"wrong in {', '.join(wrong)}: {first.message}")


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

    Under automatic mixed precision they have the dtype of the operands, and the bound of the elected one.
    """
    plain = in_16_bits(cell.inputs)
    cotangent = round_to(round_to(cell.cotangent, DTYPES["bf16"]), DTYPES["f16"])
    prepared, _ = asked_of(cell, plain)
    backend = cell.implementation.backend
    shaped = native_cotangent(cotangent, plain, prepared)
    native = backend.memory.arranged(shaped, cell.dtype, "contiguous")

    def expect_gradients(mode: Ambient) -> None:
        inputs = plain
        with refusing(mode.question, ()), mode.within():
            _, pull = cell.attempt(lambda: backend.pullback(prepared, OPERANDS))
            gradients = None if mode.dtype else cell.attempt(lambda: pull(native))
        if gradients is None:  # outside, as the documentation of torch.autocast recommends
            gradients = cell.attempt(lambda: pull(native))
        read = read_gradients(cell, gradients, plain, prepared, OPERANDS)
        if mode.dtype and elected(cell, DTYPES[mode.dtype]) != "unchanged":
            inputs = plain.replace(dtype=DTYPES[mode.dtype])
        of = Cell(cell.check, inputs.case, cell.implementation, cell.seed)
        judge_gradients(of, read, inputs, cotangent)

    def in_a_thread() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(expect_gradients, Ambient(nullcontext)).result()

    expect_gradients(Ambient(nullcontext))
    modes = {n: m for n, m in modes_of(cell.implementation).items() if not m.forward_only}
    expect_in_each(
        {name: partial(expect_gradients, mode) for name, mode in modes.items()}
        | {"a second thread": in_a_thread}
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
        if mode.dtype and cell.dtype.is_half and cell.dtype.name != mode.dtype:
            continue  # PyTorch itself concatenates no bfloat16 under autocast to float16
        within = partial(expect_cast if mode.dtype else expect_in, cell, plain, mode)
        asked_modes[name] = within
    for name in transformed(implementation, inputs, prepared):
        asked_modes[name] = partial(expect_through, cell, inputs, prepared, name)
    asked_modes["a second thread"] = partial(expect_in_threads, cell, [plain], 1)
    at_once = [[problem] for problem in plain]
    asked_modes["two threads at once"] = partial(expect_in_threads, cell, at_once, ROUNDS)
    return asked_modes


def answers(call: Callable[[], Any]) -> bool:
    """True if a call returns."""
    try:
        call()
    except (Deviation, NotApplicable):
        return False
    return True


@contextmanager
def refusing(question: str, others: Iterable[Callable[[], Any]]) -> Iterator[None]:
    """A context in which a call may raise, if the mode has a question and the `others`, the call in other
    dtypes, raise, too. Then raises NotApplicable."""
    try:
        yield
    except Deviation as deviation:
        if not question:
            raise
        if any(answers(other) for other in others):
            text = f"raises, and answers in another dtype: {deviation.message}"
            raise Deviation("raised", text) from deviation
        raise NotApplicable("raises in this mode, in every dtype") from deviation


def in_other_dtypes(cell: Cell, inputs: Inputs) -> Iterator[Problem]:
    """The problem in float32 and bfloat16, as far as these are other dtypes and declared."""
    for name in HALF:
        if name != cell.dtype.name and name in cell.implementation.declared.dtypes:
            other = in_16_bits(inputs).replace(dtype=DTYPES[name])
            yield other, cell.prepare(other)


def call_in(cell: Cell, mode: Ambient, calls: Sequence[PreparedCall]) -> list[Any]:
    """What calls return in a mode."""
    with mode.within():
        return [cell.call(prepared) for prepared in calls]


def expect_in(cell: Cell, problems: Sequence[Problem], mode: Ambient) -> None:
    """The outputs of calls in a mode are right after the last one."""
    others = (
        partial(call_in, cell, mode, [prepared])
        for _, prepared in in_other_dtypes(cell, problems[0][0])
    )
    with refusing(mode.question, others):
        natives = call_in(cell, mode, [prepared for _, prepared in problems])
    for (inputs, prepared), native in zip(problems, natives, strict=True):
        cell.judge(cell.read(native, inputs, prepared), inputs)


def expect_cast(cell: Cell, problems: Sequence[Problem], mode: Ambient) -> None:
    """The output of a call under automatic mixed precision is right, in the elected dtype.

    Float64 is left alone. If the election is "narrow", a bias of float32 beside narrow operands is asked,
    too.
    """
    inputs, to = problems[0][0], DTYPES[mode.dtype]
    if cell.dtype.name != "f64":
        inputs = in_16_bits(inputs)
    narrow, prepared = inputs.replace(dtype=to), cell.prepare(inputs)
    siblings = (
        partial(call_in, cell, other, [prepared])
        for other in modes_of(cell.implementation).values()
        if other.question == mode.question and other.dtype != mode.dtype
    )
    with refusing(mode.question, siblings):
        (native,) = call_in(cell, mode, [prepared])
    has_question = "autocast" in inputs.operator.questions.elections
    answer = elected(cell, to) if has_question and cell.dtype.name == "f32" else ""
    if answer == "unchanged" or cell.dtype.name == "f64":
        cell.judge(cell.read(native, inputs, prepared), inputs)
        return
    if not answer:
        judge_either(cell, native, (inputs, narrow), prepared)
        return
    read_as = narrow if answer == "narrow" else inputs
    cell.oracle(narrow).judge(cell.read(native, read_as, prepared).arrays)
    bias = prepared.argument("bias")
    if answer == "narrow" and inputs.bias is not None and bias in prepared.arguments:
        mixed = cell.prepare(narrow)
        mixed = replace(mixed, arguments={**mixed.arguments, bias: prepared.arguments[bias]})
        (native,) = call_in(cell, mode, [mixed])
        cell.oracle(narrow).judge(cell.read(native, narrow, mixed).arrays)


def elected(cell: Cell, dtype: DType) -> str:
    """What automatic mixed precision to a dtype does; "" if the check `election` finds it wrong."""
    try:
        return elections.elected("autocast", cell.implementation, dtype)
    except (Deviation, NotApplicable):
        return ""


def judge_either(
    cell: Cell, native: Any, kinds: tuple[Inputs, Inputs], prepared: PreparedCall
) -> None:
    """An output has the dtype of the operands, or that of the mode, and keeps one of the bounds of these
    dtypes: code rounds to either (`weights.to(value.dtype)`)."""
    inputs, narrow = kinds
    try:
        answer = cell.read(native, inputs, prepared)
    except Deviation:
        answer = cell.read(native, narrow, prepared)
    with suppress(Deviation):
        cell.oracle(inputs).judge(answer.arrays)
        return
    cell.oracle(narrow).judge(answer.arrays)


def expect_through(cell: Cell, inputs: Inputs, prepared: PreparedCall, name: str) -> None:
    """The output of a call that is transformed is right. It may raise, if it does in every dtype."""

    def through(inputs: Inputs, prepared: PreparedCall) -> tuple[PreparedCall, Any]:
        make = transformed(cell.implementation, inputs, prepared).get(name)
        if make is None:
            raise NotApplicable(f"{name} lacks this dtype")
        call = make()
        return call, cell.call(call)

    others = (partial(through, *problem) for problem in in_other_dtypes(cell, inputs))
    with refusing(name, others):
        call, native = through(inputs, prepared)
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
