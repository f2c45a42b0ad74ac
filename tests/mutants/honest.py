"""Honest variants: right implementations that round differently. None may ever fail."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from backends._numpy import Rounded
from backends.protocol import Implementation
from suite.spec.dtypes import round_to
from suite.spec.inputs import Inputs
from suite.spec.operators.layer_norm import EPSILON
from tests.mutants.gradient_kernel import (
    Differentiable,
    DifferentiableBlocks,
    DifferentiableEager,
    DifferentiableFused,
    DifferentiableLowest,
    DifferentiableRecomputed,
)
from tests.mutants.kernel import Call, Eager, Fused, Kernel, Online
from tests.mutants.layer_gradient_kernel import (
    AdditiveDifferentiable,
    Arrays,
    ConcatDifferentiable,
    DotDifferentiable,
    LayerDifferentiable,
    MaskedDifferentiable,
    SelfAttentionDifferentiable,
)
from tests.mutants.layer_kernel import (
    AdditiveKernel,
    BatchNormKernel,
    ConcatKernel,
    DotKernel,
    Heads,
    LayerCall,
    LayerNormKernel,
    MaskedKernel,
    MultiHeadKernel,
    NormKernel,
    SelfAttentionKernel,
)
from tests.mutants.norm_gradient_kernel import (
    BatchNormChain,
    BatchNormDifferentiable,
    BatchNormUncentred,
    LayerNormChain,
    LayerNormDifferentiable,
    LayerNormUncentred,
    Standard,
    rounded,
    summed_by_rows,
)


class OnlineTiles16(Online):
    """Online softmax, sixteen keys at a time."""


class OnlineTiles1(Online):
    """Online softmax, key by key: as many rescalings as there can be."""

    tile = 1


class OnlineTiles64(Online):
    """Online softmax, 64 keys at a time."""

    tile = 64


class ReversedKeys(Online):
    """Online softmax from the last key to the first."""

    tile = 5

    def tiles(self, length: int) -> list[slice]:
        return super().tiles(length)[::-1]


class FlashFused(Online):
    """Flash attention: weights stored in the case's dtype before they are normalised."""

    numerics = "fused"
    stores = ("weights",)


class FusedNormalised(Fused):
    """Normalised weights stored in the case's dtype."""


class EagerStored(Eager):
    """Scores and weights stored in the case's dtype, after every operation on scores."""

    def factor(self, call: Call) -> float:
        return float(round_to(super().factor(call), call.fmt))

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
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


class ExpBaseTwo(Online):
    """exp2 of scores that were scaled by scale log2(e) at once, as GPU kernels do."""

    tile = 32

    def factor(self, call: Call) -> float:
        return super().factor(call) * (math.log2(math.e) if self.at_once(call) else 1.0)

    def at_once(self, call: Call) -> bool:
        return call.softcap is None and call.bias is None and call.sinks is None

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        if not self.at_once(call):
            scores = scores * scores.dtype.type(math.log2(math.e))
        return super().attend(scores, value, call)

    def raised(self, shifted: np.ndarray) -> np.ndarray:
        return np.exp2(shifted)


