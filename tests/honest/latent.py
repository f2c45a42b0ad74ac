"""Honest variants of latent attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.suite.deviations.kernels.latent import (
    AbsorbedKernel,
    Arrays,
    LatentKernel,
)
from tests.honest.rows import variant


class LatentCodesStored(LatentKernel):
    """Unabsorbed, with decoded latents and weights in the dtype of the case."""

    numerics = "fused"
    stores = ("keys", "latents", "weights")

    def load_arrays(self, arrays: Mapping[str, Rounded]) -> Arrays:
        x, fmt = super().load_arrays(arrays), arrays["query"].fmt
        assert fmt is not None
        return {**x, "latent": self.narrowed(x["latent"], "latents", fmt)}


def form(x: Arrays) -> type[LatentKernel]:
    """Keys and values are formed, but for a single query latents are attended."""
    return AbsorbedKernel if x["query"].shape[2] == 1 else LatentKernel


def of_form(step: str, place: int) -> Callable[..., Any]:
    """A step of the form of the arrays, which stand at a place among its arguments."""
    return lambda right, *given: getattr(form(given[place]), step)(right.__self__, *given)


ROWS = (
    variant("latent-eager", LatentKernel, numerics="eager", stores=("keys", "scores", "weights")),
    # as servers have it
    variant("latent-served", AbsorbedKernel, rounding=DeclaredRounding(),
        stores=("keys", "queries", "average"), output=of_form("output", 1),
        **{step: of_form(step, 0) for step in ("queries", "keys", "values", "gradients")}),
)  # fmt: skip
