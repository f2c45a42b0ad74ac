"""What the scores are made of: scale, softcap, bias and slopes as used, by regression of log weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.judge.diagnosis.formulas import (
    HINTS,
    Fit,
    fitted,
    formula,
    of_other_sizes,
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
    """What is wrong with the scores behind the weights."""
    if (reading.got < 0).any():
        return
    shares = reading.got / np.maximum(reading.got.sum(-1, keepdims=True), 1e-300)
    within = Reading(reading.inputs, shares, reading.want, reading.bound, reading.unit)
    if within.fits(softmax(reading.scores, reading.visible)):
        return
    parts = partial(fitting_symptom, _shortened, family="scores")
    others = (_capped, _biased, _normalised, _per_head, parts, _bilinear)
    for question in (partial(_scaled, tool), *others):
        found = question(within)
        if found is not None:
            yield found
            return


def made(
    reading: Reading, scale: float | None = None, bias: np.ndarray | float | None = None,
    products: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """The weights of seen keys with another scale, bias or products q.k, behind the softcap."""
    inputs, cap = reading.inputs, reading.inputs.feature("softcap")
    scores = reading.products if products is None else products
    scores = scores * (inputs.effective_scale if scale is None else scale)
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    own = 0.0 if reading.bias is None else reading.bias
    return softmax(scores + (own if bias is None else bias), reading.visible)


def _of_scale(name: str, factor: float | None, given: bool, reading: Reading) -> np.ndarray | None:
    """The weights with the scale of a formula of people, or without one with a factor of the right one;
    None unless a scale is given as it was, and without either."""
    scale = scales(reading.inputs.sizes, reading.inputs.scale).get(name)
    if scale is None and factor is not None:
        scale = factor * reading.inputs.effective_scale
    same = given == (reading.inputs.scale is not None)
    return None if scale is None or not same else made(reading, scale)


def _scaled(tool: Instrument, reading: Reading) -> Symptom | None:
    """Another scale, beside the right bias; or a bias by a factor."""
    inputs, cap = reading.inputs, reading.inputs.feature("softcap")
    columns = [reading.products] + ([] if reading.bias is None else [reading.bias])
    fit = fitted(reading, *columns)
    if fit is None:
        return None
    scale, right = float(fit.values[0]), inputs.effective_scale
    if cap is not None and fit.says(0, right):
        return fitting_symptom(_caps, reading, "scores")
    if not fit.says(0, right):
        name, text = formula(fit, inputs, of_other_sizes(tool, inputs))
        _, want = formula(Fit(np.array([right]), np.array([1e-12])), inputs)
        more = ""
        hint = HINTS.get(name, "")
        if reading.bias is not None and not fit.says(1, 1.0):
            more = f" The bias counts {_times(float(fit.values[1]))}."
        sentence_of_scale = f"The scale is {text}, expected {want}.{more}"
        weights = partial(
            _of_scale, name, scale / right if right else None, inputs.scale is not None
        )
        return Symptom(
            sentence_of_scale,
            "scale",
            hint,
            formula=None if more else weights,
            key=f"scale {name}{more and ' beside a bias'}",
        )
    moved = reading.scores + (scale - right) * reading.products
    if cap is None and reading.fits(softmax(moved, reading.visible)):
        text = f"The scale is {scale:.6g}, expected {right:.6g}."
        return Symptom(text, "scale", "a scale in low precision", key="scale in low precision")
    if reading.bias is None or fit.says(1, 1.0):
        return None
    factor = f"The bias counts {_times(float(fit.values[1]))}, expected once."
    return fitting_symptom(_factors, reading, "scores") or Symptom(
        factor, "scores", key="factor of the bias"
    )


def _factors(reading: Reading) -> Iterator[WeightsVariant]:
    """The bias by a factor that people make."""
    right, bias = reading.inputs.effective_scale, reading.bias
    name = "bias" if reading.inputs.feature("alibi_slopes") is None else "ALiBi bias"
    if bias is not None:
        ignored = f"The {name} is ignored."
        yield Variant(made(reading, bias=0 * bias), ignored, "the argument is not used")
        for x, text, hint in (
            (right, "is scaled like the scores", "`scale * (q @ k + bias)` for `scale * q @ k + bias`"),
            (1 / right if right else 0.0, "is divided by the scale", ""),
            (-1.0, "has the other sign", ""),
            (math.log2(math.e), "is multiplied by log2(e)", ""),
            (math.log(2), "is multiplied by ln(2)", ""),
        ):  # fmt: skip
            said = f"The {name} {text}: it counts {_times(x)}."
            yield Variant(made(reading, bias=x * bias), said, hint, key=f"{name} {text}")


def _times(factor: float) -> str:
    return f"{factor:.3g} times"


def _capped(reading: Reading) -> Symptom | None:
    """Another order or formula of the softcap."""
    cap, scale = reading.inputs.feature("softcap"), reading.inputs.effective_scale
    if cap is None:
        return None
    found = fitting_symptom(_caps, reading, "scores")
    if found is not None:
        return found
    plain, bias = reading.products * scale, 0.0 if reading.bias is None else reading.bias
    given = reading.inputs.scale
    for name, other in scales(reading.inputs.sizes, given).items():
        if other != scale and reading.fits(made(reading, other)):
            text = f"The scale is {other:.3g} = {name}, expected {scale:.3g}."
            weights = partial(_of_scale, name, None, given is not None)
            return Symptom(text, "scale", HINTS.get(name, ""), formula=weights, key=f"scale {name}")
    # tanh(s / c) c is s - s^3 / 3 c^2 + ... : a ratio of caps that fits is the one used.
    for other in cap * 2.0 ** (np.arange(-32, 33) / 8):
        if reading.fits(softmax(other * np.tanh(plain / other) + bias, reading.visible)):
            return Symptom(
                f"The softcap is {other:.3g}, expected {cap:g}.", "scores", key="softcap"
            )
    return None


def _caps(reading: Reading) -> Iterator[WeightsVariant]:
    """Other orders and formulas of the softcap."""
    cap, scale = reading.inputs.feature("softcap"), reading.inputs.effective_scale
    if cap is None:
        return
    plain, bias = reading.products * scale, 0.0 if reading.bias is None else reading.bias
    uncapped, hint = (
        plain + bias,
        "`cap * tanh(scores / cap)` behind the scale, before bias and mask",
    )
    for scores, text in (
        (uncapped, f"The softcap {cap:g} is ignored: scores are not capped."),
        (np.tanh(plain / cap) + bias, "Scores are tanh(s / c), not multiplied by the softcap c."),
        (cap * np.tanh(reading.products / cap) * scale + bias,
         "Scores are capped before they are scaled."),
        (cap * np.tanh((plain + bias) / cap),
         "The softcap is applied behind the bias, expected before it."),
        (np.clip(plain, -cap, cap) + bias, "Scores are clipped at the softcap, expected tanh."),
        (cap * np.tanh(plain) + bias, "Scores are c tanh(s), not divided by the softcap c."),
        (cap * np.tanh(plain * cap) + bias, "Scores are multiplied by the softcap inside the tanh."),
    ):  # fmt: skip
        key = "uncapped" if scores is uncapped else ""
        yield Variant(softmax(scores, reading.visible), text, hint, key=key)


def _biased(reading: Reading) -> Symptom | None:
    """Another arrangement of the bias, or a bias that nobody asked for."""
    inputs, s = reading.inputs, reading.inputs.sizes
    found = fitting_symptom(_biases, reading, "scores")
    if found is not None:
        return found
    q, k = np.arange(s.Lq)[:, None], np.arange(s.Lk)
    own = () if reading.bias is None else (reading.bias,)
    for column, text in (
        (k + 0.0 * q, "Scores change by {:.3g} from key to key, expected by q.k alone."),
        (
            np.abs(q - k),
            "Scores change by {:.3g} with the distance of query and key, expected by q.k alone.",
        ),
    ):
        fit = fitted(reading, reading.products, column, *own)
        if fit is not None and not fit.says(1, 0.0) and fit.says(0, inputs.effective_scale):
            hint = "a bias of positions (ALiBi) that is always on"
            return Symptom(text.format(fit.values[1]), "scores", hint, key=text)
    return None


def _biases(reading: Reading) -> Iterator[WeightsVariant]:
    """Other arrangements of the bias."""
    inputs, s = reading.inputs, reading.inputs.sizes
    plain = reading.products * inputs.effective_scale
    q, k = np.arange(s.Lq)[:, None], np.arange(s.Lk)
    slopes = inputs.feature("alibi_slopes")
    others: list[tuple[Any, ...]] = []
    if slopes is not None:
        m, away = slopes[:, None, None], s.Lk - s.Lq
        others = [
            (-m * np.abs(q - k), f"ALiBi aligns query 0 with key 0, expected with key {away}.",
             "top-left"),
            (m * (k - q - away), "ALiBi is signed, expected the distance of query and key."),
            (-m * (k - q - away), "ALiBi is signed, expected the distance of query and key.", "minus"),
            (alibi_bias(slopes[::-1], s.Lq, s.Lk), "Heads have ALiBi slopes in reverse order."),
            (alibi_bias(np.full_like(slopes, slopes[0]), s.Lq, s.Lk),
             "All heads have the ALiBi slope of head 0."),
            (-m * np.abs(q + away - k) * 1.0 / max(s.Lk, 1),
             "ALiBi distances are divided by the number of keys."),
        ]  # fmt: skip
    elif reading.bias is not None:
        full = np.broadcast_to(reading.bias, plain.shape)
        others = [
            (full.swapaxes(-1, -2), "The bias is transposed."),
            *[(np.broadcast_to(np.take(full, [0], a), full.shape),
                f"The bias of {n} 0 is used for every {n}.")
              for a, n in ((0, "sample"), (1, "head"), (2, "query"))],
            *[(np.roll(full, step, a), f"Every {n} has the bias of another {n}.")
              for a, n in ((0, "sample"), (1, "head"), (2, "query"), (3, "key")) for step in (1, -1)],
            (full[..., ::-1], "The bias is reversed along the keys."),
            (full.swapaxes(0, 1), "The bias of a sample is taken for that of a head."),
            (0.0 * full, "The bias is ignored."),
        ]  # fmt: skip
    for bias, text, *key in others:
        if bias.shape[-3:] in ((s.H, s.Lq, s.Lk), (1, s.Lq, s.Lk)):
            yield Variant(made(reading, bias=bias), text, key="".join(key))


def _normalised(reading: Reading) -> Symptom | None:
    """Queries or keys that are divided by their length first."""
    inputs = reading.inputs
    lengths = {
        "query": np.linalg.norm(inputs.query, axis=-1)[..., None],
        "key": np.linalg.norm(np.repeat(inputs.key, inputs.sizes.group, 1), axis=-1)[..., None, :],
    }
    own = () if reading.bias is None else (reading.bias,)
    for names in (("query", "key"), ("query",), ("key",)):
        products = reading.products
        for name in names:
            products = products / lengths[name]
        fit = fitted(reading, products, *own)
        if fit is not None and not fit.says(0, 0.0):
            text = (
                f"Scores take {' and '.join(names)} divided by the length of each vector, times "
                f"{fit.values[0]:.3g}."
            )
            hint = "cosine attention, `normalize(query)`, `normalize(key)`"
            return Symptom(text, "scores", hint, key=f"{names} normalised")
    return None


def _per_head(reading: Reading) -> Symptom | None:
    """A scale that differs between heads or samples."""
    s, right = reading.inputs.sizes, reading.inputs.effective_scale
    if reading.bias is not None or reading.inputs.feature("softcap") is not None:
        return None
    for axis, name, size in ((1, "head", s.H), (0, "sample", s.B)):
        fits = [
            fitted(reading.part(axis, i), np.take(reading.products, [i], axis)) for i in range(size)
        ]
        if size < 2 or any(fit is None for fit in fits):
            continue
        scales = [float(fit.values[0]) for fit in fits if fit is not None]
        odd = [i for i, fit in enumerate(fits) if fit is not None and not fit.says(0, right)]
        if not odd:
            return None
        listed = ", ".join(f"{x:.3g}" for x in scales)
        text = f"The scale differs between {name}s: {listed}, expected {right:.3g} in all."
        hint = f"{name} {odd[0]} takes another path" if len(odd) == 1 else ""
        return Symptom(text, "scale", hint, key=f"scale by {name}")
    return None


def _shortened(reading: Reading) -> Iterator[WeightsVariant]:
    """Scores without the components of queries and keys from one on."""
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
            yield Variant(made(reading, products=products), f"{text} the scores.", hint, key=name)
            scaled = made(reading, components**-0.5, products=products)
            text += " the scores and of their scale."
            yield Variant(scaled, text, hint, key=f"{name}, scaled")


def _bilinear(reading: Reading) -> Symptom | None:
    """Scores that are another bilinear form of query and key: components left out or exchanged."""
    inputs, s = reading.inputs, reading.inputs.sizes
    if s.D > 16 or reading.bias is not None or inputs.feature("softcap") is not None:
        return None
    key = np.repeat(inputs.key, s.group, axis=1)
    columns = [
        inputs.query[..., :, None, i] * key[..., None, :, j] for i in range(s.D) for j in range(s.D)
    ]
    fit = fitted(reading, *columns)
    if fit is None or fit.errors.max() > 0.1 * abs(inputs.effective_scale):
        return None
    form, errors = fit.values.reshape(s.D, s.D), fit.errors.reshape(s.D, s.D)
    right, used = inputs.effective_scale, np.abs(fit.values.reshape(s.D, s.D)) > errors
    diagonal = np.diag(form)
    if not used[~np.eye(s.D, dtype=bool)].any():
        odd = np.flatnonzero(np.abs(diagonal - right) > np.diag(errors))
        missing = np.flatnonzero(~np.diag(used))
        listed = ", ".join(map(str, missing[:6]))
        if len(missing) and len(missing) < s.D and len(odd) == len(missing):
            text = f"Of the {s.D} components of query and key {listed} are left out of the scores."
            hint = "a loop over blocks of the head size that leaves out the rest"
            return Symptom(text, "scores", hint, key="components left out")
        low, high = diagonal.min(), diagonal.max()
        if max(high - right, right - low) <= 0.02 * abs(right):
            return None  # noise of rounding
        text = f"Components of query and key count {low:.3g} to {high:.3g} times, expected {right:.3g}."
        return Symptom(text, "scores", key="factors of components")
    if (used.sum(-1) == 1).all() and (used.sum(0) == 1).all():
        order = used.argmax(-1)
        first = int(np.flatnonzero(order != np.arange(s.D))[0])
        text = (
            f"Component {first} of the query is multiplied by component {order[first]} of the key."
        )
        return Symptom(
            text, "layout", "query or key is read in another order", key="components exchanged"
        )
    return None
