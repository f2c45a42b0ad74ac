"""Faults of a layer of an encoder."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.encoder import (
    EncoderDifferentiable,
    EncoderEager,
    EncoderKernel,
)
from attention_conformance.suite.faults.kernels.layer import LayerCall
from attention_conformance.suite.faults.kernels.layer_gradient import Arrays
from attention_conformance.suite.faults.spread import off
from attention_conformance.suite.spec.inputs import Inputs

FAMILY = "layer"


@fault("values", "`self.norm1` twice; the second norm is `self.norm2`")
class SecondNormIsTheFirst(EncoderKernel):
    """The second norm has gain and offset of the first."""

    def norm(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        return super().norm(x, "norm1", call)


@fault("values", "`norm_first` is accepted and not used; then it is `x + attend(norm(x))`")
class NormsAlwaysBehind(EncoderKernel):
    """Norms come after the residuals, also if they are asked for first."""

    def compute(self, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        call.__dict__["pre"] = False
        return super().compute(call)


@fault("values", "`x = norm(x)`, then `x + attend(x)`; it is `x + attend(norm(x))`")
class ResidualOfWhatIsNormed(EncoderKernel):
    """With norms first, the residual adds the normed tokens, not the tokens."""

    def attended(self, x: np.ndarray, call: LayerCall) -> np.ndarray:
        attended = super().attended(x, call)
        return attended + x - self.load(call.query, call) if call.pre else attended


@fault("values", "`y = network(y)`; it is `y + network(y)`")
class SecondResidualLeftOut(EncoderKernel):
    """The feed-forward network has no residual."""

    def network(self, y: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().network(y, call) - y


@fault("values", '`F.gelu(h, approximate="tanh")`; the exact one has `erf`', family="numerics")
class GeluByTanh(EncoderKernel):
    """gelu is approximated by a hyperbolic tangent."""

    def gelu(self, h: np.ndarray) -> np.ndarray:
        return h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3))) / 2


@fault("values", "`F.relu(h)` whatever `activation` says")
class ReluForGelu(EncoderKernel):
    """The activation is relu, whatever is asked for."""

    def gelu(self, h: np.ndarray) -> np.ndarray:
        return np.maximum(h, 0)


@fault("values", "`(x - mean) / (sqrt(var) + eps)`; it is `(x - mean) / sqrt(var + eps)`")
class EpsilonBehindTheRoot(EncoderKernel):
    """A norm adds epsilon to the root of the variance, not to the variance."""

    def reciprocal(self, variance: np.ndarray, call: LayerCall) -> np.ndarray:
        return 1 / (np.sqrt(variance) + call.work(call.epsilon))


@fault(
    "values",
    "`src_key_padding_mask` replaces `src_mask`; both apply: `mask & valid`",
    family="mask",
)
class MaskOnceForBoth(EncoderKernel):
    """Beside padding a mask of queries and keys has no effect."""

    def allowed(self, call: LayerCall) -> np.ndarray | None:
        if call.valid is not None:
            return self.padded(call.valid.values, call)
        return super().allowed(call)


@fault(
    "values", "`out.masked_fill(padding, 0)`; padded tokens are answered like others", family="mask"
)
class PaddedRowsAreZeros(EncoderKernel):
    """Tokens that are padding get zeros, not an answer."""

    def deliver(self, out: np.ndarray, call: LayerCall) -> Any:
        if call.valid is not None:
            out = np.where(call.valid.values[..., None], out, 0)
        return super().deliver(out, call)


@fault(
    "spread",
    "a factor on the bfloat16 path alone, as a constant with two digits",
    family="numerics",
)
class HiddenLayerOff(EncoderEager):
    """In bfloat16 the hidden layer of the network is 1 % too large."""

    def activated(self, h: np.ndarray, call: LayerCall) -> np.ndarray:
        return off(super().activated(h, call), call.fmt.name)


@fault(
    "gradients",
    "the gradients of two norms are returned in a wrong order: `norm1.bias` has its own",
    family="gradient",
)
class GradientOfTheOtherOffset(EncoderDifferentiable):
    """The offset of the first norm gets the gradient of the second."""

    def gradients(self, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        gradients = super().gradients(arrays, cotangent, inputs)
        return gradients | {"norm1_offset": gradients["norm2_offset"]}


@fault(
    "gradient_spread",
    "a factor on the bfloat16 path alone, as a constant with two digits",
    family="gradient",
)
class InnerGradientOff(EncoderDifferentiable):
    """In bfloat16 the gradient of the network's first kernel is 1 % too large."""

    numerics: Any = "eager"

    def gradients(self, arrays: Arrays, cotangent: np.ndarray, inputs: Inputs) -> Arrays:
        gradients = super().gradients(arrays, cotangent, inputs)
        return gradients | {"linear1_kernel": off(gradients["linear1_kernel"], inputs.dtype.name)}
