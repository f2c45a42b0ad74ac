"""Plots of speed by matplotlib, each as PNG and SVG."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from suite.records.files import new_folder
from suite.records.lines import RecordError
from suite.records.speed import TIMED
from suite.report.laws import LENGTHS, fit, law

MISSING = (
    "plots are drawn by matplotlib, which is not installed: "
    'pip install "attention-conformance[plots]", or pip install matplotlib'
)


def draw(frame: pd.DataFrame, folder: str | Path) -> list[Path]:
    """Draw measurements (`suite.report.frames.measurements`) into a new or empty folder.

    Raises RecordError without matplotlib, and FileExistsError where the folder holds anything.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RecordError(MISSING) from error
    folder = new_folder(Path(folder))
    timed = frame[frame["status"].isin(TIMED)]
    swept = timed["swept"].astype(bool)
    pictures = []
    for direction, block in timed[~swept].groupby("direction", sort=False):
        pictures.append(
            _saved(_shares(Figure, block, str(direction)), folder, f"share-{direction}")
        )
        judged = block[block["error_ratio"].notna() & block["share_of_gemm"].notna()]
        if len(judged):
            pictures.append(
                _saved(_exactness(Figure, judged, str(direction)), folder, f"exact-{direction}")
            )
    for direction, block in timed[swept].groupby("direction", sort=False):
        pictures.append(_saved(_cost(Figure, block, str(direction)), folder, f"cost-{direction}"))
    return [path for pair in pictures for path in pair]


def _saved(figure: Any, folder: Path, name: str) -> list[Path]:
    pictures = [folder / f"{name.replace('+', '-')}.{kind}" for kind in ("png", "svg")]
    for path in pictures:
        figure.savefig(path, dpi=130)
    return pictures


def _shares(Figure: Any, block: pd.DataFrame, direction: str) -> Any:
    """A row of points per workload: share of the best matrix product, an implementation a colour."""
    wide = block.pivot_table(index="workload", columns="label", values="share_of_gemm", sort=False)
    figure = Figure(figsize=(9, 1.6 + 0.32 * len(wide)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(wide))[::-1]
    for number, label in enumerate(wide):
        axes.plot(wide[label] * 100, places, _marker(number), label=label, alpha=0.85)
    axes.set_yticks(places, wide.index)
    _along_shares(axes, block)
    return _finished(figure, axes, f"{direction}: how near to the ceiling (right is better)")


def _exactness(Figure: Any, block: pd.DataFrame, direction: str) -> Any:
    """Error ratio against share of the ceiling, a point per workload."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for number, (label, mine) in enumerate(block.groupby("label", sort=False)):
        axes.plot(mine["share_of_gemm"] * 100, mine["error_ratio"], _marker(number), label=label)
    axes.axhline(1.0, color="black", linewidth=1)
    axes.annotate("bound", (0.01, 1.0), xycoords=("axes fraction", "data"), va="bottom")
    _along_shares(axes, block)
    _stretch(axes.set_yscale, block["error_ratio"])
    axes.set_ylabel("error ratio, max |error| / bound")
    title = f"{direction}: exactness against speed (right and low is better)"
    return _finished(figure, axes, title)


def _cost(Figure: Any, block: pd.DataFrame, direction: str) -> Any:
    """Time against length with the fitted law."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for number, (label, mine) in enumerate(block.groupby("label", sort=False)):
        mine = mine.sort_values("keys")
        marker = _marker(number)
        axes.plot(mine["keys"], mine["seconds"] * 1e3, marker, label=label)
        if mine["keys"].nunique() >= LENGTHS:
            coefficients = fit(mine["keys"].to_numpy(float), mine["seconds"].to_numpy())
            lengths = np.geomspace(mine["keys"].min(), mine["keys"].max(), 60)
            axes.plot(
                lengths, law(coefficients, lengths) * 1e3, color=f"C{number % 10}", linewidth=1
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_plain)
    axes.set_xlabel("queries and keys")
    axes.set_ylabel("ms")
    return _finished(figure, axes, f"{direction}: cost against length, with a + b L + c L²")


def _along_shares(axes: Any, block: pd.DataFrame) -> None:
    _stretch(axes.set_xscale, block["share_of_gemm"])
    axes.xaxis.set_major_formatter(_plain)
    axes.set_xlabel("share of the machine's best matrix product, %")


def _stretch(scale: Callable[..., None], values: pd.Series) -> None:
    """Make a scale logarithmic where any of its values can stand on such a one."""
    if (values > 0).any():
        scale("log", nonpositive="mask")


def _finished(figure: Any, axes: Any, title: str) -> Any:
    axes.set_title(title)
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return figure


def _plain(value: float, position: int) -> str:
    """10, not 10^1."""
    return f"{value:g}"


def _marker(number: int) -> str:
    return f"C{number % 10}{'osD^v<>PX*'[number // 10 % 10]}"
