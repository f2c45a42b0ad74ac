"""Checks: promises, with the cases they are asked on.

A check is a function of a `Cell`. It returns where the promise holds and raises `Deviation` where it does
not. The same functions serve pytest and the programs that judge without it. A check is asked of every
operator that has cases for it, and of every implementation that has the features it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from backends.protocol import Declared, Implementation
from suite.judge.cell import Cell
from suite.spec.catalogue import AnyCase

CasesOf = Callable[[str], Iterable[AnyCase]]
"""The cases of a level."""


def everybody(declared: Declared) -> bool:
    """Whom most checks are asked of: every implementation."""
    return True


@dataclass(frozen=True)
class Check:
    """A promise: its name, the function that judges it, the cases of a level it is asked on, the features
    it needs besides those of its cases, and the cases of a level that it is asked on of compiled
    implementations, which pay for every new shape; None for none. `whom` says of which implementations it
    is asked at all, by what they declare. `own` are the cases of a level that frameworks' own
    implementations are asked, where a person's is asked more; None where all are asked the same.
    `stored`: it asks for one answer to each of its cases, and none to a variation, so that it can be
    asked of answers that lie in files. At smoke, textbook code is asked these checks alone. `optimized`:
    a share of its cases asks frameworks' own code as people compile it (see `Cell.quick`)."""

    name: str
    function: Callable[[Cell], None]
    cases: CasesOf
    needs: tuple[str, ...] = ()
    compiled: CasesOf | None = None
    whom: Callable[[Declared], bool] = everybody
    own: CasesOf | None = None
    stored: bool = False
    optimized: bool = False

    def cells(
        self, level: str, implementations: Sequence[Implementation], seed: int = 0
    ) -> Iterator[Cell]:
        """The cells of the level, case by case: every implementation is asked what its operator is.

        A case beyond the limits that an implementation declares is unsupported; its twin within the
        limits is asked besides. Dtypes that an implementation names are asked a level later, and so are
        variations of textbook code's cases.
        """
        of_these = [i for i in implementations if self.whom(i.declared)]
        if level == "smoke" and not self.stored:
            of_these = [i for i in of_these if not i.varied_later]
        eager = [i for i in of_these if i.mode == "eager"]
        compiled = [i for i in of_these if i.mode != "eager"]
        for cases, group in ((self.cases, eager), (self.compiled, compiled)):
            if cases is None or not group:
                continue
            of_level = tuple(cases(level))
            ids = {case.id for case in of_level}
            own = {case.id for case in self.own(level)} if self.own else ids
            later = {i: i.later_dtypes for i in group if level != "full"}
            waits = level == "standard" and any(later.values())
            in_every_dtype = {case.id for case in cases("smoke")} if waits else set()
            twins: set[tuple[Implementation, str]] = set()
            for case in of_level:
                for implementation in group:
                    if implementation.operator is not case.operator:
                        continue
                    dtypes = later.get(implementation, ())
                    if case.dtype.name in dtypes and case.id not in in_every_dtype:
                        continue
                    if case.id not in own and not implementation.declared.person:
                        continue
                    yield Cell(self, case, implementation, seed)
                    twin = implementation.twin(case)
                    if twin is None or twin.id in ids or (implementation, twin.id) in twins:
                        continue
                    twins.add((implementation, twin.id))
                    yield Cell(self, twin, implementation, seed)

    def unsupported(self, implementation: Implementation, case: AnyCase) -> str | None:
        """Why the implementation cannot be asked this on the case, or None. Runs nothing."""
        return implementation.unsupported(case) or implementation.missing(self.needs)


def check(
    cases: CasesOf,
    needs: tuple[str, ...] = (),
    compiled: CasesOf | None = None,
    whom: Callable[[Declared], bool] = everybody,
    own: CasesOf | None = None,
    stored: bool = False,
    optimized: bool = False,
) -> Callable[[Callable[[Cell], None]], Callable[[Cell], None]]:
    """Mark a test function as a check on the cases that `cases(level)` gives.

    The check is called what the function is, without `test_`. `needs` are the features it needs besides
    those of its cases, `compiled` the cases of a level that it is asked on of compiled implementations,
    `whom` says of which implementations it is asked at all, `own` what frameworks' own are asked where
    that is less, `stored` that answers from files will do, `optimized` that a share of the cases asks
    what compilers make of frameworks' own code.
    """

    def mark(function: Callable[[Cell], None]) -> Callable[[Cell], None]:
        name = function.__name__.removeprefix("test_")
        CHECKS[function] = Check(
            name, function, cases, needs, compiled, whom, own, stored, optimized
        )
        return function

    return mark


CHECKS: dict[Any, Check] = {}
"""Every check, by its function."""
