"""Explanations: why cells fail, said before they are listed.

Cells that fail are grouped by check, kind and implementation. Of every group it is said what separates
its cells from those of the same check and implementation that pass, and which one is the smallest.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import pandas as pd

from suite.report.frames import expanded
from suite.report.separation import axes, separation
from suite.spec.vocabulary import BROKEN, GRADIENTS, VALUES

_FIRST = (VALUES, *GRADIENTS)
"""Checks whose failures explain those of others."""

_EXTENT = ("B", "H", "Lq", "Lk", "D", "Dv")
"""The sizes whose product says how large a case is."""


@dataclass(frozen=True)
class Group:
    """Cells of one check and implementation that fail in the same way.

    `cells` are the labels of their rows, the smallest case first; `separation` is a sentence.
    """

    check: str
    kind: str
    implementation: str
    cells: tuple[int, ...]
    passes: int
    separation: str


def groups(cells: pd.DataFrame) -> list[Group]:
    """The groups of failing cells: values first, then gradients, then the rest; the largest first."""
    broken = cells[cells["status"].isin(BROKEN)]
    if broken.empty:
        return []
    known, passed = axes(cells), cells[cells["status"] == "pass"]
    entries = []
    for (check, label, kind), block in broken.groupby(["check", "label", "kind"], sort=False):
        passing = passed["case"][(passed["check"] == check) & (passed["label"] == label)]
        text = separation(known.loc[block["case"]], known.loc[passing])
        rows = tuple(map(int, _by_size(block).index))
        entries.append(Group(str(check), str(kind), str(label), rows, len(passing), text))
    return sorted(entries, key=lambda group: (_place(group.check), -len(group.cells)))


def _place(check: str) -> int:
    return _FIRST.index(check) if check in _FIRST else len(_FIRST)


def _by_size(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells, those of the smallest cases first: by the product of their sizes, what they need, and
    the length of their names."""
    facts = expanded(cells["facts"])
    sizes = facts.filter(_EXTENT).astype("float64")
    keys = pd.DataFrame(
        {
            "extent": sizes.prod(axis=1),
            "features": cells["features"].map(len),
            "length": cells["case"].map(len),
            "case": cells["case"],
        }
    )
    return cells.loc[keys.sort_values([*keys], kind="stable").index]


def explained(cells: pd.DataFrame) -> pd.DataFrame:
    """A row per group: check, kind, implementation, failures, passes, separation, and of its smallest
    case the case, the error ratio and the message."""
    table = pd.DataFrame(map(vars, groups(cells)), columns=[f.name for f in fields(Group)])
    smallest = cells.loc[[rows[0] for rows in table["cells"]], ["case", "error_ratio", "message"]]
    table["cells"] = [len(rows) for rows in table["cells"]]
    return table.rename(columns={"cells": "failures"}).join(smallest.reset_index(drop=True))


def in_full(groups: list[Group], most: int) -> list[int]:
    """The rows of at most `most` cells: the smallest of every group, then the second ones, and so on;
    in the order of the groups."""
    ranked = [(n, g, row) for g, group in enumerate(groups) for n, row in enumerate(group.cells)]
    chosen = sorted(ranked, key=lambda entry: entry[:2])[:most]
    return [row for _, _, row in sorted(chosen, key=lambda entry: (entry[1], entry[0]))]
