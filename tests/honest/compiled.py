"""Honest compiled kernels."""

from __future__ import annotations

from attention_conformance.suite.deviations.kernels.gradient import (
    Differentiable,
    DifferentiableFused,
)
from attention_conformance.suite.deviations.kernels.layer import MultiHeadKernel
from tests.honest.attention import OnlineTiles16


class CompiledPlain(Differentiable):
    """A compiled kernel that computes what it was compiled from."""

    mode = "compiled"


class CompiledFused(DifferentiableFused):
    """A compiled kernel that stores weights in the case's dtype."""

    mode = "compiled"


class CompiledOnline(OnlineTiles16):
    """A compiled kernel with an online softmax and no derivative."""

    mode = "compiled"
    refusals = {"gradient": "the compiled program is that of inference"}


class CompiledLayer(MultiHeadKernel):
    """A compiled layer that computes what it was compiled from."""

    mode = "compiled"
