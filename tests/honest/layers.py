"""Honest variants of multi-head layers."""

from __future__ import annotations

import math

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.kernels.layer import (
    Heads,
    LayerCall,
    LayerEager,
    MultiHeadKernel,
)


class LayerFused(MultiHeadKernel):
    """Projections stored, a fused kernel between them."""

    numerics = "fused"
    stores = ("features", "weights")


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


class LayerDividedScores(MultiHeadKernel):
    """The scores are divided by the root of the size."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return query @ key.swapaxes(-1, -2) / call.work(math.sqrt(call.sizes.D))


class LayerHeadsSummed(MultiHeadKernel):
    """Every head is projected to the output by its own kernel, and the outputs are summed."""

    refusals = MultiHeadKernel.refusals | {"one-head": "sums projected heads"}

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
            self.normed(self.split(part, kernel.shape[1], call), name, call)
            for name, part, kernel in zip(names, np.split(packed, ends, -1), kernels, strict=True)
        )
        return q, self.expand(k, call), self.expand(v, call)


class LayerBiasesAsFeatures(LayerFused):
    """Biases are a row more of the kernels, for a feature that is one."""

    refusals = LayerFused.refusals | {"one-head": "takes an output kernel"}

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        kernel = self.kernel(name, call)
        projection = self.extended(x, kernel.reshape(len(kernel), -1), name, call)
        return self.split(projection, kernel.shape[1], call)

    def output(self, merged: np.ndarray, call: LayerCall) -> np.ndarray:
        kernel = self.kernel("output", call)
        return self.extended(merged, kernel.reshape(-1, kernel.shape[-1]), "output", call)

    def extended(self, x: np.ndarray, kernel: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        bias = self.bias(name, call)
        if bias is not None:
            x = np.concatenate([x, np.ones_like(x[..., :1])], -1)
            kernel = np.concatenate([kernel, bias[None]])
        return self.keep(x @ kernel, "features", call)


class LayerKeyBiasLeftOut(MultiHeadKernel):
    """The bias of the keys, which adds one number to all scores of a row, is left out."""

    features = MultiHeadKernel.features - {"qk-norm"}

    def bias(self, name: str, call: LayerCall) -> np.ndarray | None:
        return None if name == "key" else super().bias(name, call)


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


class LayerFloat64Inside(MultiHeadKernel):
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
