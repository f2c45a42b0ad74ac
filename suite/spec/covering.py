"""Covering arrays of strength 1 and 2 under forbidden pairs.

The algorithm is the greedy of AETG (Cohen, Dalal, Fredman, Patton, IEEE TSE 23(7), 1997) made
deterministic: every new row starts from the first pair not yet covered, and each further axis takes
the value that covers most pairs still open. It stands here, and not in a library, because the
specification depends on NumPy alone.
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
    """Rows in which every compatible pair of values occurs at least once.

    `compatible(axis, value, other_axis, other_value)` is asked in the order of `axes`. Where several
    values cover equally many open pairs, the first one listed is taken (so that rows stay plain), or
    for the axes in `spread` the one used least. Raises ValueError where a row cannot be completed,
    that is, where the forbidden pairs contradict.
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
    """A small subset of `rows` in which every value of every axis that occurs, still occurs.

    Greedy set cover: the row that shows most values not yet seen comes next.
    """
    missing = {(name, value) for row in rows for name, value in row.items()}
    chosen: list[Row] = []
    while missing:
        best = max(rows, key=lambda row: len(missing & set(row.items())))
        chosen.append(best)
        missing -= set(best.items())
    return chosen
