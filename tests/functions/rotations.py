"""Rotations in torch, as people write them: right ones, and one with its table in 16 bits."""

from __future__ import annotations

from typing import Any

import torch


def rotate(
    query: Any,
    position: Any,
    base: float = 10000.0,
    interleaved: bool = False,
    rotary_size: int | None = None,
) -> Any:
    size = rotary_size or query.shape[-1]
    wide = torch.promote_types(query.dtype, torch.float32)
    frequencies = 1.0 / base ** (torch.arange(0, size, 2, dtype=wide) / size)
    angle = position[..., None].to(wide) * frequencies
    angle = angle[:, None] if angle.ndim == 3 else angle
    x = query[..., :size].to(wide)
    if interleaved:
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        turned = torch.view_as_real(turned * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    else:
        one, two = x.chunk(2, -1)
        cosine, sine = angle.cos(), angle.sin()
        turned = torch.cat([one * cosine - two * sine, two * cosine + one * sine], -1)
    return torch.cat([turned.to(query.dtype), query[..., size:]], -1)


def neighbours(query: Any, position: Any) -> Any:
    """Without a word for it, neighbours are turned."""
    return rotate(query, position, interleaved=True)


def from_table(query: Any, position: Any, max_positions: int) -> Any:
    """A table of sine and cosine, indexed: beyond it PyTorch raises, and -1 is its last row."""
    angle = torch.arange(max_positions, dtype=torch.float32)[:, None] * 10000.0 ** (
        -torch.arange(0, query.shape[-1], 2) / query.shape[-1]
    )
    cosine, sine = angle.cos()[position], angle.sin()[position]
    if position.ndim == 2:
        cosine, sine = cosine[:, None], sine[:, None]
    one, two = query.chunk(2, -1)
    turned = torch.cat([one * cosine - two * sine, two * cosine + one * sine], -1)
    return turned.to(query.dtype)


def from_checked_table(query: Any, position: Any, max_positions: int) -> Any:
    if (position < 0).any():
        raise ValueError("a position lies before the table")
    return from_table(query, position, max_positions)


def alone(query: Any) -> Any:
    return query
