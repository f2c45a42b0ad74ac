"""Pictures of speed and precision by matplotlib, as wide as a column of a paper."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import pandas as pd

from attention_conformance.suite.records.files import new_folder, remove_on_error
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.records.speed import TIMED
from attention_conformance.suite.report.frames import provenance
from attention_conformance.suite.report.laws import LENGTHS, fit_law, predicted_seconds
from attention_conformance.suite.spec.vocabulary import VALUES

MISSING = 'plots need matplotlib: pip install "attention-conformance[plots]"'
RATIO = "max |error| / bound"


def draw(frames: Mapping[str, Any], folder: str | Path) -> None:
    """Save `pictures` as png, svg and pdf files in a new or empty folder. Raises RecordError without
    matplotlib, and FileExistsError."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise RecordError(MISSING) from error
    folder = new_folder(folder)
    with remove_on_error(folder):
        for name, figure in pictures(frames):
            for kind in ("png", "svg", "pdf"):
                figure.savefig(folder / f"{re.sub('[^A-Za-z0-9.]+', '-', name)}.{kind}", dpi=200)


def pictures(frames: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields pairs of name and matplotlib figure: of time, exactness, cost and precision
    (docs/speed.md)."""
    if "measurements" in frames:
        timed = frames["measurements"][frames["measurements"]["status"].isin(TIMED)]
        swept, footer = timed["swept"].astype(bool), provenance(frames["timed"].values())
        for key, block in timed[~swept].groupby(["direction", "workload", "dtype"], sort=False):
            points = 1e3 * block.set_index("label")[["low", "seconds", "high"]]
            points = points.sort_values("seconds", ascending=False)
            yield "-".join(("time", *key)), _lines(points, ", ".join(key), "ms a call", footer)
            if not (exact_rows := block[block["error_ratio"] > 0]).empty:
                yield "-".join(("exact", *key)), _exactness(exact_rows, ", ".join(key), footer)
        for direction, block in timed[swept].groupby("direction", sort=False):
            yield f"cost-{direction}", _costs(block, direction, footer)
    if "cells" in frames:
        cells, headers = frames["cells"], frames["headers"].values()
        controls = {name for header in headers for name in header.controls}
        is_product = ~(cells["backend"] + ":" + cells["implementation"]).isin(controls)
        is_finite = (cells["error_ratio"] > 0) & (cells["error_ratio"] < math.inf)
        judged = cells[is_product & is_finite & (cells["check"] == VALUES)]
        for dtype, block in judged.groupby("dtype", sort=False):
            points = block.groupby("label")["error_ratio"].quantile([0.25, 0.5, 1.0]).unstack()
            yield f"precision-{dtype}", _lines(points, dtype, RATIO, provenance(headers))


def _figure(title: str, x: str, y: str, footer: str, height: float) -> tuple[Any, Any]:
    """Returns a figure and its one panel. `x` and `y` are labels, `footer` is the caption below, `height`
    the height of the panel in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4, height + 0.8), layout="constrained")
    figure.supxlabel(fill(footer, 76), fontsize=4.5, x=0.01, ha="left")
    axis = figure.subplots()
    axis.set_title(title, fontsize=7, loc="left")
    axis.set(xscale="log", yscale="log" if y else "linear", xlabel=x, ylabel=y)
    axis.xaxis.label.set_fontsize(5)
    axis.yaxis.label.set_fontsize(5)
    axis.tick_params(labelsize=5.5, which="both")
    axis.grid(alpha=0.25, linewidth=0.5)
    return figure, axis


def _mark(number: int) -> dict[str, Any]:
    """Returns the colour and marker of the implementation with this number."""
    return {"color": f"C{number % 10}", "marker": "osD^v<>PX*"[number // 10 % 10], "markersize": 3}


def _lines(points: pd.DataFrame, title: str, unit: str, footer: str) -> Any:
    """Returns a figure in which every row of `points`, three numbers, is a horizontal line. The last row
    is at the top."""
    figure, axis = _figure(title, unit, "", footer, 0.15 * len(points))
    for height, (_, values) in enumerate(points.iterrows()):
        axis.plot(values, [height] * 3, **_mark(height), markevery=[1])
    axis.set_yticks(range(len(points)), points.index)
    return figure


def _exactness(rows: pd.DataFrame, title: str, footer: str) -> Any:
    """Returns a figure of time against error ratio, with a line through the rows that no other row beats
    in both."""
    rows = rows.sort_values(["seconds", "error_ratio"])
    front = rows[rows["error_ratio"] < rows["error_ratio"].cummin().shift(fill_value=np.inf)]
    note = "none is faster and nearer: " + ", ".join(front["label"])
    x, height = f"ms a call\n{fill(note, 76, break_on_hyphens=False)}", 2.5 + 0.1 * len(rows)
    figure, axis = _figure(title, x, RATIO, footer, height)
    for number, row in enumerate(rows.to_dict("records")):
        times = [1e3 * row[name] for name in ("low", "seconds", "high")]
        ratios = [row["error_ratio"]] * 3
        axis.plot(times, ratios, **_mark(number), markevery=[1], label=row["label"])
    axis.plot(1e3 * front["seconds"], front["error_ratio"], color="grey", drawstyle="steps-post")
    figure.legend(loc="outside upper left", fontsize=5, frameon=False)
    return figure


def _costs(block: pd.DataFrame, title: str, footer: str) -> Any:
    """Returns a figure of time against length, with the fitted law a + b L + c L²."""
    kernels = block.sort_values("keys", kind="stable").groupby("label", sort=False)
    figure, axis = _figure(title, "queries and keys", "ms a call", footer, 2.6 + 0.1 * len(kernels))
    for number, (label, rows) in enumerate(kernels):
        lengths, seconds = rows["keys"].to_numpy(float), rows["seconds"].to_numpy()
        axis.plot(lengths, 1e3 * seconds, **_mark(number), linestyle="", label=label)
        if rows["keys"].nunique() >= LENGTHS:
            grid = np.geomspace(lengths.min(), lengths.max(), 60)
            axis.plot(
                grid,
                1e3 * predicted_seconds(fit_law(lengths, seconds), grid),
                color=f"C{number % 10}",
            )
    figure.legend(loc="outside upper left", fontsize=5, frameon=False)
    return figure
