"""The symptoms of scores, by regressions of log weights: scale, softcap, bias and ALiBi slopes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

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
    Variant,
    WeightsVariant,
    fitting_symptom,
    softmax,
)
from attention_conformance.suite.spec.recipes import alibi_bias


def ask(tool: Instrument, reading: Reading) -> Iterator[Symptom]:
    """The symptom of the scores behind the weights, by the first question that finds one."""
    if (reading.got < 0).any():
        return
    shares = reading.got / np.maximum(reading.got.sum(-1, keepdims=True), 1e-300)
    normalised = Reading(reading.inputs, shares, reading.want, reading.bound, reading.unit)
    if normalised.fits(softmax(reading.scores, reading.visible)):
        return
    ask_shortened = partial(fitting_symptom, _shortened_variants, family="scores")
    for question in (
        partial(_scale_symptom, tool), _softcap_symptom, _bias_symptom, _cosine_symptom,
        _per_head_symptom, ask_shortened, _bilinear_symptom,
    ):  # fmt: skip
        symptom = question(normalised)
        if symptom is not None:
            yield symptom
            return


def weights_with(
    reading: Reading, scale: float | None = None, bias: np.ndarray | float | None = None,
    products: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """The weights of visible keys with another scale, bias, or products q.k. A softcap is applied."""
    inputs, cap = reading.inputs, reading.inputs.feature("softcap")
    scores = reading.products if products is None else products
    scores = scores * (inputs.effective_scale if scale is None else scale)
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    right_bias = 0.0 if reading.bias is None else reading.bias
    return softmax(scores + (right_bias if bias is None else bias), reading.visible)


def _weights_of_scale(
    name: str, factor: float | None, has_scale: bool, reading: Reading
) -> np.ndarray | None:
    """The weights with the scale called `name` in `formulas.scales`, or else with `factor` times the
    right scale. None without both, and for inputs with the argument `scale` unless `has_scale`, and vice
    versa."""
    scale = scales(reading.inputs.sizes, reading.inputs.scale).get(name)
    if scale is None and factor is not None:
        scale = factor * reading.inputs.effective_scale
    is_alike = has_scale == (reading.inputs.scale is not None)
    return None if scale is None or not is_alike else weights_with(reading, scale)


def _scale_symptom(tool: Instrument, reading: Reading) -> Symptom | None:
    """The symptom of another scale with the right bias, or of a bias times a factor."""
    inputs, cap = reading.inputs, reading.inputs.feature("softcap")
    columns = [reading.products] + ([] if reading.bias is None else [reading.bias])
    fit = regression(reading, *columns)
    if fit is None:
        return None
    scale, right = float(fit.values[0]), inputs.effective_scale
    if cap is not None and fit.allows(0, right):
        return fitting_symptom(_softcap_variants, reading, "scores")
    if not fit.allows(0, right):
        name, scale_text = formula(fit, inputs, fits_of_other_sizes(tool, inputs))
        _, right_text = formula(Fit(np.array([right]), np.array([1e-12])), inputs)
        ending = ""
        hint = HINTS.get(name, "")
        if reading.bias is not None and not fit.allows(1, 1.0):
            ending = f" The bias counts {_times_text(float(fit.values[1]))}."
        text = f"The scale is {scale_text}, expected {right_text}.{ending}"
        factor = scale / right if right else None
        weights = partial(_weights_of_scale, name, factor, inputs.scale is not None)
        key = f"scale {name}{ending and ' beside a bias'}"
        return Symptom(text, "scale", hint, formula=None if ending else weights, key=key)
    scores = reading.scores + (scale - right) * reading.products
    if cap is None and reading.fits(softmax(scores, reading.visible)):
        text, hint = f"The scale is {scale:.6g}, expected {right:.6g}.", "a scale in low precision"
        return Symptom(text, "scale", hint, key="scale in low precision")
    if reading.bias is None or fit.allows(1, 1.0):
        return None
    text = f"The bias counts {_times_text(float(fit.values[1]))}, expected once."
    symptom = Symptom(text, "scores", key="factor of the bias")
    return fitting_symptom(_bias_factors, reading, "scores") or symptom


def _bias_factors(reading: Reading) -> Iterator[WeightsVariant]:
    """Weights with the bias times a likely factor."""
    right, bias = reading.inputs.effective_scale, reading.bias
    name = "bias" if reading.inputs.feature("alibi_slopes") is None else "ALiBi bias"
    if bias is not None:
        ignored = f"The {name} is ignored."
        yield Variant(weights_with(reading, bias=0 * bias), ignored, "the argument is not used")
        for factor, text, hint in (
            (right, "is scaled like the scores", "`scale * (q @ k + bias)` for `scale * q @ k + bias`"),
            (1 / right if right else 0.0, "is divided by the scale", ""),
            (-1.0, "has the other sign", ""),
            (math.log2(math.e), "is multiplied by log2(e)", ""),
            (math.log(2), "is multiplied by ln(2)", ""),
        ):  # fmt: skip
            sentence = f"The {name} {text}: it counts {_times_text(factor)}."
            weights = weights_with(reading, bias=factor * bias)
            yield Variant(weights, sentence, hint, key=f"{name} {text}")


def _times_text(factor: float) -> str:
    return f"{factor:.3g} times"


def _softcap_symptom(reading: Reading) -> Symptom | None:
    """The symptom of another order or formula of the softcap, or of another softcap."""
    cap, scale = reading.inputs.feature("softcap"), reading.inputs.effective_scale
    if cap is None:
        return None
    symptom = fitting_symptom(_softcap_variants, reading, "scores")
    if symptom is not None:
        return symptom
    scores, bias = reading.products * scale, 0.0 if reading.bias is None else reading.bias
    scale_argument = reading.inputs.scale
    for name, other in scales(reading.inputs.sizes, scale_argument).items():
        if other != scale and reading.fits(weights_with(reading, other)):
            text = f"The scale is {other:.3g} = {name}, expected {scale:.3g}."
            weights = partial(_weights_of_scale, name, None, scale_argument is not None)
            return Symptom(text, "scale", HINTS.get(name, ""), formula=weights, key=f"scale {name}")
    # tanh(s / c) c is s - s^3 / 3 c^2 + ... : a ratio of caps that fits is the one used.
    for other in cap * 2.0 ** (np.arange(-32, 33) / 8):
        if reading.fits(softmax(other * np.tanh(scores / other) + bias, reading.visible)):
            return Symptom(
                f"The softcap is {other:.3g}, expected {cap:g}.", "scores", key="softcap"
            )
    return None


def _softcap_variants(reading: Reading) -> Iterator[WeightsVariant]:
    """Weights with other orders and formulas of the softcap."""
    cap, scale = reading.inputs.feature("softcap"), reading.inputs.effective_scale
    if cap is None:
        return
    base, bias = reading.products * scale, 0.0 if reading.bias is None else reading.bias
    uncapped = base + bias
    hint = "`cap * tanh(scores / cap)` behind the scale, before bias and mask"
    for scores, text in (
        (uncapped, f"The softcap {cap:g} is ignored: scores are not capped."),
        (np.tanh(base / cap) + bias, "Scores are tanh(s / c), not multiplied by the softcap c."),
        (cap * np.tanh(reading.products / cap) * scale + bias,
         "Scores are capped before they are scaled."),
        (cap * np.tanh((base + bias) / cap),
         "The softcap is applied behind the bias, expected before it."),
        (np.clip(base, -cap, cap) + bias, "Scores are clipped at the softcap, expected tanh."),
        (cap * np.tanh(base) + bias, "Scores are c tanh(s), not divided by the softcap c."),
        (cap * np.tanh(base * cap) + bias, "Scores are multiplied by the softcap inside the tanh."),
    ):  # fmt: skip
        key = "uncapped" if scores is uncapped else ""
        yield Variant(softmax(scores, reading.visible), text, hint, key=key)


def _bias_symptom(reading: Reading) -> Symptom | None:
    """The symptom of another arrangement of the bias, or of a bias that no argument has."""
    inputs, s = reading.inputs, reading.inputs.sizes
    symptom = fitting_symptom(_bias_variants, reading, "scores")
    if symptom is not None:
        return symptom
    q, k = np.arange(s.Lq)[:, None], np.arange(s.Lk)
    bias_columns = () if reading.bias is None else (reading.bias,)
    for positions, template in (
        (k + 0.0 * q, "Scores change by {:.3g} from key to key, expected by q.k alone."),
        (
            np.abs(q - k),
            "Scores change by {:.3g} with the distance of query and key, expected by q.k alone.",
        ),
    ):
        fit = regression(reading, reading.products, positions, *bias_columns)
        if fit is not None and not fit.allows(1, 0.0) and fit.allows(0, inputs.effective_scale):
            hint = "a bias of positions (ALiBi) that is always on"
            return Symptom(template.format(fit.values[1]), "scores", hint, key=template)
    return None


def _bias_variants(reading: Reading) -> Iterator[WeightsVariant]:
    """Weights with other arrangements of the bias."""
    inputs, s = reading.inputs, reading.inputs.sizes
    products = reading.products * inputs.effective_scale
    q, k = np.arange(s.Lq)[:, None], np.arange(s.Lk)
    slopes = inputs.feature("alibi_slopes")
    others: list[tuple[Any, ...]] = []
    if slopes is not None:
        m, gap = slopes[:, None, None], s.Lk - s.Lq
        others = [
            (-m * np.abs(q - k), f"ALiBi aligns query 0 with key 0, expected with key {gap}.",
             "top-left"),
            (m * (k - q - gap), "ALiBi is signed, expected the distance of query and key."),
            (-m * (k - q - gap), "ALiBi is signed, expected the distance of query and key.", "minus"),
            (alibi_bias(slopes[::-1], s.Lq, s.Lk), "Heads have ALiBi slopes in reverse order."),
            (alibi_bias(np.full_like(slopes, slopes[0]), s.Lq, s.Lk),
             "All heads have the ALiBi slope of head 0."),
            (-m * np.abs(q + gap - k) * 1.0 / max(s.Lk, 1),
             "ALiBi distances are divided by the number of keys."),
        ]  # fmt: skip
    elif reading.bias is not None:
        full_bias = np.broadcast_to(reading.bias, products.shape)
        others = [
            (full_bias.swapaxes(-1, -2), "The bias is transposed."),
            *[(np.broadcast_to(np.take(full_bias, [0], a), full_bias.shape),
                f"The bias of {n} 0 is used for every {n}.")
              for a, n in ((0, "sample"), (1, "head"), (2, "query"))],
            *[(np.roll(full_bias, step, a), f"Every {n} has the bias of another {n}.")
              for a, n in ((0, "sample"), (1, "head"), (2, "query"), (3, "key")) for step in (1, -1)],
            (full_bias[..., ::-1], "The bias is reversed along the keys."),
            (full_bias.swapaxes(0, 1), "The bias of a sample is taken for that of a head."),
            (0.0 * full_bias, "The bias is ignored."),
        ]  # fmt: skip
    for bias, text, *key in others:
        if bias.shape[-3:] in ((s.H, s.Lq, s.Lk), (1, s.Lq, s.Lk)):
            yield Variant(weights_with(reading, bias=bias), text, key="".join(key))


def _cosine_symptom(reading: Reading) -> Symptom | None:
    """The symptom of queries or keys that are divided by their length first."""
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
    """The symptom of a scale that differs between heads or samples."""
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


def _shortened_variants(reading: Reading) -> Iterator[WeightsVariant]:
    """Weights by scores without the last components of queries and keys."""
    inputs, D = reading.inputs, reading.inputs.sizes.D
    key = np.repeat(inputs.key, inputs.sizes.group, axis=1)
    factors = inputs.feature("logit_scale")
    hint = "a loop over blocks of the head size that leaves out the rest"
    for components in dict.fromkeys(
        (D - 1, D - 2, D // 2, *(2**n for n in range(2, 10)), *range(16, D, 16))
    ):
        if 0 < components < D:
            products = inputs.query[..., :components] @ key[..., :components].swapaxes(-1, -2)
            products = products if factors is None else products * factors[:, None, None]
            text = (
                f"Of the {D} components of query and key those from {components} on are left out of"
            )
            name = f"components from {components}"
            shortened = weights_with(reading, products=products)
            yield Variant(shortened, f"{text} the scores.", hint, key=name)
            rescaled = weights_with(reading, components**-0.5, products=products)
            text += " the scores and of their scale."
            yield Variant(rescaled, text, hint, key=f"{name}, scaled")


def _bilinear_symptom(reading: Reading) -> Symptom | None:
    """The symptom of scores by another bilinear form of query and key, such as one without a
    component."""
    inputs, s = reading.inputs, reading.inputs.sizes
    if s.D > 16 or reading.bias is not None or inputs.feature("softcap") is not None:
        return None
    key = np.repeat(inputs.key, s.group, axis=1)
    columns = [
        inputs.query[..., :, None, i] * key[..., None, :, j] for i in range(s.D) for j in range(s.D)
    ]
    fit = regression(reading, *columns)
    if fit is None or fit.errors.max() > 0.1 * abs(inputs.effective_scale):
        return None
    form, errors = fit.values.reshape(s.D, s.D), fit.errors.reshape(s.D, s.D)
    right, is_used = inputs.effective_scale, np.abs(fit.values.reshape(s.D, s.D)) > errors
    diagonal = np.diag(form)
    if not is_used[~np.eye(s.D, dtype=bool)].any():
        wrong_components = np.flatnonzero(np.abs(diagonal - right) > np.diag(errors))
        missing = np.flatnonzero(~np.diag(is_used))
        listed = ", ".join(map(str, missing[:6]))
        if len(missing) and len(missing) < s.D and len(wrong_components) == len(missing):
            text = f"Of the {s.D} components of query and key {listed} are left out of the scores."
            hint = "a loop over blocks of the head size that leaves out the rest"
            return Symptom(text, "scores", hint, key="components left out")
        smallest, largest = diagonal.min(), diagonal.max()
        if max(largest - right, right - smallest) <= 0.02 * abs(right):
            return None  # by rounding
        times = f"{smallest:.3g} to {largest:.3g} times"
        text = f"Components of query and key count {times}, expected {right:.3g}."
        return Symptom(text, "scores", key="factors of components")
    if (is_used.sum(-1) == 1).all() and (is_used.sum(0) == 1).all():
        order = is_used.argmax(-1)
        first = int(np.flatnonzero(order != np.arange(s.D))[0])
        text = (
            f"Component {first} of the query is multiplied by component {order[first]} of the key."
        )
        hint = "query or key is read in another order"
        return Symptom(text, "layout", hint, key="components exchanged")
    return None
