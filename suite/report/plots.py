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


def draw(measurements: pd.DataFrame, folder: str | Path) -> None:
    """Draw measurements (`suite.report.frames.measurements`) into a new or empty folder.

    For every direction there are plots of shares of the ceiling, of error ratios against shares, and of
    times against lengths. Raises RecordError without matplotlib, FileExistsError if the folder is not
    empty.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RecordError(MISSING) from error
    folder = new_folder(folder)
    timed = measurements[measurements["status"].isin(TIMED)]
    swept = timed["swept"].astype(bool)
    judged = ~swept & timed["error_ratio"].notna() & timed["share_of_gemm"].notna()
    pictures = (("share", _shares, ~swept), ("exact", _exactness, judged), ("cost", _cost, swept))
    for name, picture, rows in pictures:
        for direction, block in timed[rows].groupby("direction", sort=False):
            workloads = block["workload"].nunique()
            height = 1.6 + 0.32 * workloads if picture is _shares else 5
            figure = Figure(figsize=(9, height), layout="constrained")
            axes = figure.subplots()
            axes.set_title(f"{direction}: {picture(axes, block)}")
            axes.grid(alpha=0.3)
            figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
            for kind in ("png", "svg"):
                file = f"{name}-{direction}.{kind}".replace("+", "-")
                figure.savefig(folder / file, dpi=130)


def _shares(axes: Any, block: pd.DataFrame) -> str:
    """Share of the best matrix product: a row of points per workload, a colour per implementation."""
    wide = block.pivot_table(index="workload", columns="label", values="share_of_gemm", sort=False)
    places = np.arange(len(wide))[::-1]
    for number, label in enumerate(wide):
        axes.plot(wide[label] * 100, places, _marker(number), label=label, alpha=0.85)
    axes.set_yticks(places, wide.index)
    _along_shares(axes, block)
    return "how near to the ceiling (right is better)"


def _exactness(axes: Any, block: pd.DataFrame) -> str:
    """Error ratio against share of the ceiling, a point per workload."""
    for number, (label, mine) in enumerate(block.groupby("label", sort=False)):
        axes.plot(mine["share_of_gemm"] * 100, mine["error_ratio"], _marker(number), label=label)
    axes.axhline(1.0, color="black", linewidth=1)
    axes.annotate("bound", (0.01, 1.0), xycoords=("axes fraction", "data"), va="bottom")
    _along_shares(axes, block)
    _stretch(axes.set_yscale, block["error_ratio"])
    axes.set_ylabel("error ratio, max |error| / bound")
    return "exactness against speed (right and low is better)"


def _cost(axes: Any, block: pd.DataFrame) -> str:
    """Time against length with the fitted law."""
    for number, (label, mine) in enumerate(
        block.sort_values("keys", kind="stable").groupby("label", sort=False)
    ):
        lengths = mine["keys"].to_numpy(float)
        axes.plot(lengths, mine["seconds"] * 1e3, _marker(number), label=label)
        if mine["keys"].nunique() >= LENGTHS:
            every = np.geomspace(lengths.min(), lengths.max(), 60)
            fitted = law(fit(lengths, mine["seconds"].to_numpy()), every)
            axes.plot(every, fitted * 1e3, color=f"C{number % 10}", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_plain)
    axes.set_xlabel("queries and keys")
    axes.set_ylabel("ms")
    return "cost against length, with a + b L + c L²"


def _along_shares(axes: Any, block: pd.DataFrame) -> None:
    _stretch(axes.set_xscale, block["share_of_gemm"])
    axes.xaxis.set_major_formatter(_plain)
    axes.set_xlabel("share of the machine's best matrix product, %")


def _stretch(scale: Callable[..., None], values: pd.Series) -> None:
    """Make an axis logarithmic if any of its values is positive and finite."""
    if (values > 0).any():
        scale("log", nonpositive="mask")


def _plain(value: float, position: int) -> str:
    """Format 10 as "10", not as "10^1"."""
    return f"{value:g}"


def _marker(number: int) -> str:
    return f"C{number % 10}{'osD^v<>PX*'[number // 10 % 10]}"
