"""Textbook layers, written once in operations that all frameworks have (`Operations`)."""

from __future__ import annotations

from backends.protocol import Backend, Implementation
from backends.textbook.cached import GrowingCache, SlotCache
from backends.textbook.encoder import TextbookEncoder
from backends.textbook.gated import GatedHeads
from backends.textbook.latent import LatentAbsorbed, LatentServed, LatentUnabsorbed
from backends.textbook.layer import Numerics, Operations, Textbook
from backends.textbook.merge import MergeAtOnce, MergeInTurn
from backends.textbook.multi_head import PackedHeads, PerHead, SingleSample
from backends.textbook.norms import TextbookBatchNorm, TextbookLayerNorm
from backends.textbook.one_head import (
    Additive,
    Luong,
    MaskedInfinity,
    MaskedLarge,
    SelfAttention,
)
from backends.textbook.packed import AllPairs, Segments
from backends.textbook.paged import PagedRows, PagedSamples
from backends.textbook.paged_write import TextbookPagedWrite
from backends.textbook.quantized import (
    FoldedScales,
    TextbookQuantized,
    TextbookQuantizedWrite,
)
from backends.textbook.rotary import TextbookRotary, TextbookRotaryCast

__all__ = ["Numerics", "Operations", "Textbook", "TextbookEncoder", "textbooks"]


def textbooks(backend: Backend, ops: Operations, numerics: Numerics) -> list[Implementation]:
    """Every textbook layer, packed attention and rotation of a framework.

    `numerics` is the numerics class of its operations. Rotations have their own classes.
    """
    kinds: tuple[type[Textbook], ...] = (
        PackedHeads, PerHead, SingleSample, GatedHeads, SelfAttention, Additive, Luong, MaskedInfinity,
        MaskedLarge, TextbookLayerNorm, TextbookBatchNorm,
    )  # fmt: skip
    packed = (AllPairs(backend, ops, numerics), Segments(backend, ops, numerics))
    paged = (
        PagedRows(backend, ops, numerics),
        PagedSamples(backend, ops, numerics),
        TextbookPagedWrite(backend, ops),
        GrowingCache(backend, ops, numerics),
        SlotCache(backend, ops, numerics),
        TextbookQuantized(backend, ops, numerics),
        FoldedScales(backend, ops, numerics),
        TextbookQuantizedWrite(backend, ops),
    )
    latents = (LatentUnabsorbed, LatentAbsorbed, LatentServed)
    merges = (MergeAtOnce(backend, ops), MergeInTurn(backend, ops))
    rotations = (TextbookRotary(backend, ops), TextbookRotaryCast(backend, ops))
    return [
        *(kind(backend, ops, numerics) for kind in kinds),
        *packed,
        *paged,
        *merges,
        *rotations,
        *(kind(backend, ops, numerics) for kind in latents),
    ]
