"""A third opinion: attention by online softmax, keys in tiles, running maximum and rescaling.

Source: Milakov, Gimelshein, Online normalizer calculation for softmax, arXiv 1805.02867; Dao et
al., FlashAttention, NeurIPS 2022, algorithm 1. Float64 throughout.
"""

from __future__ import annotations

import numpy as np


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
    tile: int = 16,
) -> tuple[np.ndarray, np.ndarray]:
    """Output (B, H, Lq, Dv) and log-sum-exp (B, H, Lq); rows without keys give zeros, and -inf without
    a sink.

    query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv); mask and bias broadcast to
    (B, H, Lq, Lk); sinks (H,), with which a row starts; `tile` keys at a time.
    """
    B, H, Lq, D = query.shape
    Hkv, Lk, Dv = value.shape[1:]
    heads = np.arange(H) // (H // Hkv)
    factor = scale if scale is not None else D**-0.5
    attend = np.broadcast_to(True if mask is None else mask, (B, H, Lq, Lk))
    added = np.broadcast_to(0.0 if bias is None else bias, (B, H, Lq, Lk))
    first = np.full(H, -np.inf) if sinks is None else sinks
    maximum = np.broadcast_to(first[:, None], (B, H, Lq))
    total = np.isfinite(maximum).astype(float)
    accumulated = np.zeros((B, H, Lq, Dv))
    for start in range(0, Lk, tile):
        keys = slice(start, start + tile)
        scores = np.einsum("bhid,bhjd->bhij", query, key[:, heads, keys]) * factor
        if softcap is not None:
            scores = np.tanh(scores / softcap) * softcap
        scores = np.where(attend[..., keys], scores + added[..., keys], -np.inf)
        new_maximum = np.maximum(maximum, scores.max(-1))
        anchor = np.where(np.isneginf(new_maximum), 0.0, new_maximum)
        rescale = np.exp(maximum - anchor)
        raised = np.exp(scores - anchor[..., None])
        total = total * rescale + raised.sum(-1)
        accumulated = accumulated * rescale[..., None] + np.einsum(
            "bhij,bhjd->bhid", raised, value[:, heads, keys]
        )
        maximum = new_maximum
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, maximum, -np.inf) + np.log(np.where(total > 0, total, 1.0))
    return accumulated / np.where(total > 0, total, 1.0)[..., None], lse
