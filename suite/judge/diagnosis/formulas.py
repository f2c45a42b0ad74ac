"""Regressions of log weights, and likely formulas of scales.

The logarithms of the weights of a row, less their mean over the visible keys, are linear in the summands
of the scores. The coefficient of q.k is the scale. An error of a weight by the relative slack moves a
logarithm by as much, and a coefficient by the slack times the row sums of the pseudo-inverse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from attention_conformance.suite.judge.diagnosis.instrument import Instrument, Reading
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.sizes import Sizes


@dataclass(frozen=True)
class Fit:
    """The coefficients of a regression (`values`), with bounds of their errors (`errors`)."""

    values: np.ndarray
    errors: np.ndarray

    def allows(self, number: int, value: float) -> bool:
        """True if the coefficient with the index `number` equals `value` within its error."""
        return bool(abs(self.values[number] - value) <= self.errors[number])


def regression(reading: Reading, *columns: np.ndarray) -> Fit | None:
    """Returns the regression of log weights on `columns`, each (B, H, Lq, Lk). None if the columns do not
    explain the weights, or if too few weights are visible."""
    compared = reading.visible & reading.judged_rows[..., None] & np.isfinite(reading.got)
    if compared.sum() - compared.any(-1).sum() < len(columns) + 2:
        return None

    def centred(x: np.ndarray) -> np.ndarray:
        x = np.broadcast_to(x, compared.shape)
        mean = np.where(compared, x, 0).sum(-1) / np.maximum(compared.sum(-1), 1)
        return (x - mean[..., None])[compared]

    with np.errstate(all="ignore"):
        target = centred(np.log(reading.got))
    design = np.stack([centred(column) for column in columns], -1)
    inverse = np.linalg.pinv(design, rcond=1e-9)
    values = inverse @ target
    errors = np.abs(inverse).sum(-1) * 2 * reading.slack
    residuals = np.abs(target - design @ values)
    if not (residuals <= 4 * reading.slack + np.abs(design) @ errors).all():
        return None
    return Fit(values, errors)


def scales(s: Sizes, given: float | None) -> dict[str, float]:
    """Returns likely scales by their formulas. `given` is the call's argument `scale`, or None."""
    D, log2e = max(s.D, 1), math.log2(math.e)
    right = given if given is not None else D**-0.5
    names = {
        "1/sqrt(D)": D**-0.5, "1": 1.0, "1/D": 1 / D, "sqrt(D)": D**0.5, "D": D, "D^(-1/4)": D**-0.25,
        "1/sqrt(H D)": (s.H * D) ** -0.5, "1/sqrt(Lk)": s.Lk**-0.5, "1/sqrt(Lq)": s.Lq**-0.5,
        "1/sqrt(H)": s.H**-0.5, "1/Lk": 1 / s.Lk, "1/sqrt(2 D)": (2 * D) ** -0.5, "0": 0.0,
        "1/sqrt(D/2)": (D / 2) ** -0.5, "1/sqrt(Dv), of the values": max(s.Dv, 1) ** -0.5,
        **{f"1/sqrt(D rounded up to a multiple of {n})": (-(-D // n) * n) ** -0.5
           for n in (8, 16, 32, 64)},
    } if given is None else {
        "the given scale": given, "1/sqrt(D), the default": D**-0.5, "1": 1.0,
        "the given scale squared": given**2, "the given scale / sqrt(D)": given * D**-0.5,
        "1 / the given scale": 1 / given if given else math.inf,
        "the given scale sqrt(D)": given * D**0.5, "the given scale's root": abs(given) ** 0.5,
        "the given scale without its sign": abs(given), "the given scale + 1/sqrt(D)": given + D**-0.5,
    }  # fmt: skip
    return names | {
        "the right scale times log2(e)": right * log2e, "the right scale times ln(2)": right / log2e,
        "the right scale with the other sign": -right,
    }  # fmt: skip


def formula(
    fit: Fit, inputs: Inputs, more_fits: Iterable[tuple[Fit, Inputs]] = ()
) -> tuple[str, str]:
    """Returns the formula of the scale `fit.values[0]` ("" if no likely one fits), and the number with
    its formula as text: "0.125 = 1/D". If several formulas fit, the scales of other inputs (`more_fits`)
    decide."""
    value = float(fit.values[0])
    names = _fitting_formulas(fit, inputs)
    if len(names) > 1:
        for fit_and_inputs in more_fits:
            names = [n for n in names if n in _fitting_formulas(*fit_and_inputs)] or names
    name, number = next(iter(names), ""), f"{value:.3g}"
    return name, number if name in ("", number) else f"{number} = {name}"


def _fitting_formulas(fit: Fit, inputs: Inputs) -> list[str]:
    """Returns the formulas that fit the scale `fit.values[0]`, the nearest first."""
    value, names = float(fit.values[0]), scales(inputs.sizes, inputs.scale)
    near = [n for n in names if abs(value - names[n]) <= fit.errors[0] + 1e-9]
    return sorted(near, key=lambda n: abs(value - names[n]))


def fits_of_other_sizes(tool: Instrument, inputs: Inputs) -> Iterator[tuple[Fit, Inputs]]:
    """Yields at most one fit, with its inputs: the scale for heads of size 24. Formulas that agree for
    `inputs` differ there."""
    case = replace(inputs.case, sizes=replace(inputs.sizes, D=24, Dv=inputs.sizes.Lk + 1))
    if tool.implementation.unsupported(case) is None:
        reading = tool.read_weights(tool.draw(case))
        bias_columns = () if reading is None or reading.bias is None else (reading.bias,)
        fit = None if reading is None else regression(reading, reading.products, *bias_columns)
        if reading is not None and fit is not None:
            yield fit, reading.inputs


HINTS = {
    "1": "the scores are not scaled", "1/D": "`/ D` for `/ sqrt(D)`",
        "sqrt(D)": "`* sqrt(D)` for `/ sqrt(D)`",
    "1/sqrt(H D)": "the width of all heads, `embed_dim ** -0.5`",
        "1/sqrt(D), the default": "the argument `scale` is not used",
    "the given scale / sqrt(D)": "the given scale is multiplied by the default one",
    "the right scale times log2(e)": "`exp` of scores that are meant for `exp2`",
        "the right scale times ln(2)": "`exp2` of scores that are meant for `exp`",
    "D^(-1/4)": "the root of the scale is applied to one of query and key",
        "the given scale squared": "the scale is applied twice, to query and to key",
    "1/sqrt(Lk)": "the number of keys for the size of a head", "1/sqrt(2 D)": "",
    "1/sqrt(H)": "the number of heads for the size of a head, `query.shape` by the wrong axis",
    "1/sqrt(Lq)": "the number of queries for the size of a head",
    "1/sqrt(Dv), of the values": "`value.shape[-1]` for `query.shape[-1]`",
    **{f"1/sqrt(D rounded up to a multiple of {n})": "`query.shape[-1]` after padding, not before"
       for n in (8, 16, 32, 64)},
}  # fmt: skip
