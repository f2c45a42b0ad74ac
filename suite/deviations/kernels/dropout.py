"""A right attention kernel with dropout of the weights, forward and backward, one method a step.

The pattern is drawn from a seed; the backward pass draws the same pattern again, as fused kernels
do (Dao et al., FlashAttention, 2022, algorithm 4).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.deviations.kernels.attention import Call
from attention_conformance.suite.deviations.kernels.call import DropoutSteps
from attention_conformance.suite.deviations.kernels.gradient import Differentiable
from attention_conformance.suite.spec.inputs import Inputs


class Dropping(DropoutSteps, Differentiable):
    """Weights are dropped after the softmax."""

    dropout = "elements"

    def prepare(self, inputs: Inputs) -> PreparedCall:
        prepared = super().prepare(inputs)
        rate = self.applied_rate(inputs)
        if not rate:
            return prepared
        dropout = {"rate": rate, "seed": inputs.dropout_seed}
        return replace(prepared, arguments=prepared.arguments | dropout)

    def applied_rate(self, inputs: Inputs) -> float:
        """Returns the dropout rate of the call: 0 in evaluation."""
        return inputs.rate if inputs.training else 0.0

    def validate(self, call: Call) -> None:
        super().validate(call)
        self.validate_rate(call.rate)

    def dropout_factors(self, shape: tuple[int, ...], call: Call) -> np.ndarray:
        """Returns the factors of the weights, in the given shape: 0, or 1 / (1 - rate)."""
        if not call.rate:
            return np.ones(shape, call.work)
        is_kept = np.broadcast_to(self.pattern(shape, call.rate, call), shape)
        return np.where(is_kept, call.work(self.rescale(call.rate)), call.work(0))

    def backward_dropout_factors(self, shape: tuple[int, ...], call: Call) -> np.ndarray:
        return self.dropout_factors(shape, call)

    def dropped(self, weights: np.ndarray, call: Call) -> np.ndarray:
        return weights * self.dropout_factors(weights.shape, call)

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        return self.dropped(self.weights(scores, call), call) @ self.visible(value, scores)

    def weight_gradient(self, cotangent: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        gradient = super().weight_gradient(cotangent, value, call)
        return gradient * self.backward_dropout_factors(gradient.shape, call)

    def value_gradient(self, weights: np.ndarray, cotangent: np.ndarray, call: Call) -> np.ndarray:
        factor = self.backward_dropout_factors(weights.shape, call)
        return super().value_gradient(weights * factor, cotangent, call)
