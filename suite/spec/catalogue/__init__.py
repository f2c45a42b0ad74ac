"""The catalogue: every case of the suite, by level, of all operators.

smoke     every axis value at least once, and coinciding sizes that hid bugs in released code
standard  every valid pair of axis values, and designed cases
full      standard, and products of axes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """Cases by level: `selection(level)` returns each case once, `why(level)` the reason of each.

    `select(level)` returns cases with reasons. Its results are cached while the operators are the same.
    """

    def __init__(self, select: Callable[[str], dict[Case, str]]) -> None:
        self._select = select
        self._by_level: dict[tuple[str, ...], dict[Case, str]] = {}

    def __call__(self, level: str = "standard") -> tuple[Case, ...]:
        """The cases of a level. Raises ValueError with the valid levels."""
        return tuple(self.why(level))

    def why(self, level: str) -> Mapping[Case, str]:
        """The cases of a level with their reasons. Raises ValueError with the valid levels."""
        key = (level, *OPERATORS)
        if key not in self._by_level:
            self._by_level[key] = self._select(level)
        return self._by_level[key]

    def where(self, keep: Callable[[Case], bool]) -> Selection:
        """The selection of only those cases for which `keep` is True."""
        return Selection(lambda level: {c: why for c, why in self.why(level).items() if keep(c)})

    def share(self, name: str) -> Selection:
        """The cases that belong to the share named `name` (`SHARES`)."""
        share = SHARES[name]

        def select(level: str) -> dict[Case, str]:
            smoke = self("smoke")
            smoke_cases = {*smoke}
            in_dtypes = [case for case in smoke if case.dtype.name in share.dtypes]
            chosen = one_in(share.smoke, in_dtypes, by_dtype=True)
            for later_level in levels_up_to(level)[1:]:
                later_cases = (case for case in self(later_level) if case not in smoke_cases)
                chosen += one_in(share.smoke_again, smoke)
                chosen += one_in(share.later_cases, later_cases, layers=share.layers)
            selected, reason = {*chosen}, f"share {name}: {share.why}"
            return {c: f"{why}; {reason}" for c, why in self.why(level).items() if c in selected}

        return Selection(select)


def one_in(
    step: int, cases: Iterable[Case], by_dtype: bool = False, layers: int = 0
) -> tuple[Case, ...]:
    """One in `step` cases of each group: of each operator, or `by_dtype` of each operator and dtype. With
    `layers` one in `layers` cases of layers.

    A step of 0 gives no case; any other step at least one case per group. A checksum of the reversed id
    selects cases, so most selections stay the same when cases are added.
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
    """The cases of these lists and patterns of ids. A pattern has the dtypes of the row "promise" of
    `DTYPES_AT`."""
    patterns = tuple(ask for ask in asks if isinstance(ask, str))
    group = [Ask(*patterns, dtypes="promise"), *(ask for ask in asks if isinstance(ask, Ask))]
    return _selection(lambda: [group])


def of_operator(operator: Operator, selection: Selection, level: str) -> list[Case]:
    """The cases of one operator in a selection."""
    return [case for case in selection(level) if case.operator is operator]


def _pool_of_operators(pool: str) -> Selection:
    """The cases of all operators in one field of `Asks`."""
    return _selection(lambda: [getattr(operator.asks, pool) for operator in OPERATORS.values()])


def _selection(groups: Callable[[], Iterable[Sequence[Ask]]]) -> Selection:
    """The cases of groups of `Ask`s, with reasons: group by group, earlier levels first."""

    def select(level: str) -> dict[Case, str]:
        reasons: dict[str, str] = {}
        for asks in groups():
            for each_level in levels_up_to(level):
                for ask in asks:
                    for text, why in ask.ids_at(each_level, in_all_dtypes).items():
                        reasons.setdefault(text, why)
        return {Case.parse(text): why for text, why in reasons.items()}

    return Selection(select)


def in_all_dtypes(kind: str, pattern: str) -> bool:
    """True if standard asks a pattern in all dtypes, for a `kind` of `DtypesAt.all_dtypes`."""
    operator = OPERATORS[part(pattern, "OPERATOR")]
    promise = kind == "promise" and not operator.is_layer
    return promise or part(pattern, "SIZES") in operator.asks.common_sizes


