"""Functions with torch's signature that add the values of keys in known orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Add = Callable[[list[torch.Tensor]], torch.Tensor]


def in_turn(terms: list[torch.Tensor]) -> torch.Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def from_last(terms: list[torch.Tensor]) -> torch.Tensor:
    return in_turn(terms[::-1])


def pairwise(terms: list[torch.Tensor]) -> torch.Tensor:
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=False)
        terms = [a + b for a, b in pairs] + terms[len(terms) // 2 * 2 :]
    return terms[0]


def halves(terms: list[torch.Tensor]) -> torch.Tensor:
    while len(terms) > 1:
        half = len(terms) // 2
        terms = [a + b for a, b in zip(terms[:half], terms[half:], strict=True)]
    return terms[0]


def blocks(size: int, outer: Add = in_turn) -> Add:
    def add(terms: list[torch.Tensor]) -> torch.Tensor:
        return outer([in_turn(terms[i : i + size]) for i in range(0, len(terms), size)])

    return add


def lanes(count: int) -> Add:
    def add(terms: list[torch.Tensor]) -> torch.Tensor:
        return in_turn([in_turn(terms[i::count]) for i in range(count)])

    return add


def split(terms: list[torch.Tensor]) -> torch.Tensor:
    """Four parts, whatever the number of keys."""
    return blocks(len(terms) // 4)(terms)


def odd(terms: list[torch.Tensor]) -> torch.Tensor:
    """One after the other, in the order of the places' numbers of bits."""
    return in_turn([terms[j] for j in sorted(range(len(terms)), key=lambda j: (j.bit_count(), j))])


def by_component(terms: list[torch.Tensor]) -> torch.Tensor:
    """The first eight components in turn, all others pairwise."""
    first, rest = ([term[..., part] for term in terms] for part in (slice(8), slice(8, None)))
    return torch.cat([in_turn(first), pairwise(rest)], -1)


def exact(terms: list[torch.Tensor]) -> torch.Tensor:
    """Compensated (Neumaier): what is lost is added at the end."""
    total, lost = terms[0], torch.zeros_like(terms[0])
    for term in terms[1:]:
        new = total + term
        large = total.abs() >= term.abs()
        lost = lost + torch.where(large, (total - new) + term, (term - new) + total)
        total = new
    return total + lost


def at_once(terms: list[torch.Tensor]) -> torch.Tensor:
    """Summands are cut to the last place of the largest one, and added exactly."""
    together = torch.stack(terms).double()
    unit = together.abs().amax(0) * 2.0**-24
    unit = torch.where(unit > 0, unit, 1.0)
    return ((together / unit).trunc().sum(0) * unit).to(terms[0].dtype)


def attention(add: Add, alone: Add | None = None) -> Callable[..., Any]:
    """Attention whose sums are added by `add`; those of one query by `alone`."""

    def function(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):  # type: ignore[no-untyped-def]
        group = query.shape[1] // max(key.shape[1], 1)
        key, value = (x.repeat_interleave(group, 1) for x in (key, value))
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~seen, -torch.inf)
        if attn_mask is not None:
            hides = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if hides else scores + attn_mask
        weights = scores.softmax(-1)
        if not value.shape[2]:
            return weights @ value
        terms = [weights[..., j, None] * value[..., None, j, :] for j in range(value.shape[2])]
        return (alone if alone is not None and query.shape[2] == 1 else add)(terms)

    return function


ORDERS: dict[str, Add] = {
    "sequential": in_turn, "from-last": from_last, "pairwise": pairwise, "halves": halves,
    "blocks-32": blocks(32), "blocks-128": blocks(128), "blocks-16": blocks(16, pairwise),
    "blocks-64": split, "lanes-4": lanes(4), "exact": exact, "at-once": at_once,
    "varies": by_component, "unlike-any-known-tree": odd,
}  # fmt: skip
"""Sums by the name of their order with 256 keys."""

split_keys = attention(split)