class MergedChunks(Kernel):
    """Keys in three chunks, each answered alone, merged by their log-sum-exps (split-KV)."""

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        value = self.visible(value, scores)
        parts = [
            (super(MergedChunks, self).attend(s, v, call), self.log_sum_exp(s))
            for s, v in zip(
                np.array_split(scores, 3, axis=-1), np.array_split(value, 3, axis=-2), strict=True
            )
        ]
        return self.merge(parts)

    def merge(self, parts: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """The answers of the chunks weighted by their share of the whole sum; pairs (answer, lse)."""
        together = self.log_sum_exp(np.concatenate([lse for _, lse in parts], axis=-1))
        anchor = np.where(np.isneginf(together), 0, together)
        return sum(out * np.exp(lse - anchor) for out, lse in parts)

    def log_sum_exp(self, scores: np.ndarray) -> np.ndarray:
        """(..., n) -> (..., 1); -inf where there is no key."""
        maximum = scores.max(-1, keepdims=True, initial=-np.inf)
        anchor = np.where(np.isneginf(maximum), 0, maximum)
        return anchor + np.log(np.exp(scores - anchor).sum(-1, keepdims=True))


class WeightsByLogSumExp(Kernel):
    """weights = exp(scores - logsumexp): no division."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        shifted = self.shifted(scores)
        maximum = scores.max(-1, keepdims=True, initial=-np.inf)
        lse = maximum + np.log(np.exp(shifted).sum(-1, keepdims=True))
        return np.exp(scores - np.where(np.isneginf(lse), 0, lse))


class Float64Inside(Kernel):
    """Float64 inside (extended precision for float64), rounded once."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        return array.values.astype(np.longdouble if call.fmt.name == "f64" else np.float64)


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


class ScaleOnBothSides(Kernel):
    """Queries and keys each multiplied by the root of the scale (torch's math path)."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        factor = self.factor(call)
        root = call.work(math.sqrt(abs(factor)))
        return (query * root * call.work(math.copysign(1.0, factor))) @ (key * root).swapaxes(
            -1, -2
        )


class NanRows(Kernel):
    """Rows without keys are 0 / 0; a NaN behind the mask of a value spreads."""

    elections = Kernel.elections | {
        "fully-masked-row": "nan",
        "minus-inf-row": "nan",
        "nan-in-masked-value": "leaks",
    }

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        return value

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        return scores - scores.max(-1, keepdims=True, initial=-np.inf)


class UniformRows(Eager):
    """Hidden scores are the dtype's lowest number: rows without keys average all values."""

    elections = Eager.elections | {
        "fully-masked-row": "uniform",
        "minus-inf-row": "nan",
        "nan-in-masked-value": "leaks",
    }

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: Call) -> np.ndarray:
        return scores if allowed is None else np.where(allowed, scores, call.work(-call.fmt.max))

    visible = NanRows.visible
    shifted = NanRows.shifted


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


class WorkingPrecision(Eager):
    """Every sum, too, in the case's 16-bit dtype, one rounding an addition.

    It must fail where precision is asked for and nowhere else, so that it stands among the mutants.
    """

    dtypes = ("bf16", "f16")
    numerics = "working"

    def round(self, x: np.ndarray, call: Call) -> np.ndarray:
        return round_to(x, call.fmt).astype(call.work)

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        product = np.zeros((*query.shape[:-1], key.shape[-2]), query.dtype)
        for d in range(query.shape[-1]):
            term = self.round(query[..., d, None] * key[..., None, :, d], call)
            product = self.round(product + term, call)
        factor = call.work(round_to(self.factor(call), call.fmt))
        return self.round(product * factor, call)

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        value = self.visible(value, scores)
        raised = self.round(np.exp(self.round(self.shifted(scores), call)), call)
        total = np.zeros((*scores.shape[:-1], 1), scores.dtype)
        for j in range(scores.shape[-1]):
            total = self.round(total + raised[..., j, None], call)
        weights = self.round(raised / np.where(total == 0, 1, total), call)
        out = np.zeros((*scores.shape[:-1], value.shape[-1]), scores.dtype)
        for j in range(scores.shape[-1]):
            term = self.round(weights[..., j, None] * value[..., None, j, :], call)
            out = self.round(out + term, call)
        return out


class LayerExact(MultiHeadKernel):
    """A whole layer in working precision, rounded once at the end."""


class LayerFused(MultiHeadKernel):
    """Projections stored, a fused kernel between them."""

    numerics = "fused"
    stores = ("features", "weights")


class LayerEager(MultiHeadKernel):
    """Every matrix product, sum and softmax stored in the case's dtype."""

    numerics = "eager"
    stores = ("features", "scores", "weights")

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.returned != "average":
            return weights
        return self.keep(weights.sum(1), "weights", call) / call.work(weights.shape[1])


class LayerStepwise(LayerEager):
    """The steps of the softmax, too, are stored, and those of the mean over the heads."""

    numerics = "stepwise"
    stores = (*LayerEager.stores, "steps")

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.returned != "average":
            return weights
        total = np.zeros_like(weights[:, 0])
        for h in range(weights.shape[1]):
            total = self.keep(total + weights[:, h], "steps", call)
        return total / call.work(weights.shape[1])


class LayerScaledScores(LayerEager):
    """The scores are scaled, by a factor rounded to the case's dtype, and not the query."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        product = self.keep(query @ key.swapaxes(-1, -2), "scores", call)
        factor = self.keep(np.asarray(self.factor(call), call.work), "scores", call)
        return self.keep(product * factor, "scores", call)


class LayerDividedScores(LayerExact):
    """The scores are divided by the root of the size."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return query @ key.swapaxes(-1, -2) / call.work(math.sqrt(call.sizes.D))


