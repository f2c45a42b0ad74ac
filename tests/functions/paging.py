"""Paged attention in torch, as people write it: right, aligned at the first query, one key short."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def right(
    q: Any, key_cache: Any, value_cache: Any, cu_seqlens_q: Any, seqused_k: Any, block_table: Any,
    causal: bool = False, window_size: tuple[int, int] | None = None, kv_layout: str = "NHD",
    softmax_scale: float | None = None,
) -> Any:  # fmt: skip
    return attended(
        q, key_cache, value_cache, cu_seqlens_q, seqused_k, block_table, causal, window_size,
        kv_layout, softmax_scale,
    )  # fmt: skip


def attended(
    q: Any, key_cache: Any, value_cache: Any, cu_seqlens_q: Any, seqused_k: Any, block_table: Any,
    causal: bool = False, window_size: tuple[int, int] | None = None, kv_layout: str = "NHD",
    softmax_scale: float | None = None, first: bool = False,
) -> Any:  # fmt: skip
    if kv_layout == "HND":
        key_cache, value_cache = (x.transpose(1, 2) for x in (key_cache, value_cache))
    edges, answers = cu_seqlens_q.tolist(), []
    for n, length in enumerate(seqused_k.tolist()):
        rows = slice(edges[n], edges[n + 1])
        if rows.stop == rows.start:
            continue
        keys, values = (x[block_table[n]].flatten(0, 1)[:length] for x in (key_cache, value_cache))
        i, j = torch.arange(rows.stop - rows.start)[:, None], torch.arange(length)
        last = i if first else i + length - len(i)
        shown = (j <= last) if causal else (j >= 0).expand(len(i), -1)
        if window_size is not None:
            shown = shown & (j >= last - window_size[0])
        one, two, three = (x.transpose(0, 1)[None] for x in (q[rows], keys, values))
        answer = F.scaled_dot_product_attention(
            one, two, three, shown, scale=softmax_scale, enable_gqa=True
        )
        answers.append(answer[0].transpose(0, 1))
    return torch.cat(answers)


def top_left(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    seqused_k: Any,
    block_table: Any,
    causal: bool = False,
) -> Any:
    return attended(q, k, v, cu_seqlens_q, seqused_k, block_table, causal, first=True)


def short(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    seqused_k: Any,
    block_table: Any,
    causal: bool = False,
) -> Any:
    return attended(q, k, v, cu_seqlens_q, (seqused_k - 1).clamp(min=1), block_table, causal)


def misspelt(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    seqused_k: Any,
    block_table: Any,
    kv_layouts: str = "",
) -> Any:
    return attended(q, k, v, cu_seqlens_q, seqused_k, block_table)


def written(key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any) -> Any:
    kept, pools = slot_mapping >= 0, []
    for tokens, cache in ((key, key_cache), (value, value_cache)):
        flat = cache.flatten(0, 1).clone()
        flat[slot_mapping[kept]] = tokens[kept]
        pools.append(flat.view_as(cache))
    return tuple(pools)


def written_in_place(
    key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any,
    kv_layout: str = "NHD",
) -> None:  # fmt: skip
    kept = slot_mapping >= 0
    for tokens, cache in ((key, key_cache), (value, value_cache)):
        paged = cache.transpose(1, 2) if kv_layout == "HND" else cache
        size = paged.shape[1]
        paged[slot_mapping[kept] // size, slot_mapping[kept] % size] = tokens[kept]


def wraps(key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any) -> None:
    for tokens, cache in ((key, key_cache), (value, value_cache)):
        cache.view(-1, *cache.shape[2:])[slot_mapping] = tokens
