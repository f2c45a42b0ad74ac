"""Render: tables as text, GitHub-flavoured Markdown, one HTML page, or a folder of CSV or Parquet.

Nothing is cut short, and nothing a user produced is overwritten. CSV and Parquet hold the figures
as they are; the others show them for people: four digits, scores in percent rounded down, so that
only a perfect one reads 100 %.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from suite.records.files import new_file, new_folder
from suite.report import DATA_FORMATS, FORMATS
from suite.report.conformance import Tally
from suite.report.kinds import TABLES
from suite.spec.text import printable
from suite.spec.vocabulary import STATUSES

CAPTIONS = TABLES | {
    "summary": "Cells that changed between the two runs.",
    "changes": "Every changed cell, new failures first.",
    "alone": "Runs that only one of the sweeps has; they are not compared.",
    "headers": "What else differs: versions, options, machine, commit.",
}


def render(
    tables: Mapping[str, pd.DataFrame],
    fmt: str,
    out: str | Path | None = None,
    title: str = "Attention conformance",
) -> None:
    """Write tables to `out` in one of `FORMATS`.

    text, markdown and html go to a file, or to stdout where `out` is None; csv and parquet to one
    file per table in the folder `out`.

    Raises ValueError for an unknown format or a missing folder, FileExistsError where the file
    exists or the folder holds anything.
    """
    if fmt not in FORMATS:
        raise ValueError(f"unknown format {fmt!r}; valid: {', '.join(FORMATS)}")
    if fmt in DATA_FORMATS:
        if out is None:
            raise ValueError(f"{fmt} is one file per table: pass a folder with --output")
        _write_folder(tables, fmt, Path(out))
        return
    text = printable(
        {"text": as_text, "markdown": as_markdown, "html": as_html}[fmt](tables, title)
    )
    if out is None:
        sys.stdout.write(text)
        return
    with new_file(out) as file:
        file.write(text)


def _write_folder(tables: Mapping[str, pd.DataFrame], fmt: str, folder: Path) -> None:
    new_folder(folder)
    for name, frame in tables.items():
        flat = _flat(frame)
        if fmt == "csv":
            _harmless(flat).to_csv(folder / f"{name}.csv", index=False)
        else:
            flat.to_parquet(folder / f"{name}.parquet", index=False)


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a program for spreadsheets may take for the beginning of a formula."""


def _harmless(flat: pd.DataFrame) -> pd.DataFrame:
    """The frame with an apostrophe before every text that could be taken for a formula. Numbers, and the
    sign that stands for "not asked", are none."""

    def safe(value: Any) -> Any:
        if not isinstance(value, str) or not value.startswith(_FORMULA) or value == "-":
            return value
        try:
            float(value)
        except ValueError:
            return f"'{value}"
        return value

    return flat.map(safe).set_axis([safe(column) for column in flat.columns], axis=1)


