"""Right encoder layers in NumPy, one method a step, and one with a backward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import erf

from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.deviations.kernels.layer import LayerCall, MultiHeadKernel
from attention_conformance.suite.deviations.kernels.layer_gradient import Differentiated
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.encoder import ENCODER, FEATURES, PARAMETERS


class EncoderKernel(MultiHeadKernel):
    """Attention and feed-forward network with residuals and norms; only the output is rounded."""

    operator = ENCODER
    features = FEATURES
    parameters = tuple(PARAMETERS)
    dropout = ""
    elections = {
        "fully-masked-row": "zeros",
        "padded-sample": "zeros",
        "fully-masked-row-gradient": "nothing",
    }

    def call_with_flags(self, inputs: Inputs, **flags: Any) -> PreparedCall:
        options = {name: inputs.case.option(name) for name in ("pre", "activation")}
        return super().call_with_flags(inputs, **options, **flags)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        return {}

    def compute(self, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        """Returns the output (B, L, E), and an empty array in place of weights."""
        x = self.load(call.query, call)
        if call.pre:
            y = self.attention_residual(
                x, self.attention_output(self.norm(x, "norm1", call), call), call
            )
            out = self.network_residual(y, self.network(self.norm(y, "norm2", call), call), call)
        else:
            y = self.norm(
                self.attention_residual(x, self.attention_output(x, call), call), "norm1", call
            )
            out = self.norm(self.network_residual(y, self.network(y, call), call), "norm2", call)
        return out, np.zeros(0)

    def attention_residual(
        self, x: np.ndarray, attended: np.ndarray, call: LayerCall
    ) -> np.ndarray:
        """Returns the tokens x plus the output of attention."""
        return self.keep(x + attended, "features", call)

    def network_residual(self, y: np.ndarray, network: np.ndarray, call: LayerCall) -> np.ndarray:
        """Returns the output `y` of the first residual plus the output of the network."""
        return self.keep(y + network, "features", call)

    def norm(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        """Returns the layer norm `name`, "norm1" or "norm2", of x over the features."""
        gain, offset = (self.parameter(f"{name}_{part}", call) for part in ("gain", "offset"))
        return self.keep(self.standardised(x, call) * gain + offset, "features", call)

    def attention_output(self, x: np.ndarray, call: LayerCall) -> np.ndarray:
        """Returns multi-head self-attention of x, with its output projection."""
        query, key, value = (self.projected(x, n, call) for n in ("query", "key", "value"))
        hidden = self.hide(self.scores(query, key, call), self.allowed(call), call)
        attended = self.attend(self.weights(hidden, call), self.visible(value, hidden), call)
        return self.output(self.merge(attended, call), call)

    def network(self, y: np.ndarray, call: LayerCall) -> np.ndarray:
        """Returns the feed-forward network of y: linear, activation, linear."""
        h = self.linear(y, "linear1", call)
        return self.linear(self.keep(self.activated(h, call), "features", call), "linear2", call)

    def linear(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        return self.keep(
            x @ self.parameter(f"{name}_kernel", call) + self.parameter(f"{name}_bias", call),
            "features", call,
        )  # fmt: skip

    def activated(self, h: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.maximum(h, 0) if call.activation == "relu" else self.gelu(h)

    def gelu(self, h: np.ndarray) -> np.ndarray:
        return h * (1 + erf(h / np.sqrt(h.dtype.type(2)))) / 2

    def parameter(self, name: str, call: LayerCall) -> np.ndarray:
        """Returns a parameter of the layer in working precision."""
        return self.load(call.parameters[name], call)


class EncoderEager(EncoderKernel):
    """Scores, weights and activations are rounded to the case's dtype."""

    numerics = "eager"
    stores = ("scores", "weights", "features")


class EncoderDifferentiable(Differentiated, EncoderKernel):
    """The encoder layer with the reference's gradients in float64, rounded once."""
