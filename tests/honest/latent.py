"""Honest variants of latent attention."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.suite.deviations.kernels.attention import Call
from attention_conformance.suite.deviations.kernels.latent import (
    AbsorbedKernel,
    Arrays,
    LatentKernel,
)
from attention_conformance.suite.spec.dtypes import DType


class LatentCodesStored(LatentKernel):
    """Unabsorbed, with decoded latents and weights in the dtype of the case."""

    numerics = "fused"
    stores = ("keys", "latents", "weights")

    def load_arrays(self, arrays: Mapping[str, Rounded]) -> Arrays:
        x, fmt = super().load_arrays(arrays), arrays["query"].fmt
        assert fmt is not None
        return {**x, "latent": self.narrowed(x["latent"], "latents", fmt)}


class LatentEager(LatentKernel):
    """Unabsorbed, with scores and weights in the dtype of the case."""

    numerics = "eager"
    stores = ("keys", "scores", "weights")


class LatentServed(LatentKernel):
    """As servers have it: keys and values formed, but for a single query latents attended."""

    rounding = DeclaredRounding()
    stores = ("keys", "queries", "average")

    def queries(self, x: Arrays, fmt: DType) -> np.ndarray:
        return self.form(x).queries(self, x, fmt)

    def keys(self, x: Arrays, fmt: DType) -> np.ndarray:
        return self.form(x).keys(self, x, fmt)

    def values(self, x: Arrays, fmt: DType) -> np.ndarray:
        return self.form(x).values(self, x, fmt)

    def output(self, average: np.ndarray, x: Arrays, fmt: DType) -> np.ndarray:
        return self.form(x).output(self, average, x, fmt)

    def gradients(self, x: Arrays, call: Call, cotangent: np.ndarray) -> dict[str, np.ndarray]:
        return self.form(x).gradients(self, x, call, cotangent)

    absorbed = AbsorbedKernel.absorbed

    def form(self, x: Arrays) -> type[LatentKernel]:
        return AbsorbedKernel if x["query"].shape[2] == 1 else LatentKernel
