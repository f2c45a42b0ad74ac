"""Promise: the elections of a user function are consistent. Only for questions without a declared
answer.

Each answer alone is used by some framework, but some combinations come only from a kernel with a fault.
A declared answer (--elect), or one that the framework's own attention also gives, is right.
"""

from __future__ import annotations

from collections.abc import Sequence

from attention_conformance.backends.protocol import Declared
from attention_conformance.suite.judge import elections
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.elections import lse
from attention_conformance.suite.judge.verdict import HarnessError, NotApplicable, WrongAnswer
from attention_conformance.suite.spec.dtypes import DTYPES, DType
from attention_conformance.suite.spec.elections import QUESTIONS, ElectionCase, of_questions
from attention_conformance.suite.spec.operator import MODES

ROW_QUESTIONS = ("fully-masked-row", "padded-sample", "minus-inf-row")
"""Questions about fully masked rows; each has a question about its gradient."""

FINITE_ANSWERS = ("zeros", "uniform", "unmasked")
"""Finite answers for fully masked rows."""


def is_user_function(declared: Declared) -> bool:
    """True for a user function: these checks apply to no other implementation."""
    return declared.is_user_code


def observe(cell: Cell, names: Sequence[str], dtype: DType | None = None) -> tuple[str, ...]:
    """Returns the observed answers of the function to the questions called `names`.

    Raises NotApplicable if an answer is declared, if the operator does not have the question, or if the
    call gives no answer: then the question's own cell fails.
    """
    implementation, dtype = cell.implementation, dtype or cell.dtype
    for name in names:
        if name not in implementation.operator.questions.elections:
            raise NotApplicable(f"{implementation.operator} does not have the question {name}")
        if implementation.declared_answer(name, dtype) is not None:
            raise NotApplicable(f"the answer to {name} is declared")
        if dtype.name not in implementation.declared.dtypes:
            raise NotApplicable(f"dtype {dtype.long_name} is not supported")
    try:
        return tuple(elections.observe(name, implementation, dtype) for name in names)
    except WrongAnswer as deviation:
        raise NotApplicable(f"there is no answer: {deviation.message}") from deviation


def native_agrees(cell: Cell, questions: Sequence[tuple[str, DType]], got: Sequence[str]) -> bool:
    """True if the framework's own attention gives the answers `got` to the questions in these dtypes."""
    function = cell.implementation
    return [elections.native_answer(name, function, dtype) for name, dtype in questions] == list(
        got
    )


def expect_right(
    cell: Cell,
    right: bool,
    names: Sequence[str],
    got: Sequence[str],
    what: str,
    advice: str = "correct it",
) -> None:
    """Raise WrongAnswer "election" if the answers `got` to the questions `names` are not `right`, and the
    framework's own attention gives other answers. `what` names the fault, `advice` the correction."""
    if right or native_agrees(cell, [(name, cell.dtype) for name in names], got):
        return
    observed = ", ".join(f"{n} is {answer}" for n, answer in zip(names, got, strict=True))
    raise elections.unpromised_deviation(f"{what}: {observed}", (names[0], got[0]), correct=advice)


@check(
    of_questions(["causal-with-mask", "causal-alone"]),
    applies_to=is_user_function,
    single_answer=True,
)
def test_mask_beside_flag(cell: Cell) -> None:
    """The causal flag and a boolean mask both count, or the call raises."""
    names = (question_of(cell),)
    (got,) = observe(cell, names)
    what = {
        "ignored": "the causal flag is silently ignored",
        "causal-ignored": "beside a boolean mask the causal flag is silently ignored",
        "mask-ignored": "beside the causal flag the boolean mask is silently ignored",
    }.get(got, "")
    expect_right(cell, not what, names, (got,), what)


@check(of_questions(["minus-inf-row"]), applies_to=is_user_function, single_answer=True)
def test_forms_of_empty_rows(cell: Cell) -> None:
    """A fully masked row gives the same for a boolean mask and for a bias of -inf."""
    names = ("fully-masked-row", "minus-inf-row")
    got = observe(cell, names)
    what = "boolean mask and -inf bias give different fully masked rows"
    expect_right(
        cell, got[0] == got[1], names, got, what, "hide by -inf in both, or zero the rows in both,"
    )


@check(of_questions(["lse-of-empty-row"]), applies_to=is_user_function, single_answer=True)
def test_lse_of_empty_rows(cell: Cell) -> None:
    """The log-sum-exp of a fully masked row agrees with its output: a merge with other keys is right."""
    names = ("lse-of-empty-row", "fully-masked-row")
    got = observe(cell, names)
    right = got[0] in lse.AGREES[got[1]]
    expect_right(cell, right, names, got, "the log-sum-exp of fully masked rows corrupts a merge")


@check(
    of_questions([f"{name}-gradient" for name in ROW_QUESTIONS]),
    applies_to=is_user_function,
    single_answer=True,
)
def test_gradient_of_finite_rows(cell: Cell) -> None:
    """If a fully masked row is finite, no gradient is NaN; if it is zeros, its cotangent goes nowhere."""
    question = question_of(cell)
    names = (question, question.removesuffix("-gradient"))
    gradient, row = observe(cell, names)
    if gradient == "nan":
        what = "a finite fully masked row has NaN gradients"
        expect_right(cell, row not in FINITE_ANSWERS, names, (gradient, row), what)
    constant = row == "zeros" and gradient in ("values", "scores")
    what = "a fully masked row of zeros moves with no array, and has gradients"
    expect_right(cell, not constant, names, (gradient, row), what)


IN_ALL_DTYPES = [q.name for q in QUESTIONS.values() if len(q.dtypes) > 1 and q.one_answer]
"""Questions with one answer in all their dtypes."""


@check(of_questions(IN_ALL_DTYPES), applies_to=is_user_function, single_answer=True)
def test_one_answer_in_all_dtypes(cell: Cell) -> None:
    """The answer is the same in all dtypes."""
    question = question_of(cell)
    (got,) = observe(cell, [question])
    for name in QUESTIONS[question].dtypes:
        dtype = DTYPES[name]
        if dtype is cell.dtype:
            continue
        try:
            (answer_there,) = observe(cell, [question], dtype)
        except NotApplicable:
            continue
        questions = ((question, cell.dtype), (question, dtype))
        if question in MODES and "raises" in (got, answer_there):
            continue  # a mode may be supported in one dtype only
        if got != answer_there and not native_agrees(cell, questions, (got, answer_there)):
            what = f"{question} is {got} in {cell.dtype.name} and {answer_there} in {name}"
            answers = (f"{cell.dtype.name}:{got}", f"{name}:{answer_there}")
            raise elections.unpromised_deviation(what, *((question, answer) for answer in answers))


def question_of(cell: Cell) -> str:
    """Returns the name of the question in the cell's case."""
    if not isinstance(cell.case, ElectionCase):
        raise HarnessError(f"expected an election case, got {cell.case.id}")
    return cell.case.question.name
