"""Tables as data: a `Table` says which rows of a frame are counted, and what its columns hold.

Importing this module, and the modules that declare tables, does not load pandas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

Entry = Callable[["pd.DataFrame"], Any]
"""What rows of a frame say together: one entry of a table."""

Column = str | tuple[str, str] | Entry
"""What a column of a table holds: a column of the frame (of a group its first row), what pandas calls an
aggregation of one ("error_ratio", "max"), or a function of the rows of a group."""

Columns = Mapping[str, Column]


@dataclass(frozen=True)
class Table:
    """A table by its `name`, with the sentences above it (`text`).

    over     the frame of its results that it is made of (`suite.report.kinds`)
    rows     the rows that count: a condition for `DataFrame.query`, or a function of the frame
    by       rows that agree in these columns of the frame are one row, which begins with them under
             these names; without `by` every row is one
    columns  the other columns by their names, or a function of the rows that gives them; without
             `columns` the table holds the rows as they are
    order    the column by which the rows are sorted, the largest first
    rare     made only if asked for by name, or for files of data
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
        """The table of a frame; its index are the columns `by`."""
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
    """Columns that are called in the table as in the frame."""
    return {name: name for name in names}


def across(
    column: str, entry: Entry, names: Mapping[str, str] | None = None, absent: Any = ""
) -> Callable[[pd.DataFrame], Columns]:
    """A column for every value of a column of the frame: the `entry` of the rows that have the value,
    `absent` in groups without such rows.

    `names` are the values, in their order, with what their columns are called; by default every value in
    the order in which they occur, under its own name.
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
    """What a column holds of these rows."""
    if isinstance(column, tuple):
        return rows[column[0]].agg(column[1])
    return rows[column] if isinstance(column, str) else column(rows)


def _of_group(rows: pd.DataFrame, column: Column) -> Any:
    return rows[column].iloc[0] if isinstance(column, str) else _of(rows, column)
