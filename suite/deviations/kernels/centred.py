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
"""Elections of a kernel whose mean counts masked keys, too."""


class CentredKeys(Differentiable):
    """The mean of all keys is subtracted from the keys, and the difference rounded to the case's dtype.
    With a softcap, sinks or a log-sum-exp nothing is subtracted, because a shift of the scores would
    change the answer."""

    rounding = DeclaredRounding(centred_keys=tuple(DTYPES))
    elections: dict[str, str | Mapping[str, str]] = {**Differentiable.elections, **ALL_KEYS}

    def centres_keys(self, call: Call) -> bool:
        """Returns True if a constant is subtracted from the keys of the call."""
        return call.softcap is None and call.sinks is None and not call.lse

    def constant(self, key: np.ndarray, call: Call) -> np.ndarray:
        """Returns the constant (B, Hkv, 1, D) that is subtracted from the keys."""
        return mean_of(key)

    def stored(self, key: np.ndarray, call: Call) -> np.ndarray:
        """Returns centred keys, rounded to the case's dtype."""
        return round_to(key, call.fmt)

    def minus_constant(self, key: Rounded, call: Call) -> Rounded:
        loaded = self.load(key, call)
        return Rounded(self.stored(loaded - self.constant(loaded, call), call), key.fmt)

    def with_centred_keys(self, call: Call) -> Call:
        """Returns the call with centred keys; the call itself if nothing is subtracted."""
        if not self.centres_keys(call):
            return call
        return replace(call, key=self.minus_constant(call.key, call))

    def final_scores(self, call: Call) -> np.ndarray:
        return super().final_scores(self.with_centred_keys(call))

    def output_tangent(self, call: Call, tangents: Mapping[str, Rounded]) -> np.ndarray:
        if self.centres_keys(call):
            tangents = {**tangents, "key": self.minus_constant(tangents["key"], call)}
        return super().output_tangent(self.with_centred_keys(call), tangents)

    def backward(
        self, call: Call, cotangent: np.ndarray, wrt: tuple[str, ...]
    ) -> dict[str, np.ndarray | None]:
        gradients = super().backward(self.with_centred_keys(call), cotangent, wrt)
        dk = gradients["key"]
        if dk is not None and self.centres_keys(call):
            gradients["key"] = self.uncentred(dk)
        return gradients

    def uncentred(self, dk: np.ndarray) -> np.ndarray:
        """Returns the gradient of the keys from the gradient `dk` of the centred keys."""
        return dk - mean_of(dk)


class CentredEager(CentredKeys, DifferentiableEager):
    """Keys are centred; scores and weights are rounded to the case's dtype."""

    elections = {**DifferentiableEager.elections, **ALL_KEYS}


class CentredRestored(CentredKeys):
    """Keys are centred, and the product of queries and mean is added to the scores again."""

    def centres_keys(self, call: Call) -> bool:
        return False

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        constant = mean_of(key)
        mean_scores = query @ constant.swapaxes(-1, -2) * call.work(self.factor(call))
        return super().scores(query, key - constant, call) + mean_scores


def mean_of(x: np.ndarray) -> np.ndarray:
    """Returns the mean (..., 1, D) over the keys of x (..., Lk, D); 0 without keys."""
    total: np.ndarray = x.sum(-2, keepdims=True) / max(x.shape[-2], 1)
    return total
