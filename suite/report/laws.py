"""Laws of cost: T(L) = a + b L + c L^2, fitted to the times of a sweep over lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import nnls

LENGTHS = 4
"""The smallest number of lengths for a fit."""

RESAMPLED = 1000
CONFIDENCE = 0.95

_UNITS_PER_SECOND = {"a_us": 1e6, "b_us": 1e6, "c_ns": 1e9}
"""The columns of the coefficients, with the number of their units in a second."""


def fit_law(lengths: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Returns the non-negative coefficients (a, b, c) of the law, in seconds, by least squares of
    relative errors (Lawson and Hanson 1974). So short lengths count as much as long ones. Both arrays are
    (n,)."""
    terms = np.stack([np.ones_like(lengths), lengths, lengths**2], 1) / seconds[:, None]
    scales = np.linalg.norm(terms, axis=0)
    coefficients, _ = nnls(terms / scales, np.ones(len(lengths)))
    return coefficients / scales


def predicted_seconds(coefficients: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns the seconds that the law T(L) gives for these lengths."""
    a, b, c = coefficients
    return a + b * lengths + c * lengths**2


def cost_law(swept: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Returns a row per implementation, direction and dtype with at least `LENGTHS` lengths.

    Columns are the coefficients of T(L) = a + b L + c L^2 with 95 % intervals (a bootstrap over raw
    samples), and the largest relative misfit. `swept` are rows of `suite.report.frames.measurements`.
    """
    rows: list[dict[str, Any]] = []
    for key, block in swept.groupby(["label", "direction", "dtype"], sort=False):
        lengths = block["keys"].to_numpy(float)
        if len(set(lengths)) < LENGTHS:
            continue
        samples = [np.asarray(s, float) for s in block["samples"]]
        rng = np.random.default_rng(seed)
        fits = [
            fit_law(lengths, np.array([np.median(rng.choice(s, len(s))) for s in samples]))
            for _ in range(RESAMPLED)
        ]
        medians = np.array([np.median(s) for s in samples])
        best = fit_law(lengths, medians)
        low, high = np.quantile(fits, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2), axis=0)
        row = dict(zip(("implementation", "direction", "dtype"), key, strict=True))
        rows.append(row | {"lengths": len(lengths)})
        for n, (name, unit) in enumerate(_UNITS_PER_SECOND.items()):
            interval = {f"{name}_low": low[n] * unit, f"{name}_high": high[n] * unit}
            rows[-1] |= {name: best[n] * unit, **interval}
        rows[-1]["worst_misfit"] = float(
            np.abs(predicted_seconds(best, lengths) / medians - 1).max()
        )
    columns = ["implementation", "direction", "dtype", "lengths"]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)
