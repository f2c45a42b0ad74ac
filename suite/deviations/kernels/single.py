"""Right layers of one head, and norms, one method a step (see `layer`)."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.deviations.kernels.layer import Heads, LayerCall, LayerKernel
from attention_conformance.suite.spec.operators.norms import BATCH_NORM, LAYER_NORM
from attention_conformance.suite.spec.operators.one_head import ADDITIVE, CONCAT, DOT


class TanhKernel(LayerKernel):
    """Scores that sum the units of tanh(query + key), with weights or without."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        """Returns the units (B, 1, Lq, Lk, U) of every query and key, before the tanh."""
        return self.keep(query[:, :, :, None] + key[:, :, None], "features", call)

    def tanh_units(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        return self.keep(np.tanh(pairs), "scores", call)

    def unit_weights(self, call: LayerCall) -> np.ndarray | None:
        """Returns the weights (U,) of the units; None if all are 1."""
        return None

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        units, weights = self.pairs(query, key, call), self.unit_weights(call)
        units = self.tanh_units(units, call)
        return self.keep(units.sum(-1) if weights is None else units @ weights, "scores", call)


class AdditiveKernel(TanhKernel):
    """Additive attention, with or without projections and a score vector."""

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

    def unit_weights(self, call: LayerCall) -> np.ndarray | None:
        vector = call.parameters.get("score_vector")
        return None if vector is None else self.load(vector, call)


class ConcatKernel(TanhKernel):
    """Concat attention: scores are weight * sum(tanh(scale * (query + key)))."""

    operator = CONCAT

    def scalar_parameter(self, name: str, call: LayerCall) -> np.ndarray:
        """Returns a scalar parameter; 1 if the layer has none of this name."""
        parameter = call.parameters.get(name)
        return np.ones((), call.work) if parameter is None else self.load(parameter, call)

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        pairs = super().pairs(query, key, call)
        return self.keep(pairs * self.scalar_parameter("scale", call), "features", call)

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        scores = super().scores(query, key, call)
        return self.keep(scores * self.scalar_parameter("concat_weight", call), "scores", call)


class DotKernel(LayerKernel):
    """Dot-product attention with or without a learned scale."""

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
    """(x - mean) / sqrt(variance + epsilon) * gain + offset; only the output is rounded."""

    elections = {}
    axes: tuple[int, ...]
    """The axes of (B, L, E) over which mean and variance are taken."""

    def compute(self, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        x = self.load(call.query, call)
        mean, variance = self.moments(x, call)
        y = (x - mean) * self.reciprocal(variance, call)
        return self.mapped(y, call), np.zeros(0)

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        """Returns mean and variance of x (B, L, E), over `axes`, which keep size 1."""
        mean = x.mean(self.axes, keepdims=True)
        return mean, np.square(x - mean).mean(self.axes, keepdims=True)

    def mapped(self, y: np.ndarray, call: LayerCall) -> np.ndarray:
        """Returns the standardised input y times gain plus offset, if the norm has these parameters."""
        parameters = [self.load(call.parameters[n], call) for n in ("gain", "offset")
                 if n in call.parameters]  # fmt: skip
        return y * parameters[0] + parameters[1] if parameters else y


class LayerNormKernel(NormKernel):
    """Layer norm: mean and variance of each token over its features."""

    operator = LAYER_NORM
    axes: tuple[int, ...] = (2,)


class BatchNormKernel(NormKernel):
    """Batch norm: mean and variance of each feature over samples and positions, or running ones."""

    operator = BATCH_NORM
    axes: tuple[int, ...] = (0, 1)

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        if call.training:
            return super().moments(x, call)
        mean, variance = (self.load(call.parameters[n], call) for n in ("mean", "variance"))
        return mean, variance
