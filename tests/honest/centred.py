"""Honest kernels that subtract another constant from the keys than their mean."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.deviations.kernels.attention import Call
from attention_conformance.suite.deviations.kernels.centred import CentredKeys, mean_of
from attention_conformance.suite.deviations.kernels.gradient import Differentiable


class CentredAttended(CentredKeys):
    """The keys lose the mean of those that some row attends, which derivatives take as a constant."""

    elections = Differentiable.elections

    def constant(self, key: np.ndarray, call: Call) -> np.ndarray:
        s = call.sizes
        allowed = self.hide(np.zeros((s.B, s.H, s.Lq, s.Lk)), self.allowed(call), call) == 0
        if call.bias is not None:
            allowed &= ~np.isneginf(call.bias.values)
        seen = allowed.any(-2).reshape(s.B, s.Hkv, s.group, s.Lk, 1).any(2)
        return (
            np.where(seen, key, 0).sum(-2, keepdims=True) / np.maximum(seen.sum(-2), 1)[..., None]
        )

    def uncentred(self, dk: np.ndarray) -> np.ndarray:
        return dk


class CentredByConstant(CentredKeys):
    """The keys lose a constant as large as their mean magnitude, which derivatives take as a constant."""

    def constant(self, key: np.ndarray, call: Call) -> np.ndarray:
        return mean_of(np.abs(key))

    uncentred = CentredAttended.uncentred
