"""Tables as text, GitHub-flavoured Markdown, one HTML page, or a folder of CSV or Parquet files.

Texts are never cut, and existing files never overwritten. CSV and Parquet have unrounded figures; the
other formats have four digits, and scores in percent rounded down, so that only a score of 1 is 100 %.
pandas' Styler is not used: its tables take twice the time and 2.3 times the bytes.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from attention_conformance.suite.records.coverage import percent
from attention_conformance.suite.records.files import new_folder, remove_on_error, write_new
from attention_conformance.suite.report import DATA_FORMATS, FORMATS
from attention_conformance.suite.report.conformance import FAILING, UNSUPPORTED
from attention_conformance.suite.report.kinds import CAPTIONS
from attention_conformance.suite.spec.text import printable, uncoloured
from attention_conformance.suite.spec.vocabulary import STATUSES


def render(
    tables: Mapping[str, pd.DataFrame],
    fmt: str,
    out: str | Path | None = None,
    title: str = "Attention conformance",
    overview: Mapping[str, Any] | None = None,
) -> None:
    """Write tables to `out` in the format `fmt`, one of `FORMATS`.

    text, markdown and html go to the new file `out`, or to stdout if it is None; csv and parquet to one
    file per table in the folder `out`. An html page begins with the first screen `overview`.

    Raises ValueError for an unknown format or a missing folder, FileExistsError if the file exists or the
    folder is not empty.
    """
    if fmt not in FORMATS:
        raise ValueError(f"unknown format {fmt!r}; valid: {', '.join(FORMATS)}")
    if fmt in DATA_FORMATS:
        if out is None:
            raise ValueError(f"{fmt} is one file per table: pass a folder with --output")
        _write_folder(tables, fmt, Path(out))
        return
    html = partial(as_html, overview=overview or {})
    texts: dict[str, Callable[..., str]] = {"text": as_text, "markdown": as_markdown, "html": html}
    text = printable(texts[fmt](tables, title))
    if out is None:
        sys.stdout.write(text)
        return
    write_new(out, text)


@dataclass(frozen=True)
class Section:
    """A table for display. `values` are its entries by row, `rows` their texts. `numeric` is True for
    columns of numbers."""

    name: str
    heading: str
    caption: str
    columns: list[str]
    numeric: list[bool]
    values: list[list[Any]]
    rows: list[list[str]]


def sections(tables: Mapping[str, pd.DataFrame]) -> Iterator[Section]:
    """Yields the tables as sections for display. The text of a score ends with the numbers of judged and
    of all cells."""
    for name, frame in tables.items():
        flat = _flat(frame)
        values = [list(row) for row in zip(*(flat[column] for column in flat), strict=True)]
        rows = [[*map(_text, row, flat.columns)] for row in values]
        if {"score", "cells", UNSUPPORTED} <= {*flat.columns}:
            score = list(flat.columns).index("score")
            for texts, cells, unsupported in zip(
                rows, flat["cells"], flat[UNSUPPORTED], strict=True
            ):
                texts[score] += (
                    f" of {cells - unsupported} of {cells}" if cells > unsupported else ""
                )
        yield Section(
            name=name,
            heading=name.replace("_", " ").capitalize(),
            caption=CAPTIONS.get(name, ""),
            columns=list(flat.columns),
            numeric=[pd.api.types.is_numeric_dtype(flat[column]) for column in flat],
            values=values,
            rows=rows,
        )


def _flat(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns the frame with its named index as first columns, and with texts as names of columns."""
    has_names = any(name is not None for name in frame.index.names)
    flat = frame.reset_index() if has_names else frame.copy()
    return flat.set_axis([str(column) for column in flat.columns], axis=1)


_SHARES = ("score", "coverage")
"""Columns with shares, shown in percent; "-" for NaN."""

_LIMITS = {"max": 1, "error_ratio": 1, "old_ratio": 1, "new_ratio": 1, "beyond": 0}
"""Columns whose entries are marked if they exceed a limit. A ratio just above 1 is never shown as 1."""


def _text(value: Any, column: str) -> str:
    """Returns the text of an entry of a column."""
    if value is None or value is pd.NA:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if math.isnan(value):
            return "-" if column in _SHARES else ""
        if column in _SHARES:
            return percent(value)
        short = f"{value:.4g}"
        return ">1" if column in _LIMITS and value > 1 and short == "1" else short
    return printable(uncoloured(" ".join(str(value).splitlines())))


def as_text(tables: Mapping[str, pd.DataFrame], title: str) -> str:
    """Returns the tables as text: aligned columns, numbers to the right."""
    blocks = [f"{title}\n{'=' * len(title)}"]
    for section in sections(tables):
        head = f"{section.heading}\n{'-' * len(section.heading)}\n{section.caption}".rstrip()
        lines = aligned([section.columns, *section.rows], section.numeric, rule=True)
        blocks.append("\n".join([head, "", *(lines if section.rows else ["none"])]))
    return "\n\n\n".join(blocks) + "\n"


