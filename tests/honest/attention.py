"""Honest variants of plain attention: they round, order or store otherwise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.kernels.attention import Call, Eager, Kernel, Online
from attention_conformance.suite.spec.dtypes import round_to


class OnlineTiles16(Online):
    """Online softmax, sixteen keys at a time."""


class OnlineTiles1(Online):
    """Online softmax, key by key: as many rescalings as there can be."""

    tile = 1


class ExpBaseTwo(Online):
    """exp2 of scores that were scaled by scale log2(e) at once, as GPU kernels do."""

    tile = 32

    def factor(self, call: Call) -> float:
        return super().factor(call) * (math.log2(math.e) if self.at_once(call) else 1.0)

    def at_once(self, call: Call) -> bool:
        arrays = (call.softcap, call.bias, call.sinks, call.alibi_slopes)
        return all(array is None for array in arrays)

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        if not self.at_once(call):
            scores = scores * scores.dtype.type(math.log2(math.e))
        return super().attend(scores, value, call)

    def raised(self, shifted: np.ndarray) -> np.ndarray:
        return np.exp2(shifted)

    def log_sum_exp(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if not self.at_once(call):
            return super().log_sum_exp(scores, call)
        maximum = self.anchor(scores.max(-1, keepdims=True, initial=-np.inf))
        total = np.exp2(scores - maximum).sum(-1)
        return (maximum[..., 0] + np.log2(total)) * call.work(math.log(2))


class WeightsByLogSumExp(Kernel):
    """weights = exp(scores - logsumexp): no division."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        shifted = self.shifted(scores)
        maximum = scores.max(-1, keepdims=True, initial=-np.inf)
        lse = maximum + np.log(np.exp(shifted).sum(-1, keepdims=True))
        return np.exp(scores - np.where(np.isneginf(lse), 0, lse))


class SequentialSums(Kernel):
    """Every sum strictly from left to right: what a scalar loop does."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        product = np.zeros((*query.shape[:-1], key.shape[-2]), query.dtype)
        for d in range(query.shape[-1]):
            product += query[..., d, None] * key[..., None, :, d]
        return product * call.work(self.factor(call))

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        value = self.visible(value, scores)
        raised = self.raised(self.shifted(scores))
        total = np.zeros((*scores.shape[:-1], 1), scores.dtype)
        out = np.zeros((*scores.shape[:-1], value.shape[-1]), scores.dtype)
        for j in range(scores.shape[-1]):
            total += raised[..., j, None]
            out += raised[..., j, None] * value[..., None, j, :]
        return out / np.where(total == 0, 1, total)


class Flushed(Kernel):
    """Subnormal numbers are zero, as inputs, as weights and as answers.

    float16 numbers are normal in float32, in which the sums are made: only its answers are flushed.
    """

    elections = Kernel.elections | {"subnormal-output": "flushed"}

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        return self.flush(super().load(array, call), float(np.finfo(call.work).tiny))

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return self.flush(super().weights(scores, call), float(np.finfo(call.work).tiny))

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        rounded = round_to(out, call.fmt)
        return Rounded(self.flush(rounded, call.fmt.smallest_normal), call.fmt)

    def flush(self, x: np.ndarray, smallest: float) -> np.ndarray:
        return np.where(np.abs(x) < smallest, x.dtype.type(0), x)


class HeadsInside(Kernel):
    """Works on (B, L, H, D), with the transposed strides that come with it."""

    axis_order = "blhd"

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        product = np.einsum("bhid,bhjd->bhij", query, key)
        return product * call.work(self.factor(call))


class EagerStored(Eager):
    """Scores and weights stored in the case's dtype, after every operation on scores."""

    def factor(self, call: Call) -> float:
        return float(round_to(super().factor(call), call.fmt))

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        scores = self.tempered(scores, call)
        if call.softcap is None:
            return scores
        cap = call.work(call.softcap)
        divided = self.keep(scores / cap, "scores", call)
        return self.keep(cap * self.keep(np.tanh(divided), "scores", call), "scores", call)


class StepByStep(EagerStored):
    """The steps of the softmax, too, are stored: differences, exponentials, their sum."""

    numerics = "stepwise"

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        raised = self.keep(
            self.raised(self.keep(self.shifted(scores), "weights", call)), "weights", call
        )
        total = self.keep(raised.sum(-1, keepdims=True), "weights", call)
        return self.keep(raised / np.where(total == 0, 1, total), "weights", call)
