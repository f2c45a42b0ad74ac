"""Covering arrays of any strength, for axes with values that may exclude each other.

This is the greedy AETG algorithm (Cohen, Dalal, Fredman, Patton, IEEE TSE 23(7), 1997), made
deterministic: every row starts from the first uncovered tuple, and each further axis takes the value
that covers most uncovered tuples. No library is used, because the specification depends on NumPy only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations, product
from operator import itemgetter

Row = dict[str, object]
Valid = Callable[[Row], bool]
"""True for a row, or a part of one, whose values make sense together."""

Tuple = tuple[tuple[str, object], ...]
"""A value for each of some axes, in the order of the axes."""


def pairs_of(axes: Iterable[str]) -> list[tuple[str, ...]]:
    """Returns all pairs of axes: the targets of a covering array of strength 2."""
    return list(combinations(axes, 2))


def tuples_of(
    axes: Mapping[str, Sequence[object]], targets: Iterable[tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], tuple[object, ...]]]:
    """Yields each target with each of the tuples of values for its axes, in a fixed order."""
    for names in targets:
        for values in product(*(axes[name] for name in names)):
            yield names, values


def feasible(
    axes: Mapping[str, Sequence[object]], valid: Valid, targets: Iterable[tuple[str, ...]]
) -> list[Tuple]:
    """Returns the valid tuples of values for the axes of each target, in a fixed order."""
    tuples = (tuple(zip(*one, strict=True)) for one in tuples_of(axes, targets))
    return [chosen for chosen in tuples if valid(dict(chosen))]


def covering_array(
    axes: Mapping[str, Sequence[object]],
    valid: Valid,
    targets: Sequence[tuple[str, ...]] | None = None,
    spread: Sequence[str] = (),
) -> list[Row]:
    """Returns rows that contain every feasible tuple of every target at least once.

    `targets` are combinations of two or more axes in the order of `axes`; the default is all pairs, which
    is strength 2. If several values cover equally many uncovered tuples, the first value is taken (so
    rows stay simple), or for axes in `spread` the least used value.

    Raises ValueError if a row cannot be completed, because no value of some axis is valid in it.
    """
    names = list(axes)
    targets = pairs_of(names) if targets is None else targets
    values_of = {target: itemgetter(*target) for target in targets}
    open_tuples = dict.fromkeys(tuples_of(axes, targets))
    rows: list[Row] = []
    use_counts: Counter[tuple[str, object]] = Counter()

    def extended(row: Row, name: str) -> Row:
        """Returns the row with a value of one more axis `name`: the valid value that covers most
        uncovered tuples. Raises ValueError if no value is valid."""
        assigned = {*row, name}
        complete = [t for t in targets if name in t and assigned.issuperset(t)]

        def preference(choice: tuple[int, object]) -> tuple[int, int]:
            place, value = choice
            longer_row = row | {name: value}
            gain = sum([(t, values_of[t](longer_row)) in open_tuples for t in complete])
            return -gain, use_counts[name, value] if name in spread else place

        for _, value in sorted(enumerate(axes[name]), key=preference):
            longer_row = row | {name: value}
            if valid(longer_row):
                return longer_row
        raise ValueError(f"no value of axis {name!r} fits {row}; loosen what is invalid")

    while open_tuples:
        first = next(iter(open_tuples))
        row: Row = dict(zip(*first, strict=True))
        if not valid(row):
            del open_tuples[first]
            continue
        for name in sorted((n for n in names if n not in row), key=lambda n: -len(axes[n])):
            row = extended(row, name)
        for target in targets:
            open_tuples.pop((target, values_of[target](row)), None)
        use_counts.update(row.items())
        rows.append({name: row[name] for name in names})
    return rows


def each_value(rows: Sequence[Row]) -> list[Row]:
    """Returns a small subset of `rows` that contains every value of every axis in `rows`.

    Greedy set cover: the row with most uncovered values is next.
    """
    uncovered = {(name, value) for row in rows for name, value in row.items()}
    chosen: list[Row] = []
    while uncovered:
        best = max(rows, key=lambda row: len(uncovered & set(row.items())))
        chosen.append(best)
        uncovered -= set(best.items())
    return chosen


class Covering:
    """A covering array of ids, computed on first use.
    - `axes`, `valid`, `spread`, `targets`: see `covering_array`
    - `id_of`: from a row to its id
    - `at_full`: the targets of the level full; by default all triples
    """

    def __init__(
        self, axes: Mapping[str, Sequence[object]], valid: Valid,
        spread: Sequence[str], id_of: Callable[[Row], str],
        targets: Sequence[tuple[str, ...]] | None = None,
        at_full: Sequence[tuple[str, ...]] | None = None,
    ) -> None:  # fmt: skip
        self.axes, self.valid, self.spread, self.id_of = axes, valid, spread, id_of
        self.targets = pairs_of(axes) if targets is None else targets
        self.at_full = list(combinations(axes, 3)) if at_full is None else at_full

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Rows that together contain every valid tuple of values of every target."""
        return self._array_for(self.targets)

    @cached_property
    def rows_at_full(self) -> tuple[Row, ...]:
        """Rows that together contain every valid tuple of values of the targets of full."""
        if self.at_full == self.targets:
            return self.rows
        return self._array_for(self.at_full)

    def _array_for(self, targets: Sequence[tuple[str, ...]]) -> tuple[Row, ...]:
        return tuple(covering_array(self.axes, self.valid, targets, self.spread))

    def ids(self, level: str, dtypes: tuple[str, ...] = ()) -> dict[str, str]:
        """Returns the ids of a level, each with its reason: the first tuple of values that no earlier row
        has. The level smoke has a few rows that contain every value of every axis.

        `dtypes`: the dtypes of every row; by default a row has the dtype of its axis "dtype".
        """
        targets = self.at_full if level == "full" else self.targets
        rows = self.rows_at_full if level == "full" else self.rows
        seen_tuples: set[object] = set()
        ids: dict[str, str] = {}
        for row in each_value(rows) if level == "smoke" else rows:
            row_tuples = [tuple((name, row[name]) for name in names) for names in targets]
            first_new = next((values for values in row_tuples if values not in seen_tuples), ())
            seen_tuples.update(row_tuples)
            why = " together with ".join(f"{name} {value or 'none'}" for name, value in first_new)
            for dt in dtypes or (row["dtype"],):
                ids.setdefault(self.id_of(row | {"dtype": dt}), why)
        return ids