cases = _pool_of_operators("cases")
"""Cases whose values are judged."""

gradient_cases = _pool_of_operators("gradients")
"""Cases whose derivatives are judged."""

compiled_cases = _pool_of_operators("compiled")
"""Cases for compiled implementations."""

compiled_gradient_cases = _pool_of_operators("compiled_gradients")
"""Cases for derivatives of compiled implementations."""


def plain_patterns(*names: str) -> tuple[str, ...]:
    """The ids, with {dt}, of the plain cases of these operators (`Asks.plain`)."""
    return tuple(OPERATORS[name].asks.plain for name in names)


def paged_patterns() -> tuple[str, ...]:
    """The ids, with {dt}, of the cases with a page table, of all operators."""
    return tuple(pattern for operator in OPERATORS.values() for pattern in operator.asks.pages)


def with_plain_cases(
    *asks: Ask | str, dtypes: str = "promise", keep: Callable[[Case], bool] = lambda case: True
) -> Selection:
    """The cases of `cases_of`, and from standard on the plain cases of operators that `asks` do not name.

    `dtypes` is the row of `DTYPES_AT` for the plain cases; only those for which `keep` is True are added.
    """

    def patterns_of_unnamed() -> list[str]:
        """The plain patterns of operators that `asks` do not name, and of all further kinds."""
        texts = (
            text for ask in asks for text in ([ask] if isinstance(ask, str) else ask.patterns())
        )
        named_operators = {part(text, "OPERATOR") for text in texts}
        patterns = [*plain_patterns(*(name for name in OPERATORS if name not in named_operators))]
        patterns += [text for operator in OPERATORS.values() for text in operator.asks.plain_kinds]
        return [text for text in patterns if keep(Case.parse(text.replace("{dt}", "f32")))]

    return cases_of(*asks, Ask(patterns_of_unnamed, dtypes=dtypes, since="standard"))


def has_axes(axes: str) -> Callable[[Case], bool]:
    """A predicate of cases: the output has all `axes` (letters), none of them is tied to another axis,
    and the arrays have an axis of samples."""

    def has_free_axes(case: Case) -> bool:
        tied = "".join(tie for tie in case.ties if "1" not in tie)
        free = set(case.operator.outputs(case)["output"]) - set(tied)
        return case.operator.packing is None and set(axes) <= free

    return has_free_axes


def everything(level: str = "standard") -> tuple[AnyCase, ...]:
    """Cases, elections and malformed problems of a level."""
    return (*cases(level), *ELECTION_CASES, *MALFORMED_CASES)


def find(case_id: str) -> AnyCase:
    """The case with this id, in the catalogue or not.

    Raises ValueError if the id names no case.
    """
    special_cases: list[AnyCase] = [*ELECTION_CASES, *MALFORMED_CASES]
    matches = (case for case in special_cases if case.id == case_id)
    return next(matches, None) or Case.parse(case_id)


_LIMITED = ("Hkv", "heads", "Lq", "Lk", "D", "Dv", "scale", "page_size", "axis_order")
"""The facts of a case that limits of a function can change."""


def original_of(case: AnyCase, among: Iterable[AnyCase]) -> Case | None:
    """The case of `among` for which `case` is the nearest supported case of a function whose limits
    exclude it (`Implementation.nearest_supported`): of several the most similar one, or None."""

    def other_facts(candidate: Case) -> dict[str, Any]:
        return {name: fact for name, fact in candidate.facts.items() if name not in _LIMITED}

    def similarity(candidate: Case) -> int:
        facts, has_dtype = candidate.facts, candidate.dtype is case.dtype
        return has_dtype + sum(facts.get(n) == case.facts.get(n) for n in _LIMITED)

    if not isinstance(case, Case):
        return None
    cases = (c for c in among if isinstance(c, Case) and c.operator is case.operator)
    candidates = (c for c in cases if other_facts(c) == other_facts(case))
    return max(candidates, key=similarity, default=None)


__all__ = [
    "AnyCase", "Ask", "Selection", "asked", "cases", "compiled_cases", "compiled_gradient_cases",
    "everything", "find", "gradient_cases", "has_axes", "in_pages", "of_operator", "one_in",
    "original_of", "parsed", "plain", "with_plain",
]  # fmt: skip
