"""Covering arrays of any strength, of which some values do not make sense together.

This is the greedy AETG algorithm (Cohen, Dalal, Fredman, Patton, IEEE TSE 23(7), 1997), made
deterministic: every row starts from the first uncovered tuple, and each further axis takes the value
that covers most uncovered tuples. No library is used, because the specification depends on NumPy only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations, product

Row = dict[str, object]
Valid = Callable[[Row], bool]
"""True for a row, or a part of one, whose values make sense together."""

Tuple = tuple[tuple[str, object], ...]
"""A value for each of some axes, in the order of the axes."""


def pairs_of(axes: Iterable[str]) -> list[tuple[str, ...]]:
    """All pairs of axes: the targets of a covering array of strength 2."""
    return list(combinations(axes, 2))


def tuples_of(
    axes: Mapping[str, Sequence[object]], targets: Iterable[tuple[str, ...]]
) -> Iterator[Tuple]:
    """All tuples of values for the axes of each target, in a fixed order."""
    for names in targets:
        for values in product(*(axes[name] for name in names)):
            yield tuple(zip(names, values, strict=True))


def feasible(
    axes: Mapping[str, Sequence[object]], valid: Valid, targets: Iterable[tuple[str, ...]]
) -> list[Tuple]:
    """The valid tuples of values for the axes of each target, in a fixed order."""
    return [chosen for chosen in tuples_of(axes, targets) if valid(dict(chosen))]


def covering_array(
    axes: Mapping[str, Sequence[object]],
    valid: Valid,
    targets: Sequence[tuple[str, ...]] | None = None,
    spread: Sequence[str] = (),
) -> list[Row]:
    """Rows that contain every feasible tuple of every target at least once.

    `targets` are combinations of axes in the order of `axes`; the default is all pairs, which is strength
    2. If several values cover equally many uncovered tuples, the first one is taken (so rows stay
    simple), or for axes in `spread` the least used one.

    Raises ValueError if what is invalid makes a row impossible.
    """
    names = list(axes)
    targets = pairs_of(names) if targets is None else targets
    open_tuples = dict.fromkeys(tuples_of(axes, targets))
    rows: list[Row] = []
    used: Counter[tuple[str, object]] = Counter()

    def part(row: Row, target: tuple[str, ...]) -> Tuple:
        return tuple((name, row[name]) for name in target)

    def added(row: Row, name: str) -> Row:
        """The row with a value of one more axis."""
        known = {*row, name}
        ready = [t for t in targets if name in t and known.issuperset(t)]

        def order(choice: tuple[int, object]) -> tuple[int, int]:
            place, value = choice
            gain = sum(part(row | {name: value}, target) in open_tuples for target in ready)
            return -gain, used[name, value] if name in spread else place

        for _, value in sorted(enumerate(axes[name]), key=order):
            longer = row | {name: value}
            if valid(longer):
                return longer
        raise ValueError(f"no value of axis {name!r} fits {row}; loosen what is invalid")

    while open_tuples:
        first = next(iter(open_tuples))
        row: Row = dict(first)
        if not valid(row):
            del open_tuples[first]
            continue
        for name in sorted((n for n in names if n not in row), key=lambda n: -len(axes[n])):
            row = added(row, name)
        for target in targets:
            open_tuples.pop(part(row, target), None)
        used.update(row.items())
        rows.append({name: row[name] for name in names})
    return rows


def each_value(rows: Sequence[Row]) -> list[Row]:
    """A small subset of `rows` with every value of every axis that `rows` contain.

    Greedy set cover: the row with most missing values is next.
    """
    missing = {(name, value) for row in rows for name, value in row.items()}
    chosen: list[Row] = []
    while missing:
        best = max(rows, key=lambda row: len(missing & set(row.items())))
        chosen.append(best)
        missing -= set(best.items())
    return chosen


class Covering:
    """A covering array over `axes`, computed on first use, of strength 2 or for `targets` (see
    `covering_array`), whose rows are ids. `at_full` are the targets of a larger one for full."""

    def __init__(
        self, axes: Mapping[str, Sequence[object]], valid: Valid,
        spread: Sequence[str], id_of: Callable[[Row], str],
        targets: Sequence[tuple[str, ...]] | None = None,
        at_full: Sequence[tuple[str, ...]] | None = None,
    ) -> None:  # fmt: skip
        self.axes, self.valid, self.spread, self.id_of = axes, valid, spread, id_of
        self.targets = pairs_of(axes) if targets is None else targets
        self.at_full = self.targets if at_full is None else at_full

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The rows: together they contain every valid tuple of values of every target."""
        return self._drawn(self.targets)

    @cached_property
    def rows_at_full(self) -> tuple[Row, ...]:
        """The rows for the targets of full."""
        if self.at_full is self.targets:
            return self.rows
        return self._drawn(self.at_full)

    def _drawn(self, targets: Sequence[tuple[str, ...]]) -> tuple[Row, ...]:
        return tuple(covering_array(self.axes, self.valid, targets, self.spread))

    def ids(self, level: str, dtypes: tuple[str, ...] = ()) -> dict[str, str]:
        """The ids of a level, each with the tuple that no earlier one has: at smoke a few rows with every
        value of every axis.

        Each row has its own dtype, or all of `dtypes`.
        """
        targets = self.at_full if level == "full" else self.targets
        rows = self.rows_at_full if level == "full" else self.rows
        seen: set[object] = set()
        ids: dict[str, str] = {}
        for row in each_value(rows) if level == "smoke" else rows:
            met = [tuple((name, row[name]) for name in names) for names in targets]
            new = next((one for one in met if one not in seen), ())
            seen.update(met)
            why = " together with ".join(f"{name} {value or 'none'}" for name, value in new)
            for dt in dtypes or (row["dtype"],):
                ids.setdefault(self.id_of(row | {"dtype": dt}), why)
        return ids
