"""The catalogue: every case of the suite, by level, of all operators.

smoke     every axis value at least once, and the coincidences that fooled released code
standard  every axis value in pairs with every other that makes sense, and the designed cases
full      standard, and products of axes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from suite.spec.case import Case
from suite.spec.elections import ELECTION_CASES, ElectionCase
from suite.spec.ids import part
from suite.spec.levels import filled, in_dtypes
from suite.spec.malformed import MALFORMED_CASES, MalformedCase
from suite.spec.operators import OPERATORS
from suite.spec.vocabulary import LEVELS

AnyCase = Case | ElectionCase | MalformedCase


def _all(level: str, part: str) -> tuple[Case, ...]:
    if level not in LEVELS:
        raise ValueError(f"unknown level {level!r}; valid: {', '.join(LEVELS)}")
    ids = (text for operator in OPERATORS.values() for text in getattr(operator, part)(level))
    return parsed(ids)


def parsed(ids: Iterable[str]) -> tuple[Case, ...]:
    """The cases with these ids, each once. Raises ValueError for what is no id."""
    return tuple(Case.parse(text) for text in dict.fromkeys(ids))


@lru_cache(maxsize=3)
def cases(level: str = "standard") -> tuple[Case, ...]:
    """The cases of a level whose values are judged, each once. Raises ValueError with the valid
    levels."""
    return _all(level, "cases")


@lru_cache(maxsize=3)
def gradient_cases(level: str = "standard") -> tuple[Case, ...]:
    """The cases of a level that are differentiated."""
    return _all(level, "gradients")


@lru_cache(maxsize=3)
def compiled_cases(level: str = "standard") -> tuple[Case, ...]:
    """The cases of a level that are asked of compiled implementations."""
    return _all(level, "compiled")


@lru_cache(maxsize=3)
def compiled_gradient_cases(level: str = "standard") -> tuple[Case, ...]:
    """The cases of a level that compiled implementations are differentiated on."""
    return _all(level, "compiled_gradients")


def thinned(
    of: Callable[[str], Sequence[Case]], level: str, step: int, layers: int = 0
) -> tuple[Case, ...]:
    """The smoke cases that `of` gives, and of every operator each `step`-th of the others (of layers each
    `layers`-th): for promises that do not hang on values."""
    first = {case.id for case in of("smoke")}
    chosen = list(of("smoke"))
    for operator in OPERATORS.values():
        own = [case for case in of(level) if case.operator is operator]
        every = own[:: (layers or step) if operator.is_layer else step]
        chosen += [case for case in every if case.id not in first]
    return tuple(chosen)


def every(of: Iterable[Case], step: int) -> tuple[Case, ...]:
    """Of the cases of each operator in each dtype every `step`-th, the first among them: no operator and
    no dtype is left out."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in of:
        groups.setdefault((case.operator.name, case.dtype.name), []).append(case)
    return tuple(case for group in groups.values() for case in group[::step])


def cases_of(*patterns: str) -> Callable[[str], tuple[Case, ...]]:
    """The cases whose ids are `patterns` with {dt} replaced: by all dtypes; of layers at standard by few
    where their sizes are asked elsewhere (`Operator.every_dtype`). At smoke the patterns of an operator
    take turns (`in_turns`)."""

    @lru_cache(maxsize=3)
    def cases_at(level: str) -> tuple[Case, ...]:
        ids: list[str] = []
        patterns_of: dict[str, list[str]] = {name: [] for name in OPERATORS}
        for pattern in patterns:
            patterns_of[part(pattern, "OPERATOR")].append(pattern)
        for name, own in patterns_of.items():
            operator = OPERATORS[name]
            sizes = operator.every_dtype if operator.is_layer else [part(p, "SIZES") for p in own]
            ids += in_dtypes(own, level, sizes)
        return parsed(ids)

    return cases_at


def with_plain(*patterns: str, axes: str = "") -> Callable[[str], tuple[Case, ...]]:
    """The cases of `patterns` (see `cases_of`); from standard on also the plain one of every other
    operator whose output has the `axes`, letters, and none of them tied to another axis."""
    designed = cases_of(*patterns)

    def cases_at(level: str) -> tuple[Case, ...]:
        few = designed(level)
        if level == "smoke":
            return few
        more = cases_of(*plain_beside(few))(level)
        return (*few, *(case for case in more if _apart(case, axes)))

    return cases_at


def plain_beside(few: Iterable[Case]) -> list[str]:
    """The plain ids, with {dt}, of the operators that none of `few` is of."""
    names = {case.operator.name for case in few}
    return [o.plain for name, o in OPERATORS.items() if o.plain and name not in names]


def _apart(case: Case, axes: str) -> bool:
    """Whether the output has the axes, each with a size of its own, and samples are an axis of arrays."""
    if axes and case.operator.choose is not None:
        return False
    tied = "".join(tie for tie in case.ties if "1" not in tie)
    return set(axes) <= set(case.operator.outputs(case)["output"]) - set(tied)


def everything(level: str = "standard") -> tuple[AnyCase, ...]:
    """Cases, elections and malformed problems of a level."""
    return (*cases(level), *ELECTION_CASES, *MALFORMED_CASES)


def find(case_id: str) -> AnyCase:
    """The case with this id, in the catalogue or any other that the grammar of ids can express.

    Raises ValueError where the id names nothing.
    """
    others: list[AnyCase] = [*ELECTION_CASES, *MALFORMED_CASES]
    named = (case for case in others if case.id == case_id)
    return next(named, None) or Case.parse(case_id)


__all__ = [
    "AnyCase", "cases", "cases_of", "compiled_cases", "compiled_gradient_cases", "every", "everything",
    "filled", "find", "gradient_cases", "parsed", "plain_beside", "thinned",
    "with_plain",
]  # fmt: skip
