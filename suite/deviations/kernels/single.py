"""Honest layers of one head, and norms (see `suite.deviations.kernels.layer`)."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.deviations.kernels.layer import Heads, LayerCall, LayerKernel
from attention_conformance.suite.spec.operators.additive import ADDITIVE
from attention_conformance.suite.spec.operators.concat import CONCAT
from attention_conformance.suite.spec.operators.dot import DOT
from attention_conformance.suite.spec.operators.norms import BATCH_NORM, LAYER_NORM


class TanhKernel(LayerKernel):
    """Scores that weight the units of tanh(query + key)."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        """(B, 1, Lq, Lk, U) before the tanh."""
        return self.keep(query[:, :, :, None] + key[:, :, None], "features", call)

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        return self.keep(np.tanh(pairs), "scores", call)

    def vector(self, call: LayerCall) -> np.ndarray | None:
        """What the units are weighted with; None for ones."""
        return None

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        active, vector = self.active(self.pairs(query, key, call), call), self.vector(call)
        return self.keep(active.sum(-1) if vector is None else active @ vector, "scores", call)


class AdditiveKernel(TanhKernel):
    """Additive attention, with projections and a score vector or without, for many queries or one."""

    operator = ADDITIVE
    dropout = "elements"
    elections = {
        "padded-sample": "zeros",
        "padded-sample-gradient": "nothing",
        "returned-weights": "before-dropout",
    }

    def heads(self, call: LayerCall) -> Heads:
        q, k, v = super().heads(call)
        return self.projected(q, "query", call), self.projected(k, "key", call), v

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        kernel = call.parameters.get(f"{name}_kernel")
        return x if kernel is None else self.keep(x @ self.load(kernel, call), "features", call)

    def vector(self, call: LayerCall) -> np.ndarray | None:
        vector = call.parameters.get("score_vector")
        return None if vector is None else self.load(vector, call)


class ConcatKernel(TanhKernel):
    """Concat attention: scores c sum tanh(s (query + key))."""

    operator = CONCAT

    def number(self, name: str, call: LayerCall) -> np.ndarray:
        """A scalar parameter, 1 where absent."""
        parameter = call.parameters.get(name)
        return np.ones((), call.work) if parameter is None else self.load(parameter, call)

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        pairs = super().pairs(query, key, call)
        return self.keep(pairs * self.number("scale", call), "features", call)

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        scores = super().scores(query, key, call)
        return self.keep(scores * self.number("concat_weight", call), "scores", call)


class DotKernel(LayerKernel):
    """Dot-product attention with a learned scale, or none."""

    operator = DOT
    dropout = "elements"
    elections = AdditiveKernel.elections

    def scale(self, call: LayerCall) -> np.ndarray:
        scale = call.parameters.get("scale")
        return np.ones((), call.work) if scale is None else self.load(scale, call)

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        product = self.keep(query @ key.swapaxes(-1, -2), "scores", call)
        return self.keep(product * self.scale(call), "scores", call)


class NormKernel(LayerKernel):
    """(x - mean) / sqrt(variance + epsilon) gain + offset; everything but the answer in full."""

    elections = {}
    axes: tuple[int, ...]
    """The axes of (B, L, E) that mean and variance are taken over."""

    def compute(self, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        x = self.load(call.query, call)
        mean, variance = self.moments(x, call)
        y = (x - mean) * self.reciprocal(variance, call)
        return self.mapped(y, call), np.zeros(0)

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        mean = x.mean(self.axes, keepdims=True)
        return mean, np.square(x - mean).mean(self.axes, keepdims=True)

    def mapped(self, y: np.ndarray, call: LayerCall) -> np.ndarray:
        parameters = [self.load(call.parameters[n], call) for n in ("gain", "offset")
                 if n in call.parameters]  # fmt: skip
        return y * parameters[0] + parameters[1] if parameters else y


class LayerNormKernel(NormKernel):
    """Layer norm: every token over its features."""

    operator = LAYER_NORM
    axes: tuple[int, ...] = (2,)


class BatchNormKernel(NormKernel):
    """Batch norm: every feature over samples and positions, or by what was learned."""

    operator = BATCH_NORM
    axes: tuple[int, ...] = (0, 1)

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        if call.training:
            return super().moments(x, call)
        mean, variance = (self.load(call.parameters[n], call) for n in ("mean", "variance"))
        return mean, variance
