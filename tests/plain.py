"""Attention in a few lines, for people to paste: values only, no bound, memory for all scores at once.

The definition with bounds is `references.sdpa`; `tests/test_references.py` holds the two together.
"""

import numpy as np

Array = np.ndarray


def attention(
    q: Array, k: Array, v: Array, mask: Array | None = None, bias: Array | None = None,
    scale: float | None = None, softcap: float | None = None, sinks: Array | None = None,
) -> Array:  # fmt: skip
    """q (B, H, Lq, D), k (B, Hkv, Lk, D), v (B, Hkv, Lk, Dv) -> (B, H, Lq, Dv); True in mask attends."""
    return with_lse(q, k, v, mask, bias, scale, softcap, sinks)[0]


def with_lse(
    q: Array, k: Array, v: Array, mask: Array | None = None, bias: Array | None = None,
    scale: float | None = None, softcap: float | None = None, sinks: Array | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """The same, and the log-sum-exp (B, H, Lq)."""
    heads, D = q.shape[1] // k.shape[1], q.shape[-1]
    k, v = np.repeat(k, heads, axis=1), np.repeat(v, heads, axis=1)
    scores = q @ k.swapaxes(-1, -2) * (D**-0.5 if scale is None else scale)  # (B, H, Lq, Lk)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    sink = np.full(q.shape[1], -np.inf) if sinks is None else sinks
    sink = np.broadcast_to(sink[:, None, None], (*scores.shape[:-1], 1))
    largest = np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), sink)
    largest = np.where(np.isneginf(largest), 0, largest)  # a row without keys gives zeros
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True) + np.exp(sink - largest)
    with np.errstate(divide="ignore"):
        lse = largest + np.log(total)
    return weights / np.where(total == 0, 1, total) @ v, lse[..., 0]
