"""Faults of a constant that is subtracted from the keys."""

from __future__ import annotations

import numpy as np

from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call
from attention_conformance.suite.faults.kernels.centred import (
    CentredEager,
    CentredKeys,
    CentredRestored,
    mean_of,
)

FAMILY = "scores"


@fault(
    "values",
    "`key.mean(-1)`; the mean of the keys over the sequence is `key.mean(-2, keepdim=True)`",
)
class CentredOverComponents(CentredKeys):
    """Every key loses the mean of its own components."""

    def constant(self, key: np.ndarray, call: Call) -> np.ndarray:
        return key.mean(-1, keepdims=True)


@fault("values", "the mean is taken tile by tile; all keys of a row lose one constant")
class CentredByTile(CentredKeys):
    """Every tile of eight keys loses its own mean."""

    def constant(self, key: np.ndarray, call: Call) -> np.ndarray:
        constant = np.empty_like(key)
        for start in range(0, key.shape[-2], 8):
            tile = slice(start, start + 8)
            constant[..., tile, :] = mean_of(key[..., tile, :])
        return constant


@fault("values", "a running mean of the keys; all keys of a row lose one constant")
class CentredSoFar(CentredKeys):
    """Every key loses the mean of the keys up to itself."""

    def constant(self, key: np.ndarray, call: Call) -> np.ndarray:
        counts = np.arange(1, key.shape[-2] + 1, dtype=key.dtype)[:, None]
        return np.cumsum(key, -2) / counts


@fault("values", "`value - value.mean(-2)`; only keys may be centred")
class CentredValues(CentredKeys):
    """The values lose their mean, too, and the output does not get it back."""

    def compute(self, call: Call) -> np.ndarray:
        value = self.load(call.value, call)
        return super().compute(call) - mean_of(self.expand(value, call))


@fault("values", "the cap and the sinks see scores less `q @ mean`; add it again before them")
class CentredBeforeCap(CentredKeys):
    """The keys lose their mean in spite of a softcap and of sinks."""

    def centres(self, call: Call) -> bool:
        return not call.lse


@fault("values", "`lse` of centred scores; add `scale * (q @ mean)`", family="lse")
class CentredLogSumExp(CentredKeys):
    """The log-sum-exp is that of scores of centred keys."""

    def centres(self, call: Call) -> bool:
        return call.softcap is None and call.sinks is None


@fault(
    "gradients",
    "`(q @ mean).detach()`; its sum of `ds` over the keys is not 0 behind a cap",
    family="gradient",
)
class RestoredConstantDetached(CentredRestored):
    """What is added to the scores again has no part in the gradient of the queries."""

    def query_gradient(self, dt: np.ndarray, key: np.ndarray, factor: float) -> np.ndarray:
        return super().query_gradient(dt, key - mean_of(key), factor)


@fault(
    "gradients",
    "`dk - dk.mean(-1)`; of `k - k.mean(-2)` the gradient is `dk - dk.mean(-2)`",
    family="gradient",
)
class CentredGradientOverComponents(CentredKeys):
    """The gradient of a key loses the mean of its own components."""

    def uncentred(self, dk: np.ndarray) -> np.ndarray:
        return dk - dk.mean(-1, keepdims=True)


@fault("values", "queries are centred, too, which moves the scores of a row by different numbers")
class CentredTwice(CentredEager):
    """Queries and keys lose their means."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        query = query - mean_of(query) if self.centres(call) else query
        return super().scores(query, key, call)


@fault("gradients", "keys are centred without the claim `centred_keys`", family="numerics")
class CentredUndeclared(CentredKeys):
    """Gradients that are exactly zero are not, because of a constant that is not declared."""

    rounding = DeclaredRounding()

    def stored(self, key: np.ndarray, call: Call) -> np.ndarray:
        return key
