"""Kernels that subtract a constant from the keys, such as their mean (K smoothing).

Source: Zhang et al., SageAttention, arXiv 2410.02367 (2024), section 4.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.suite.deviations.kernels.attention import Call
from attention_conformance.suite.deviations.kernels.gradient import (
    Differentiable,
    DifferentiableEager,
)
from attention_conformance.suite.spec.dtypes import DTYPES, round_to

ALL_KEYS = {"nan-in-masked-key": "leaks", "nan-in-masked-key-gradient": "leaks"}
"""Elections of a kernel whose constant contains hidden keys."""


class CentredKeys(Differentiable):
    """The keys lose the mean of all keys, and are stored in the case's dtype. With a cap, with sinks and
    for a log-sum-exp, which a shift of the scores changes, they keep it."""

    rounding = DeclaredRounding(centred_keys=tuple(DTYPES))
    elections: dict[str, str | Mapping[str, str]] = {**Differentiable.elections, **ALL_KEYS}

    def centres(self, call: Call) -> bool:
        return call.softcap is None and call.sinks is None and not call.lse

    def constant(self, key: np.ndarray, call: Call) -> np.ndarray:
        """The constant (B, Hkv, 1, D) of keys in working precision."""
        return mean_of(key)

    def stored(self, key: np.ndarray, call: Call) -> np.ndarray:
        """Centred keys as they are stored."""
        return round_to(key, call.fmt)

    def less_constant(self, key: Rounded, call: Call) -> Rounded:
        loaded = self.load(key, call)
        return Rounded(self.stored(loaded - self.constant(loaded, call), call), key.fmt)

    def centred(self, call: Call) -> Call:
        if not self.centres(call):
            return call
        return replace(call, key=self.less_constant(call.key, call))

    def final(self, call: Call) -> np.ndarray:
        return super().final(self.centred(call))

    def output_tangent(self, call: Call, tangents: Mapping[str, Rounded]) -> np.ndarray:
        if self.centres(call):
            tangents = {**tangents, "key": self.less_constant(tangents["key"], call)}
        return super().output_tangent(self.centred(call), tangents)

    def backward(
        self, call: Call, cotangent: np.ndarray, wrt: tuple[str, ...]
    ) -> dict[str, np.ndarray | None]:
        gradients = super().backward(self.centred(call), cotangent, wrt)
        dk = gradients["key"]
        if dk is not None and self.centres(call):
            gradients["key"] = self.uncentred(dk)
        return gradients

    def uncentred(self, dk: np.ndarray) -> np.ndarray:
        """The gradient of the keys, for that of centred keys."""
        return dk - mean_of(dk)


class CentredEager(CentredKeys, DifferentiableEager):
    """The keys lose their mean, and scores and weights are stored in the case's dtype."""

    elections = {**DifferentiableEager.elections, **ALL_KEYS}


class CentredRestored(CentredKeys):
    """What the scores lose by the mean of the keys is added to them again."""

    def centres(self, call: Call) -> bool:
        return False

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        constant = mean_of(key)
        lost = query @ constant.swapaxes(-1, -2) * call.work(self.factor(call))
        return super().scores(query, key - constant, call) + lost


def mean_of(x: np.ndarray) -> np.ndarray:
    """The mean over the keys, (..., 1, D); 0 without keys."""
    total: np.ndarray = x.sum(-2, keepdims=True) / max(x.shape[-2], 1)
    return total
