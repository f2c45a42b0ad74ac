"""The catalogue: every case of the suite, by level, of all operators.

smoke     every axis value at least once, and the coincidences that fooled released code
standard  every axis value in pairs with every other that makes sense, and the designed cases
full      standard, and products of axes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from zlib import crc32

from suite.spec.case import Case
from suite.spec.elections import ELECTION_CASES, ElectionCase
from suite.spec.ids import part
from suite.spec.levels import SHARES, Ask, filled, levels_up_to
from suite.spec.malformed import MALFORMED_CASES, MalformedCase
from suite.spec.operator import Operator
from suite.spec.operators import OPERATORS

AnyCase = Case | ElectionCase | MalformedCase


class Selection:
    """Cases by level: `selection(level)` gives them, each once; `why(level)` the reason of each.

    `select(level)` gives cases with reasons; it is called once a level while the operators are the same.
    """

    def __init__(self, select: Callable[[str], dict[Case, str]]) -> None:
        self._select = select
        self._known: dict[tuple[str, ...], dict[Case, str]] = {}

    def __call__(self, level: str = "standard") -> tuple[Case, ...]:
        """The cases of a level. Raises ValueError with the valid levels."""
        return tuple(self.why(level))

    def why(self, level: str) -> Mapping[Case, str]:
        """The cases of a level with the reasons. Raises ValueError with the valid levels."""
        key = (level, *OPERATORS)
        if key not in self._known:
            self._known[key] = self._select(level)
        return self._known[key]

    def where(self, keep: Callable[[Case], bool]) -> Selection:
        """Those of the cases that `keep` holds for."""
        return Selection(lambda at: {case: why for case, why in self.why(at).items() if keep(case)})

    def share(self, name: str) -> Selection:
        """The share of the cases that `SHARES` gives to this name."""
        share = SHARES[name]

        def select(level: str) -> dict[Case, str]:
            smoke = self("smoke")
            smoke_cases = {*smoke}
            in_dtypes = [case for case in smoke if case.dtype.name in share.dtypes]
            chosen = one_in(share.smoke, in_dtypes, by_dtype=True)
            for at in levels_up_to(level)[1:]:
                others = (case for case in self(at) if case not in smoke_cases)
                chosen += one_in(share.again, smoke)
                chosen += one_in(share.others, others, layers=share.layers)
            kept, reason = {*chosen}, f"share {name}: {share.why}"
            return {c: f"{why}; {reason}" for c, why in self.why(level).items() if c in kept}

        return Selection(select)


def one_in(
    step: int, cases: Iterable[Case], by_dtype: bool = False, layers: int = 0
) -> tuple[Case, ...]:
    """One in `step` of the cases of each operator (one in `layers` of a layer's), or of each dtype of it.

    A step of 0 gives none, any other at least one of each group. A checksum of the id decides, so that
    most choices stay as cases are added. The id is read from its end, where ids differ most.
    """
    if not step:
        return ()
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        dtype = case.dtype.name if by_dtype else ""
        groups.setdefault((case.operator.name, dtype), []).append(case)
    chosen: list[Case] = []
    for group in groups.values():
        of = layers if layers and group[0].operator.is_layer else step
        group.sort(key=lambda case: crc32(case.id[::-1].encode()))
        chosen += group[: -(-len(group) // of)]
    return tuple(chosen)


def asked(*asks: Ask | str) -> Selection:
    """The cases that a check lists itself; a pattern by itself has the dtypes of a promise."""
    patterns = tuple(ask for ask in asks if isinstance(ask, str))
    group = [Ask(*patterns, dtypes="promise"), *(ask for ask in asks if isinstance(ask, Ask))]
    return _selection(lambda: [group])


def of_operator(operator: Operator, selection: Selection, level: str) -> list[Case]:
    """The cases of a selection that are the operator's."""
    return [case for case in selection(level) if case.operator is operator]


def _of_operators(pool: str) -> Selection:
    return _selection(lambda: [getattr(operator.asks, pool) for operator in OPERATORS.values()])


def _selection(groups: Callable[[], Iterable[Sequence[Ask]]]) -> Selection:
    """The cases of groups of asks: group by group, those of a level behind those of the levels before."""

    def select(level: str) -> dict[Case, str]:
        reasons: dict[str, str] = {}
        for asks in groups():
            for at in levels_up_to(level):
                for ask in asks:
                    for text, why in ask.at(at, whole).items():
                        reasons.setdefault(text, why)
        return {Case.parse(text): why for text, why in reasons.items()}

    return Selection(select)


def whole(kind: str, pattern: str) -> bool:
    """Whether a pattern is asked in all dtypes at standard (see `DtypesAt`)."""
    operator = OPERATORS[part(pattern, "OPERATOR")]
    promise = kind == "promise" and not operator.is_layer
    return promise or part(pattern, "SIZES") in operator.asks.common_sizes


def parsed(ids: Iterable[str]) -> tuple[Case, ...]:
    """The cases with these ids, each once. Raises ValueError for what is no id."""
    return tuple(Case.parse(text) for text in dict.fromkeys(ids))


cases = _of_operators("cases")
"""The cases whose values are judged."""

gradient_cases = _of_operators("gradients")
"""The cases that are differentiated."""

compiled_cases = _of_operators("compiled")
"""The cases that are asked of compiled implementations."""

compiled_gradient_cases = _of_operators("compiled_gradients")
"""The cases that compiled implementations are differentiated on."""


def with_plain(*asks: Ask | str, axes: str = "") -> Selection:
    """The cases of `asked`; from standard on also the plain one of every operator that no pattern is of,
    and whose output has the `axes`, letters, none of them tied to another axis."""
    patterns = [ask for ask in asks if isinstance(ask, str)]
    plain = partial(plain_beside, patterns, lambda case: _apart(case, axes))
    return asked(*asks, Ask(plain, dtypes="promise", since="standard"))


def plain_beside(patterns: Sequence[str], keep: Callable[[Case], bool]) -> list[str]:
    """The plain ids, with {dt}, of the operators that none of `patterns` is of, where `keep` holds."""
    names = {part(pattern, "OPERATOR") for pattern in patterns}
    plain = [o.asks.plain for name, o in OPERATORS.items() if o.asks.plain and name not in names]
    return [pattern for pattern in plain if keep(Case.parse(pattern.replace("{dt}", "f32")))]


def _apart(case: Case, axes: str) -> bool:
    """Whether the output has the axes, each with a size of its own, and samples are an axis of arrays."""
    if axes and case.operator.packing is not None:
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
    "AnyCase", "Ask", "Selection", "asked", "cases", "compiled_cases", "compiled_gradient_cases",
    "everything", "filled", "find", "gradient_cases", "of_operator", "one_in", "parsed", "plain_beside",
    "with_plain",
]  # fmt: skip
