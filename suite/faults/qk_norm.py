"""Faults of multi-head attention whose queries and keys are normalised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.layer import LayerCall, MultiHeadKernel
from attention_conformance.suite.faults.kernels.layer_gradient import LayerDifferentiable

FAMILY = "layer"


@fault("values", "`q = norm_q(q)` without `k = norm_k(k)`")
class QueriesAloneNormalised(MultiHeadKernel):
    """Queries are normalised, keys are not."""

    def normed(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        return super().normed(x, name, call) if name == "query" else x


@fault(
    "values",
    "norm of (H, D) together, or before the split into heads; each head by itself, `dim=-1`",
)
class NormOfAllHeads(MultiHeadKernel):
    """The norm of queries and keys takes mean and variance over the features of all heads."""

    normed_axes = (1, 3)


@fault("values", "`RMSNorm` in place of `LayerNorm`; subtract the mean")
class NormWithoutMean(MultiHeadKernel):
    """The norm of queries and keys does not subtract the mean."""

    def level(self, x: np.ndarray) -> np.ndarray:
        return np.zeros_like(x)


@fault("values", "`norm(k)` without `* gain_k`")
class GainOfTheKeysForgotten(MultiHeadKernel):
    """Keys are normalised, but not multiplied by their gain."""

    def gain(self, name: str, call: LayerCall) -> np.ndarray | None:
        gain = super().gain(name, call)
        return np.ones_like(gain) if name == "key" and gain is not None else gain


@fault(
    "values", "`norm(q * scale)`, which loses the scale; it is `norm(q) * scale`", family="scale"
)
class QueriesScaledBeforeTheirNorm(MultiHeadKernel):
    """Queries are scaled before they are normalised, which takes the scale away again."""

    def normed(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        if name == "query" and self.gain(name, call) is not None:
            return super().normed(x, name, call) * call.work(np.sqrt(call.sizes.D))
        return super().normed(x, name, call)


@fault("values", "`norm(x @ w) + b`; it is `norm(x @ w + b)`")
class NormBeforeTheBias(MultiHeadKernel):
    """Biases of the projections are added after the norm of queries and keys, not before."""

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        normalises = self.gain(name, call) is not None
        return super().projected(x, name, _without_biases(call) if normalises else call)

    def normed(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        y, bias = super().normed(x, name, call), self.bias(name, call)
        if bias is None or self.gain(name, call) is None:
            return y
        return y + bias.reshape(-1, 1, y.shape[-1])


@fault("values", "`rsqrt(var)`; it is `rsqrt(var + eps)`")
class NothingAddedToTheVariance(MultiHeadKernel):
    """The norm of queries and keys leaves out epsilon."""

    def reciprocal(self, variance: np.ndarray, call: LayerCall) -> np.ndarray:
        return 1 / np.sqrt(variance)


@fault(
    "gradients",
    "`gain.detach()`, or no gradient for it in backward; use `dgain = (dy * normed).sum(...)`",
    family="gradient",
)
class GainsTakenForConstants(LayerDifferentiable):
    """The gains of the norms of queries and keys get no gradient."""

    def gradients(self, arrays, cotangent, inputs):
        gradients = super().gradients(arrays, cotangent, inputs)
        return gradients | {n: 0 * x for n, x in gradients.items() if n.endswith("gain")}


def _without_biases(call: LayerCall) -> LayerCall:
    kept = {n: a for n, a in call.parameters.items() if not n.endswith("_bias")}
    return replace(call, parameters=kept)
