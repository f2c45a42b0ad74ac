"""Layers around attention: the definitions, each with a bound on what rounding can do to it.

Arrays are batched, (B, L, width); parameters are keyed as in `suite.spec.layers.PARAMETERS`. Every
function returns the output and the weights as `references.running` arrays; given `NO_ROUNDING` the
bounds are zero.

Sources: Vaswani et al. 2017, section 3.2 (multi-head attention); Bahdanau, Cho, Bengio, ICLR 2015,
appendix A.1.2 (additive attention); Luong, Pham, Manning, EMNLP 2015 (dot and concat scores); Ainslie
et al. 2023 (grouped queries); Ba, Kiros, Hinton 2016 (layer norm); Ioffe, Szegedy 2015 (batch norm).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from references.running import (
    Approx,
    Roundoffs,
    added,
    attend,
    contracted,
    gamma,
    linear,
    narrowed,
    scaled_scores,
    stored,
    tanh,
)

Parameters = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class LayerReference:
    """output (B, Lq, output width); weights (B, H, Lq, Lk); `keys` (B, H, Lq) how many keys a row has."""

    output: Approx
    weights: Approx
    keys: np.ndarray


def multi_head(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    parameters: Parameters,
    *,
    allowed: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    empty_rows: str = "zeros",
    rounding: Roundoffs,
) -> LayerReference:
    """Multi-head attention: concat_h attention(X_q W_h^Q + b, X_k W_h^K + b, X_v W_h^V + b) W^O + b.

    query (B, Lq, Eq), key (B, Lk, Ek), value (B, Lk, Ev). Kernels query (Eq, H, D), key (Ek, Hkv, D),
    value (Ev, Hkv, Dv), output (H, Dv, Eo); biases (H, D), (Hkv, D), (Hkv, Dv), (Eo,) or absent; no
    output kernel: the heads are concatenated. Scores are scaled by 1 / sqrt(D); query head h uses
    key/value head h // (H / Hkv). `allowed` broadcasts to (B, H, Lq, Lk), True attends; `bias` is added
    to the scores. A row without keys is handed to the output projection as `empty_rows` says.
    """
    u = rounding

    def projected(x: np.ndarray, name: str) -> Approx:
        made = linear(narrowed(x, u), parameters[f"{name}_kernel"], _bias(parameters, name), u)
        return made.moved(2, 1)  # (B, heads, L, size)

    q, k, v = (projected(x, name) for x, name in ((query, "query"), (key, "key"), (value, "value")))
    group = q.value.shape[1] // k.value.shape[1]
    k, v = k.repeated(group, 1), v.repeated(group, 1)
    scores = scaled_scores(q, k, 1.0 / _sqrt(q.value), u)
    if bias is not None:
        allowed = _without_minus_inf(allowed, bias)
        finite = np.where(np.isneginf(bias), 0.0, bias)
        scores = added(scores, Approx.exact(np.broadcast_to(finite, scores.value.shape)), u.score)
    made = attend(scores, v, allowed, u, empty_rows)
    heads = made.output.moved(1, 2)  # (B, Lq, H, Dv)
    B, Lq, H, Dv = heads.value.shape
    joined = heads.reshape(B, Lq, H * Dv)
    kernel = parameters.get("output_kernel")
    if kernel is not None:
        flat = kernel.reshape(H * Dv, -1)
        joined = linear(joined, flat, _bias(parameters, "output"), u)
    return LayerReference(joined, made.weights, made.keys)


def additive(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    parameters: Parameters,
    *,
    allowed: np.ndarray | None = None,
    empty_rows: str = "zeros",
    rounding: Roundoffs,
) -> LayerReference:
    """Additive attention: scores w_v . tanh(W_q q + W_k k), no biases; output softmax(scores) value.

    query (B, Lq, Eq), key (B, Lk, Ek), value (B, Lk, Ev); query_kernel (Eq, U) and key_kernel (Ek, U),
    both absent where queries and keys are added as they are (Eq = Ek = U); score_vector (U,), absent
    for ones.
    """
    u = rounding
    q, k = narrowed(query, u), narrowed(key, u)
    if "query_kernel" in parameters:
        q = linear(q, parameters["query_kernel"], None, u)
        k = linear(k, parameters["key_kernel"], None, u)
    made = tanh_scores(q, k, parameters.get("score_vector"), 1.0, 1.0, u)
    return _single_head(made.scores, value, allowed, empty_rows, u)


def concat(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    parameters: Parameters,
    *,
    allowed: np.ndarray | None = None,
    empty_rows: str = "zeros",
    rounding: Roundoffs,
) -> LayerReference:
    """Scores c sum_i tanh(s (q_i + k_i)), Keras' reading of Luong's concat; s `scale`, c `concat_weight`.

    query (B, Lq, E), key (B, Lk, E), value (B, Lk, Ev); both parameters are scalars, 1 where absent.
    """
    q, k = narrowed(query, rounding), narrowed(key, rounding)
    scale, weight = number(parameters, "scale"), number(parameters, "concat_weight")
    made = tanh_scores(q, k, None, scale, weight, rounding)
    return _single_head(made.scores, value, allowed, empty_rows, rounding)


def number(parameters: Parameters, name: str) -> float:
    """A scalar parameter, 1 where it is absent."""
    return float(parameters.get(name, np.ones(())))


@dataclass(frozen=True)
class TanhScores:
    """Scores weight . vector . tanh(scale (q + k)) with the steps to them: `pairs` q + k, `hidden` the
    tanh, both (B, Lq, Lk, U), `sums` before the weight and `scores`, both (B, Lq, Lk)."""

    pairs: Approx
    hidden: Approx
    sums: Approx
    scores: Approx


def tanh_scores(
    q: Approx, k: Approx, vector: np.ndarray | None, scale: float, weight: float, u: Roundoffs
) -> TanhScores:
    """The scores of queries (B, Lq, U) and keys (B, Lk, U); vector (U,), None for ones."""
    pairs = added(
        Approx(q.value[:, :, None], q.error[:, :, None]),
        Approx(k.value[:, None], k.error[:, None]),
        u.output,
    )
    arguments = pairs
    if scale != 1.0:
        arguments = stored(Approx(pairs.value * scale, pairs.error * abs(scale)), u.output)
    hidden = tanh(arguments, u, u.score)
    ones = np.ones(hidden.value.shape[-1], hidden.value.dtype)
    sums = scores = contracted(hidden, ones if vector is None else vector, u)
    if weight != 1.0:
        scores = stored(Approx(sums.value * weight, sums.error * abs(weight)), u.score)
    return TanhScores(pairs, hidden, sums, scores)


def dot(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    parameters: Parameters,
    *,
    allowed: np.ndarray | None = None,
    empty_rows: str = "zeros",
    rounding: Roundoffs,
) -> LayerReference:
    """Dot-product (Luong) attention: scores s q.k with a scalar `scale` s, 1 where absent.

    query (B, Lq, E), key (B, Lk, E), value (B, Lk, Ev).
    """
    scale = number(parameters, "scale")
    q, k = narrowed(query, rounding), narrowed(key, rounding)
    return _single_head(scaled_scores(q, k, scale, rounding), value, allowed, empty_rows, rounding)


def masked(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    parameters: Parameters,
    *,
    allowed: np.ndarray | None = None,
    empty_rows: str = "zeros",
    rounding: Roundoffs,
) -> LayerReference:
    """Scaled dot-product attention without heads, scores q.k / sqrt(D); no parameters."""
    q, k = narrowed(query, rounding), narrowed(key, rounding)
    scores = scaled_scores(q, k, 1.0 / _sqrt(query), rounding)
    return _single_head(scores, value, allowed, empty_rows, rounding)


def _single_head(
    scores: Approx, value: np.ndarray, allowed: np.ndarray | None, empty_rows: str, u: Roundoffs
) -> LayerReference:
    """Scores (B, Lq, Lk) and values (B, Lk, Ev) attended as one head."""
    s = Approx(scores.value[:, None], scores.error[:, None])
    made = attend(s, narrowed(value[:, None], u), allowed, u, empty_rows)
    B, _, Lq, Ev = made.output.value.shape
    return LayerReference(made.output.reshape(B, Lq, Ev), made.weights, made.keys)


def _bias(parameters: Parameters, name: str) -> np.ndarray | None:
    return parameters.get(f"{name}_bias")


def _sqrt(query: np.ndarray) -> Any:
    """sqrt(D) in the precision of the computation."""
    return np.sqrt(query.dtype.type(query.shape[-1]))


def _without_minus_inf(allowed: np.ndarray | None, bias: np.ndarray) -> np.ndarray | None:
    hides = np.isneginf(bias)
    if not hides.any():
        return allowed
    return ~hides if allowed is None else allowed & ~hides


def layer_norm(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    parameters: Parameters,
    *,
    epsilon: float,
    rounding: Roundoffs,
    training: bool = False,
) -> LayerReference:
    """(x - mean) / sqrt(variance + epsilon) gain + offset, mean and variance over the features.

    query (B, L, E) is x, key and value are not looked at; gain and offset (E,) or absent.
    """
    return _normalised(narrowed(query, rounding), (2,), parameters, None, epsilon, rounding)


def batch_norm(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    parameters: Parameters,
    *,
    epsilon: float,
    rounding: Roundoffs,
    training: bool = False,
) -> LayerReference:
    """The same with mean and variance (divided by B L) of each feature over samples and positions in
    training, and the learned `mean` and `variance` (E,) in evaluation: E statistics, whatever B and L.
    """
    learned = None if training else (parameters["mean"], parameters["variance"])
    return _normalised(narrowed(query, rounding), (0, 1), parameters, learned, epsilon, rounding)


@dataclass(frozen=True)
class Standardised:
    """The mean, x - mean, 1 / sqrt(variance + epsilon), and the product of the last two. `reach` is
    (|x| + |mean|) root: what those round by who never make the difference."""

    mean: Approx
    shifted: Approx
    root: Approx
    normal: Approx
    reach: np.ndarray


def standardised(
    x: Approx, axes: tuple[int, ...], learned: tuple[np.ndarray, np.ndarray] | None,
    epsilon: float, u: Roundoffs,
) -> Standardised:  # fmt: skip
    """x (B, L, E) with the mean and variance over `axes`, or those that were `learned`.

    The bound holds for two passes and for the mean of squares less the square of the mean, and for
    x root - mean root as well as for (x - mean) root.
    """
    unit = max(u.accumulate, u.step)
    if learned is None:
        n = int(np.prod([x.value.shape[axis] for axis in axes]))
        mean = x.value.mean(axes, keepdims=True)
        variance = np.square(x.value - mean).mean(axes, keepdims=True)
        squares = np.square(np.abs(x.value).astype(np.float64)).mean(axes, keepdims=True)
        sums = gamma(n + 4, u.accumulate) + 4 * u.step
        mean_error = sums * np.abs(x.value).astype(np.float64).mean(axes, keepdims=True)
        variance_error = sums * 2 * squares + 2 * np.sqrt(squares) * mean_error
    else:
        mean, variance = learned
        mean_error, variance_error = narrowed(mean, u).error, narrowed(variance, u).error
    shifted = stored(Approx(x.value - mean, x.error + mean_error), unit)
    total = (variance + epsilon).astype(np.float64)
    # d(t^-1/2) = t^-3/2 / 2, at most at the least argument of the root; nothing is known where that
    # may be zero.
    least = total - variance_error - unit * total
    sure = least > 0
    least = np.where(sure, least, 1.0)
    slope = 0.5 * (variance_error + unit * total) / least * np.sqrt(total / least)
    relative = np.where(sure, slope + 3 * unit, np.inf)
    root = 1 / np.sqrt(variance + epsilon)
    value = shifted.value * root
    size = np.abs(value).astype(np.float64)
    scaled_error = shifted.error * root.astype(np.float64) * (1 + relative) + relative * size
    folded = 3 * unit * np.abs(mean * root).astype(np.float64)
    reciprocal = Approx(root, relative * root.astype(np.float64))
    level = Approx(mean, np.broadcast_to(mean_error, mean.shape))
    reach = (x.size + level.size) * reciprocal.size
    normal = stored(Approx(value, scaled_error + folded), unit)
    return Standardised(level, shifted, reciprocal, normal, reach)


def _normalised(
    x: Approx, axes: tuple[int, ...], parameters: Parameters,
    learned: tuple[np.ndarray, np.ndarray] | None, epsilon: float, u: Roundoffs,
) -> LayerReference:  # fmt: skip
    unit = max(u.accumulate, u.step)
    out = standardised(x, axes, learned, epsilon, u).normal
    if "gain" in parameters:
        gain, offset = parameters["gain"], parameters["offset"]
        absolute = np.abs(gain).astype(np.float64)
        gain_error = narrowed(gain, u).error
        out = Approx(out.value * gain, out.error * absolute + gain_error * out.size)
        out = stored(out, unit)
        offset_error = narrowed(offset, u).error + unit * np.abs(offset).astype(np.float64)
        out = stored(Approx(out.value + offset, out.error + offset_error), unit)
    out = stored(out, u.output, u.floor)
    B, L, _ = x.value.shape
    nothing = np.zeros((B, 1, L, 0))
    return LayerReference(out, Approx.exact(nothing), np.ones((B, 1, L), int))
