"""Pictures of speed and precision by matplotlib, each as PNG, SVG and PDF, as wide as a paper's page.

A framework has a colour, an implementation of it a marker. Whiskers are quartiles. The line below a
picture names versions, machine and date.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from suite.records.files import new_folder
from suite.records.lines import RecordError
from suite.records.speed import TIMED
from suite.report.frames import provenance
from suite.report.laws import LENGTHS, fit, law
from suite.spec.dtypes import DTYPES
from suite.spec.vocabulary import VALUES

MISSING = (
    "plots are drawn by matplotlib, which is not installed: "
    'pip install "attention-conformance[plots]", or pip install matplotlib'
)

WIDE = 7.0
"""Inches of a page's width."""

ROW = 0.17
"""Inches of an implementation's line."""

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

    The first three are drawn for every direction. Raises RecordError without matplotlib,
    FileExistsError if the folder is not empty.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise RecordError(MISSING) from error
    folder = new_folder(folder)
    for name, figure in pictures(frames):
        for kind in ("png", "svg", "pdf"):
            figure.savefig(folder / f"{name}.{kind}".replace("+", "-"), dpi=200)


def pictures(frames: Mapping[str, Any]) -> Iterator[tuple[str, Figure]]:
    """The figures that `draw` saves, by name."""
    if "measurements" in frames:
        measured = frames["measurements"]
        timed = measured[measured["status"].isin(TIMED)]
        swept, below = timed["swept"].astype(bool), provenance(frames["timed"].values())
        judged = ~swept & (timed["error_ratio"] > 0)
        for name, picture, rows in (
            ("time", _times, ~swept), ("exact", _exactness, judged), ("cost", _costs, swept)
        ):  # fmt: skip
            for direction, block in timed[rows].groupby("direction", sort=False):
                yield f"{name}-{direction}", picture(block, f"{direction}; {below}")
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

    def explain(self, figure: Figure) -> None:
        """A legend above all panels."""
        from matplotlib.lines import Line2D

        marks = [
            Line2D([], [], color=colour, marker=marker, linestyle="", markersize=4)
            for colour, marker in self.of.values()
        ]
        figure.legend(
            marks, [*self.of], loc="outside upper left", ncols=4, fontsize=6, frameon=False
        )


def _figure(panels: int, columns: int, height: float, below: str) -> tuple[Figure, list[Any]]:
    """A figure with panels of this height in inches, and the caption `below`."""
    from matplotlib.figure import Figure

    rows = -(-panels // columns)
    figure = Figure(figsize=(WIDE, 0.7 + rows * height), layout="constrained")
    axes = list(np.ravel(figure.subplots(rows, columns, squeeze=False)))
    for unused in axes[panels:]:
        unused.set_axis_off()
    for one in axes:
        one.tick_params(labelsize=6)
        one.grid(alpha=0.25, linewidth=0.5)
        one.spines[["top", "right"]].set_visible(False)
    figure.supxlabel(below, fontsize=5.5, x=0.01, ha="left")
    return figure, axes


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


def _times(block: pd.DataFrame, below: str) -> Figure:
    """Milliseconds of a call, a panel per workload, the fastest at the top."""
    marks, panels = _Marks(block), list(block.groupby(["workload", "dtype"], sort=False))
    figure, axes = _figure(len(panels), 2, 0.6 + ROW * block["label"].nunique(), below)
    for axis, ((workload, dtype), rows) in zip(axes, panels, strict=False):
        quartiles = (1e3 * rows[["low", "seconds", "high"]]).to_numpy().tolist()
        points = dict(zip(rows["label"], map(tuple, quartiles), strict=True))
        _lines(axis, points, sorted(points, key=lambda name: -points[name][1]), marks)
        axis.set_title(f"{workload}, {dtype}", fontsize=7, loc="left")
        axis.set_xlabel("ms a call: median and quartiles", fontsize=6)
    return figure


def _precision(judged: pd.DataFrame, below: str) -> Figure:
    """Error ratios, a panel per dtype, the implementations in one order."""
    marks, names = _Marks(judged), [name for name in DTYPES if (judged["dtype"] == name).any()]
    order = [*dict.fromkeys(judged["label"])][::-1]
    figure, axes = _figure(len(names), len(names), 0.6 + ROW * len(order), below)
    for axis, name in zip(axes, names, strict=True):
        ratios = judged[judged["dtype"] == name].groupby("label")["error_ratio"]
        numbers = ratios.quantile(np.array([0.25, 0.5, 1.0])).unstack()
        points = dict(zip(numbers.index, map(tuple, numbers.to_numpy().tolist()), strict=True))
        _lines(axis, points, order, marks)
        axis.axvline(1.0, color="black", linewidth=0.8)
        axis.set_title(name, fontsize=7, loc="left")
        axis.set_xlabel("max |error| / bound", fontsize=6)
        if axis is not axes[0]:
            axis.set_yticklabels([])
    return figure


def _exactness(block: pd.DataFrame, below: str) -> Figure:
    """Time against error ratio, a panel per workload. The names of those on the front stand there."""
    marks = _Marks(block)
    panels = list(block.groupby(["workload", "dtype"], sort=False))
    figure, axes = _figure(len(panels), 2, 2.3, below)
    for axis, ((workload, dtype), rows) in zip(axes, panels, strict=False):
        for row in rows.to_dict("records"):
            colour, marker = marks.of[row["label"]]
            low, middle, high = (1e3 * row[name] for name in ("low", "seconds", "high"))
            axis.plot([low, high], [row["error_ratio"]] * 2, color=colour, linewidth=1)
            axis.plot([middle], [row["error_ratio"]], color=colour, marker=marker, markersize=4)
        ordered = rows.sort_values(["seconds", "error_ratio"])
        front = ordered[
            ordered["error_ratio"] < ordered["error_ratio"].cummin().shift(fill_value=np.inf)
        ]
        axis.plot(
            1e3 * front["seconds"], front["error_ratio"], color="grey", linewidth=0.7,
            drawstyle="steps-post",
        )  # fmt: skip
        for row in front.to_dict("records"):
            axis.annotate(
                row["label"], (1e3 * row["seconds"], row["error_ratio"]), xytext=(3, 3),
                textcoords="offset points", fontsize=5.5,
            )  # fmt: skip
        _logarithmic(axis, "x", "y")
        axis.set_title(f"{workload}, {dtype}", fontsize=7, loc="left")
        axis.set_xlabel("ms a call", fontsize=6)
        axis.set_ylabel("max |error| / bound", fontsize=6)
    marks.explain(figure)
    return figure


def _costs(block: pd.DataFrame, below: str) -> Figure:
    """Time against length, with the fitted law a + b L + c L²."""
    marks = _Marks(block)
    figure, (axis,) = _figure(1, 1, 3.6, below)
    for label, mine in block.sort_values("keys", kind="stable").groupby("label", sort=False):
        lengths, (colour, marker) = mine["keys"].to_numpy(float), marks.of[str(label)]
        axis.plot(
            lengths, mine["seconds"] * 1e3, color=colour, marker=marker, linestyle="", markersize=4
        )
        if mine["keys"].nunique() >= LENGTHS:
            every = np.geomspace(lengths.min(), lengths.max(), 60)
            fitted = law(fit(lengths, mine["seconds"].to_numpy()), every)
            axis.plot(every, fitted * 1e3, color=colour, linewidth=0.8)
    _logarithmic(axis, "x", "y")
    axis.set_xlabel("queries and keys", fontsize=6)
    axis.set_ylabel("ms a call", fontsize=6)
    marks.explain(figure)
    return figure
