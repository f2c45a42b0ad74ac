"""Pictures of speed and precision by matplotlib, each as PNG, SVG and PDF.

A picture of a workload is as wide as a column of a paper, that of all dtypes as wide as its page.
A framework has a colour, an implementation of it a marker. Whiskers are quartiles. The line below a
picture names versions, machine and date.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd

from attention_conformance.suite.records.files import new_folder, or_nothing
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.records.speed import TIMED
from attention_conformance.suite.report.frames import provenance
from attention_conformance.suite.report.laws import LENGTHS, fit, law
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.vocabulary import VALUES

MISSING = (
    "plots are drawn by matplotlib, which is not installed: "
    'pip install "attention-conformance[plots]", or pip install matplotlib'
)

WIDE, COLUMN = 7.0, 3.4
"""Inches of the width of a page, and of a column of it."""

ROW, LINE = 0.15, 0.1
"""Inches of an implementation's line in a panel, and in a legend."""

CHARACTERS = 76
"""The number of small letters in a column."""

NEAR = 0.07
"""Parts of a panel's width and height within which two numbers would overlap."""

MARKERS = "osD^v<>PX*"

Figure = Any


def draw(frames: Mapping[str, Any], folder: str | Path) -> None:
    """Draw what the frames hold (`measurements` and `cells` of `suite.report.frames`) into a new or empty
    folder.

    - time       milliseconds of a call by workload
    - exact      the same against the error ratio, with the line of those that none beats in both
    - cost       time against length, with the fitted law
    - precision  error ratios of the check values by dtype: quartile, median and the largest; without
                 textbook controls

    time and exact are drawn for every direction, workload and dtype, cost for every direction. Raises
    RecordError without matplotlib, FileExistsError if the folder is not empty.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise RecordError(MISSING) from error
    folder = new_folder(folder)
    with or_nothing(folder):
        for name, figure in pictures(frames):
            for kind in ("png", "svg", "pdf"):
                figure.savefig(folder / f"{re.sub('[^A-Za-z0-9.]+', '-', name)}.{kind}", dpi=200)


def pictures(frames: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """The figures that `draw` saves, by name."""
    if "measurements" in frames:
        measured = frames["measurements"]
        timed = measured[measured["status"].isin(TIMED)]
        swept, below = timed["swept"].astype(bool), provenance(frames["timed"].values())
        for by, block in timed[~swept].groupby(["direction", "workload", "dtype"], sort=False):
            yield "-".join(("time", *by)), _times(block, ", ".join(by), below)
            exact = block[block["error_ratio"] > 0]
            if not exact.empty:
                yield "-".join(("exact", *by)), _exactness(exact, ", ".join(by), below)
        for direction, block in timed[swept].groupby("direction", sort=False):
            yield f"cost-{direction}", _costs(block, direction, below)
    if "cells" in frames:
        cells, headers = frames["cells"], frames["headers"].values()
        controls = {name for header in headers for name in header.controls}
        product = ~(cells["backend"] + ":" + cells["implementation"]).isin(controls)
        finite = (cells["error_ratio"] > 0) & (cells["error_ratio"] < math.inf)
        judged = cells[product & finite & (cells["check"] == VALUES)]
        if not judged.empty:
            yield "precision", _precision(judged, provenance(headers))


class _Marks:
    """The colours and markers of implementations, and their legend."""

    def __init__(self, rows: pd.DataFrame) -> None:
        labels = rows.drop_duplicates("label").groupby("backend", sort=False)["label"].agg(list)
        self.of = {
            label: (f"C{colour % 10}", MARKERS[number % len(MARKERS)])
            for colour, names in enumerate(labels)
            for number, label in enumerate(names)
        }

    def explain(self, figure: Figure, order: Sequence[str]) -> None:
        """A legend above the panel, in this order."""
        from matplotlib.lines import Line2D

        marks = [
            Line2D([], [], color=colour, marker=marker, linestyle="", markersize=3)
            for colour, marker in map(self.of.__getitem__, order)
        ]
        figure.legend(
            marks, order, loc="outside upper left", ncols=_columns(order), fontsize=5, frameon=False,
            labelspacing=0.2, handletextpad=0.2, columnspacing=1.0,
        )  # fmt: skip


def _columns(names: Sequence[str]) -> int:
    """The columns of a legend of these names."""
    return 2 if max(map(len, names), default=0) < CHARACTERS // 2 - 4 else 1


def _figure(title: str, below: str, height: float, names: Sequence[str] = ()) -> tuple[Figure, Any]:
    """A figure as wide as a column, its panel with this height in inches, the caption `below`, and room
    for a legend of these names."""
    room = 0.7 + LINE * -(-len(names) // _columns(names))
    figure, (axis,) = _panels((COLUMN, height + room), 1, fill(below, CHARACTERS), 4.5)
    _plain(axis, title)
    return figure, axis


def _panels(
    size: tuple[float, float], number: int, below: str, points: float
) -> tuple[Figure, Sequence[Any]]:
    """A figure of this size in inches, its panels side by side, and a caption in letters of so many
    points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    figure.supxlabel(below, fontsize=points, x=0.01, ha="left")
    return figure, figure.subplots(1, number, squeeze=False)[0]