class LayerKeysFirst(LayerEager):
    """key query^T, transposed."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        scaled = self.keep(query * call.work(self.factor(call)), "features", call)
        swapped = np.ascontiguousarray(key) @ np.ascontiguousarray(scaled.swapaxes(-1, -2))
        return self.keep(swapped.swapaxes(-1, -2), "scores", call)


class LayerHeadByHead(LayerEager):
    """A loop over the heads, each projected by its own kernel; outputs are concatenated."""

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        kernel, bias = self.kernel(name, call), self.bias(name, call)
        biases = None if bias is None else bias.reshape(kernel.shape[1:])
        heads = []
        for h in range(kernel.shape[1]):
            y = self.keep(x @ np.ascontiguousarray(kernel[:, h]), "features", call)
            heads.append(y if biases is None else self.keep(y + biases[h], "features", call))
        return np.stack(heads, 1)

    def attend(self, weights: np.ndarray, value: np.ndarray, call: LayerCall) -> np.ndarray:
        made = [weights[:, h] @ value[:, h] for h in range(weights.shape[1])]
        return self.keep(np.stack(made, 1), "features", call)

    def merge(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.concatenate([attended[:, h] for h in range(attended.shape[1])], -1)


class LayerHeadsSummed(LayerExact):
    """Every head is projected to the output by its own kernel, and the outputs are summed."""

    def merge(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        return attended

    def output(self, merged: np.ndarray, call: LayerCall) -> np.ndarray:
        each = merged @ self.kernel("output", call)  # (B, H, Lq, Dv) @ (H, Dv, Eo)
        return self.with_bias(each.sum(1), "output", call)


class LayerPackedProjection(LayerEager):
    """One product gives queries, keys and values where they come from one tensor."""

    def heads(self, call: LayerCall) -> Heads:
        if not call.own:
            return super().heads(call)
        names = ("query", "key", "value")
        kernels = [self.kernel(n, call) for n in names]
        flat = np.concatenate([k.reshape(len(k), -1) for k in kernels], 1)
        packed = self.keep(self.load(call.query, call) @ flat, "features", call)
        biases = [b for n in names if (b := self.bias(n, call)) is not None]
        if biases:
            packed = self.keep(packed + np.concatenate(biases), "features", call)
        ends = np.cumsum([k[0].size for k in kernels])[:-1]
        q, k, v = (
            self.split(part, kernel.shape[1], call)
            for part, kernel in zip(np.split(packed, ends, -1), kernels, strict=True)
        )
        return q, self.expand(k, call), self.expand(v, call)


class LayerBiasesAsFeatures(LayerFused):
    """Biases are a row more of the kernels, for a feature that is one."""

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        kernel = self.kernel(name, call)
        made = self.extended(x, kernel.reshape(len(kernel), -1), name, call)
        return self.split(made, kernel.shape[1], call)

    def output(self, merged: np.ndarray, call: LayerCall) -> np.ndarray:
        kernel = self.kernel("output", call)
        return self.extended(merged, kernel.reshape(-1, kernel.shape[-1]), "output", call)

    def extended(self, x: np.ndarray, kernel: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        bias = self.bias(name, call)
        if bias is not None:
            x = np.concatenate([x, np.ones_like(x[..., :1])], -1)
            kernel = np.concatenate([kernel, bias[None]])
        return self.keep(x @ kernel, "features", call)


class LayerKeyBiasLeftOut(LayerExact):
    """The bias of the keys, which adds one number to all scores of a row, is left out."""

    def bias(self, name: str, call: LayerCall) -> np.ndarray | None:
        return None if name == "key" else super().bias(name, call)


class LayerGroupsTogether(LayerEager):
    """Query heads of one group are rows of one product: keys and values are not repeated."""

    def expand(self, x: np.ndarray, call: LayerCall) -> np.ndarray:
        return x

    def grouped(self, x: np.ndarray, call: LayerCall) -> np.ndarray:
        """(B, H, L, n) -> (B, Hkv, H / Hkv L, n)."""
        return x.reshape(x.shape[0], call.sizes.Hkv, -1, x.shape[-1])

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        s = call.sizes
        return super().scores(self.grouped(query, call), key, call).reshape(s.B, s.H, s.Lq, s.Lk)

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        together = scores.reshape(scores.shape[0], value.shape[1], -1, scores.shape[-1])
        return super().visible(value, together)

    def attend(self, weights: np.ndarray, value: np.ndarray, call: LayerCall) -> np.ndarray:
        s = call.sizes
        made = super().attend(self.grouped(weights, call), value, call)
        return made.reshape(s.B, s.H, s.Lq, s.Dv)


class LayerOnlineSoftmax(LayerFused):
    """Online softmax over two keys at a time where no weights are returned and none dropped."""

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.returned != "none" or self.rate(call):
            return super().weights(scores, call)
        return scores

    def attend(self, weights: np.ndarray, value: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.returned != "none" or self.rate(call):
            return super().attend(weights, value, call)
        rows = (*weights.shape[:-1], 1)
        maximum, total = np.full(rows, -np.inf, weights.dtype), np.zeros(rows, weights.dtype)
        out = np.zeros((*weights.shape[:-1], value.shape[-1]), weights.dtype)
        for start in range(0, weights.shape[-1], 2):
            s = weights[..., start : start + 2]
            largest = np.maximum(maximum, s.max(-1, keepdims=True))
            anchor = np.where(np.isneginf(largest), 0, largest)
            raised, rescale = np.exp(s - anchor), np.exp(maximum - anchor)
            total = total * rescale + raised.sum(-1, keepdims=True)
            stored = self.keep(raised, "weights", call)
            out = out * rescale + stored @ value[..., start : start + 2, :]
            maximum = largest
        return self.keep(out / np.where(total == 0, 1, total), "features", call)


class LayerFloat64Inside(LayerExact):
    """Float64 inside (extended precision for float64), rounded once."""

    def load(self, array: Rounded, call: LayerCall) -> np.ndarray:
        return array.values.astype(np.longdouble if call.fmt.name == "f64" else np.float64)


class LayerNanRows(LayerEager):
    """Rows without keys are 0 / 0; a NaN behind the mask of a value spreads."""

    elections = LayerEager.elections | {
        "fully-masked-row": "nan",
        "padded-sample": "nan",
        "minus-inf-row": "nan",
        "nan-in-masked-value": "leaks",
    }

    def visible(self, value: np.ndarray, scores: np.ndarray) -> np.ndarray:
        return value

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        return scores - scores.max(-1, keepdims=True)


class LayerUniformRows(LayerNanRows):
    """Hidden scores are the dtype's lowest number: rows without keys average all values."""

    elections = LayerNanRows.elections | {
        "fully-masked-row": "uniform",
        "padded-sample": "uniform",
    }

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall) -> np.ndarray:
        return scores if allowed is None else np.where(allowed, scores, call.work(-call.fmt.max))


