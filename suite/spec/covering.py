"""Covering arrays of any strength with forbidden pairs.

This is the greedy AETG algorithm (Cohen, Dalal, Fredman, Patton, IEEE TSE 23(7), 1997), made
deterministic: every row starts from the first uncovered tuple, and each further axis takes the value
that covers most uncovered tuples. No library is used, because the specification depends on NumPy only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, product

Row = dict[str, object]
Compatible = Callable[[str, object, str, object], bool]
Tuple = tuple[tuple[str, object], ...]
"""A value for each of some axes, in the order of the axes."""


def pairs_of(axes: Iterable[str]) -> list[tuple[str, ...]]:
    """All pairs of axes: the targets of a covering array of strength 2."""
    return list(combinations(axes, 2))


def feasible(
    axes: Mapping[str, Sequence[object]],
    compatible: Compatible,
    targets: Iterable[tuple[str, ...]],
) -> list[Tuple]:
    """The tuples of values for the axes of each target whose pairs are all compatible, in a fixed
    order."""
    return [
        chosen
        for names in targets
        for values in product(*(axes[name] for name in names))
        for chosen in [tuple(zip(names, values, strict=True))]
        if all(compatible(*one, *other) for one, other in combinations(chosen, 2))
    ]


def covering_array(
    axes: Mapping[str, Sequence[object]],
    compatible: Compatible,
    targets: Sequence[tuple[str, ...]] | None = None,
    spread: Sequence[str] = (),
) -> list[Row]:
    """Rows that contain every feasible tuple of every target at least once.

    `targets` are combinations of axes in the order of `axes`; the default is all pairs, which is strength
    2. `compatible(axis, value, other_axis, other_value)` is called in the order of `axes`. If several
    values cover equally many uncovered tuples, the first one is taken (so rows stay simple), or for axes
    in `spread` the least used one. Raises ValueError if the forbidden pairs make a row impossible.
    """
    names = list(axes)
    targets = pairs_of(names) if targets is None else targets
    allowed = set(feasible(axes, compatible, pairs_of(names)))
    open_tuples = dict.fromkeys(feasible(axes, compatible, targets))
    of_axis = {name: [target for target in targets if name in target] for name in names}

    def gain(row: Row, name: str) -> int:
        """Number of uncovered tuples that the value of `name` completes."""
        return sum(
            tuple((n, row[n]) for n in target) in open_tuples
            for target in of_axis[name]
            if all(n in row for n in target)
        )

    rows: list[Row] = []
    used: dict[tuple[str, object], int] = {}
    while open_tuples:
        row: Row = dict(next(iter(open_tuples)))
        for name in sorted((n for n in names if n not in row), key=lambda n: -len(axes[n])):
            best: tuple[int, int] | None = None
            for place, value in enumerate(axes[name]):
                pairs = combinations([n for n in names if n in row or n == name], 2)
                tried = row | {name: value}
                if any(
                    name in pair and tuple((n, tried[n]) for n in pair) not in allowed
                    for pair in pairs
                ):
                    continue
                tie = used.get((name, value), 0) if name in spread else place
                score = (gain(tried, name), -tie)
                if best is None or score > best:
                    best, choice = score, value
            if best is None:
                raise ValueError(
                    f"no value of axis {name!r} fits {row}; loosen the forbidden pairs"
                )
            row[name] = choice
        for target in targets:
            open_tuples.pop(tuple((n, row[n]) for n in target), None)
        for name in names:
            used[name, row[name]] = used.get((name, row[name]), 0) + 1
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
