"""Evidence: whether an implementation answers what a deviation answers.

Let e be the largest bound of the right answer, and W = `WIDER`. A deviation explains a failing cell if
the implementation's output

- lies within W e of the deviation's output in every element, and
- is four times nearer to it than to the right output (`NEARER`, over the wrong elements).

A deviation contradicts a passing cell if its output lies more than (W + 1) e from the right one: the
implementation's output is within e of the right one, so it cannot be within W e of the deviation's.

Bounds are derived for the right function. A deviation combines the same operands in another way: keys,
heads or rows change places, factors and terms are lost. So the largest bound of an array is taken for
every element, in proportion to the size of the answer. W is 8: errors of weights grow with the scores,
and scores that are too large are most often unscaled, 8 times as large for heads of 64 components.

In 16 bits W e is wide, and deviations of rounding lie within it, so that the distances decide: no
deviation explains a right answer, which has no distance to itself. NaN and infinity are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.diagnosis.outcome import Arrays, Comparison, Limit, Outcome
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.spec.vocabulary import VALUES

WIDER = 8.0
"""The bound of a deviation's error, in bounds of the right answer."""

NEARER = 4.0
"""An explaining deviation is this many times nearer to the implementation than the right answer is."""

Answer = Callable[[Outcome], Arrays | None]
"""Returns the outputs of a deviation for the inputs of an outcome, by name; None without an answer."""


class Evidence:
    """Outcomes of one implementation: the wrong ones of failing cells, and the right ones of passing
    cells."""

    def __init__(self, failing: Iterable[Outcome] = (), passing: Iterable[Outcome] = ()) -> None:
        self.failing, self._passing = [*failing], passing

    @classmethod
    def of_cells(cls, failing: Iterable[Cell], passing: Iterable[Cell]) -> Evidence:
        """Returns the outcomes of cells. Some checks fail right answers, and some pass wrong ones: these
        are left out. Cells of passing `VALUES` are not called again."""
        wrong = (outcome for outcome in map(Outcome.from_cell, failing) if outcome)
        right = (
            Outcome.from_passing_cell(c) if c.check.name == VALUES else Outcome.from_cell(c)
            for c in passing
        )
        return cls((o for o in wrong if o.is_wrong), (o for o in right if o and not o.is_wrong))

    @cached_property
    def passing(self) -> list[Outcome]:
        return [*self._passing]

    def explained(self, answer: Answer) -> list[Outcome]:
        """Returns the failing outcomes that a deviation's answer explains."""
        return [outcome for outcome in self.failing if explains(outcome, answer(outcome))]

    def contradicting(self, answer: Answer) -> list[Outcome]:
        """Returns the passing outcomes that a deviation's answer contradicts."""
        return [outcome for outcome in self.passing if contradicts(outcome, answer(outcome))]


def explains(outcome: Comparison, answer: Arrays | None) -> bool:
    """True if `answer`, the outputs of a deviation by name, explains the implementation's wrong outputs:
    they are near `answer`, and far from the right outputs (see the module). False for None."""
    wrong_count, from_answer, from_right = 0, 0.0, 0.0
    for name, predicted, want, bound in _with_expected(outcome, answer):
        got, limit = outcome.got.get(name), deviation_limit(bound, want, predicted)
        if got is None or got.shape != want.shape:
            continue
        if predicted.shape != got.shape:
            return False
        is_near = outcome.close(name, got, predicted, limit)
        if not (is_near | outcome.emptied_elements(name, predicted, limit)).all():
            return False
        wrong_count += int(outcome.wrong[name].sum())
        judged = outcome.wrong[name] & is_near & np.isfinite(got) & np.isfinite(want)
        unit = np.broadcast_to(np.maximum(limit, np.finfo(float).tiny), got.shape)[judged]
        from_answer += float((((got - predicted)[judged] / unit) ** 2).sum())
        from_right += float((((got - want)[judged] / unit) ** 2).sum())
    return wrong_count > 0 and NEARER**2 * from_answer <= from_right


CONTRACT_KINDS = ("type", "dtype", "device", "shape", "no-gradient")
"""Kinds of failures whose messages say what was expected and what was returned."""


def fails_like(one: Verdict, other: Verdict) -> bool:
    """True if two cells fail in the same way: with the same kind, lines and parts (`Verdict.where`), and
    operands of wrong gradients. For `CONTRACT_KINDS` the messages must be equal, too."""

    def failure(verdict: Verdict) -> tuple[object, ...]:
        wrong = {name for name, ratio in verdict.measured.ratios.items() if not ratio <= 1}
        message = verdict.message if verdict.kind in CONTRACT_KINDS else ""
        return verdict.kind, verdict.where, frozenset(wrong), message

    return one.status == "fail" and failure(one) == failure(other)


def contradicts(outcome: Comparison, answer: Arrays | None) -> bool:
    """True if `answer`, the outputs of a deviation by name, differs from the right outputs by more than
    rounding explains. False for None."""
    for name, predicted, want, bound in _with_expected(outcome, answer):
        limit = bound + deviation_limit(bound, want, predicted)
        if predicted.shape != want.shape:
            return True
        is_near = outcome.close(name, predicted, want, limit)
        if not (is_near | outcome.emptied_elements(name, predicted, limit)).all():
            return True
    return False


def _with_expected(
    outcome: Comparison, answer: Arrays | None
) -> Iterator[tuple[str, np.ndarray, np.ndarray, Limit]]:
    """Yields the arrays of an answer: the name, the array, the right array, and its limit."""
    for name, (want, bound) in outcome.expected.items():
        if answer is not None and name in answer:
            yield name, answer[name], want, bound


def deviation_limit(bound: Limit, want: np.ndarray, predicted: np.ndarray) -> Limit:
    """Returns how far an implementation may lie from `predicted`, the deviation's answer that it
    computes. `bound` is the bound of the right answer `want`. The bounds of codes (an array) are returned
    unchanged."""
    if isinstance(bound, np.ndarray):
        return bound
    first, second = (np.abs(x).max(initial=0.0, where=np.isfinite(x)) for x in (want, predicted))
    return WIDER * bound * max(1.0, float(second / first) if first else 1.0)