def as_text(tables: Mapping[str, pd.DataFrame], title: str) -> str:
    """Aligned columns, numbers to the right."""
    blocks = [f"{title}\n{'=' * len(title)}"]
    for name, frame in tables.items():
        head = f"{_heading(name)}\n{'-' * len(_heading(name))}\n{CAPTIONS.get(name, '')}".rstrip()
        flat = _flat(frame)
        if flat.empty:
            blocks.append(f"{head}\n\nnone")
            continue
        rows = [list(flat.columns), *_shown(flat)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        numeric = [_is_numeric(flat[column]) for column in flat]
        widths[-1] = min(widths[-1], 40)  # nothing stands to its right: long messages may overhang
        rows.insert(1, ["-" * width for width in widths])
        lines = [
            "  ".join(
                entry.rjust(width) if right else entry.ljust(width)
                for entry, width, right in zip(row, widths, numeric, strict=True)
            ).rstrip()
            for row in rows
        ]
        blocks.append(f"{head}\n\n" + "\n".join(lines))
    return "\n\n\n".join(blocks) + "\n"


def as_markdown(tables: Mapping[str, pd.DataFrame], title: str) -> str:
    """GitHub-flavoured Markdown: a section and a table each."""
    blocks = [f"# {_escaped(title)}"]
    for name, frame in tables.items():
        blocks.append(f"## {_heading(name)}")
        if name in CAPTIONS:
            blocks.append(_escaped(CAPTIONS[name]))
        flat = _flat(frame)
        if flat.empty:
            blocks.append("none")
            continue
        marks = ["---:" if _is_numeric(flat[column]) else "---" for column in flat]
        rows = [[_escaped(entry) for entry in row] for row in [list(flat.columns), *_shown(flat)]]
        rows.insert(1, marks)
        blocks.append("\n".join("| " + " | ".join(row) + " |" for row in rows))
    return "\n\n".join(blocks) + "\n"


def as_html(tables: Mapping[str, pd.DataFrame], title: str) -> str:
    """One page that needs nothing from elsewhere; statuses and counts are coloured."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string(Path(__file__).with_name("page.html.jinja").read_text("utf-8"))
    sections = [_section(name, frame) for name, frame in tables.items()]
    return page.render(title=title, sections=sections, statuses=STATUSES) + "\n"


def _section(name: str, frame: pd.DataFrame) -> dict[str, Any]:
    flat = _flat(frame)
    columns = list(flat.columns)
    numeric = [_is_numeric(flat[column]) for column in columns]
    rows = [
        [
            {"text": text, "classes": _classes(column, value, text)}
            for column, value, text in zip(columns, values, texts, strict=True)
        ]
        for values, texts in zip(flat.itertuples(index=False), _shown(flat), strict=True)
    ]
    if name == "elections":
        for n, column in enumerate(columns[1:], 1):
            usual = flat[column].mode().iloc[:1].item() if len(flat) else ""
            for row in rows:
                row[n]["classes"] += " differs" if row[n]["text"] not in (usual, "", "-") else ""
    return {
        "name": name,
        "heading": _heading(name),
        "caption": CAPTIONS.get(name, ""),
        "columns": list(zip(columns, numeric, strict=True)),
        "rows": rows,
        "bars": _bars(flat) if name == "statuses" else [],
    }


def _bars(flat: pd.DataFrame) -> list[dict[str, Any]]:
    """Per implementation the share of every status, in percent."""
    return [
        {
            "label": row["implementation"],
            "score": f"{_text(row['score'], 'score')} of {_text(row['coverage'], 'coverage')}",
            "parts": [(s, 100.0 * row[s] / row["cells"], row[s]) for s in STATUSES if row[s]],
        }
        for row in flat.to_dict("records")
    ]


_SHARES = ("score", "coverage")
"""Columns that hold parts of one, shown in percent; "-" where there is no whole."""

_RATIOS = {"max", "error_ratio", "old_ratio", "new_ratio"}
_LIMITS = dict.fromkeys(_RATIOS, 1) | {"beyond": 0}
_CHANGE_CLASS = {"new failure": "fail", "fixed": "pass", "gone": "known"}


def _classes(column: str, value: Any, text: str) -> str:
    """The style classes of one entry; what they look like stands in the template."""
    classes = ["number"] if isinstance(value, (int, float)) else []
    if column in ("message", "case", "check", "implementation", "field"):
        classes.append(f"is-a-{column}")
    elif (column, text) == ("grade", "none") or (column in _LIMITS and value > _LIMITS[column]):
        classes.append("beyond")
    elif column in STATUSES:
        classes += [f"is-{column}"] if text != "0" else ["zero"]
    elif text in STATUSES and column.endswith("status"):
        classes.append(f"is-{text}")
    elif text in _CHANGE_CLASS:
        classes.append(f"is-{_CHANGE_CLASS[text]}")
    elif isinstance(value, Tally):
        classes.append(f"is-{value.status}")
    elif text in ("", "-"):
        classes.append("zero")
    return " ".join(classes)


def _flat(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with its index, where that says something, as its first columns."""
    named = any(name is not None for name in frame.index.names)
    flat = frame.reset_index() if named else frame.copy()
    return flat.set_axis([str(column) for column in flat.columns], axis=1)


def _shown(flat: pd.DataFrame) -> list[list[str]]:
    columns = [[_text(value, str(name)) for value in flat[name]] for name in flat]
    return [list(row) for row in zip(*columns, strict=True)]


def _text(value: Any, column: str) -> str:
    if value is None or value is pd.NA:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if math.isnan(value):
            return "-" if column in _SHARES else ""
        if column in _SHARES:
            return f"{math.floor(value * 10000) / 100:.2f}%"
        short = f"{value:.4g}"
        return ">1" if column in _RATIOS and value > 1 and short == "1" else short
    # Keras colours its messages with terminal codes.
    return printable(re.sub(r"\x1b\[[0-9;]*m", "", " ".join(str(value).splitlines())))


def _is_numeric(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column)


def _heading(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _escaped(text: str) -> str:
    return re.sub(r"([\\`*_<>|\[\]~#&])", r"\\\1", text)
