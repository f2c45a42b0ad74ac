"""Attention over 8-bit codes in torch, and writing of codes, as people write them: right and wrong."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def spread(scale: Any, tile: int | None, size: int) -> Any:
    """Scales or zero points of tiles, for each of `size` components."""
    if scale is None or tile is None:
        return scale
    return scale.repeat_interleave(tile, -1)[..., :size]


def right(
    query: Any, key_codes: Any, value_codes: Any, key_scale: Any, value_scale: Any,
    key_zero: Any = None, value_zero: Any = None, causal: bool = False, scale: float | None = None,
    key: Any = None, value: Any = None, tile: int | None = None,
    page_table: Any = None, key_lengths: Any = None, kv_layout: str = "NHD",
) -> Any:  # fmt: skip
    if page_table is not None and kv_layout == "HND":
        scales = (key_codes, value_codes, key_scale, value_scale, key_zero, value_zero)
        turned = (x if x is None else x.transpose(1, 2) for x in scales)
        answer = right(query, *turned, causal, scale, key, value, tile, page_table, key_lengths)
        return answer if key is None else (answer[0], *(x.transpose(1, 2) for x in answer[1:]))
    if page_table is not None:
        rows, kept, size = [], [key_codes.clone(), value_codes.clone()], key_codes.shape[1]
        pools = (key_codes, value_codes, key_scale, value_scale, key_zero, value_zero)
        for b, (pages, keys) in enumerate(
            zip(page_table.long(), key_lengths.tolist(), strict=True)
        ):
            flat, own = [], slice(b, b + 1)
            for x in pools:
                if x is not None and x.shape[0] > 1:
                    x = x[pages].flatten(0, 1)[None, :keys]
                flat.append(x if x is None else x.transpose(1, 2))
            new = [None if x is None else x[own] for x in (key, value)]
            answer = right(query[own], *flat, causal, scale, *new, tile)
            if key is None:
                rows.append(answer)
                continue
            rows.append(answer[0])
            at = torch.arange(keys - key.shape[2], keys)
            for pool, codes in zip(kept, answer[1:], strict=True):
                pool[pages[at // size], at % size] = codes[0, :, at].transpose(0, 1)
        return torch.cat(rows) if key is None else (torch.cat(rows), *kept)
    key_scale, key_zero = (spread(x, tile, key_codes.shape[-1]) for x in (key_scale, key_zero))
    value_scale, value_zero = (
        spread(x, tile, value_codes.shape[-1]) for x in (value_scale, value_zero)
    )
    if key is not None:
        new, n = [], key.shape[2]
        for x in (key_scale, value_scale, key_zero, value_zero):
            new.append(x[:, :, -n:] if x is not None and x.shape[2] > 1 else x)
        codes = written(key, value, *new, dtype=key_codes.dtype)
        kept = [
            torch.cat([old.double()[:, :, :-n], x.double()], 2).to(x.dtype)
            for old, x in zip((key_codes, value_codes), codes, strict=True)
        ]
        rest = (key_scale, value_scale, key_zero, value_zero, causal, scale)
        return right(query, *kept, *rest), *kept
    operands = []
    for codes, of, zero in (
        (key_codes, key_scale, key_zero),
        (value_codes, value_scale, value_zero),
    ):
        wide = codes.to(of.dtype)
        wide = wide if zero is None else wide - zero.to(of.dtype)
        operands.append((wide * of).to(query.dtype))
    mask = None
    if causal:
        rows, keys = query.shape[2], key_codes.shape[2]
        mask = torch.ones(rows, keys, dtype=torch.bool, device=query.device).tril(keys - rows)
    return F.scaled_dot_product_attention(query, *operands, mask, scale=scale, enable_gqa=True)


def written(
    key: Any, value: Any, key_scale: Any, value_scale: Any,
    key_zero: Any = None, value_zero: Any = None, dtype: Any = torch.int8, bits: int = 8,
    tile: int | None = None,
) -> Any:  # fmt: skip
    codes = []
    for x, scale, zero in ((key, key_scale, key_zero), (value, value_scale, value_zero)):
        scale, zero = (spread(one, tile, x.shape[-1]) for one in (scale, zero))
        x = x.to(scale.dtype) / scale
        x = x if zero is None else x + zero.to(scale.dtype)
        last = 2 ** (bits - 1) - 1 if dtype == torch.int8 else torch.finfo(dtype).max
        x = x.clamp(-last, last)
        codes.append((x.round() if dtype == torch.int8 else x).to(dtype))
    return tuple(codes)
