"""Honest variants of multi-head layers."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.deviations.kernels.layer import (
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

    def returned_weights(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.returned != "average":
            return weights
        total = np.zeros_like(weights[:, 0])
        for h in range(weights.shape[1]):
            total = self.keep(total + weights[:, h], "steps", call)
        return total / call.work(weights.shape[1])


class LayerKeyBiasLeftOut(MultiHeadKernel):
    """The bias of the keys, which adds one number to all scores of a row, is left out."""

    features = MultiHeadKernel.features - {"qk-norm"}

    def bias(self, name: str, call: LayerCall) -> np.ndarray | None:
        return None if name == "key" else super().bias(name, call)


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
