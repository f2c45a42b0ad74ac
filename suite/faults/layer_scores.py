"""Faults of the scores of layers of one head, and in norms."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.layer import LayerCall
from attention_conformance.suite.faults.kernels.single import (
    AdditiveKernel,
    BatchNormKernel,
    ConcatKernel,
    DotKernel,
    LayerNormKernel,
)

FAMILY = "layer"


def score_vector_inside_active(
    right: AdditiveKernel, pairs: np.ndarray, call: LayerCall
) -> np.ndarray:
    vector = right.vector(call)
    return np.tanh(pairs if vector is None else pairs * vector)


def additive_scores_scaled(
    right: AdditiveKernel, query: np.ndarray, key: np.ndarray, call: LayerCall
) -> np.ndarray:
    return right.scores(query, key, call) / call.work(math.sqrt(query.shape[-1]))


def query_projection_omitted(
    right: AdditiveKernel, query: np.ndarray, key: np.ndarray, call: LayerCall
) -> np.ndarray:
    return right.pairs(query * ("query_kernel" not in call.parameters), key, call)


def dot_scores_scaled(right: DotKernel, call: LayerCall) -> np.ndarray:
    root = call.work(math.sqrt(call.query.shape[-1]))
    return right.scale(call) if "scale" in call.parameters else 1 / root


@fault("values", "`scale * tanh(q + k)`; it is `tanh(scale * (q + k))`")
class ConcatScaleOutside(ConcatKernel):
    """The learned scale of concat attention multiplies the tanh, not what is inside it."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super(ConcatKernel, self).pairs(query, key, call)

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().active(pairs, call) * self.number("scale", call)


def concat_weight_ignored(right: ConcatKernel, name: str, call: LayerCall) -> np.ndarray:
    return right.number("scale" if name == "scale" else "", call)


def epsilon_outside_root(
    right: LayerNormKernel, variance: np.ndarray, call: LayerCall
) -> np.ndarray:
    return 1 / (np.sqrt(variance) + call.work(2.0**-10))


def variance_unbiased(
    right: LayerNormKernel, x: np.ndarray, call: LayerCall
) -> tuple[np.ndarray, np.ndarray]:
    return x.mean(2, keepdims=True), x.var(2, keepdims=True, ddof=1)


def layer_norm_not_centred(
    right: LayerNormKernel, x: np.ndarray, call: LayerCall
) -> tuple[np.ndarray, np.ndarray]:
    mean, variance = right.moments(x, call)
    return mean * 0, variance


def gain_is_one_plus(right: LayerNormKernel, y: np.ndarray, call: LayerCall) -> np.ndarray:
    return right.mapped(y, call) + (y if "gain" in call.parameters else 0)


def batch_variance_unbiased(
    right: BatchNormKernel, x: np.ndarray, call: LayerCall
) -> tuple[np.ndarray, np.ndarray]:
    mean, variance = right.moments(x, call)
    tokens = x.shape[0] * x.shape[1]
    return mean, variance * call.work(tokens / (tokens - 1)) if call.training else variance


row = partial(deviation, family=FAMILY, right=AdditiveKernel)

