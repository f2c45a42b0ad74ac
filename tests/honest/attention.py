"""Honest variants of plain attention: they round, order or store otherwise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.suite.deviations.kernels.attention import Call, Eager, Kernel, Online
from attention_conformance.suite.deviations.kernels.centred import CentredKeys, mean_of
from attention_conformance.suite.deviations.kernels.dropout import Dropping
from attention_conformance.suite.deviations.kernels.gradient import (
    Differentiable,
    DifferentiableFused,
)
from attention_conformance.suite.deviations.kernels.layer import MultiHeadKernel
from attention_conformance.suite.deviations.kernels.variants import Workspace
from attention_conformance.suite.spec.dtypes import round_to
from tests.honest.rows import variant


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


class _CentredAttended(CentredKeys):
    """The keys lose the mean of those that some row attends."""

    elections = Differentiable.elections

    def constant(self, key: np.ndarray, call: Call) -> np.ndarray:
        s = call.sizes
        allowed = self.hide(np.zeros((s.B, s.H, s.Lq, s.Lk)), self.allowed(call), call) == 0
        if call.bias is not None:
            allowed &= ~np.isneginf(call.bias.values)
        seen = allowed.any(-2).reshape(s.B, s.Hkv, s.group, s.Lk, 1).any(2)
        return (
            np.where(seen, key, 0).sum(-2, keepdims=True) / np.maximum(seen.sum(-2), 1)[..., None]
        )


class DifferentiableBlocks(DifferentiableFused):
    """Running sums of gradients stored in the case's dtype after every 4 rows or keys."""

    rounding = DeclaredRounding(gradient_blocks={"bf16": (4, 4), "f16": (4, 4)})

    def summed(self, a: np.ndarray, b: np.ndarray, call: Call) -> np.ndarray:
        total = np.zeros((*a.shape[:-1], b.shape[-1]), a.dtype)
        for start in range(0, a.shape[-1], 4):
            part = total + a[..., start : start + 4] @ b[..., start : start + 4, :]
            total = round_to(part, call.fmt).astype(call.work)
        return total

    def value_gradient(self, weights: np.ndarray, cotangent: np.ndarray, call: Call) -> np.ndarray:
        return self.summed(weights.swapaxes(-1, -2), cotangent, call)


class AnswersKeptByValues(Kernel):
    """Answers are kept by the values of all arguments."""

    def compute(self, call: Call) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        arrays = (call.query, call.key, call.value, call.mask, call.lengths)
        added = (call.bias, call.sinks, call.alibi_slopes, call.logit_scale)
        values = [None if x is None else (x.shape, x.values.tobytes()) for x in (*arrays, *added)]
        rest = (call.causal, call.window, call.scale, call.softcap, call.fmt.name)
        key = (*values, *rest)
        answer = kept.get(key)
        if answer is None:
            kept.clear()  # one is enough
            answer = kept[key] = super().compute(call)
        return answer.copy()


class VisiblePairsKept(Kernel):
    """Which pairs attend is kept by every argument that decides it."""

    def allowed(self, call: Call) -> np.ndarray | None:
        kept = self.__dict__.setdefault("kept", {})
        arrays = (None if x is None else x.values.tobytes() for x in (call.mask, call.lengths))
        shape = None if call.mask is None else call.mask.shape
        key = (call.query.shape, call.key.shape, call.causal, call.window, shape, *arrays)
        if key not in kept:
            kept.clear()  # one is enough
            kept[key] = super().allowed(call)
        return kept[key]


def cleared(right: Any, rest: np.ndarray) -> None:
    """What an earlier call left in the workspace is overwritten with zeros."""
    rest[...] = 0.0


def same_gradient(right: Any, dk: np.ndarray) -> np.ndarray:
    """Derivatives take what the keys lose as a constant."""
    return dk


INFERENCE = {"gradient": "the compiled program is that of inference"}

ROWS = (
    variant("online-tiles16", Online),
    variant("online-tiles1", Online, tile=1),  # as many rescalings as there can be
    # (B, L, H, D), with the transposed strides that come with it
    variant("heads-inside", Kernel, axis_order="blhd", scores=lambda right, query, key, call:
        np.einsum("bhid,bhjd->bhij", query, key) * call.work(right.factor(call))),
    variant("centred-attended", _CentredAttended, uncentred=same_gradient),
    # a constant as large as the mean magnitude of the keys
    variant("centred-by-constant", CentredKeys, constant=lambda right, key, call:
        mean_of(np.abs(key)), uncentred=same_gradient),
    variant("compiled-plain", Differentiable, mode="compiled"),
    variant("compiled-fused", DifferentiableFused, mode="compiled"),
    variant("compiled-online", Online, mode="compiled", refusals=INFERENCE),
    variant("compiled-layer", MultiHeadKernel, mode="compiled"),
    # the mean of weights before dropout; the fused one stores them
    variant("dropping-fused", (Dropping, DifferentiableFused), mean=lambda right, *arguments:
        Differentiable.mean(right.__self__, *arguments)),
    # one pattern for all samples and heads
    variant("dropping-shared", Dropping, dropout="shared", pattern=lambda right, shape, *more:
        right.pattern(shape[2:], *more)),
    variant("workspace-cleared", Workspace, clear=cleared),
)  # fmt: skip
