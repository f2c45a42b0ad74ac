"""Faults of a layer of an encoder."""

from __future__ import annotations

from typing import Any

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.encoder import EncoderDifferentiable, EncoderEager, EncoderKernel
from suite.faults.kernels.layer import LayerCall
from suite.faults.kernels.layer_gradient import Arrays
from suite.faults.spread import off
from suite.spec.inputs import Inputs


@fault("values")
class SecondNormIsTheFirst(EncoderKernel):
    """The second norm has gain and offset of the first."""

    def norm(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        return super().norm(x, "norm1", call)


@fault("values")
class NormsAlwaysBehind(EncoderKernel):
    """Norms stand behind the residuals, also where they are asked for before."""

    def compute(self, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        call.__dict__["pre"] = False
        return super().compute(call)


@fault("values")
class ResidualOfWhatIsNormed(EncoderKernel):
    """With norms first the first residual is that of the normed tokens."""

    def attended(self, x: np.ndarray, call: LayerCall) -> np.ndarray:
        attended = super().attended(x, call)
        return attended + x - self.load(call.query, call) if call.pre else attended


@fault("values")
class SecondResidualLeftOut(EncoderKernel):
    """The feed-forward network has no residual."""

    def network(self, y: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().network(y, call) - y


@fault("values")
class GeluByTanh(EncoderKernel):
    """gelu is approximated by a hyperbolic tangent."""

    def gelu(self, h: np.ndarray) -> np.ndarray:
        return h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3))) / 2


@fault("values")
class ReluForGelu(EncoderKernel):
    """The activation is relu, whatever is asked for."""

    def gelu(self, h: np.ndarray) -> np.ndarray:
        return np.maximum(h, 0)


@fault("values")
class EpsilonBehindTheRoot(EncoderKernel):
    """Epsilon is added to the root of the variance."""

    def reciprocal(self, variance: np.ndarray, call: LayerCall) -> np.ndarray:
        return 1 / (np.sqrt(variance) + call.work(call.epsilon))


@fault("values")
class MaskOnceForBoth(EncoderKernel):
    """A mask of pairs is ignored beside padding."""

    def allowed(self, call: LayerCall) -> np.ndarray | None:
        if call.valid is not None:
            return self.padded(call.valid.values, call)
        return super().allowed(call)


@fault("values")
class PaddedRowsAreZeros(EncoderKernel):
    """Tokens that are padding get zeros."""

    def deliver(self, out: np.ndarray, call: LayerCall) -> Any:
        if call.valid is not None:
            out = np.where(call.valid.values[..., None], out, 0)
        return super().deliver(out, call)


@fault("spread")
class HiddenLayerOff(EncoderEager):
    """What the feed-forward network activates is off by 1 % in bfloat16."""

    def activated(self, h: np.ndarray, call: LayerCall) -> np.ndarray:
        return off(super().activated(h, call), call.fmt.name)


@fault("gradients")
class GradientOfTheOtherOffset(EncoderDifferentiable):
    """The offset of the first norm gets the gradient of the second."""

    def gradients(self, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        gradients = super().gradients(arrays, cotangent, inputs)
        return gradients | {"norm1_offset": gradients["norm2_offset"]}


@fault("gradient_spread")
class InnerGradientOff(EncoderDifferentiable):
    """The gradient of the first kernel of the feed-forward network is off by 1 % in bfloat16."""

    numerics: Any = "eager"

    def gradients(self, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        gradients = super().gradients(arrays, cotangent, inputs)
        return gradients | {"linear1_kernel": off(gradients["linear1_kernel"], inputs.dtype.name)}
