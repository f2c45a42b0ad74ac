"""Tables of speed: pure functions from speed records to pandas DataFrames.

Only what was timed has figures: a refused answer has a row that says why, and no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from suite.records.lines import RecordError
from suite.records.speed import TIMED, SpeedRecord, SpeedRun
from suite.report.kinds import SPEED

RESAMPLED = 1000
CONFIDENCE = 0.95

LENGTHS = 4
"""How many lengths a law of cost needs at least."""

_GROUP = ["workload", "direction", "dtype", "device", "threads"]


def tables_of_speed(
    runs: Sequence[SpeedRun], names: Iterable[str] | None = None, baseline: str = ""
) -> dict[str, pd.DataFrame]:
    """The tables of `suite.report.kinds.SPEED` called `names`; without names all but the rare ones.

    `baseline` is the implementation that others are held against ("torch:sdpa"); by default, for each
    workload, the first that was timed. Raises KeyError for an unknown table or baseline.
    """
    wanted = SPEED.chosen(names)
    frame = measurements(runs)
    makers: dict[str, Callable[[], pd.DataFrame]] = {
        "speed": lambda: speed(frame),
        "speedup": lambda: speedup(frame, baseline),
        "exactness": lambda: exactness(frame),
        "cost_law": lambda: cost_law(frame),
        "refused": lambda: refused(frame),
        "samples": lambda: samples(frame),
    }
    return {name: makers[name]() for name in wanted}


def measurements(runs: Sequence[SpeedRun]) -> pd.DataFrame:
    """One row per record, with every field, `seconds` (median), `low` and `high` (quartiles) and the
    shares of the ceilings. An implementation is labelled "backend:name", with its source where files
    hold the same measurement twice."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        for record in run.records:
            row = {f.name: getattr(record, f.name) for f in fields(SpeedRecord)}
            spread = np.quantile(record.samples, (0.25, 0.75)) if record.samples else (np.nan,) * 2
            row |= {
                "seconds": record.seconds,
                "low": float(spread[0]),
                "high": float(spread[1]),
                "share_of_gemm": record.share_of_gemm,
                "share_of_copy": record.share_of_copy,
                "label": f"{record.backend}:{record.implementation}",
                "source": run.source,
            }
            rows.append(row)
    if not rows:
        raise RecordError("the speed records hold no measurement")
    frame = pd.DataFrame(rows)
    twice = frame.duplicated([*_GROUP, "case", "label"], keep=False)
    frame.loc[twice, "label"] += " [" + frame.loc[twice, "source"].map(lambda s: Path(s).stem) + "]"
    figures = [
        "seconds",
        "share_of_gemm",
        "share_of_copy",
        "error_ratio",
        "peak_bytes",
        "first_call",
    ]
    return frame.astype(dict.fromkeys(figures, "float64"))


def speed(frame: pd.DataFrame) -> pd.DataFrame:
    """Latency, shares of the ceilings, memory and error ratio of everything that was timed."""
    timed = frame[frame["status"].isin(TIMED)]
    table = pd.DataFrame(
        {
            "workload": timed["workload"],
            "direction": timed["direction"],
            "dtype": timed["dtype"],
            "implementation": timed["label"],
            "ms": timed["seconds"] * 1e3,
            "q1": timed["low"] * 1e3,
            "q3": timed["high"] * 1e3,
            "share_of_gemm": timed["share_of_gemm"],
            "share_of_copy": timed["share_of_copy"],
            "first_call_ms": timed["first_call"] * 1e3,
            "MiB": timed["peak_bytes"] / 2**20,
            "error_ratio": timed["error_ratio"],
            "settled": timed["status"] == "timed",
            "kernel": timed["kernel"],
        }
    )
    return table.reset_index(drop=True)


