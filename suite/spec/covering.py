"""Covering arrays of strength 1 and 2 with forbidden pairs.

This is the greedy AETG algorithm (Cohen, Dalal, Fredman, Patton, IEEE TSE 23(7), 1997), made
deterministic: every row starts from the first uncovered pair, and each further axis takes the value
that covers most uncovered pairs. No library is used, because the specification depends on NumPy only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

Row = dict[str, object]
Compatible = Callable[[str, object, str, object], bool]


def feasible_pairs(
    axes: Mapping[str, Sequence[object]], compatible: Compatible
) -> list[tuple[str, object, str, object]]:
    """Every pair of values of two axes that may occur together, in a fixed order."""
    return [
        (a, x, b, y)
        for a, b in combinations(axes, 2)
        for x in axes[a]
        for y in axes[b]
        if compatible(a, x, b, y)
    ]


def pairwise(
    axes: Mapping[str, Sequence[object]], compatible: Compatible, spread: Sequence[str] = ()
) -> list[Row]:
    """Rows that contain every compatible pair of values at least once.

    `compatible(axis, value, other_axis, other_value)` is called in the order of `axes`. If several
    values cover equally many uncovered pairs, the first one is taken (so rows stay simple), or for axes
    in `spread` the least used one. Raises ValueError if the forbidden pairs make a row impossible.
    """
    names = list(axes)
    position = {name: i for i, name in enumerate(names)}
    pairs = feasible_pairs(axes, compatible)
    allowed = set(pairs)
    open_pairs = dict.fromkeys(pairs)

    def key(a: str, x: object, b: str, y: object) -> tuple[str, object, str, object]:
        return (a, x, b, y) if position[a] < position[b] else (b, y, a, x)

    rows: list[Row] = []
    used: dict[tuple[str, object], int] = {}
    while open_pairs:
        a, x, b, y = next(iter(open_pairs))
        row: Row = {a: x, b: y}
        for name in sorted((n for n in names if n not in row), key=lambda n: -len(axes[n])):
            best: tuple[int, int] | None = None
            for place, value in enumerate(axes[name]):
                keys = [key(name, value, other, v) for other, v in row.items()]
                if not all(k in allowed for k in keys):
                    continue
                tie = used.get((name, value), 0) if name in spread else place
                score = (sum(k in open_pairs for k in keys), -tie)
                if best is None or score > best:
                    best, choice = score, value
            if best is None:
                raise ValueError(
                    f"no value of axis {name!r} fits {row}; loosen the forbidden pairs"
                )
            row[name] = choice
        for p, q in combinations(names, 2):
            open_pairs.pop((p, row[p], q, row[q]), None)
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
