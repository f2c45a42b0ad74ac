"""Evidence: whether an implementation answers what a deviation answers.

Let e be the largest bound of the right answer, and W = `WIDER`. An answer explains a failing cell if the
implementation's answer

- lies within W e of it in every element, and
- is four times nearer to it than to the right answer (`NEARER`, over the wrong elements).

An answer contradicts a cell that passes if it lies more than (W + 1) e from the right answer: the
implementation's answer is within e of the right one, and would be within W e of the other.

Bounds are derived for the right function. A deviation combines the same operands in another way: keys,
heads or rows change places, factors and terms are lost. So the largest bound of an array is taken for
every element, in proportion to the size of the answer. W is 8: errors of weights grow with the scores,
and the commonest larger ones are those that are not scaled, 8 times as large for heads of 64 components.

In 16 bits W e is wide, and deviations of rounding lie within it, so that nearness decides: a right answer
is no deviation's, for it is as near to itself as can be. NaN and infinity are no numbers to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.diagnosis.look import Answered, Arrays, Limit, Look
from attention_conformance.suite.judge.verdict import Verdict

WIDER = 8.0
"""The bound of the error of a deviation in bounds of the right answer."""

NEARER = 4.0
"""How many times nearer than the right answer a deviation must be."""

ASKED = 40
"""The number of passing cells that are asked."""

Answer = Callable[[Look], Arrays | None]
"""What a deviation answers to the inputs of a look, by output; None if it says nothing of them."""


class Evidence:
    """Cells of one implementation: failing ones whose plain answer is wrong, and passing ones of the
    check `values`, of which the first are asked."""

    def __init__(self, failing: Iterable[Look] = (), passing: Iterable[Cell] = ()) -> None:
        self.failing, self._cells = [*failing], [*passing][:ASKED]

    @cached_property
    def passing(self) -> list[Look]:
        """Looks at the passing cells."""
        return [look for cell in self._cells if (look := Look.of_right(cell)) is not None]

    def explains(self, answer: Answer) -> list[Look]:
        """The failing cells that an answer explains."""
        return [look for look in self.failing if explains(look, answer(look))]

    def contradicts(self, answer: Answer) -> list[Look]:
        """The passing cells that an answer contradicts."""
        return [look for look in self.passing if differs(look, answer(look))]


def explains(look: Answered, answer: Arrays | None) -> bool:
    """True if the implementation answers so, and not rightly."""
    wrong, apart, beside = 0, 0.0, 0.0
    for name, other, want, bound in _beside(look, answer):
        got, limit = look.got.get(name), reach(bound, want, other)
        if got is None or got.shape != want.shape:
            continue
        if other.shape != got.shape:
            return False
        near = look.close(name, got, other, limit)
        if not (near | look.unkeyed(name, other, limit)).all():
            return False
        wrong += int(look.wrong[name].sum())
        judged = look.wrong[name] & near & np.isfinite(got) & np.isfinite(want)
        unit = np.broadcast_to(np.maximum(limit, np.finfo(float).tiny), got.shape)[judged]
        apart += float((((got - other)[judged] / unit) ** 2).sum())
        beside += float((((got - want)[judged] / unit) ** 2).sum())
    return wrong > 0 and NEARER**2 * apart <= beside


RETURNED = ("type", "dtype", "device", "shape", "no-gradient")
"""Kinds of failures whose messages say what was expected and what was returned."""


def fails_like(one: Verdict, other: Verdict) -> bool:
    """True if two cells fail in the same way: at the same line of the check, in what it names, with the
    same kind, and with the same operands whose gradients are wrong. Of a wrong type or shape, and of
    missing gradients, the messages about a case are equal."""

    def way(verdict: Verdict) -> tuple[object, ...]:
        wrong = {name for name, ratio in verdict.measured.ratios.items() if not ratio <= 1}
        returned = verdict.message if verdict.kind in RETURNED else ""
        return verdict.kind, verdict.where, frozenset(wrong), returned

    return one.status == "fail" and way(one) == way(other)


def differs(look: Answered, answer: Arrays | None) -> bool:
    """True if an answer is wrong, whatever rounding does."""
    for name, other, want, bound in _beside(look, answer):
        limit = bound + reach(bound, want, other)
        if other.shape != want.shape:
            return True
        if not (look.close(name, other, want, limit) | look.unkeyed(name, other, limit)).all():
            return True
    return False


def _beside(
    look: Answered, answer: Arrays | None
) -> Iterator[tuple[str, np.ndarray, np.ndarray, Limit]]:
    """The arrays of an answer by name, each beside the right one and its limit."""
    for name, (want, bound) in look.expected.items():
        if answer is not None and name in answer:
            yield name, answer[name], want, bound


def reach(bound: Limit, want: np.ndarray, other: np.ndarray) -> Limit:
    """How far from a deviation's answer an implementation may lie that computes it; `bound` is that of
    the right one. Codes are no sums: they lie within their own bounds."""
    if isinstance(bound, np.ndarray):
        return bound
    top, high = (np.abs(x).max(initial=0.0, where=np.isfinite(x)) for x in (want, other))
    return WIDER * bound * max(1.0, float(high / top) if top else 1.0)
