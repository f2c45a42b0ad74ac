"""Packed attention in torch, as people write it: right, and with segments that begin one key later."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def right(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None, softmax_scale: float | None = None, causal: bool = False,
) -> Any:  # fmt: skip
    answers = []
    queries, keys = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for a, b, c, d in zip(queries[:-1], queries[1:], keys[:-1], keys[1:], strict=True):
        if a == b:
            continue
        one, two, three = (x.transpose(0, 1)[None] for x in (q[a:b], k[c:d], v[c:d]))
        last = torch.ones(b - a, d - c, dtype=torch.bool).tril(d - c - (b - a))
        answer = F.scaled_dot_product_attention(
            one, two, three, last if causal else None, scale=softmax_scale, enable_gqa=True
        )
        answers.append(answer[0].transpose(0, 1))
    return torch.cat(answers)


def top_left(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, causal: bool = False
) -> Any:
    """Right, with a causal flag that is aligned at the first query."""
    group = q.shape[1] // k.shape[1]
    rows, keys = (torch.arange(len(x)) for x in (q, k))
    of_row = torch.bucketize(rows, cu_seqlens_q, right=True) - 1
    of_key = torch.bucketize(keys, cu_seqlens_k, right=True) - 1
    hidden = of_row[:, None] != of_key
    if causal:
        hidden |= (keys - cu_seqlens_k[of_key]) > (rows - cu_seqlens_q[of_row])[:, None]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("hqk,khv->qhv", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def misspelt(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, is_causal: Any = 0
) -> Any:
    return right(q, k, v, cu_seqlens_q, cu_seqlens_k, causal=is_causal)


def padded(q: Any, k: Any, v: Any, lengths: Any) -> Any:
    return right(q, k, v, lengths, lengths)
