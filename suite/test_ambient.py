"""Promise: neither outputs nor gradients depend on the modes that are switched on around a call, nor on
threads.

Modes are those of the framework (`Setting.modes`), its transformations of functions
(`Engine.ambient`), a second thread, and two threads at once. In every mode two problems are called one
after the other, and both outputs are compared with the reference. If a mode has an election question, an
error is the answer "raises". Another election says what automatic mixed precision does: it leaves a call
unchanged, or the bound of `MixedPrecision` holds, and it determines the dtype of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    differentiable_call,
    judge_gradients,
    native_cotangent,
    read_gradients,
)
from attention_conformance.suite.judge.elections.modes import modes_of, transformed_calls
from attention_conformance.suite.judge.oracle import Rounding
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.catalogue import (
    Ask,
    cases_of,
    plain_patterns,
    with_plain_cases,
)
from attention_conformance.suite.spec.dtypes import DTYPES, DType, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS
from attention_conformance.suite.test_stateless import with_other_values

ROUNDS = 8
"""The least number of calls in each of two threads that call at once."""

SECOND_THREAD, TWO_THREADS = "a second thread", "two threads at once"
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
    *plain_patterns("rotary"),
)

FLOAT64_CASE = "sdpa/causal/mha/f64/b2h3q17k23d8"
"""Automatic mixed precision leaves float64 alone."""

CASES = with_plain_cases(
    Ask(*MASKS, *LAYERS, dtypes="growing"),
    Ask(GROUPED, dtypes="float32"),
    Ask(FLOAT64_CASE),
    dtypes="half",
)

SMOKE_CASES = (GROUPED, "sdpa/bool.qk.empty/mha/{dt}/b2h3q17k23d8/dense", LAYERS[2], LAYERS[3])

FRAMEWORK_CASES = with_plain_cases(
    Ask(*SMOKE_CASES, dtypes="float32"),
    Ask(*MASKS, *LAYERS, dtypes="float32", since="standard"),
    dtypes="float32",
)
"""Cases of frameworks' own implementations: fewer, since their users call in these modes every day."""


Problem = tuple[Inputs, PreparedCall]
"""Inputs, and the call that is prepared for them."""

Judges = dict[str, Callable[[], None]]
"""Functions that call and judge in one mode each, by the names of the modes."""


@check(CASES, builtin_cases=FRAMEWORK_CASES)
def test_ambient(cell: Cell) -> None:
    """The message names the wrong modes. If calls by two threads at once are not supported, the other
    modes are judged, and the cell is unsupported."""
    inputs = cell.inputs
    prepared = cell.prepare(inputs)
    cell.judge(cell.read(cell.call(prepared), inputs, prepared), inputs)
    judges = mode_judges(cell, inputs, prepared)
    lacking = cell.implementation.missing(["calls-at-once"])
    if lacking is not None:
        del judges[TWO_THREADS]
    expect_in_every_mode(cell, judges)
    if lacking is not None:
        raise NotApplicable(lacking)


def expect_in_every_mode(cell: Cell, judges: Judges) -> None:
    """Call the judge of every mode. Raises a WrongAnswer that names all wrong modes. A mode may raise
    NotApplicable. If a user function is wrong only with two threads at once, the message suggests a
    claim."""
    wrong: dict[str, WrongAnswer] = {}
    for name, judge in judges.items():
        try:
            with suppress(NotApplicable):
                judge()
        except WrongAnswer as deviation:
            wrong[name] = deviation
    if wrong:
        first = next(iter(wrong.values()))
        only_at_once = TWO_THREADS in wrong and SECOND_THREAD not in wrong
        may_claim = only_at_once and cell.implementation.declared.is_user_code
        hint = "; claim threads=one?" if may_claim else ""
        message = f"wrong in {', '.join(wrong)}: {first.message}{hint}"
        raise WrongAnswer(first.kind, message, where=tuple(wrong))


