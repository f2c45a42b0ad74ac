"""Tables as data: a `Table` declares its rows, grouping and columns over a frame.

Importing this module, and the modules that declare tables, does not import pandas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

Entry = Callable[["pd.DataFrame"], Any]
"""A function from rows of a frame to one entry of a table."""

Column = str | tuple[str, str] | Entry
"""A column of a table: a column of the frame (its first row in a group), a pandas aggregation
("error_ratio", "max"), or a function of the rows of a group."""

Columns = Mapping[str, Column]


@dataclass(frozen=True)
class Table:
    """A table by its `name`, with the sentences above it (`text`).

    over     the name of the frame (`suite.report.kinds`)
    rows     the selected rows: a condition for `DataFrame.query`, or a function of the frame
    by       the columns of the frame to group by, with their names in the table; without `by` there is
             no grouping
    columns  the other columns by name, or a function of the rows that returns them; without `columns`
             the rows are unchanged
    order    the column to sort by, largest first
    rare     made only if asked by name, or for data formats
    """

    name: str
    text: str
    over: str = "cells"
    rows: str | Callable[[pd.DataFrame], pd.DataFrame] = ""
    by: Mapping[str, str] = field(default_factory=dict)
    columns: Columns | Callable[[pd.DataFrame], Columns] = field(default_factory=dict)
    order: str = ""
    rare: bool = False

    def of(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The table of a frame, indexed by the columns `by`."""
        import pandas as pd

        rows = self._rows(frame)
        columns = self.columns(rows) if callable(self.columns) else self.columns
        if not self.by:
            return pd.DataFrame({n: _of(rows, c) for n, c in columns.items()}) if columns else rows
        keys = (
            rows[[*self.by.values()]]
            .drop_duplicates(ignore_index=True)
            .set_axis([*self.by], axis=1)
        )
        blocks = [block for _, block in rows.groupby([*self.by.values()], sort=False)]
        entries = [{n: _of_group(block, c) for n, c in columns.items()} for block in blocks]
        table = keys.join(pd.DataFrame(entries, columns=[*columns])).set_index([*self.by])
        if self.order:
            table = table.sort_values(self.order, ascending=False, kind="stable")
        return table

    def _rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        if callable(self.rows):
            return self.rows(frame)
        return frame.query(self.rows) if self.rows else frame


def same(*names: str) -> dict[str, str]:
    """Columns with the same names in table and frame."""
    return {name: name for name in names}


def across(
    column: str, entry: Entry, names: Mapping[str, str] | None = None, absent: Any = ""
) -> Callable[[pd.DataFrame], Columns]:
    """A column for every value of a column of the frame.

    Its entries are `entry` of the rows with this value, or `absent` if a group has no such rows. `names`
    maps values to names of columns, in order; by default every value in the order of occurrence.
    """

    def columns(rows: pd.DataFrame) -> Columns:
        values = dict.fromkeys(rows[column])
        named = {v: v or "other" for v in values} if names is None else names
        return {
            n: partial(_part, column, v, entry, absent) for v, n in named.items() if v in values
        }

    return columns


def _part(column: str, value: str, entry: Entry, absent: Any, rows: pd.DataFrame) -> Any:
    has = rows[column] == value
    return entry(rows[has]) if has.any() else absent


def _of(rows: pd.DataFrame, column: Column) -> Any:
    """The entries of a column for these rows."""
    if isinstance(column, tuple):
        return rows[column[0]].agg(column[1])
    return rows[column] if isinstance(column, str) else column(rows)


def _of_group(rows: pd.DataFrame, column: Column) -> Any:
    return rows[column].iloc[0] if isinstance(column, str) else _of(rows, column)
