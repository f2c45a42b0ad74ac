"""Checks: promises, with the cases they are asked on.

A check is a function of a `Cell`. It returns where the promise holds and raises `Deviation` where it does
not. The same functions serve pytest and the programs that judge without it. A check is asked of every
operator that has cases for it, and of every implementation that has the features it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from backends.protocol import Implementation
from suite.judge.cell import Cell
from suite.spec.catalogue import AnyCase

Asked = Callable[[str], Iterable[AnyCase]]
"""The cases of a level."""


@dataclass(frozen=True)
class Check:
    """A promise: its name, the function that judges it, the cases of a level it is asked on, the features
    it needs besides those of its cases, and the cases of a level that it is asked on of compiled
    implementations, which pay for every new shape; None for none."""

    name: str
    function: Callable[[Cell], None]
    cases: Asked
    needs: tuple[str, ...] = ()
    compiled: Asked | None = None

    def cells(
        self, level: str, implementations: Sequence[Implementation], seed: int = 0
    ) -> Iterator[Cell]:
        """The cells of the level, case by case: every implementation is asked what its operator is."""
        eager = [i for i in implementations if i.mode == "eager"]
        compiled = [i for i in implementations if i.mode != "eager"]
        for cases, asked in ((self.cases, eager), (self.compiled, compiled)):
            for case in cases(level) if cases and asked else ():
                for implementation in asked:
                    if implementation.operator is case.operator:
                        yield Cell(self, case, implementation, seed)

    def unsupported(self, implementation: Implementation, case: AnyCase) -> str | None:
        """Why the implementation cannot be asked this on the case, or None. Runs nothing."""
        return implementation.unsupported(case) or implementation.missing(self.needs)


def check(
    cases: Asked, needs: tuple[str, ...] = (), compiled: Asked | None = None
) -> Callable[[Callable[[Cell], None]], Callable[[Cell], None]]:
    """Mark a test function as a check on the cases that `cases(level)` gives.

    The check is called what the function is, without `test_`. `needs` are the features it needs besides
    those of its cases, `compiled` the cases of a level that it is asked on of compiled implementations.
    """

    def mark(function: Callable[[Cell], None]) -> Callable[[Cell], None]:
        name = function.__name__.removeprefix("test_")
        CHECKS[function] = Check(name, function, cases, needs, compiled)
        return function

    return mark


CHECKS: dict[Any, Check] = {}
"""Every check, by its function."""