DIFFERENTIATED = cases_of(
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
    inputs = in_16_bits(cell.inputs)
    cotangent = round_to(round_to(cell.cotangent, DTYPES["bf16"]), DTYPES["f16"])
    prepared, _ = differentiable_call(cell, inputs)
    backend = cell.implementation.backend
    values = native_cotangent(cotangent, inputs, prepared)
    native = backend.arranged(values, cell.dtype, "contiguous")

    def expect_gradients(mode: Ambient) -> None:
        """Judge the gradients of a call in a mode. Raises WrongAnswer and NotApplicable."""
        mode_dtype = DTYPES[mode.dtype or cell.dtype.name]
        with allowing_refusal(cell, mode.question, mode_dtype):
            with mode.within():
                _, pull = cell.attempt(lambda: backend.pullback(prepared, OPERANDS))
                gradients = None if mode.dtype else cell.attempt(lambda: pull(native))
            if gradients is None:  # outside, as the documentation of torch.autocast recommends
                gradients = cell.attempt(lambda: pull(native))
        arrays = read_gradients(cell, gradients, inputs, prepared, OPERANDS)
        is_cast = mode.dtype and autocast_answer(cell, mode_dtype) != "unchanged"
        cell_in_mode = (
            MixedPrecision(cell, mode_dtype)
            if is_cast
            else Cell(cell.check, inputs.case, cell.implementation, cell.seed)
        )
        judge_gradients(cell_in_mode, arrays, inputs.replace(dtype=cell_in_mode.dtype), cotangent)

    def expect_in_second_thread() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(expect_gradients, Ambient(nullcontext)).result()

    expect_gradients(Ambient(nullcontext))
    modes = {n: m for n, m in modes_of(cell.implementation).items() if not m.forward_only}
    expect_in_every_mode(
        cell,
        {name: partial(expect_gradients, mode) for name, mode in modes.items()}
        | {SECOND_THREAD: expect_in_second_thread},
    )


def in_16_bits(inputs: Inputs) -> Inputs:
    """Returns the inputs with values rounded to bfloat16 and to float16. Then autocast changes no
    value."""
    integers = inputs.operator.array_kinds.integers
    rounded = {
        name: round_to(round_to(array, DTYPES["bf16"]), DTYPES["f16"])
        for name, array in inputs.arrays.items()
        if name not in integers and inputs.case.dtype_of(name) is inputs.dtype
    }
    return inputs.replace(**rounded)


def mode_judges(cell: Cell, inputs: Inputs, prepared: PreparedCall) -> Judges:
    """Returns a judge for each mode of the framework, each transformation, and each mode of threads."""
    implementation = cell.implementation
    judges: Judges = {}
    changed = with_other_values(inputs)
    problems: list[Problem] = [(inputs, prepared), (changed, cell.prepare(changed))]
    for name, mode in modes_of(implementation).items():
        expect = expect_in_mixed_precision if mode.dtype else expect_in_mode
        judges[name] = partial(expect, cell, problems, mode)
    for name in transformed_calls(implementation, inputs, prepared):
        judges[name] = partial(expect_transformed, cell, inputs, prepared, name)
    judges[SECOND_THREAD] = partial(expect_in_threads, cell, [problems], 1)
    by_thread = [[problem] for problem in problems]
    judges[TWO_THREADS] = partial(expect_in_threads, cell, by_thread, ROUNDS)
    return judges


@contextmanager
def allowing_refusal(cell: Cell, question: str, dtype: DType) -> Iterator[None]:
    """A context in which an error of a call counts as the elected answer "raises" to `question`: its
    WrongAnswer becomes NotApplicable. The WrongAnswer is raised unchanged if the mode has no question
    (""), if another answer is promised, or for a forbidden call."""
    try:
        yield
    except WrongAnswer as deviation:
        promised = cell.implementation.declared_answer(question, dtype) if question else "answers"
        if promised not in (None, "raises") or deviation.kind == "forbidden":
            raise
        raise NotApplicable(f"raises in this mode: {deviation.message}") from deviation


class MixedPrecision(Cell):
    """A cell under automatic mixed precision to `dtype`. `original` is the cell without it. No numerics
    class is declared for this mode. So the widest class is taken, and every stored number may be rounded
    to both dtypes."""

    def __init__(self, cell: Cell, dtype: DType) -> None:
        case = cell.inputs.replace(dtype=dtype).case
        super().__init__(cell.check, case, cell.implementation, cell.seed)
        self.original = cell

    @property
    def numerics(self) -> str:
        return "working" if "working" in (super().numerics, self.original.numerics) else "stepwise"

    @property
    def rounding(self) -> Rounding:
        rounding, original = super().rounding, self.original
        if original.dtype is self.dtype:
            return rounding
        return replace(rounding, beside=(original.dtype, original.flushes))


def call_in_mode(cell: Cell, mode: Ambient, calls: Sequence[PreparedCall]) -> list[Any]:
    """Makes the calls one after the other in a mode, and returns their native outputs."""
    with mode.within():
        return [cell.call(prepared) for prepared in calls]


def expect_in_mode(cell: Cell, problems: Sequence[Problem], mode: Ambient) -> None:
    """Call every problem in a mode, then judge all outputs. Raises WrongAnswer."""
    with allowing_refusal(cell, mode.question, cell.dtype):
        natives = call_in_mode(cell, mode, [prepared for _, prepared in problems])
    for (inputs, prepared), native in zip(problems, natives, strict=True):
        cell.judge(cell.read(native, inputs, prepared), inputs)


def expect_in_mixed_precision(cell: Cell, problems: Sequence[Problem], mode: Ambient) -> None:
    """Judge the output of the first problem under autocast, in the elected dtype. Raises WrongAnswer.

    Variants of layers have no election: either dtype is right. Float64 must stay unchanged. If the
    election is "narrow", a call with operands of 16 bits and a float32 bias is judged, too."""
    inputs, mode_dtype = problems[0][0], DTYPES[mode.dtype]
    if cell.dtype.name != "f64":
        inputs = in_16_bits(inputs)
    narrow, prepared = inputs.replace(dtype=mode_dtype), cell.prepare(inputs)
    with allowing_refusal(cell, mode.question, mode_dtype):
        (native,) = call_in_mode(cell, mode, [prepared])
    is_operator_kind = inputs.case.option("kind") in (None, inputs.operator.name)
    has_question = is_operator_kind and "autocast" in inputs.operator.questions.elections
    answer = autocast_answer(cell, mode_dtype) if has_question and cell.dtype.name == "f32" else ""
    if answer == "unchanged" or cell.dtype.name == "f64":
        cell.judge(cell.read(native, inputs, prepared), inputs)
        return
    oracle = MixedPrecision(cell, mode_dtype).oracle(narrow)
    candidates = {"narrow": [narrow], "narrow-inside": [inputs]}.get(answer, [inputs, narrow])
    oracle.judge(read_as_one_of(cell, native, candidates, prepared).arrays)
    bias = prepared.argument("bias")
    if answer == "narrow" and inputs.bias is not None and bias in prepared.arguments:
        mixed = cell.prepare(narrow)
        mixed = replace(mixed, arguments={**mixed.arguments, bias: prepared.arguments[bias]})
        (native,) = call_in_mode(cell, mode, [mixed])
        oracle.judge(cell.read(native, narrow, mixed).arrays)


def autocast_answer(cell: Cell, dtype: DType) -> str:
    """Returns the elected answer about autocast to a dtype; "" if there is none. The check `election`
    reports that."""
    try:
        return elections.elected_answer("autocast", cell.implementation, dtype)
    except (WrongAnswer, NotApplicable):
        return ""


def read_as_one_of(
    cell: Cell, native: Any, candidates: Sequence[Inputs], prepared: PreparedCall
) -> Answer:
    """Returns the answer, read as an answer to the first inputs in `candidates` that have its dtype.
    Raises WrongAnswer if none has."""
    *first_candidates, last_candidate = candidates
    for inputs in first_candidates:
        with suppress(WrongAnswer):
            return cell.read(native, inputs, prepared)
    return cell.read(native, last_candidate, prepared)


def expect_transformed(cell: Cell, inputs: Inputs, prepared: PreparedCall, name: str) -> None:
    """Judge the output of the call inside the transformation `name` (`Engine.ambient`). Raises
    WrongAnswer."""
    implementation = cell.implementation
    with allowing_refusal(cell, implementation.backend.ambient[name], cell.dtype):
        call = transformed_calls(implementation, inputs, prepared)[name]()
        native = cell.call(call)
    cell.judge(cell.read(native, inputs, call), inputs)


def expect_in_threads(cell: Cell, threads: Sequence[Sequence[Problem]], rounds: int) -> None:
    """Judge the outputs of threads that call at once. `threads`: the problems of each thread, which it
    calls in turn, at least `rounds` calls. Raises WrongAnswer."""
    # The setting that forces a kernel is one of the process, so it is made around the threads.
    with threads[0][0][1].within():
        outcomes = cell.implementation.backend.at_once(
            [[call for _, call in problems] for problems in threads], rounds
        )
    for problems, outcome in zip(threads, outcomes, strict=True):
        right_values: list[np.ndarray] = []
        for (inputs, prepared), native in zip(cycle(problems), outcome, strict=False):
            if isinstance(native, BaseException):
                cell.attempt(partial(_raise, native))
            answer = cell.read(native, inputs, prepared)
            if not any(np.array_equal(answer.values, values) for values in right_values):
                cell.judge(answer, inputs)
                right_values.append(answer.values)


def _raise(error: BaseException) -> None:
    raise error
