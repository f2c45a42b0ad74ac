"""Paged attention in torch, as people write it: right, and wrong in one way each."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def right(
    q: Any, key_cache: Any, value_cache: Any, cu_seqlens_q: Any, seqused_k: Any, block_table: Any,
    causal: bool = False, window_size: tuple[int, int] | None = None, kv_layout: str = "NHD",
    softmax_scale: float | None = None,
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
        last = i + length - len(i)
        shown = (j <= last) if causal else (j >= 0).expand(len(i), -1)
        if window_size is not None:
            shown = shown & (j >= last - window_size[0])
        one, two, three = (x.transpose(0, 1)[None] for x in (q[rows], keys, values))
        answer = F.scaled_dot_product_attention(
            one, two, three, shown, scale=softmax_scale, enable_gqa=True
        )
        answers.append(answer[0].transpose(0, 1))
    return torch.cat(answers)


def sixteen(
    q: Any, key_cache: Any, value_cache: Any, cu_seqlens_q: Any, seqused_k: Any, block_table: Any,
    causal: bool = False,
) -> Any:  # fmt: skip
    if key_cache.shape[1] % 16:
        raise ValueError("pages have multiples of 16 slots")
    return right(q, key_cache, value_cache, cu_seqlens_q, seqused_k, block_table, causal)


def ascending(
    q: Any, key_cache: Any, value_cache: Any, cu_seqlens_q: Any, seqused_k: Any, block_table: Any,
    causal: bool = False,
) -> Any:  # fmt: skip
    table = (block_table[:, :1] + torch.arange(block_table.shape[1])).clamp(max=len(key_cache) - 1)
    return sixteen(q, key_cache, value_cache, cu_seqlens_q, seqused_k, table, causal)


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


def in_parts(
    q: Any, key_cache: Any, value_cache: Any, cu_seqlens_q: Any, seqused_k: Any, block_table: Any,
    causal: bool = False,
) -> Any:  # fmt: skip
    edges, answers = cu_seqlens_q.tolist(), []
    for n, length in enumerate(seqused_k.tolist()):
        rows = slice(edges[n], edges[n + 1])
        keys, values = (x[block_table[n]].flatten(0, 1)[:length] for x in (key_cache, value_cache))
        group = q.shape[1] // keys.shape[1]
        one, two, three = (x.transpose(0, 1).float() for x in (q[rows], keys, values))
        two, three = (x.repeat_interleave(group, 0) for x in (two, three))
        scores = one @ two.mT / q.shape[2] ** 0.5
        if causal:
            shown = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device)
            scores = scores.masked_fill(~shown.tril(length - scores.shape[1]), -torch.inf)
        parts, sums = [], []
        for part, of in zip(scores.split(2, -1), three.split(2, 1), strict=True):
            weights = torch.nan_to_num(torch.softmax(part, -1))
            parts.append((weights @ of).to(q.dtype).float())
            sums.append(torch.logsumexp(part, -1, keepdim=True))
        if parts:
            shares = torch.softmax(torch.stack(sums), 0)
            answers.append((shares * torch.stack(parts)).sum(0).to(q.dtype).transpose(0, 1))
    return torch.cat(answers)
