"""Latent attention in torch, as people write it: right in both forms, and ways that go wrong."""

from __future__ import annotations

from typing import Any

import torch


def attended(query: Any, key: Any, value: Any, scale: float, causal: bool, mask: Any) -> Any:
    scores = query @ key.mT * scale
    if causal:
        rows, keys = scores.shape[-2:]
        shown = torch.ones(rows, keys, dtype=torch.bool, device=scores.device).tril(keys - rows)
        scores = scores.masked_fill(~shown, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, -1) @ value


def absorbed(
    query: Any, query_rope: Any, latent: Any, key_rope: Any, w_uk: Any, w_uv: Any,
    causal: bool = False, mask: Any = None, scale: float | None = None, latent_scale: Any = None,
    page_table: Any = None, key_lengths: Any = None,
) -> Any:  # fmt: skip
    if page_table is not None:
        rows = []
        for b, (pages, keys) in enumerate(
            zip(page_table.long(), key_lengths.tolist(), strict=True)
        ):
            latents, ropes, scales = (
                None if x is None else x[pages].flatten(0, 1)[None, :keys]
                for x in (latent, key_rope, latent_scale)
            )
            own = (x[b : b + 1] for x in (query, query_rope))
            shown = None if mask is None else mask[..., :keys].expand(len(query), -1, -1, -1)[b]
            parts = (*own, latents, ropes, w_uk, w_uv, causal, shown, scale, scales)
            rows.append(absorbed(*parts))
        return torch.cat(rows)
    if latent_scale is not None:
        scales = latent_scale.repeat_interleave(128, -1)[..., : latent.shape[-1]]
        latent = (latent.to(scales.dtype) * scales).to(query.dtype)
    scale = (query.shape[-1] + query_rope.shape[-1]) ** -0.5 if scale is None else scale
    lifted = torch.einsum("bhqd,rhd->bhqr", query, w_uk)
    query = torch.cat([lifted, query_rope], -1)
    key = torch.cat([latent, key_rope], -1)[:, None]
    average = attended(query, key, latent[:, None], scale, causal, mask)
    return torch.einsum("bhqr,rhv->bhqv", average, w_uv)


def storing(
    query: Any, query_rope: Any, latent: Any, key_rope: Any, w_uk: Any, w_uv: Any,
    causal: bool = False, mask: Any = None, scale: float | None = None, page_table: Any = None,
    key_lengths: Any = None, new_latent: Any = None, new_key_rope: Any = None,
) -> Any:  # fmt: skip
    pools = ()
    if new_latent is not None:
        count, size = new_latent.shape[1], latent.shape[1]
        place = key_lengths.long()[:, None] - count + torch.arange(count)
        pages = page_table.long().gather(1, place // size)
        pools = latent, key_rope = latent.clone(), key_rope.clone()
        latent[pages, place % size], key_rope[pages, place % size] = new_latent, new_key_rope
    output = absorbed(
        query, query_rope, latent, key_rope, w_uk, w_uv, causal, mask, scale,
        page_table=page_table, key_lengths=key_lengths,
    )  # fmt: skip
    return (output, *pools) if pools else output


def unabsorbed(
    query: Any, query_rope: Any, latent: Any, key_rope: Any, w_uk: Any, w_uv: Any,
    mask: Any = None, softmax_scale: float | None = None, return_lse: bool = False,
) -> Any:  # fmt: skip
    key = torch.einsum("bkr,rhd->bhkd", latent, w_uk)
    value = torch.einsum("bkr,rhv->bhkv", latent, w_uv)
    rope = key_rope[:, None].expand(-1, key.shape[1], -1, -1)
    query, key = torch.cat([query, query_rope], -1), torch.cat([key, rope], -1)
    scale = query.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    output = attended(query, key, value, scale, False, mask)
    if not return_lse:
        return output
    scores = query @ key.mT * scale
    hidden = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return output, torch.logsumexp(hidden.to(torch.promote_types(hidden.dtype, torch.float32)), -1)


def causal_alone(
    query: Any, query_rope: Any, latent: Any, key_rope: Any, w_uk: Any, w_uv: Any,
    causal: bool = False, scale: float | None = None,
) -> Any:  # fmt: skip
    return absorbed(query, query_rope, latent, key_rope, w_uk, w_uv, causal, None, scale)
