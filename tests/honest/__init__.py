"""Honest variants: right implementations that round differently. None may ever fail.

A module holds the variants of one subject: classes, and rows (`ROWS`). Classes whose names begin with an
underscore are steps that variants share.
"""

from __future__ import annotations

from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.suite.deviations.backend import KernelBackend
from attention_conformance.suite.deviations.kernels import (
    cached,
    centred,
    dropout,
    encoder,
    gradient,
    latent,
    layer,
    layer_gradient,
    merge,
    packed,
    paged,
    paged_write,
    quantized,
    rotary,
    variants,
)
from attention_conformance.suite.spec.modules import classes_in, modules_of

KERNELS: tuple[type[Implementation], ...] = (
    cached.CachedKernel,
    cached.CodedKernel,
    cached.ProjectedKernel,
    centred.CentredEager,
    centred.CentredKeys,
    centred.CentredRestored,
    dropout.Dropping,
    encoder.EncoderDifferentiable,
    encoder.EncoderEager,
    gradient.Differentiable,
    gradient.DifferentiableEager,
    gradient.DifferentiableFused,
    gradient.DifferentiableLowest,
    gradient.DifferentiableRecomputed,
    latent.AbsorbedKernel,
    latent.LatentKernel,
    layer.LayerEager,
    layer.LayerHolding,
    layer_gradient.AdditiveDifferentiable,
    layer_gradient.BatchNormDifferentiable,
    layer_gradient.ConcatDifferentiable,
    layer_gradient.DotDifferentiable,
    layer_gradient.LayerDifferentiable,
    layer_gradient.LayerNormDifferentiable,
    merge.MergeKernel,
    merge.SplitKernel,
    packed.PackedKernel,
    paged.PagedKernel,
    paged_write.PagedWriteKernel,
    quantized.QuantizedKernel,
    quantized.QuantizedWriteKernel,
    rotary.RotaryByTable,
    rotary.RotaryKernel,
    rotary.RotaryTableCast,
    variants.FlashFused,
    variants.MergedChunks,
)
"""Right kernels that faults change."""


HONEST = (
    *(kind for kind in classes_in(__name__, Implementation) if not kind.__name__.startswith("_")),
    *(row for module in modules_of(__name__) for row in getattr(module, "ROWS", ())),
    *KERNELS,
)
"""Every honest variant, in the order in which they are judged."""


def honest(device: str = "cpu") -> Backend:
    """The honest variants as a third-party backend."""
    return KernelBackend("honest", HONEST, device)
