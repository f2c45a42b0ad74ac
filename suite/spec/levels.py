"""How the cases of a level are put together: designed ids, and rows of covering arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import cycle

from suite.spec.covering import Compatible, Row, each_value, pairwise
from suite.spec.dtypes import DTYPES
from suite.spec.ids import part

HALF = ("f32", "bf16")
"""The dtypes of the level smoke, where a pattern is asked in one of the two, by turns."""


def unique(*parts: Iterable[str]) -> tuple[str, ...]:
    """The ids of all parts, each once."""
    return tuple(dict.fromkeys(text for part in parts for text in part))


def filled(patterns: Iterable[str], dtypes: Iterable[str]) -> list[str]:
    """The ids that `patterns` give with {dt} replaced by each of `dtypes`."""
    names = list(dtypes)
    return [pattern.replace("{dt}", dt) for pattern in patterns for dt in names]


def in_turns(patterns: Iterable[str]) -> list[str]:
    """The ids that `patterns` give with {dt} replaced by one of `HALF`, by turns."""
    return [pattern.replace("{dt}", dt) for pattern, dt in zip(patterns, cycle(HALF), strict=False)]


def in_dtypes(patterns: Iterable[str], level: str, everywhere: Sequence[str] = ()) -> list[str]:
    """The ids that `patterns` give in the dtypes of a level: `in_turns` at smoke, at full in all, at
    standard in all where the sizes are among `everywhere`, else in `HALF`: what hangs on the sizes alone
    is asked in few dtypes."""
    if level == "smoke":
        return in_turns(patterns)
    ids = filled(patterns, DTYPES)
    if level != "standard":
        return ids
    return [x for x in ids if part(x, "DTYPE") in HALF or part(x, "SIZES") in everywhere]


class Covering:
    """A covering array of strength 2 over `axes`, made when it is first asked for."""

    def __init__(
        self, axes: Mapping[str, Sequence[object]], compatible: Compatible,
        spread: Sequence[str], id_of: Callable[[Row], str],
    ) -> None:  # fmt: skip
        self.axes, self.compatible, self.spread, self.id_of = axes, compatible, spread, id_of

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows: every compatible pair of values of two axes stands in one of them."""
        return _rows(self)

    def ids(self, **changes: object) -> list[str]:
        """The ids of all rows, with some values changed."""
        return [self.id_of(row | changes) for row in self.rows]

    def in_every_dtype(self) -> list[str]:
        """The ids of all rows in all dtypes."""
        return [self.id_of(row | {"dtype": dt}) for row in self.rows for dt in DTYPES]

    def few(self) -> list[str]:
        """The ids of a few rows in which every value of every axis occurs."""
        return [self.id_of(row) for row in each_value(self.rows)]


@lru_cache
def _rows(covering: Covering) -> tuple[Row, ...]:
    return tuple(pairwise(covering.axes, covering.compatible, spread=covering.spread))


def designed(
    smoke: Sequence[str], standard: Sequence[str] = (), everywhere: Sequence[str] = (),
    covering: Covering | None = None,
) -> Callable[[str], tuple[str, ...]]:  # fmt: skip
    """The ids of a level from patterns with {dt}, and from a covering array where there is one: at smoke
    few rows of it, at standard all, at full all in every dtype. `everywhere` as in `in_dtypes`."""

    def ids(level: str) -> tuple[str, ...]:
        case_ids = unique(in_dtypes(smoke, "smoke"), covering.few() if covering else ())
        if level != "smoke":
            more = in_dtypes((*smoke, *standard), level, everywhere)
            case_ids = unique(case_ids, more, covering.ids() if covering else ())
        if level == "full" and covering:
            case_ids = unique(case_ids, covering.in_every_dtype())
        return case_ids

    return ids


def listed(
    smoke: Sequence[str], standard: Sequence[str] = (), full: Sequence[str] = ()
) -> Callable[[str], tuple[str, ...]]:
    """The ids of a level, written out; each level has those of the levels before."""

    def ids(level: str) -> tuple[str, ...]:
        case_ids = unique(smoke, standard if level != "smoke" else ())
        return unique(case_ids, full if level == "full" else ())

    return ids