def _plain(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=7, loc="left")
    axis.tick_params(labelsize=5.5)
    axis.grid(alpha=0.25, linewidth=0.5)
    axis.spines[["top", "right"]].set_visible(False)


def _logarithmic(axis: Any, *ways: str) -> None:
    """Make the axes "x", "y" of a panel logarithmic, over a decade at least."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for way in ways:
        getattr(axis, f"set_{way}scale")("log")
        low, high = getattr(axis, f"get_{way}lim")()
        middle = math.sqrt(low * high)
        getattr(axis, f"set_{way}lim")(min(low, middle / 3.2), max(high, middle * 3.2))
        line = getattr(axis, f"{way}axis")
        decades = math.log10(high / low)
        line.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2.5 else (1,)))
        line.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
        line.set_minor_formatter(NullFormatter())


Points = Mapping[str, tuple[float, float, float]]
"""Low whisker, middle and high whisker by label."""


def _lines(axis: Any, points: Points, order: Sequence[str], marks: _Marks) -> None:
    """A line for every implementation, the last of `order` at the top."""
    for place, label in enumerate(order):
        if label in points:
            (low, middle, high), (colour, marker) = points[label], marks.of[label]
            axis.plot([low, high], [place, place], color=colour, linewidth=1.2)
            axis.plot([middle], [place], color=colour, marker=marker, markersize=4)
    axis.set_ylim(-0.7, len(order) - 0.3)
    axis.set_yticks(range(len(order)), order)
    _logarithmic(axis, "x")


def _times(rows: pd.DataFrame, title: str, below: str) -> Figure:
    """Milliseconds of a call, the fastest at the top."""
    figure, axis = _figure(title, below, ROW * len(rows))
    quartiles = (1e3 * rows[["low", "seconds", "high"]]).to_numpy().tolist()
    points = dict(zip(rows["label"], map(tuple, quartiles), strict=True))
    _lines(axis, points, sorted(points, key=lambda name: -points[name][1]), _Marks(rows))
    axis.set_xlabel("ms a call: median and quartiles", fontsize=6)
    return figure


def _precision(judged: pd.DataFrame, below: str) -> Figure:
    """Error ratios, a panel per dtype, the implementations in one order."""
    marks, names = _Marks(judged), [name for name in DTYPES if (judged["dtype"] == name).any()]
    order = [*dict.fromkeys(judged["label"])][::-1]
    figure, axes = _panels((WIDE, 1.3 + ROW * len(order)), len(names), below, 5.5)
    for axis, name in zip(axes, names, strict=True):
        ratios = judged[judged["dtype"] == name].groupby("label")["error_ratio"]
        numbers = ratios.quantile(np.array([0.25, 0.5, 1.0])).unstack()
        points = dict(zip(numbers.index, map(tuple, numbers.to_numpy().tolist()), strict=True))
        _plain(axis, name)
        _lines(axis, points, order, marks)
        axis.axvline(1.0, color="black", linewidth=0.8)
        axis.set_xlabel("max |error| / bound", fontsize=6)
        if axis is not axes[0]:
            axis.set_yticklabels([])
    return figure


def _exactness(rows: pd.DataFrame, title: str, below: str) -> Figure:
    """Time against error ratio. Those that none beats in both are numbered, and named below."""
    marks, ordered = _Marks(rows), rows.sort_values(["seconds", "error_ratio"])
    front = ordered[
        ordered["error_ratio"] < ordered["error_ratio"].cummin().shift(fill_value=np.inf)
    ]
    named = [f"{number} {label}" for number, label in enumerate(front["label"], 1)]
    best = fill(
        f"none is faster and nearer: {', '.join(named)}", CHARACTERS, break_on_hyphens=False
    )
    figure, axis = _figure(title, below, 2.2 + LINE * best.count("\n"), [*ordered["label"]])
    for row in rows.to_dict("records"):
        colour, marker = marks.of[row["label"]]
        low, middle, high = (1e3 * row[name] for name in ("low", "seconds", "high"))
        axis.plot([low, high], [row["error_ratio"]] * 2, color=colour, linewidth=0.7)
        axis.plot([middle], [row["error_ratio"]], color=colour, marker=marker, markersize=3)
    axis.plot(
        1e3 * front["seconds"], front["error_ratio"], color="grey", linewidth=0.7,
        drawstyle="steps-post",
    )  # fmt: skip
    _logarithmic(axis, "x", "y")
    for place, numbers in _grouped(front[["seconds", "error_ratio"]] * [1e3, 1.0], axis):
        # Nothing stands below and to the left of a point that none beats.
        axis.annotate(
            numbers, place, xytext=(-3, -3), textcoords="offset points", fontsize=6, ha="right",
            va="top",
        )  # fmt: skip
    axis.set_xlabel(f"ms a call\n{best}", fontsize=5)
    axis.set_ylabel("max |error| / bound", fontsize=6)
    marks.explain(figure, list(ordered["label"]))
    return figure


def _grouped(front: pd.DataFrame, axis: Any) -> Iterator[tuple[tuple[float, float], str]]:
    """Points of a panel with their numbers; neighbours whose numbers would overlap are one point."""
    ends = np.log10([axis.get_xlim(), axis.get_ylim()])
    places = (np.log10(front.to_numpy()) - ends[:, 0]) / np.ptp(ends, axis=1)
    groups: list[list[int]] = []
    for number, place in enumerate(places):
        if groups and (abs(place - places[groups[-1][0]]) < NEAR).all():
            groups[-1].append(number)
        else:
            groups.append([number])
    for group in groups:
        time, ratio = front.iloc[group[0]]
        yield (float(time), float(ratio)), ", ".join(str(number + 1) for number in group)


def _costs(block: pd.DataFrame, title: str, below: str) -> Figure:
    """Time against length, with the fitted law a + b L + c L². The legend begins with the slowest of the
    longest."""
    marks, longest = _Marks(block), block.sort_values(["keys", "seconds"])
    order = list(longest.drop_duplicates("label", keep="last")["label"])[::-1]
    figure, axis = _figure(title, below, 2.6, order)
    for label, mine in block.sort_values("keys", kind="stable").groupby("label", sort=False):
        lengths, (colour, marker) = mine["keys"].to_numpy(float), marks.of[str(label)]
        axis.plot(
            lengths, mine["seconds"] * 1e3, color=colour, marker=marker, linestyle="", markersize=3
        )
        if mine["keys"].nunique() >= LENGTHS:
            every = np.geomspace(lengths.min(), lengths.max(), 60)
            fitted = law(fit(lengths, mine["seconds"].to_numpy()), every)
            axis.plot(every, fitted * 1e3, color=colour, linewidth=0.7)
    _logarithmic(axis, "x", "y")
    axis.set_xlabel("queries and keys", fontsize=6)
    axis.set_ylabel("ms a call", fontsize=6)
    marks.explain(figure, order)
    return figure
