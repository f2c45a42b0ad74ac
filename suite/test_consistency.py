"""Promise: what a person's function elects hangs together. Asked of functions, and of the questions whose
answers nobody promised.

Where the field has no single right answer every answer is one that somebody elects, alone. Together some
are nobody's: they come from a kernel that forgot something. An answer that was promised (--elect), and
one that the framework's own attention gives in the same way, are right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backends.protocol import Declared
from suite.judge import elections
from suite.judge.cell import Cell
from suite.judge.check import check
from suite.judge.verdict import Deviation, HarnessError, NotApplicable
from suite.spec.dtypes import DTYPES, DType
from suite.spec.elections import ELECTION_CASES, QUESTIONS, ElectionCase

ROWS = ("fully-masked-row", "padded-sample", "minus-inf-row")
"""The questions of what a row without keys gives; each has one of its gradient."""

FINITE = ("zeros", "uniform", "unmasked", "other")
"""Answers of rows without keys that are numbers."""


def of_questions(names: Sequence[str]) -> Callable[[str], list[ElectionCase]]:
    """The cases that put these questions."""
    cases = [case for case in ELECTION_CASES if case.question.name in names]
    return lambda level: cases


def persons(declared: Declared) -> bool:
    """Whom these checks are asked of."""
    return declared.is_user_code


def answers(cell: Cell, names: Sequence[str], dtype: DType | None = None) -> tuple[str, ...]:
    """What the function answers to questions, as observed.

    Raises NotApplicable where one of them is promised, or not asked of the operator.
    """
    implementation, dtype = cell.implementation, dtype or cell.dtype
    for name in names:
        if name not in implementation.operator.questions.elections:
            raise NotApplicable(f"{implementation.operator} is not asked {name}")
        if implementation.elected(name, dtype) is not None:
            raise NotApplicable(f"the answer to {name} is promised")
        if dtype.name not in implementation.declared.dtypes:
            raise NotApplicable(f"dtype {dtype.long_name} is not supported")
    return tuple(elections.observe(name, implementation, dtype) for name in names)


def like_native(cell: Cell, questions: Sequence[tuple[str, DType]], got: Sequence[str]) -> bool:
    """Whether the framework's own attention gives the same answers to the same questions."""
    own = cell.implementation
    return [elections.of_native(name, own, dtype) for name, dtype in questions] == list(got)


def expect(cell: Cell, right: bool, names: Sequence[str], got: Sequence[str], what: str) -> None:
    """Raise Deviation "election" unless the answers are right, or those of the framework's own
    attention."""
    if right or like_native(cell, [(name, cell.dtype) for name in names], got):
        return
    observed = ", ".join(f"{n} is {answer}" for n, answer in zip(names, got, strict=True))
    raise Deviation("election", f"{what}: {observed}; nobody elects that unless it is promised with "
                    f"--elect {names[0]}={got[0]}")  # fmt: skip


@check(of_questions(["causal-with-mask", "causal-alone"]), applies_to=persons, single_answer=True)
def test_mask_beside_flag(cell: Cell) -> None:
    """The causal flag counts, alone and beside a mask, and so does the mask; or the call raises."""
    names = (question_of(cell),)
    (got,) = answers(cell, names)
    alone = got == "ignored"
    ignored = alone or got in ("causal-ignored", "mask-ignored")
    what = "the causal flag" if alone else "one of two masks"
    expect(cell, not ignored, names, (got,), f"{what} is silently ignored")


@check(of_questions(["minus-inf-row"]), applies_to=persons, single_answer=True)
def test_forms_of_empty_rows(cell: Cell) -> None:
    """A row without keys gives the same whether a boolean mask empties it or a bias of -inf."""
    names = ("fully-masked-row", "minus-inf-row")
    got = answers(cell, names)
    what = "one mask in two forms gives rows without keys of two kinds"
    expect(cell, got[0] == got[1], names, got, what)


@check(of_questions([f"{name}-gradient" for name in ROWS]), applies_to=persons, single_answer=True)
def test_gradient_of_finite_rows(cell: Cell) -> None:
    """Where a row without keys is a number, no gradient is NaN."""
    question = question_of(cell)
    names = (question, question.removesuffix("-gradient"))
    gradient, row = answers(cell, names)
    right = not (gradient == "nan" and row in FINITE)
    expect(cell, right, names, (gradient, row), "a finite row without keys has gradients of NaN")


def in_several_dtypes(level: str) -> list[ElectionCase]:
    """Questions that are put in more than one dtype and have one answer in all of them."""
    return [
        case
        for case in ELECTION_CASES
        if len(case.question.dtypes) > 1 and case.question.one_answer
    ]


@check(in_several_dtypes, applies_to=persons, single_answer=True)
def test_one_answer_in_all_dtypes(cell: Cell) -> None:
    """A question has one answer in all dtypes."""
    question = question_of(cell)
    (got,) = answers(cell, [question])
    others = [name for name in QUESTIONS[question].dtypes if DTYPES[name] is not cell.dtype]
    for name in others:
        dtype = DTYPES[name]
        try:
            (other,) = answers(cell, [question], dtype)
        except NotApplicable:
            continue
        questions = ((question, cell.dtype), (question, dtype))
        if got != other and not like_native(cell, questions, (got, other)):
            raise Deviation(
                "election",
                f"{question} is {got} in {cell.dtype.name} and {other} in {name}; nobody elects that "
                f"unless it is promised with --elect {question}={cell.dtype.name}:{got} and "
                f"--elect {question}={name}:{other}",
            )


def question_of(cell: Cell) -> str:
    """The name of the question that the cell's case puts."""
    if not isinstance(cell.case, ElectionCase):
        raise HarnessError(f"{cell.case.id} asks no question")
    return cell.case.question.name
