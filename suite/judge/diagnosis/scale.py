"""The symptoms of scores, by regressions of log weights: scale, softcap and bias.

The logarithms of the weights of a row, less their mean over the visible keys, are linear in the summands
of the scores. The coefficient of q.k is the scale. An error of a weight by the relative slack moves a
logarithm by as much, and a coefficient by the slack times the row sums of the pseudo-inverse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge.diagnosis.instrument import (
    Instrument,
    Reading,
    Symptom,
    softmax,
)
from attention_conformance.suite.judge.diagnosis.kernels import measured_kernel
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.sizes import Sizes


def scale_symptoms(tool: Instrument, reading: Reading) -> Iterator[Symptom]:
    """Yields at most one symptom of the scores: of the scale, a catalogue fault, the softcap, normalised
    vectors, or a scale per head. None if weights are negative, or their scores are right."""
    if (reading.got < 0).any():
        return
    normalised = replace(reading, raw=_shares(reading.got))
    if normalised.fits(softmax(reading.scores, reading.visible)):
        return
    for find_symptom in (
        partial(_scale_symptom, tool), partial(Instrument.row_symptom, tool, transform=_shares),
        _softcap_symptom, _cosine_symptom, _per_head_symptom,
    ):  # fmt: skip
        symptom = find_symptom(normalised)
        if symptom is not None:
            yield symptom
            return


def _shares(weights: np.ndarray) -> np.ndarray:
    """Returns the weights divided by the sum of their row."""
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300)


def _kernel_of_scale(name: str, factor: float, has_scale: bool) -> Implementation:
    """Returns a kernel with the scale called `name` in `scales`, or else with `factor` times the
    right scale. The fault is only in calls with an argument `scale` (`has_scale`), or only in calls
    without one."""

    def scale(right: Any, call: Any) -> float:
        return scales(call.sizes, call.scale).get(name, factor * float(right.factor(call)))

    return measured_kernel(
        f"scale {name} {factor} {has_scale}", factor=scale,
        when=lambda call: has_scale == (call.scale is not None),
    )  # fmt: skip


def _scale_symptom(tool: Instrument, reading: Reading) -> Symptom | None:
    """Returns the symptom of another scale, or of a bias times a factor, or None."""
    inputs, cap = reading.inputs, reading.inputs.feature("softcap")
    columns = [reading.products] + ([] if reading.bias is None else [reading.bias])
    fit = regression(reading, *columns)
    if fit is None or (cap is not None and fit.allows(0, inputs.effective_scale)):
        return None
    scale, right = float(fit.values[0]), inputs.effective_scale
    if not fit.allows(0, right):
        name, scale_text = formula(fit, inputs, fits_of_other_sizes(tool, inputs))
        _, right_text = formula(Fit(np.array([right]), np.array([1e-12])), inputs)
        ending = ""
        if reading.bias is not None and not fit.allows(1, 1.0):
            ending = f" The bias counts {fit.values[1]:.3g} times."
        text = f"The scale is {scale_text}, expected {right_text}.{ending}"
        factor = scale / right if right else 1.0
        kernel = None if ending else _kernel_of_scale(name, factor, inputs.scale is not None)
        key = f"scale {name}{ending and ' beside a bias'}"
        return Symptom(text, "scale", HINTS.get(name, ""), kernel=kernel, key=key)
    scores = reading.scores + (scale - right) * reading.products
    if cap is None and reading.fits(softmax(scores, reading.visible)):
        text, hint = f"The scale is {scale:.6g}, expected {right:.6g}.", "a scale in low precision"
        return Symptom(text, "scale", hint, key="scale in low precision")
    if reading.bias is None or fit.allows(1, 1.0):
        return None
    factor = float(fit.values[1])
    text = f"The bias counts {factor:.3g} times, expected once."
    symptom = Symptom(text, "scores", "a factor of the scores", key="factor of the bias")
    return tool.row_symptom(reading, _shares) or symptom


def _softcap_symptom(reading: Reading) -> Symptom | None:
    """Returns the symptom of another scale beside a softcap, or of another softcap, or None."""
    inputs, cap, scale = (
        reading.inputs,
        reading.inputs.feature("softcap"),
        reading.inputs.effective_scale,
    )
    if cap is None:
        return None
    bias = 0.0 if reading.bias is None else reading.bias

    def fits(scale: float, cap: float) -> bool:
        capped = cap * np.tanh(reading.products * scale / cap)
        return reading.fits(softmax(capped + bias, reading.visible))

    for name, likely_scale in scales(inputs.sizes, inputs.scale).items():
        if likely_scale != scale and fits(likely_scale, cap):
            text = f"The scale is {likely_scale:.3g} = {name}, expected {scale:.3g}."
            kernel = _kernel_of_scale(name, 1.0, inputs.scale is not None)
            return Symptom(text, "scale", HINTS.get(name, ""), kernel=kernel, key=f"scale {name}")
    if reading.fits(softmax(reading.products * scale + bias, reading.visible)):
        return Symptom("The softcap has no effect.", "scores", key="softcap")
    # tanh(s / c) c is s - s^3 / 3 c^2 + ... : a ratio of caps that fits is the one used.
    for likely_cap in cap * 2.0 ** (np.arange(-32, 33) / 8):
        if fits(scale, likely_cap):
            text = f"The softcap is {likely_cap:.3g}, expected {cap:g}."
            return Symptom(text, "scores", key="softcap")
    return None


def _cosine_symptom(reading: Reading) -> Symptom | None:
    """Returns the symptom of queries or keys that are divided by their length, or None."""
    inputs = reading.inputs
    lengths = {
        "query": np.linalg.norm(inputs.query, axis=-1)[..., None],
        "key": np.linalg.norm(np.repeat(inputs.key, inputs.sizes.group, 1), axis=-1)[..., None, :],
    }
    bias_columns = () if reading.bias is None else (reading.bias,)
    for names in (("query", "key"), ("query",), ("key",)):
        products = reading.products
        for name in names:
            products = products / lengths[name]
        fit = regression(reading, products, *bias_columns)
        if fit is not None and not fit.allows(0, 0.0):
            text = (
                f"Scores take {' and '.join(names)} divided by the length of each vector, times "
                f"{fit.values[0]:.3g}."
            )
            hint = "cosine attention, `normalize(query)`, `normalize(key)`"
            return Symptom(text, "scores", hint, key=f"{names} normalised")
    return None


def _per_head_symptom(reading: Reading) -> Symptom | None:
    """Returns the symptom of a scale that differs between heads or samples, or None."""
    s, right = reading.inputs.sizes, reading.inputs.effective_scale
    if reading.bias is not None or reading.inputs.feature("softcap") is not None:
        return None
    for axis, name, size in ((1, "head", s.H), (0, "sample", s.B)):
        fits = [
            regression(reading.part(axis, i), np.take(reading.products, [i], axis))
            for i in range(size)
        ]
        if size < 2 or any(fit is None for fit in fits):
            continue
        scales = [float(fit.values[0]) for fit in fits if fit is not None]
        wrong = [i for i, fit in enumerate(fits) if fit is not None and not fit.allows(0, right)]
        if not wrong:
            return None
        scales_text = ", ".join(f"{x:.3g}" for x in scales)
        text = f"The scale differs between {name}s: {scales_text}, expected {right:.3g} in all."
        hint = f"{name} {wrong[0]} takes another path" if len(wrong) == 1 else ""
        return Symptom(text, "scale", hint, key=f"scale by {name}")
    return None


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