def speedup(frame: pd.DataFrame, baseline: str = "") -> pd.DataFrame:
    """Seconds of the baseline over those of each implementation, a row per workload and direction: 2
    is twice as fast. Raises KeyError where the baseline was never timed."""
    timed = frame[frame["status"].isin(TIMED)]
    labels = list(dict.fromkeys(timed["label"]))
    if baseline and baseline not in labels:
        raise KeyError(f"unknown baseline {baseline!r}; timed: {', '.join(labels)}")
    wide = timed.pivot_table(index=_GROUP, columns="label", values="seconds", sort=False)[labels]
    base = wide[baseline] if baseline else wide.bfill(axis=1).iloc[:, 0]
    return wide.rdiv(base, axis=0).rename_axis(columns=None)


def exactness(frame: pd.DataFrame) -> pd.DataFrame:
    """The largest error ratio, and the median share of the best matrix product, over the workloads of
    every implementation, direction and dtype."""
    timed = frame[frame["status"].isin(TIMED)]
    grouped = timed.groupby(["label", "direction", "dtype"], sort=False)
    table = grouped.agg(
        workloads=("workload", "nunique"),
        error_ratio=("error_ratio", "max"),
        share_of_gemm=("share_of_gemm", "median"),
        best_share=("share_of_gemm", "max"),
    )
    return table.rename_axis(index={"label": "implementation"})


def refused(frame: pd.DataFrame) -> pd.DataFrame:
    """What was not timed although it was asked for, and why; what is declared unsupported is not here."""
    out = frame[~frame["status"].isin((*TIMED, "unsupported"))]
    columns = ["workload", "direction", "dtype", "label", "status", "kind", "message"]
    return out[columns].rename(columns={"label": "implementation"}).reset_index(drop=True)


def samples(frame: pd.DataFrame) -> pd.DataFrame:
    """A row for every sample, in seconds."""
    timed = frame[frame["status"].isin(TIMED)]
    columns = [*_GROUP, "case", "label", "samples"]
    long = timed[columns].explode("samples").rename(columns={"samples": "seconds"})
    return long.astype({"seconds": "float64"}).reset_index(drop=True)


def cost_law(frame: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """T(L) = a + b L + c L^2 of the sweep, by implementation: microseconds, per key, and per pair of a
    query and a key in nanoseconds, with 95 % intervals.

    Least squares of relative errors, so that short lengths count as much as long ones, with no
    coefficient below zero (Lawson and Hanson 1974); intervals by the bootstrap over raw samples.
    Implementations with fewer than `LENGTHS` have no law.
    """
    timed = frame[frame["status"].isin(TIMED) & frame["swept"]]
    rows = []
    for key, block in timed.groupby(["label", "direction", "dtype"], sort=False):
        lengths = block["keys"].to_numpy(float)
        if len(set(lengths)) < LENGTHS:
            continue
        samples = [np.asarray(s, float) for s in block["samples"]]
        rng = np.random.default_rng(seed)
        fits = np.array(
            [
                fit(lengths, np.array([np.median(rng.choice(s, len(s))) for s in samples]))
                for _ in range(RESAMPLED)
            ]
        )
        best = fit(lengths, np.array([np.median(s) for s in samples]))
        low, high = np.quantile(fits, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2), axis=0)
        row: dict[str, Any] = dict(
            zip(("implementation", "direction", "dtype"), key, strict=True), lengths=len(lengths)
        )
        for i, (name, unit) in enumerate((("a_us", 1e6), ("b_us", 1e6), ("c_ns", 1e9))):
            row |= {
                name: best[i] * unit,
                f"{name}_low": low[i] * unit,
                f"{name}_high": high[i] * unit,
            }
        fitted = law(best, lengths)
        row["worst_misfit"] = float(np.abs(fitted / [np.median(s) for s in samples] - 1).max())
        rows.append(row)
    columns = ["implementation", "direction", "dtype", "lengths"]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)


def fit(lengths: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """The coefficients (a, b, c), none below zero, of least relative squares."""
    from scipy.optimize import nnls

    terms = np.stack([np.ones_like(lengths), lengths, lengths**2], 1) / seconds[:, None]
    scales = np.linalg.norm(terms, axis=0)
    coefficients, _ = nnls(terms / scales, np.ones(len(lengths)))
    return coefficients / scales


def law(coefficients: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Seconds at these lengths."""
    a, b, c = coefficients
    return a + b * lengths + c * lengths**2
