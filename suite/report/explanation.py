"""Explanations of failures.

Failing cells are grouped by check, kind and implementation. An explanation has the difference to passing
cells of the same check and implementation, and the smallest failing case.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import pandas as pd

from attention_conformance.suite.records.diagnoses import group_order
from attention_conformance.suite.report.frames import dict_columns
from attention_conformance.suite.report.separation import axes, separation
from attention_conformance.suite.report.table import group_rows
from attention_conformance.suite.spec.vocabulary import BROKEN

_EXTENT = ("B", "H", "Lq", "Lk", "D", "Dv")
"""The sizes whose product is the size of a case."""


@dataclass(frozen=True)
class Group:
    """Cells of one check and implementation that fail with the same kind.

    - `cells`: the index labels of their rows, the smallest case first
    - `passes`: the number of passing cells of the same check and implementation
    - `separation`: a sentence on the difference to these, or ""
    """

    check: str
    kind: str
    implementation: str
    cells: tuple[int, ...]
    passes: int
    separation: str


def failure_groups(cells: pd.DataFrame) -> list[Group]:
    """Returns the groups of failing cells, in the order of `group_order`; [] for none. Groups that
    explain others come first."""
    broken = cells[cells["status"].isin(BROKEN)]
    if broken.empty:
        return []
    case_axes, numbers = axes(cells), pd.Series(pd.factorize(cells["case"])[0], cells.index)
    passing_rows = group_rows(cells[cells["status"] == "pass"], ["check", "label"]).groups
    positions = {row: position for position, row in enumerate(_by_size(broken).index)}
    entries = []
    for (check, label, kind), rows in group_rows(broken, ["check", "label", "kind"]).groups.items():
        passing = passing_rows.get((check, label), broken.index[:0])
        failing_cases, passing_cases = (numbers[labels].to_numpy() for labels in (rows, passing))
        sentence = separation(case_axes, failing_cases, passing_cases)
        smallest_first = tuple(sorted(map(int, rows), key=positions.__getitem__))
        entries.append(Group(check, kind, label, smallest_first, len(passing), sentence))
    return sorted(entries, key=lambda group: group_order(group.check, group.kind, len(group.cells)))


def _by_size(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns the cells, smallest case first: by the product of sizes, then the number of features, then
    the length of the id."""
    facts = dict_columns(cells["facts"])
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


def failure_table(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per group: check, kind, implementation, failures, passes, separation, and the
    smallest case with its error ratio and message."""
    table = pd.DataFrame(map(vars, failure_groups(cells)), columns=[f.name for f in fields(Group)])
    smallest = cells.loc[[rows[0] for rows in table["cells"]], ["case", "error_ratio", "message"]]
    table["cells"] = [len(rows) for rows in table["cells"]]
    return table.rename(columns={"cells": "failures"}).join(smallest.reset_index(drop=True))
