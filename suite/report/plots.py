"""Plots of speed by matplotlib, each as PNG and SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from suite.measure.record import TIMED
from suite.report.speed import cost_law, law

MISSING = (
    "plots are drawn by matplotlib, which is not installed: "
    'pip install "attention-conformance[plots]", or pip install matplotlib'
)


class NoPlots(Exception):
    """matplotlib is missing; the message says how to get it."""


def plots(frame: pd.DataFrame, folder: str | Path) -> list[Path]:
    """Draw what the measurements hold (see `speed.measurements`) into a new or empty folder.

    Raises NoPlots without matplotlib, and FileExistsError where the folder holds anything.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoPlots(MISSING) from error
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not an empty folder; plots need one")
    folder.mkdir(parents=True, exist_ok=True)
    timed = frame[frame["status"].isin(TIMED)]
    swept = timed["workload"].str.startswith("sweep-")
    drawn = []
    for direction, block in timed[~swept].groupby("direction", sort=False):
        drawn.append(_saved(_shares(Figure, block, str(direction)), folder, f"share-{direction}"))
        drawn.append(
            _saved(_exactness(Figure, block, str(direction)), folder, f"exact-{direction}")
        )
    for direction, block in timed[swept].groupby("direction", sort=False):
        drawn.append(_saved(_cost(Figure, block, str(direction)), folder, f"cost-{direction}"))
    return [path for pair in drawn for path in pair]


def _saved(figure: Any, folder: Path, name: str) -> tuple[Path, Path]:
    found = tuple(folder / f"{name.replace('+', '-')}.{kind}" for kind in ("png", "svg"))
    for path in found:
        figure.savefig(path, dpi=130)
    return found  # type: ignore[return-value]


def _shares(Figure: Any, block: pd.DataFrame, direction: str) -> Any:
    """A row of points per workload: share of the best matrix product, an implementation a colour."""
    wide = block.pivot_table(index="workload", columns="label", values="share_of_gemm", sort=False)
    figure = Figure(figsize=(9, 1.6 + 0.32 * len(wide)), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(wide))[::-1]
    for number, label in enumerate(wide):
        axes.plot(wide[label] * 100, places, _marker(number), label=label, alpha=0.85)
    axes.set_yticks(places, wide.index)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(_plain)
    axes.set_xlabel("share of the machine's best matrix product, %")
    axes.set_title(f"{direction}: how near to the ceiling (right is better)")
    axes.grid(axis="both", alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return figure


def _exactness(Figure: Any, block: pd.DataFrame, direction: str) -> Any:
    """Error ratio against share of the ceiling, a point per workload."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for number, (label, mine) in enumerate(block.groupby("label", sort=False)):
        axes.plot(mine["share_of_gemm"] * 100, mine["error_ratio"], _marker(number), label=label)
    axes.axhline(1.0, color="black", linewidth=1)
    axes.annotate("bound", (0.01, 1.0), xycoords=("axes fraction", "data"), va="bottom")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(_plain)
    axes.set_xlabel("share of the machine's best matrix product, %")
    axes.set_ylabel("error ratio, max |error| / bound")
    axes.set_title(f"{direction}: exactness against speed (right and low is better)")
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return figure


def _cost(Figure: Any, block: pd.DataFrame, direction: str) -> Any:
    """Time against length with the fitted law."""
    laws = cost_law(block).set_index("implementation")
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for number, (label, mine) in enumerate(block.groupby("label", sort=False)):
        mine = mine.sort_values("size")
        marker = _marker(number)
        axes.plot(mine["size"], mine["seconds"] * 1e3, marker, label=label)
        if label in laws.index:
            row = laws.loc[label]
            lengths = np.geomspace(mine["size"].min(), mine["size"].max(), 60)
            fitted = law(np.array([row["a_us"], row["b_us"], row["c_ns"] * 1e-3]) * 1e-6, lengths)
            axes.plot(lengths, fitted * 1e3, color=f"C{number % 10}", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(_plain)
    axes.set_xlabel("queries and keys")
    axes.set_ylabel("ms")
    axes.set_title(f"{direction}: cost against length, with a + b L + c L²")
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
    return figure


def _plain(value: float, position: int) -> str:
    """10, not 10^1."""
    return f"{value:g}"


def _marker(number: int) -> str:
    return f"C{number % 10}{'osD^v<>PX*'[number // 10 % 10]}"