class LayerSharedDropout(LayerEager):
    """Samples and heads share one pattern of dropout; the weights returned are those after it."""

    dropout = "shared"
    elections = LayerEager.elections | {"returned-weights": "after-dropout"}

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().dropped(super().weights(scores, call), call)

    def dropped(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return weights

    def pattern(self, shape: tuple[int, ...], rate: float, call: LayerCall) -> np.ndarray:
        return super().pattern(shape[-2:], rate, call)


class SelfAttentionEager(SelfAttentionKernel):
    """One head with projections, every operation stored."""

    numerics = "eager"
    stores = LayerEager.stores


class SelfAttentionExact(SelfAttentionKernel):
    """One head with projections, rounded once."""


class AdditiveExact(AdditiveKernel):
    """Additive attention, rounded once."""


class AdditiveEager(AdditiveKernel):
    """Additive attention, every operation stored."""

    numerics = "eager"
    stores = LayerEager.stores


class AdditiveLoops(AdditiveEager):
    """Additive attention with a loop over units: sums, tanh and products one by one."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        vector = self.vector(call)
        total = np.zeros((*query.shape[:-1], key.shape[-2]), query.dtype)
        for u in range(query.shape[-1]):
            pairs = self.keep(query[..., u, None] + key[..., None, :, u], "features", call)
            active = self.keep(np.tanh(pairs), "scores", call)
            total += active if vector is None else self.keep(active * vector[u], "scores", call)
        return self.keep(total, "scores", call)


class AdditiveStepwise(AdditiveEager):
    """Additive attention, the steps of the softmax stored, too."""

    numerics = "stepwise"
    stores = LayerStepwise.stores


class ConcatExact(ConcatKernel):
    """Concat attention, rounded once."""


class ConcatEager(ConcatKernel):
    """Concat attention, every operation stored."""

    numerics = "eager"
    stores = LayerEager.stores


class DotExact(DotKernel):
    """Dot-product attention, rounded once."""


class DotEager(DotKernel):
    """Dot-product attention, every operation stored."""

    numerics = "eager"
    stores = LayerEager.stores


class DotScaledQuery(DotEager):
    """Dot-product attention whose scale is multiplied onto the query."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        scaled = self.keep(query * self.scale(call), "features", call)
        return self.keep(scaled @ key.swapaxes(-1, -2), "scores", call)


class MaskedExact(MaskedKernel):
    """Scaled dot-product attention with two masks, rounded once."""


class MaskedEager(MaskedKernel):
    """Scaled dot-product attention with two masks, every operation stored."""

    numerics = "eager"
    stores = LayerEager.stores


class MaskedUniform(MaskedEager):
    """Two masks that set hidden scores to the dtype's lowest number."""

    elections = MaskedEager.elections | {
        "fully-masked-row": "uniform",
        "padded-sample": "uniform",
    }
    hide = LayerUniformRows.hide


class OnePassNorm(NormKernel):
    """The variance is the mean of the squares less the square of the mean."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        mean = x.mean(self.axes, keepdims=True)
        return mean, np.square(x).mean(self.axes, keepdims=True) - np.square(mean)


class FoldedNorm(NormKernel):
    """x factor + shift, with factor and shift made before x is looked at."""

    def compute(self, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        x = self.load(call.query, call)
        mean, variance = self.moments(x, call)
        factor = self.reciprocal(variance, call)
        if "gain" in call.parameters:
            factor = factor * self.load(call.parameters["gain"], call)
            return x * factor + (self.load(call.parameters["offset"], call) - mean * factor), mean
        return x * factor - mean * factor, mean


class NormInSteps(NormKernel):
    """Every step is stored in the case's dtype; the sums of a mean are not."""

    numerics = "stepwise"
    stores = ("steps",)

    def compute(self, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        x = self.load(call.query, call)
        mean, variance = self.moments(x, call)
        epsilon = call.work(EPSILON)
        root = self.keep(np.sqrt(self.keep(variance + epsilon, "steps", call)), "steps", call)
        y = self.keep(self.keep(x - mean, "steps", call) / root, "steps", call)
        return self.mapped(y, call), mean

    def mean_of(self, x: np.ndarray, call: LayerCall) -> np.ndarray:
        return self.keep(x.mean(self.axes, keepdims=True), "steps", call)

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        if "mean" in call.parameters and not call.training:
            return super().moments(x, call)
        mean = self.mean_of(x, call)
        squares = self.keep(np.square(self.keep(x - mean, "steps", call)), "steps", call)
        return mean, self.mean_of(squares, call)

    def mapped(self, y: np.ndarray, call: LayerCall) -> np.ndarray:
        if "gain" not in call.parameters:
            return y
        scaled = self.keep(y * self.load(call.parameters["gain"], call), "steps", call)
        return scaled + self.load(call.parameters["offset"], call)


class LayerNormTwoPasses(LayerNormKernel):
    """Layer norm in two passes."""


class LayerNormOnePass(OnePassNorm, LayerNormKernel):
    """Layer norm in one pass."""


class LayerNormFolded(FoldedNorm, LayerNormKernel):
    """Layer norm as x factor + shift."""


class LayerNormStepwise(NormInSteps, LayerNormKernel):
    """Layer norm, every step stored."""


class BatchNormTwoPasses(BatchNormKernel):
    """Batch norm in two passes."""


class BatchNormFolded(FoldedNorm, BatchNormKernel):
    """Batch norm as x factor + shift."""


class BatchNormOnePass(OnePassNorm, BatchNormKernel):
    """Batch norm in one pass."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        kind = super() if call.training else super(OnePassNorm, self)
        return kind.moments(x, call)


class BatchNormStepwise(NormInSteps, BatchNormKernel):
    """Batch norm, every step stored."""


class LayerNarrowBias(LayerDifferentiable):
    """The gradient of the output bias is a sum in bfloat16, as it declares."""

    narrow_biases = {"bf16": ("output_bias",)}

    def gradients(self, given, cotangent, inputs):
        found = super().gradients(given, cotangent, inputs)
        if "output_bias" in found and inputs.dtype.name == "bf16":
            found["output_bias"] = summed_by_rows(cotangent, inputs)
        return found


class SelfAttentionDifferentiatedInSteps(SelfAttentionDifferentiable):
    """Self-attention whose backward pass stores every step."""

    numerics = "eager"

    def step(self, x: np.ndarray, inputs: Inputs) -> np.ndarray:
        return round_to(x, inputs.dtype)


class SelfAttentionOneProduct(SelfAttentionDifferentiable):
    """Self-attention whose input takes its gradient from one product, in working precision."""

    def together(self, parts: Arrays, inputs: Inputs) -> np.ndarray:
        work = np.float64 if inputs.dtype.name == "f64" else np.float32
        total: np.ndarray = np.sum([x.astype(work) for x in parts.values()], 0)
        return total.astype(np.float64)


class LayerNormNarrowStatistics(LayerNormDifferentiable):
    """Mean and root reach the backward pass in 16 bits, as it declares."""

    narrow_statistics = ("bf16", "f16")

    def standard(self, given: Arrays, inputs: Inputs) -> Standard:
        made = super().standard(given, inputs)
        return rounded(made, inputs) if inputs.dtype.is_half else made


class LayerNormNarrowSums(LayerNormDifferentiable):
    """The gradients of gain and offset are sums in 16 bits, as it declares."""

    narrow_biases = dict.fromkeys(("bf16", "f16"), ("gain", "offset"))

    def gain_gradient(self, dy: np.ndarray, made: Standard, inputs: Inputs) -> np.ndarray:
        if not inputs.dtype.is_half:
            return super().gain_gradient(dy, made, inputs)
        return summed_by_rows(round_to(dy * made.normal, inputs.dtype), inputs)

    def offset_gradient(self, dy: np.ndarray, inputs: Inputs) -> np.ndarray:
        if not inputs.dtype.is_half:
            return super().offset_gradient(dy, inputs)
        return summed_by_rows(dy, inputs)


class CompiledPlain(Differentiable):
    """A compiled kernel that computes what it was compiled from."""

    mode = "compiled"


class CompiledFused(DifferentiableFused):
    """A compiled kernel that stores weights in the case's dtype."""

    mode = "compiled"


class CompiledOnline(OnlineTiles16):
    """A compiled kernel with an online softmax and no derivative."""

    mode = "compiled"
    refusals = {"gradient": "the compiled program is that of inference"}


class CompiledLayer(MultiHeadKernel):
    """A compiled layer that computes what it was compiled from."""

    mode = "compiled"


HONEST: tuple[type[Implementation], ...] = (
    OnlineTiles16,
    OnlineTiles1,
    OnlineTiles64,
    ReversedKeys,
    FlashFused,
    FusedNormalised,
    EagerStored,
    StepByStep,
    ExpBaseTwo,
    MergedChunks,
    WeightsByLogSumExp,
    Float64Inside,
    SequentialSums,
    ScaleOnBothSides,
    NanRows,
    UniformRows,
    Flushed,
    HeadsInside,
    Differentiable,
    DifferentiableFused,
    DifferentiableEager,
    DifferentiableBlocks,
    DifferentiableRecomputed,
    DifferentiableLowest,
    LayerDifferentiable,
    LayerNarrowBias,
    AdditiveDifferentiable,
    ConcatDifferentiable,
    DotDifferentiable,
    MaskedDifferentiable,
    SelfAttentionDifferentiable,
    SelfAttentionDifferentiatedInSteps,
    SelfAttentionOneProduct,
    LayerNormDifferentiable,
    LayerNormUncentred,
    LayerNormChain,
    LayerNormNarrowStatistics,
    LayerNormNarrowSums,
    BatchNormDifferentiable,
    BatchNormUncentred,
    BatchNormChain,
    LayerExact,
    LayerFused,
    LayerEager,
    LayerStepwise,
    LayerScaledScores,
    LayerDividedScores,
    LayerKeysFirst,
    LayerHeadByHead,
    LayerHeadsSummed,
    LayerPackedProjection,
    LayerBiasesAsFeatures,
    LayerKeyBiasLeftOut,
    LayerGroupsTogether,
    LayerOnlineSoftmax,
    LayerFloat64Inside,
    LayerNanRows,
    LayerUniformRows,
    LayerSharedDropout,
    SelfAttentionEager,
    SelfAttentionExact,
    AdditiveExact,
    AdditiveEager,
    AdditiveLoops,
    AdditiveStepwise,
    ConcatExact,
    ConcatEager,
    DotExact,
    DotEager,
    DotScaledQuery,
    MaskedExact,
    MaskedEager,
    MaskedUniform,
    LayerNormTwoPasses,
    LayerNormOnePass,
    LayerNormFolded,
    LayerNormStepwise,
    BatchNormTwoPasses,
    BatchNormFolded,
    BatchNormOnePass,
    BatchNormStepwise,
    CompiledPlain,
    CompiledFused,
    CompiledOnline,
    CompiledLayer,
)
"""Every honest variant, in the order in which they are judged."""