DEVIATIONS = [
    row("tanh-omitted", "values", "Additive scores have no tanh.",
        "`((q + k) * w).sum(-1)`; additive scores are `(tanh(q + k) * w).sum(-1)`",
        active=lambda right, pairs, call: pairs),
    row("tanh-of-each", "values",
        "Additive scores take the tanh of query and key each, not of their sum.",
        "`tanh(q) + tanh(k)`; additive scores take `tanh(q + k)`",
        pairs=lambda right, query, key, call: right.pairs(np.tanh(query), np.tanh(key), call),
        active=lambda right, pairs, call: pairs),
    row("score-vector-ignored", "values",
        "Additive scores do not weight the units with the score vector.",
        "`tanh(q + k).sum(-1)`; additive scores are `(tanh(q + k) * w).sum(-1)`",
        vector=lambda right, call: None),
    row("score-vector-inside", "values",
        "Additive scores multiply by the score vector before the tanh, not after it.",
        "`tanh(w * (q + k)).sum(-1)`; additive scores are `(w * tanh(q + k)).sum(-1)`",
        active=score_vector_inside_active, vector=lambda right, call: None),
    row("additive-scores-scaled", "values",
        "Additive scores are divided by the root of the number of units.",
        "`/ sqrt(units)` behind the sum; additive scores are not scaled", family="scale",
        scores=additive_scores_scaled),
    row("query-projection-omitted", "values",
        "Additive scores leave out the queries, if these are projected.",
        "`tanh(w_k(key))`; additive scores take `tanh(w_q(query) + w_k(key))`",
        pairs=query_projection_omitted),
    row("key-minus-query", "values", "Additive scores subtract the queries from the keys.",
        "`tanh(k - q)`; additive scores take `tanh(q + k)`",
        pairs=lambda right, query, key, call: right.pairs(-query, key, call)),
    row("learned-scale-ignored", "values", "Scores are not multiplied by the learned scale.",
        "`q @ k.mT` without `* self.scale` (`use_scale=True` of Keras)", family="scale",
        right=DotKernel, scale=lambda right, call: np.ones((), call.work)),
    row("learned-scale-divides", "values", "Scores are divided by the learned scale.",
        "`q @ k.mT / self.scale`; multiply: `q @ k.mT * self.scale`", family="scale",
        right=DotKernel, scale=lambda right, call: 1 / right.scale(call)),
    row("dot-scores-scaled", "values",
        "Without a learned scale the scores of dot attention are divided by the root of D.",
        "`q @ k.mT / sqrt(D)`; without `use_scale` dot attention does not scale", family="scale",
        right=DotKernel, scale=dot_scores_scaled),
    row("concat-weight-ignored", "values",
        "The scores of concat attention are not multiplied by the learned weight.",
        "`tanh(scale * (q + k)).sum(-1)` without `* concat_score_weight`", right=ConcatKernel,
        number=concat_weight_ignored),
    row("epsilon-outside-root", "values",
        "A norm adds epsilon to the root of the variance, not to the variance.",
        "`(x - mean) / (sqrt(var) + eps)`; it is `(x - mean) / sqrt(var + eps)`",
        right=LayerNormKernel, reciprocal=epsilon_outside_root),
    row("variance-unbiased", "values",
        "Layer norm divides the variance by one less than the number of features.",
        "`x.var(-1)`, which torch divides by n - 1; use `x.var(-1, unbiased=False)`",
        right=LayerNormKernel, moments=variance_unbiased),
    row("layer-norm-over-positions", "values",
        "Layer norm takes mean and variance over the positions.",
        "`x.mean(1)`; mean and variance are over the features, `dim=-1`", right=LayerNormKernel,
        facts={"axes": (1,)}),
    row("layer-norm-over-sample", "values",
        "Layer norm takes mean and variance over all tokens and features of a sample.",
        "`F.layer_norm(x, x.shape[1:])`; normalise each token: `(x.shape[-1],)`",
        right=LayerNormKernel, facts={"axes": (1, 2)}),
    row("layer-norm-not-centred", "values", "Layer norm does not subtract the mean.",
        "`x * rsqrt(var + eps)`; it is `(x - mean) * rsqrt(var + eps)`", right=LayerNormKernel,
        moments=layer_norm_not_centred),
    row("gain-is-one-plus", "values", "Layer norm multiplies by 1 + gain, not by the gain.",
        "`y * (1 + gain)`, for a gain that starts at 0; it is `y * gain`", right=LayerNormKernel,
        mapped=gain_is_one_plus),
    row("batch-norm-per-position", "values",
        "Batch norm takes mean and variance of every position by itself.",
        "`x.mean(0)`; mean and variance are over samples and positions: `x.mean((0, 1))`",
        right=BatchNormKernel, facts={"axes": (0,)}),
    row("batch-norm-per-sample", "values",
        "Batch norm takes mean and variance of every sample by itself.",
        "`x.mean(1)`; mean and variance are over samples and positions: `x.mean((0, 1))`",
        right=BatchNormKernel, facts={"axes": (1,)}),
    row("batch-variance-unbiased", "values",
        "Batch norm divides the variance of the batch by one less than the number of tokens.",
        "`x.var((0, 1))`, which torch divides by n - 1; use `unbiased=False`",
        right=BatchNormKernel, moments=batch_variance_unbiased),
    row("learned-moments-in-training", "values",
        "Batch norm uses the running mean and variance in training, too.",
        "`running_mean` and `running_var` in training; there those of the batch are used",
        right=BatchNormKernel,
        moments=lambda right, x, call: right.moments(x, replace(call, training=False))),
    row("batch-moments-in-evaluation", "values",
        "Batch norm uses mean and variance of the batch in evaluation, too.",
        "`F.batch_norm(..., training=True)` in evaluation; use `running_mean`, `running_var`",
        right=BatchNormKernel,
        moments=lambda right, x, call: right.moments(x, replace(call, training=True))),
]  # fmt: skip
