"""The catalogue: every case of the suite, by level, of all operators.

smoke     every axis value at least once, and coinciding sizes that hid bugs in released code
standard  every valid pair of axis values, and designed cases
full      standard, and products of axes
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.elections import ELECTION_CASES, ElectionCase
from attention_conformance.suite.spec.ids import part
from attention_conformance.suite.spec.levels import SHARES, Ask, levels_up_to
from attention_conformance.suite.spec.malformed import MALFORMED_CASES, MalformedCase
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.operators import OPERATORS

AnyCase = Case | ElectionCase | MalformedCase


class Selection:
    """Cases by level: `selection(level)` returns the cases, `why(level)` also the reason of each.

    Both return the cases of all operators, or only those of `operators` (names), in the same order. The
    covering arrays of other operators are then not computed, which takes seconds.

    `select(level, operators)` computes the cases with their reasons. Its results are cached.
    """

    def __init__(self, select: Callable[[str, Collection[str]], dict[Case, str]]) -> None:
        self._select = select
        self._computed: dict[tuple[str, frozenset[str]], dict[Case, str]] = {}

    def __call__(
        self, level: str = "standard", operators: Iterable[str] | None = None
    ) -> tuple[Case, ...]:
        """Returns the cases of a level. Raises ValueError with the valid levels."""
        return tuple(self.why(level, operators))

    def why(self, level: str, operators: Iterable[str] | None = None) -> Mapping[Case, str]:
        """Returns the cases of a level with their reasons. Raises ValueError with the valid levels."""
        key = level, frozenset(OPERATORS if operators is None else operators)
        if key not in self._computed:
            self._computed[key] = self._select(*key)
        return self._computed[key]

    def where(self, keep: Callable[[Case], bool]) -> Selection:
        """Returns the selection of the cases for which `keep` is True."""
        return Selection(lambda *key: {c: why for c, why in self.why(*key).items() if keep(c)})

    def share(self, name: str) -> Selection:
        """Returns the selection of the share `name` of these cases (a row of `SHARES`)."""
        share = SHARES[name]

        def select(level: str, operators: Collection[str]) -> dict[Case, str]:
            smoke = self("smoke", operators)
            smoke_cases = {*smoke}
            in_dtypes = [case for case in smoke if case.dtype.name in share.dtypes]
            chosen = one_in(share.smoke, in_dtypes, by_dtype=True)
            for later_level in levels_up_to(level)[1:]:
                later_cases = (
                    case for case in self(later_level, operators) if case not in smoke_cases
                )
                chosen += one_in(share.smoke_again, smoke)
                chosen += one_in(share.later_cases, later_cases, layers=share.layers)
            selected, reason = {*chosen}, f"share {name}: {share.why}"
            reasons = self.why(level, operators)
            return {c: f"{why}; {reason}" for c, why in reasons.items() if c in selected}

        return Selection(select)


def one_in(
    step: int, cases: Iterable[Case], by_dtype: bool = False, layers: int = 0
) -> tuple[Case, ...]:
    """Returns one in `step` cases of each operator; with `by_dtype`, of each operator and dtype.

    `layers`: the step for layers, if it is not 0. A step of 0 selects no case, any other step at least
    one case per group. A checksum of the reversed id selects cases, so most selections stay the same when
    cases are added.
    """
    if not step:
        return ()
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        dtype = case.dtype.name if by_dtype else ""
        groups.setdefault((case.operator.name, dtype), []).append(case)
    chosen: list[Case] = []
    for group in groups.values():
        group_step = layers if layers and group[0].operator.is_layer else step
        group.sort(key=lambda case: crc32(case.id[::-1].encode()))
        chosen += group[: -(-len(group) // group_step)]
    return tuple(chosen)


def cases_of(*asks: Ask | str) -> Selection:
    """Returns the selection of the cases of these `Ask`s and patterns of ids. A pattern has the dtypes of
    the row "promise" of `DTYPES_AT`."""
    patterns = tuple(ask for ask in asks if isinstance(ask, str))
    group = [Ask(*patterns, dtypes="promise"), *(ask for ask in asks if isinstance(ask, Ask))]
    return _selection(lambda operators: [group])


def of_operator(operator: Operator, selection: Selection, level: str) -> list[Case]:
    """Returns the cases of one operator in a selection at a level."""
    return [case for case in selection(level) if case.operator is operator]


def _of_all_operators(field: str) -> Selection:
    """Returns the cases in the field `field` of `Operator.asks` (`Asks`), of all operators."""
    return _selection(
        lambda operators: [
            getattr(x.asks, field) for x in OPERATORS.values() if x.name in operators
        ]
    )


def _selection(groups: Callable[[Collection[str]], Iterable[Sequence[Ask]]]) -> Selection:
    """Returns the selection of the cases of several groups of `Ask`s: group by group, earlier levels
    first. `groups` returns those that have cases of some operators."""

    def select(level: str, operators: Collection[str]) -> dict[Case, str]:
        reasons: dict[str, str] = {}
        for asks in groups(operators):
            for each_level in levels_up_to(level):
                for ask in asks:
                    for text, why in ask.ids_at(each_level, in_all_dtypes).items():
                        reasons.setdefault(text, why)
        selected = (item for item in reasons.items() if part(item[0], "OPERATOR") in operators)
        return {Case.parse(text): why for text, why in selected}

    return Selection(select)


def in_all_dtypes(kind: str, pattern: str) -> bool:
    """Returns True if the level standard has a pattern in all dtypes. `kind`: a value of
    `DtypesAt.all_dtypes`, "common" or "promise"."""
    operator = OPERATORS[part(pattern, "OPERATOR")]
    promise = kind == "promise" and not operator.is_layer
    return promise or part(pattern, "SIZES") in operator.asks.common_sizes


cases = _of_all_operators("cases")
"""Cases whose values are judged."""

gradient_cases = _of_all_operators("gradients")
"""Cases whose derivatives are judged."""

compiled_cases = _of_all_operators("compiled")
"""Cases for compiled implementations."""

compiled_gradient_cases = _of_all_operators("compiled_gradients")
"""Cases for derivatives of compiled implementations."""


def plain_patterns(*names: str) -> tuple[str, ...]:
    """Returns the ids, with {dt} for the dtype, of the plain cases of these operators (`Asks.plain`)."""
    return tuple(OPERATORS[name].asks.plain for name in names)


def paged_patterns() -> tuple[str, ...]:
    """Returns the ids, with {dt} for the dtype, of all operators' cases with a page table
    (`Asks.pages`)."""
    return tuple(pattern for operator in OPERATORS.values() for pattern in operator.asks.pages)


def with_plain_cases(
    *asks: Ask | str, dtypes: str = "promise", keep: Callable[[Case], bool] = lambda case: True
) -> Selection:
    """Returns the cases of `asks`, as `cases_of(*asks)` does, and so that a check meets every operator,
    at the level standard and above also plain cases: ids of ordinary problems that each operator names.

    Added are `Asks.plain` (one id without a mask) of the operators that occur in none of `asks`, and
    `Asks.plain_kinds` (ids of its other kinds and of sizes that people run) of every operator.

    - `dtypes`: the row of `DTYPES_AT` with the dtypes of the added cases
    - `keep`: an added case for which it is False is left out
    """

    def patterns_of_unnamed() -> list[str]:
        """Returns the patterns of the added plain cases."""
        texts = (
            text for ask in asks for text in ([ask] if isinstance(ask, str) else ask.patterns())
        )
        named_operators = {part(text, "OPERATOR") for text in texts}
        patterns = [*plain_patterns(*(name for name in OPERATORS if name not in named_operators))]
        patterns += [text for operator in OPERATORS.values() for text in operator.asks.plain_kinds]
        return [text for text in patterns if keep(Case.parse(text.replace("{dt}", "f32")))]

    return cases_of(*asks, Ask(patterns_of_unnamed, dtypes=dtypes, since="standard"))


def has_axes(axes: str) -> Callable[[Case], bool]:
    """Returns a function that is True for a case whose output has all `axes` (letters), none of them tied
    to another axis, and whose arrays have an axis of samples."""

    def has_free_axes(case: Case) -> bool:
        tied = "".join(tie for tie in case.ties if "1" not in tie)
        free = set(case.operator.outputs(case)["output"]) - set(tied)
        return case.operator.packing is None and set(axes) <= free

    return has_free_axes


def everything(level: str = "standard") -> tuple[AnyCase, ...]:
    """Returns all cases, election cases and malformed problems of a level."""
    return (*cases(level), *ELECTION_CASES, *MALFORMED_CASES)


def find(case_id: str) -> AnyCase:
    """Returns the case with this id, in the catalogue or not. Raises ValueError if the id names no
    case."""
    special_cases: list[AnyCase] = [*ELECTION_CASES, *MALFORMED_CASES]
    matches = (case for case in special_cases if case.id == case_id)
    return next(matches, None) or Case.parse(case_id)


_LIMITED = ("Hkv", "heads", "Lq", "Lk", "D", "Dv", "scale", "page_size", "axis_order")
"""The facts of a case that limits of a function can change."""


def original_of(case: AnyCase, among: Iterable[AnyCase]) -> Case | None:
    """Returns the case of `among` that became `case` because a function's limits exclude it
    (`Implementation.nearest_supported`). Facts that limits cannot change are equal. Of several cases the
    most similar one; None if there is none."""

    def unlimited_facts(candidate: Case) -> dict[str, Any]:
        return {name: fact for name, fact in candidate.facts.items() if name not in _LIMITED}

    def similarity(candidate: Case) -> int:
        facts, has_dtype = candidate.facts, candidate.dtype is case.dtype
        return has_dtype + sum(facts.get(n) == case.facts.get(n) for n in _LIMITED)

    if not isinstance(case, Case):
        return None
    cases = (c for c in among if isinstance(c, Case) and c.operator is case.operator)
    candidates = (c for c in cases if unlimited_facts(c) == unlimited_facts(case))
    return max(candidates, key=similarity, default=None)


__all__ = [
    "AnyCase", "Ask", "Selection", "cases", "cases_of", "compiled_cases", "compiled_gradient_cases",
    "everything", "find", "gradient_cases", "has_axes", "of_operator", "one_in", "original_of",
    "paged_patterns", "plain_patterns", "with_plain_cases",
]  # fmt: skip
