"""Checks: promises, with the cases of each level.

A check is a function of a `Cell`. The function returns if the promise holds, and raises `WrongAnswer` if
not. A check applies to every operator that has cases for it, and to every implementation that has the
needed features.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attention_conformance.backends.protocol import Declared, Implementation
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.spec.catalogue import AnyCase, Selection
from attention_conformance.suite.spec.levels import postponement_reason

CasesOf = Callable[[str], Iterable[AnyCase]]
"""Returns the cases of a level, by the level's name."""


def cases_at(level: str, cases: CasesOf, operators: Collection[str]) -> tuple[AnyCase, ...]:
    """Returns the cases of a level. A selection of cases computes those of `operators` (names) alone."""
    return cases(level, operators) if isinstance(cases, Selection) else tuple(cases(level))


def every_implementation(declared: Declared) -> bool:
    """True for every implementation: the default of `Check.applies_to`."""
    return True


@dataclass(frozen=True)
class Check:
    """A promise.

    - `name`, and the `function` that judges it
    - `cases`: the cases of a level
    - `needs`: needed features, in addition to those of the cases
    - `compiled`: the cases of a level for compiled implementations, which pay for every new shape; None
      for none
    - `applies_to`: selects implementations by what they declare
    - `builtin_cases`: the cases of a level for frameworks' own implementations, if user functions have
      more cases; None for the same cases
    - `single_answer`: True if one answer per case is enough, without variations; then answers in files
      can be judged, too
    """

    name: str
    function: Callable[[Cell], None]
    cases: CasesOf
    needs: tuple[str, ...] = ()
    compiled: CasesOf | None = None
    applies_to: Callable[[Declared], bool] = every_implementation
    builtin_cases: CasesOf | None = None
    single_answer: bool = False

    def cells(
        self, level: str, implementations: Sequence[Implementation], seed: int = 0
    ) -> Iterator[Cell]:
        """Yields the cells of a level, case by case, for the implementations of the case's operator.

        If a case is beyond the declared limits of an implementation, the nearest supported case has a
        cell, too. `suite.spec.levels.postponement_reason` says which cells wait for a later level.
        """
        selected = [i for i in implementations if self.applies_to(i.declared)]
        eager = [i for i in selected if i.mode == "eager"]
        compiled = [i for i in selected if i.mode != "eager"]
        for cases, implementations_of_mode in ((self.cases, eager), (self.compiled, compiled)):
            if cases is not None and implementations_of_mode:
                yield from self._cells_of(cases, level, implementations_of_mode, seed)

    def _cells_of(
        self, cases: CasesOf, level: str, implementations: Sequence[Implementation], seed: int
    ) -> Iterator[Cell]:
        """Yields the cells of a level for implementations of one mode; see `cells`."""
        operators = {i.operator.name for i in implementations}
        level_cases = cases_at(level, cases, operators)
        ids = {case.id for case in level_cases}
        builtin_cases = self.builtin_cases or cases
        builtin_ids = {case.id for case in cases_at(level, builtin_cases, operators)}
        postponed = {i: i.postponed for i in implementations}
        is_postponed = any(postponed.values())
        smoke_ids = {c.id for c in cases_at("smoke", cases, operators)} if is_postponed else set()
        shared_features = shared_needs(level_cases)
        added: set[tuple[Implementation, str]] = set()
        for case in level_cases:
            for implementation in implementations:
                if implementation.operator is not case.operator:
                    continue
                if case.id not in builtin_ids and not implementation.declared.is_user_code:
                    continue
                if postponement_reason(
                    level, postponed[implementation], case.dtype.name, not self.single_answer,
                    case.id in smoke_ids,
                ):  # fmt: skip
                    continue
                yield Cell(self, case, implementation, seed)
                nearest = implementation.nearest_supported(case)
                if nearest is None or nearest.id in ids or (implementation, nearest.id) in added:
                    continue
                if shared_features[case.operator.name] - {*nearest.needs, "batch"}:
                    continue
                added.add((implementation, nearest.id))
                yield Cell(self, nearest, implementation, seed)

    def unsupported(self, implementation: Implementation, case: AnyCase) -> str | None:
        """Returns the reason why the implementation does not support this check on the case; None if it
        does. Calls nothing."""
        return implementation.unsupported(case) or implementation.missing(self.needs)


def shared_needs(cases: Iterable[AnyCase]) -> dict[str, frozenset[str]]:
    """Returns the features that all cases of an operator need, by the operator's name. The check is about
    these features, so a nearest supported case must have them, too."""
    features: dict[str, frozenset[str]] = {}
    for case in cases:
        needs = frozenset(case.needs)
        features[case.operator.name] = features.get(case.operator.name, needs) & needs
    return features


def check(
    cases: CasesOf, needs: tuple[str, ...] = (), compiled: CasesOf | None = None, **fields: Any
) -> Callable[[Callable[[Cell], None]], Callable[[Cell], None]]:
    """Returns a decorator that registers a test function in `CHECKS`, as a check on the cases
    `cases(level)`.

    The name of the check is the function's name without `test_`. The arguments are fields of `Check`.
    """

    def register(function: Callable[[Cell], None]) -> Callable[[Cell], None]:
        name = function.__name__.removeprefix("test_")
        CHECKS[function] = Check(name, function, cases, needs, compiled, **fields)
        return function

    return register


CHECKS: dict[Any, Check] = {}
"""Every check, by its function."""
