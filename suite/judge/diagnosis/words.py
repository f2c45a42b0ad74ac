"""Indices, counts and rows in words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def indices_text(indices: np.ndarray) -> str:
    """Returns indices as text: a range, or the first five."""
    listed = [int(i) for i in indices]
    if len(listed) > 2 and listed == [*range(listed[0], listed[-1] + 1)]:
        return f"{listed[0]} to {listed[-1]}"
    return ", ".join(map(str, listed[:5])) + (" ..." if len(listed) > 5 else "")


def plural(count: int, name: str) -> str:
    """Returns the name, in the plural unless `count` is 1."""
    return name if count == 1 else f"{name}s"


def range_text(values: np.ndarray) -> str:
    """Returns the smallest and the largest value as text: "0.9 to 1.1"."""
    low, high = float(values.min()), float(values.max())
    digits = 3 if high - low > 0.02 * abs(high) else 6
    texts = dict.fromkeys(f"{x:.{digits}g}" for x in (low, high))
    return " to ".join(texts)


def rows_text(rows: np.ndarray) -> str:
    """Returns the rows (B, H, Lq) that are True, in words: "all rows", "head 1 of 2"."""
    if rows.all():
        return "all rows"
    for axis, name in ((2, "row"), (1, "head"), (0, "sample")):
        flags = rows.any(tuple(a for a in range(3) if a != axis))
        if flags.sum() < flags.size and rows.sum() == flags.sum() * rows.size / flags.size:
            noun = plural(int(flags.sum()), name)
            return f"{noun} {indices_text(np.flatnonzero(flags))} of {flags.size}"
    return f"{int(rows.sum())} of {rows.size} rows"


def few_places(wrong: np.ndarray) -> Iterator[tuple[int, str]]:
    """Yields the axes along which at most half of the indices contain a True of `wrong`. Each axis comes
    with these indices as text: "0, 2 of 7"."""
    for axis, size in enumerate(wrong.shape):
        indices = np.flatnonzero(wrong.any(tuple(a for a in range(wrong.ndim) if a != axis)))
        if 0 < len(indices) <= size / 2:
            few = ", ".join(map(str, indices))
            yield axis, f"{few if len(indices) <= 6 else indices_text(indices)} of {size}"
