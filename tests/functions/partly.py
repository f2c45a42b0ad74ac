"""A person's own functions in PyTorch that take a part of what their signature allows: decode kernels,
functions that validate their arguments, and functions that crash by accident."""

from __future__ import annotations

from itertools import count

import torch
from torch import Tensor

from tests.functions.of_torch import changed, refusing, repeated, rows, scores_of, textbook

BLOCK = 16
"""The keys of a block."""


def merges_without_weights(
    query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False
):
    """Decodes, wrongly: takes the mean of the answers of all blocks of keys."""
    parts = blocks(query, key, value, attn_mask, is_causal, scale)
    return sum(out / total for out, total, _ in parts).to(query.dtype) / max(len(parts), 1)


def decodes(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """Decodes: raises the sums of all blocks of keys to one maximum. Rows without keys are zeros."""
    parts = blocks(query, key, value, attn_mask, is_causal, scale)
    if not parts:
        return query.new_zeros((*query.shape[:3], value.shape[-1]))
    largest = torch.stack([part[2] for part in parts]).amax(0)
    factors = [(part[2] - finite(largest)).exp() for part in parts]
    total = sum(factor * part[1] for factor, part in zip(factors, parts, strict=True))
    out = sum(factor * part[0] for factor, part in zip(factors, parts, strict=True))
    return (out / torch.where(total == 0, 1.0, total)).to(query.dtype)


def decodes_or_validates(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Decodes, and refuses more queries by an error that names them."""
    if query.shape[2] != 1:
        raise ValueError(f"query: expected length 1, got {query.shape[2]}")
    return decodes(query, key, value, attn_mask, is_causal, scale)


def blocks(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool,
    scale: float | None,
) -> list[tuple[Tensor, Tensor, Tensor]]:  # fmt: skip
    """Of each block of keys the weighted sum of values, the sum of weights, and the largest score, to
    which the weights are relative. Raises NotImplementedError for more queries than one, or none."""
    if query.shape[2] != 1:
        raise NotImplementedError("decoding takes one query")
    key, value = repeated(query, key), repeated(query, value)
    parts = []
    scores = scores_of(query, key, attn_mask, is_causal, scale)
    for start in range(0, key.shape[2], BLOCK):
        tile = scores[..., start : start + BLOCK]
        largest = tile.amax(-1, keepdim=True).detach()
        weights = (tile - finite(largest)).exp()
        out = weights @ value[:, :, start : start + BLOCK].to(weights.dtype)
        parts.append((out, weights.sum(-1, keepdim=True), largest))
    return parts


def finite(largest: Tensor) -> Tensor:
    """The largest scores, 0 where a row has no key."""
    return torch.where(largest == -torch.inf, 0.0, largest)


def square_mask(query, key, value, is_causal=False, scale=None, enable_gqa=False):
    """Masks the future by a mask (Lq, Lq), which does not fit another number of keys."""
    visible = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool).tril()
    key, value = repeated(query, key), repeated(query, value)
    return textbook(query, key, value, visible if is_causal else None, False, scale)


def square_mask_validated(query, key, value, is_causal=False, scale=None, enable_gqa=False):
    """The same, and refuses another number of keys beside the flag by an error that names the flag."""
    if is_causal and query.shape[2] != key.shape[2]:
        raise ValueError("is_causal needs as many queries as keys")
    return square_mask(query, key, value, is_causal, scale)


def output_like_query_validated(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """The same, and refuses values of another size by an error that names them."""
    if value.shape[-1] != query.shape[-1]:
        raise TypeError(f"value: expected heads of {query.shape[-1]}, got {value.shape[-1]}")
    return ROWS["output_like_query"](query, key, value, attn_mask, is_causal, scale)


CALLS = {3: count(), 7: count()}
"""How often functions that refuse every third or seventh call were called."""


seen: set[tuple[int, ...]] = set()
"""Shapes of queries that `refuses_new_shapes` was asked."""


def refuses_windows(query, key, value, attn_mask=None, is_causal=False, scale=None, window=None):
    """Right, and refuses every window."""
    if window is not None:
        raise NotImplementedError("window")
    return textbook(query, key, value, attn_mask, is_causal, scale)


def of_the_largest(query, key, value, attn_mask=None, is_causal=False, scale=None):
    """Calls the maximum of the scores, which no keys do not have."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:]).bool().tril(), -torch.inf)
    if attn_mask is not None:
        hides = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if hides else scores + attn_mask
    raised = (scores - scores.amax(-1, keepdim=True)).exp()
    return raised / raised.sum(-1, keepdim=True) @ value


BUSY = NotImplementedError("busy")

ROWS = rows(
    of_float64=refusing(
        lambda c: c.query.dtype != torch.float64, NotImplementedError("float64 alone")),
    # Writes into an array of the query's shape, which values of another size do not fit.
    output_like_query=changed(output=lambda c: torch.empty_like(c.query).copy_(c.output)),
    refuses_every_third=refusing(lambda c: next(CALLS[3]) % 3 == 2, BUSY),
    refuses_every_seventh=refusing(lambda c: next(CALLS[7]) % 7 == 6, BUSY),
    # Refuses the first call of every shape.
    refuses_new_shapes=refusing(
        lambda c: c.query.shape not in seen and not seen.add(c.query.shape),
        NotImplementedError("warming up")),
)  # fmt: skip

globals().update(ROWS)
