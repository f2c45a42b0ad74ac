"""Scores of keys from which a constant c is subtracted, such as their mean (K smoothing).

    S_ij = scale Q_i (K_j - c)

All scores of a row lose the same number, scale Q_i c, so softmax, output and gradients stay the same. A
log-sum-exp, a softcap and a sink need the number back. Errors differ, because the multiplied keys are
larger where K_j is near 0. Components that are exactly 0 without the constant are 0 up to rounding.

The implementation chooses c: the mean of all keys, of the keys that rows attend, or any constant with

    |c| <= C = sum_j |K_j| / n      elementwise; n of the keys are attended by some row

The mean over any set of keys with all attended ones is such a constant. Roundings of the mean itself have
no influence. Bounds, in the notation of `references.rounding`; delta bounds an error:

    K'       K - c, stored: u_o (|K| + C). Products of Q and K' round relative to |Q| (|K| + C), and so do
             the stored scores: an error of K by (gamma_{D+2}(u_acc) + 3 u_s) C. Counted twice, because
             the number may be added again.
    dQ       sum_j dS_ij K'_j, and sum_j dS_ij is 0 only up to rounding: delta dS C, and the rounding of
             the product, relative to C.
    dK       If c is differentiated, too, dK_j loses the mean of all dK', whose exact value is 0. Its
             error is at most sum_j delta dK'_j / n, with the roundings of the sum. Hidden keys then have
             a gradient, too.
    K dot    Like K', for tangents of keys. S' - sum P S' (`references.primitives.attend`) adds
             gamma_Lk(u_acc) C.

Inside `references.rounding.random_roundings` sums that are 0 up to rounding have their random values,
except with sinks.

Source: Zhang et al., SageAttention, arXiv 2410.02367 (2024), section 4.2 ("smooth K").
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.primitives.scores import Scores
from attention_conformance.references.rounding import (
    Bounded,
    Roundoffs,
    errors_are_random,
    gamma,
    matrix_product,
    perturbed,
    stored,
)
from attention_conformance.references.tape import Gradients, Node


class Centred(Node):
    """Keys (B, Hkv, Lk, D) with the error that K - c gives the scores. The value stays K, because the
    constant c changes no softmax."""

    def __init__(self, u: Roundoffs, key: Node, pairs: Pairs) -> None:
        super().__init__(u, key)
        self.key, self.pairs = key, pairs

    @property
    def shape(self) -> tuple[int, ...]:
        return self.key.shape

    @cached_property
    def attended_count(self) -> np.ndarray:
        """n, the number of keys that some row attends, (B, Hkv, 1, 1), at least 1."""
        B, Hkv, Lk, _ = self.shape
        group = self.pairs.shape[1] // max(Hkv, 1)
        is_attended = (self.pairs.rows_of_keys > 0).reshape(B, Hkv, group, Lk).any(2)
        return np.maximum(is_attended.sum(-1), 1)[..., None, None]

    def constant_limit(self, x: Bounded) -> np.ndarray:
        """Returns C for keys x or tangents x of keys, (B, Hkv, 1, D). Slots that are not finite count as
        zero."""
        size = np.where(np.isfinite(x.magnitude), x.magnitude, 0.0)
        return np.asarray(size.sum(-2, keepdims=True) / self.attended_count)

    def _less_constant(self, x: Bounded, roundings: int) -> Bounded:
        """Returns x, keys or tangents of keys, with the errors of K - c. `roundings`: the number of
        roundings of a product with a query."""
        u, limit = self.u, self.constant_limit(x)
        relative = 2 * (gamma(roundings, u.accumulate) + 3 * u.score) + u.output
        result = stored(x, u.results)
        return perturbed(Bounded(result.value, result.error + relative * limit))

    @cached_property
    def output(self) -> Bounded:
        return self._less_constant(self.key.output, self.shape[-1] + 2)

    def gradients(self, cotangent: Bounded) -> Gradients:
        u, Lk = self.u, self.shape[-2]
        error = cotangent.error.sum(-2, keepdims=True)
        error = error + gamma(Lk, u.sum) * cotangent.magnitude.sum(-2, keepdims=True)
        total = stored(Bounded(_zero_sum(cotangent, self.pairs), error), u.results)
        mean = stored(total * (1 / self.attended_count), u.results)
        difference = Bounded(cotangent.value - mean.value, cotangent.error + mean.error)
        return (stored(difference, u.results),)

    def tangent(self, *tangents: Bounded | None) -> Bounded | None:
        (key,) = tangents
        D, Lk = self.shape[-1], self.shape[-2]
        return None if key is None else self._less_constant(key, D + 2 + Lk)


class CentredScores(Scores):
    """Scores with the errors of centred keys, K - c (`Centred`), and the exact values of K."""

    key: Centred

    def query_gradient(self, dT: Bounded) -> Bounded:
        """Returns dT K', the gradient of the query before its store. dT is the cotangent of the scaled
        scores. The error includes the terms with C."""
        dQ, limit = super().query_gradient(dT), self.key.constant_limit(self.key.key.output)
        constant = self.pairs.by_head(Bounded.exact(limit))  # (B, H, 1, D)
        constants = constant.broadcast_to(self.attended_keys.shape)
        error = matrix_product(dT, constants, self.pairs.allowed.sum(-1)[..., None], self.u).error
        constant_part = _zero_sum(dT.mT, self.pairs).swapaxes(-1, -2) * constant.value
        return Bounded(dQ.value + constant_part, dQ.error + error)


def _zero_sum(x: Bounded, pairs: Pairs) -> np.ndarray:
    """Returns the sum of x (..., Lk, .) over the keys, (..., 1, .), whose exact value is 0: zeros, or
    inside `random_roundings` and without a sink the sum of the perturbed numbers."""
    total = x.value.sum(-2, keepdims=True)
    return total if errors_are_random() and not pairs.has_sink.any() else np.zeros_like(total)