def aligned(rows: list[list[str]], right: list[bool], rule: bool = False) -> list[str]:
    """Returns the lines of a table. The first of `rows` has the heads of columns. `right` is True for
    columns that are aligned to the right. `rule` adds a line below the heads."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[-1:] = [min(width, 40) for width in widths[-1:]]  # the last column may overhang
    if rule:
        rows = [rows[0], ["-" * width for width in widths], *rows[1:]]
    return [
        "  ".join(
            entry.rjust(width) if number else entry.ljust(width)
            for entry, width, number in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in rows
    ]


def as_markdown(tables: Mapping[str, pd.DataFrame], title: str) -> str:
    """Returns the tables in GitHub-flavoured Markdown, each in a section."""
    blocks = [f"# {_escaped(title)}"]
    for section in sections(tables):
        blocks += [f"## {section.heading}", _escaped(section.caption)]
        columns, *rows = [
            [_escaped(text) for text in row] for row in (section.columns, *section.rows)
        ]
        marks = ["---:" if right else "---" for right in section.numeric]
        lines = ["| " + " | ".join(row) + " |" for row in (columns, marks, *rows)]
        blocks.append("\n".join(lines) if rows else "none")
    return "\n\n".join(filter(None, blocks)) + "\n"


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_<>|\[\]~#&])", r"\\\1", text)


def as_html(
    tables: Mapping[str, pd.DataFrame],
    title: str,
    overview: Mapping[str, Any] = MappingProxyType({}),
    home: str = "",
) -> str:
    """Returns one self-contained page: the first screen (see `suite.report.overview`), and all tables,
    with coloured statuses and counts. `home`: the address of the page of all implementations, for a link;
    "" for no link."""
    listed = list(sections(tables))
    return f"{_template().render(title=title, sections=listed, overview=overview, home=home)}\n"


@cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        loader=FileSystemLoader(Path(__file__).parent),
    )  # fmt: skip
    environment.globals["styled"] = _styled
    return environment.get_template("page.html.jinja")


_CHANGES = {"new failure": "fail", "fixed": "pass", "gone": "known"}
"""Changes with the colour of a status."""


def _classes(column: str, value: Any, text: str) -> str:
    """Returns the style classes of one entry, separated by spaces. The template defines the styles."""
    classes = ["number"] if isinstance(value, (int, float)) else []
    if len(text) > 40:
        classes.append("text")
    elif (column, text) == ("grade", "none") or (column in _LIMITS and value > _LIMITS[column]):
        classes.append("beyond")
    elif column in STATUSES:
        classes.append(column if text != "0" else "zero")
    elif text in STATUSES and column.endswith("status"):
        classes.append(text)
    elif text in _CHANGES:
        classes.append(_CHANGES[text])
    elif text in ("", "-"):
        classes.append("zero")
    return " ".join(classes)


def _styled(section: Section) -> Iterator[list[tuple[str, str]]]:
    """Yields the rows of a table as lists of pairs: the text of an entry, and its style classes.

    A tally has the colour of its gravest status. An election that differs from the most frequent one of
    its column is marked.
    """
    marks_differences = section.name == "elections" and section.columns[0] == "implementation"
    counts = map(Counter, zip(*section.rows, strict=True)) if marks_differences else ()
    most_frequent = [min(texts, key=lambda text: (-texts[text], text)) for texts in counts]
    for texts, values in zip(section.rows, section.values, strict=True):
        classes = [*map(_classes, section.columns, values, texts)]
        for n, text in enumerate(texts[1:], 1):
            if section.name == "conformance" and "/" in text:
                gravest = next((s for s in (*FAILING, UNSUPPORTED) if s in text), "pass")
                classes[n] = gravest
            elif marks_differences and text not in (most_frequent[n], "", "-"):
                classes[n] += " differs"
        yield list(zip(texts, classes, strict=True))


def _write_folder(tables: Mapping[str, pd.DataFrame], fmt: str, folder: Path) -> None:
    with remove_on_error(new_folder(folder)):
        for name, frame in tables.items():
            flat = _flat(frame)
            if fmt == "csv":
                _without_formulas(flat).to_csv(folder / f"{name}.csv", index=False)
            else:
                flat.to_parquet(folder / f"{name}.parquet", index=False)


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters that a spreadsheet program may read as a formula."""


def _without_formulas(flat: pd.DataFrame) -> pd.DataFrame:
    """Returns the frame with an apostrophe before every text that a spreadsheet program may read as a
    formula.

    Numbers and the sign for "not tested" stay unchanged.
    """

    def quoted(value: Any) -> Any:
        """Returns the value, with an apostrophe before a text that may be read as a formula."""
        if not isinstance(value, str) or not value.startswith(_FORMULA) or value == "-":
            return value
        try:
            float(value)
        except ValueError:
            return f"'{value}"
        return value

    return flat.map(quoted).set_axis([quoted(column) for column in flat.columns], axis=1)
