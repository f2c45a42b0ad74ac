"""Faults of rings: ranks hold parts of the sequence, and keys and values go around."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends.declared import Limits
from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.faults.split import NarrowLse

FAMILY = "tiles"

RANKS = 4


def rank_of(length: int) -> np.ndarray:
    """The rank (L,) that holds each position."""
    parts = np.array_split(np.arange(length), RANKS)
    return np.repeat(np.arange(RANKS), [len(part) for part in parts])


def place_in_rank(length: int) -> np.ndarray:
    """The index (L,) of each position in the part of its rank."""
    return np.concatenate([np.arange(len(p)) for p in np.array_split(np.arange(length), RANKS)])


def ring_causal_by_place_in_the_rank(right: Kernel, call: Call) -> np.ndarray:
    return place_in_rank(call.sizes.Lk) <= place_in_rank(call.sizes.Lq)[:, None]


def ring_interleaved_taken_for_blocks(right: Kernel, call: Call) -> np.ndarray:
    rows, keys = (
        np.argsort(np.argsort(np.arange(length) % RANKS, kind="stable"))
        for length in (call.sizes.Lq, call.sizes.Lk)
    )
    return keys <= rows[:, None]


def ring_step_dropped(
    right: Kernel, scores: np.ndarray, value: np.ndarray, call: Call
) -> np.ndarray:
    rows, keys = scores.shape[-2:]
    last = (rank_of(rows)[:, None] + 1) % RANKS == rank_of(keys)
    last &= keys > RANKS
    return right.attend(np.where(last, -np.inf, scores), value, call)


@fault("values", "log-sum-exps that go around in float16; keep them in float32", family="merge")
class RingLseInTheDtype(NarrowLse):
    """Ranks merge what arrives by log-sum-exps in float16, the dtype of the query."""

    chunks, lse_dtype = RANKS, "f16"
    dtypes, numerics = ("f16",), "fused"
    features = frozenset({"causal"})
    limits = Limits(lengths_multiple_of=(RANKS,), equal_lengths=True, equal_heads=True)


def ring_rows_in_order_of_ranks(right: Kernel, out: np.ndarray, call: Call) -> Any:
    blocks = np.array_split(np.arange(out.shape[2]), 2 * RANKS)
    held = [blocks[i] for rank in range(RANKS) for i in (rank, 2 * RANKS - 1 - rank)]
    return right.deliver(out[:, :, np.concatenate(held)], call)


def ring_key_gradient_of_its_rank(
    right: Differentiable, dt: np.ndarray, query: np.ndarray, factor: Any
) -> np.ndarray:
    own = rank_of(dt.shape[-2])[:, None] == rank_of(dt.shape[-1])
    return right.key_gradient(np.where(own, dt, 0), query, factor)


def ring_value_gradient_of_the_next_rank(
    right: Differentiable, weights: np.ndarray, cotangent: np.ndarray, call: Call
) -> np.ndarray:
    own = right.value_gradient(weights, cotangent, call)
    return np.roll(own, -(-own.shape[-2] // RANKS), axis=-2)


row = partial(deviation, family=FAMILY, right=Kernel)

DEVIATIONS = [
    row("ring-causal-by-place-in-the-rank", "values",
        "The causal mask compares the places of queries and keys in the parts of their ranks.",
        "`is_causal=True` at every step of a ring; keys of earlier ranks are seen whole",
        family="mask", causal=ring_causal_by_place_in_the_rank),
    row("ring-interleaved-taken-for-blocks", "values",
        "Ranks hold every fourth position, and the causal mask takes their parts for blocks.",
        "positions `rank * n + i` of interleaved parts; they are `i * ranks + rank`", family="mask",
        causal=ring_interleaved_taken_for_blocks),
    row("ring-step-dropped", "values",
        "Keys and values stop one step before they have gone around the ring.",
        "`for step in range(ranks - 1)`; every rank sees the keys of all `ranks` ranks",
        attend=ring_step_dropped),
    row("ring-rows-in-order-of-ranks", "values",
        "Ranks hold a first and a last block each, and rows come back in the order of ranks.",
        "`torch.cat(parts)` of balanced ranks; put blocks r and 2 n - 1 - r back in their places",
        family="layout", deliver=ring_rows_in_order_of_ranks),
    row("ring-key-gradient-of-its-rank", "gradients",
        "Keys get the gradient of the rows of their own rank alone.",
        "`dk` of the rank alone; it goes around with its keys, and every rank adds its rows",
        family="gradient", right=Differentiable, key_gradient=ring_key_gradient_of_its_rank),
    row("ring-value-gradient-of-the-next-rank", "gradients",
        "The gradient of the values of a rank goes to those of the next rank.",
        "`dv` added to the values that arrive; it belongs to those that were used, a step earlier",
        family="gradient", right=Differentiable,
        value_gradient=ring_value_gradient_of_the_next_rank),
]  # fmt: skip
