"""An honest dropout of the weights of plain attention, forward and backward, one method a step.

Patterns are drawn from a seed; the backward pass draws that of the forward pass again, as fused kernels
do (Dao et al., FlashAttention, 2022, algorithm 4).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.deviations.kernels.attention import Call
from attention_conformance.suite.deviations.kernels.dropping import Drops
from attention_conformance.suite.deviations.kernels.gradient import Differentiable
from attention_conformance.suite.spec.inputs import Inputs


class Dropping(Drops, Differentiable):
    """Weights are dropped behind the softmax."""

    dropout = "elements"

    def prepare(self, inputs: Inputs) -> PreparedCall:
        prepared = super().prepare(inputs)
        rate = self.asked_rate(inputs)
        if not rate:
            return prepared
        own = {"rate": rate, "seed": inputs.dropout_seed}
        return replace(prepared, arguments=prepared.arguments | own)

    def asked_rate(self, inputs: Inputs) -> float:
        return inputs.rate if inputs.training else 0.0

    def validate(self, call: Call) -> None:
        super().validate(call)
        self.validate_rate(call.rate)

    def factor_of(self, shape: tuple[int, ...], call: Call) -> np.ndarray:
        """What weights are multiplied by: 0, or 1 / (1 - rate)."""
        if not call.rate:
            return np.ones(shape, call.work)
        kept = np.broadcast_to(self.pattern(shape, call.rate, call), shape)
        return np.where(kept, call.work(self.rescale(call.rate)), call.work(0))

    def backward_factor(self, shape: tuple[int, ...], call: Call) -> np.ndarray:
        return self.factor_of(shape, call)

    def dropped(self, weights: np.ndarray, call: Call) -> np.ndarray:
        return weights * self.factor_of(weights.shape, call)

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        return self.dropped(self.weights(scores, call), call) @ self.visible(value, scores)

    def weight_gradient(self, cotangent: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        gradient = super().weight_gradient(cotangent, value, call)
        return gradient * self.backward_factor(gradient.shape, call)

    def value_gradient(self, weights: np.ndarray, cotangent: np.ndarray, call: Call) -> np.ndarray:
        factor = self.backward_factor(weights.shape, call)
        return super().value_gradient(weights * factor, cotangent, call)
