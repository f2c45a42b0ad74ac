"""Tables as data: a `Table` declares its rows, grouping and columns over a frame.

Rows are grouped once; a column is an aggregation of all groups. Importing this module, and the modules
that declare tables, does not import pandas.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

Groups = Any
"""Rows in groups: a pandas `DataFrameGroupBy` by a list of columns (`keys`), in the order of the rows
(`obj`)."""

Entries = Callable[[Groups], Any]
"""A function from groups to a Series of their entries, or to a DataFrame of several columns."""

Column = str | tuple[str, str] | Entries
"""A column of a table: a column of the frame (its first row in a group), a pandas aggregation
("error_ratio", "max"), or a function. A function gets the groups, or the rows if there is no grouping. A
DataFrame of a function is several columns, with its own names."""


@dataclass(frozen=True)
class Table:
    """A table by its `name`, with the sentences above it (`text`).

    over     the name of the frame (`suite.report.kinds`)
    rows     the selected rows: a condition for `DataFrame.query`, or a function of the frame
    by       the columns of the frame to group by, with their names in the table; without `by` there is
             no grouping
    columns  the other columns by name; without `columns` the rows are unchanged
    order    the column to sort by, largest first
    rare     made only if asked by name, or for data formats
    """

    name: str
    text: str
    over: str = "cells"
    rows: str | Callable[[pd.DataFrame], pd.DataFrame] = ""
    by: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Column] = field(default_factory=dict)
    order: str = ""
    rare: bool = False

    def make(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Returns the table made from a frame, indexed by the columns `by`."""
        import pandas as pd

        rows = self._rows(frame)
        if not self.by:
            columns = {n: c(rows) if callable(c) else rows[c] for n, c in self.columns.items()}
            return pd.DataFrame(columns) if columns else rows
        groups = group_rows(rows, self.by.values())
        table = pd.DataFrame(index=groups.size().index)
        for name, column in self.columns.items():
            entries = _entries(groups, column)
            table = table.join(entries.rename(name) if entries.ndim == 1 else entries)
        table.index.names = [*self.by]
        if self.order:
            table = table.sort_values(self.order, ascending=False, kind="stable")
        return table

    def _rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        if callable(self.rows):
            return self.rows(frame)
        return frame.query(self.rows) if self.rows else frame


def group_rows(rows: pd.DataFrame, keys: Iterable[str]) -> Groups:
    """Returns the rows grouped by the columns `keys`, groups in the order of occurrence."""
    return rows.groupby([*keys], sort=False)


def _entries(groups: Groups, column: Column) -> Any:
    """Returns the entries of a column: a Series, or a DataFrame of several columns."""
    if isinstance(column, tuple):
        return groups[column[0]].agg(column[1])
    return first_entry(column)(groups) if isinstance(column, str) else column(groups)


def same_names(*names: str) -> dict[str, str]:
    """Returns columns for `Table` that have the same names in the table and in the frame."""
    return {name: name for name in names}


def first_entry(column: str) -> Entries:
    """Returns a function of groups: the entry of a column in the first row of each group."""
    return lambda groups: groups.head(1).set_index(groups.keys)[column]


def entry_of_largest(column: str, by: str = "error_ratio", absent: Any = "") -> Entries:
    """Returns a function of groups: the entry of a column in the row with the largest number in `by`;
    `absent` for groups without a number."""

    def entries(groups: Groups) -> Any:
        ordered = groups.obj.dropna(subset=by).sort_values(by, ascending=False, kind="stable")
        largest = ordered.drop_duplicates(groups.keys).set_index(groups.keys)[column]
        return largest.reindex(groups.size().index, fill_value=absent)

    return entries


def distinct_texts(column: str, text: Callable[[Iterable[str]], str] = ", ".join) -> Entries:
    """Returns a function of groups: the different texts of a column, joined by `text`. Empty texts are
    left out."""

    def entries(groups: Groups) -> Any:
        pairs = groups.obj[[*groups.keys, column]].drop_duplicates()
        texts = group_rows(pairs[pairs[column] != ""], groups.keys)[column].agg(text)
        return texts.reindex(groups.size().index, fill_value="")

    return entries


def value_counts(column: str, values: Collection[Any]) -> Entries:
    """Returns a function of groups: the number of rows with each of `values` in a column, as one column
    per value."""

    def entries(groups: Groups) -> Any:
        numbers = group_rows(groups.obj, [*groups.keys, column]).size().unstack(fill_value=0)
        return numbers.reindex(index=groups.size().index, columns=[*values], fill_value=0)

    return entries


def per_value(
    column: str, entries: Entries, names: Mapping[str, str] | None = None, absent: Any = ""
) -> Entries:
    """Returns a function of groups: a column for every value of `column`.

    The column has the `entries` of the rows with this value; `absent` if a group has no such rows.
    `names` maps values to names of columns, in order; by default all values, in the order of occurrence.
    """

    def columns(groups: Groups) -> Any:
        values = dict.fromkeys(groups.obj[column].unique())
        heads = {v: v or "other" for v in values} if names is None else names
        groups_by_value = group_rows(groups.obj, [*groups.keys, column])
        columns_by_value = entries(groups_by_value).unstack(column, fill_value=absent)
        return columns_by_value[[v for v in heads if v in values]].rename(columns=heads)

    return columns
