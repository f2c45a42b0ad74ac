"""Regressions of log weights, and the formulas that people have for scales.

The logarithms of the weights of a row, less their mean over the seen keys, are linear in what is added to
the scores. The coefficient of q.k is the scale. An error of a weight by the relative slack moves a
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
    """Coefficients of a regression with bounds of their errors."""

    values: np.ndarray
    errors: np.ndarray

    def says(self, place: int, value: float) -> bool:
        """True if a coefficient may be this number."""
        return bool(abs(self.values[place] - value) <= self.errors[place])


def fitted(reading: Reading, *columns: np.ndarray) -> Fit | None:
    """The regression of log weights on columns (B, H, Lq, Lk); None if the columns do not explain them,
    or if too few weights are seen."""
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
    left = np.abs(target - design @ values)
    if not (left <= 4 * reading.slack + np.abs(design) @ errors).all():
        return None
    return Fit(values, errors)


def scales(s: Sizes, given: float | None) -> dict[str, float]:
    """Scales that people use, by their formulas; `given` is the argument of the call."""
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


def formula(fit: Fit, inputs: Inputs, more: Iterable[tuple[Fit, Inputs]] = ()) -> tuple[str, str]:
    """The formula that gives a scale ("" if none does), and both in text: "0.125 = 1/D". Of several
    formulas the first is taken that gives the scale of `more` inputs, too."""
    value = float(fit.values[0])
    names = _named(fit, inputs)
    if len(names) > 1:
        for other in more:
            names = [n for n in names if n in _named(*other)] or names
    name, number = next(iter(names), ""), f"{value:.3g}"
    return name, number if name in ("", number) else f"{number} = {name}"


def _named(fit: Fit, inputs: Inputs) -> list[str]:
    """The formulas that give a scale, the nearest first."""
    value, names = float(fit.values[0]), scales(inputs.sizes, inputs.scale)
    near = [n for n in names if abs(value - names[n]) <= fit.errors[0] + 1e-9]
    return sorted(near, key=lambda n: abs(value - names[n]))


def of_other_sizes(tool: Instrument, inputs: Inputs) -> Iterator[tuple[Fit, Inputs]]:
    """The scale of heads of another size, where formulas differ that agree for the size of `inputs`."""
    case = replace(inputs.case, sizes=replace(inputs.sizes, D=24, Dv=inputs.sizes.Lk + 1))
    if tool.implementation.unsupported(case) is None:
        reading = tool.read_weights(tool.draw(case))
        own = () if reading is None or reading.bias is None else (reading.bias,)
        fit = None if reading is None else fitted(reading, reading.products, *own)
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
