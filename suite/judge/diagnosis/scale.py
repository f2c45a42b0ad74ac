"""The symptoms of scores, by regressions of log weights: scale, softcap and bias."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge.diagnosis.formulas import (
    HINTS,
    Fit,
    fits_of_other_sizes,
    formula,
    regression,
    scales,
)
from attention_conformance.suite.judge.diagnosis.instrument import (
    Instrument,
    Reading,
    Symptom,
    softmax,
)
from attention_conformance.suite.judge.diagnosis.kernels import measured_kernel


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
    """Returns a kernel with the scale called `name` in `formulas.scales`, or else with `factor` times the
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
