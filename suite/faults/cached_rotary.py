"""Faults of attention with a cache that rotates queries and keys by their positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.cached import CachedKernel, Held
from attention_conformance.suite.spec.dtypes import DTYPES, round_to


def cached_rotary_anew(right: CachedKernel, held: Held, count: int) -> np.ndarray:
    return np.broadcast_to(right.depths(held, count), (len(held.totals), count))


def cached_rotary_of_keys_alone(right: CachedKernel, held: Held, count: int) -> np.ndarray:
    return np.broadcast_to(right.depths(held, count), (len(held.totals), count))


@dataclass
class HeldCounting(Held):
    """A cache that counts all tokens that ever arrived."""

    arrived: int = 0


def cached_rotary_counts_on_crop(
    right: CachedKernel, state: Held, count: int, *samples: Rounded
) -> Held:
    assert isinstance(state, HeldCounting)
    state.arrived += count
    return right.crop(state, count, *samples)


def cached_rotary_counts_on_key_turns(right: CachedKernel, held: Held, count: int) -> np.ndarray:
    assert isinstance(held, HeldCounting)
    return right.joining(held, count) + held.arrived


def cached_rotary_of_the_longest(right: CachedKernel, held: Held, count: int) -> np.ndarray:
    return np.broadcast_to(held.total + right.depths(held, count), (len(held.totals), count))


def cached_rotary_padded_once(right: CachedKernel, held: Held, count: int) -> np.ndarray:
    return right.joining(held, count) - held.padding[:, None]


def cached_rotated_twice(
    right: CachedKernel,
    held: Held,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    rows: np.ndarray,
    keys: np.ndarray,
) -> np.ndarray:
    before = key.shape[2] - query.shape[2]
    again = right.rotated(held, key[:, :, :before], np.maximum(keys[:, :before], 0))
    both = np.concatenate([again, key[:, :, before:]], 2)
    return right.attend(held, query, both, value, rows, keys)


def cached_rotary_of_one_document_key_turns(
    right: CachedKernel, held: Held, count: int
) -> np.ndarray:
    assert held.begins is not None
    return right.joining(held, count) - held.begins * (held.padding[:, None] == 0)


def cached_rotary_base_ignored(
    right: CachedKernel, held: Held, x: np.ndarray, positions: np.ndarray
) -> np.ndarray:
    case = held.inputs.case
    usual = replace(case, options=tuple(o for o in case.options if o[0] != "base"))
    inputs = replace(held.inputs, case=usual)
    return right.rotated(replace(held, inputs=inputs), x, positions)


def cached_rotary_of_rounded_positions(right: CachedKernel, held: Held, count: int) -> np.ndarray:
    return round_to(right.key_turns(held, count).astype(float), DTYPES["bf16"])


row = partial(deviation, family="rotary", right=CachedKernel)

DEVIATIONS = [
    row("cached-rotary-anew", "values", "The positions of a rotation begin at 0 in every chunk.",
        "`arange(chunk)`; add the length of the cache", key_turns=cached_rotary_anew),
    row("cached-rotary-of-keys-alone", "values",
        "Keys are rotated by their positions, and queries by their places in the chunk.",
        "`offset` for the keys alone; rotate queries by the same positions",
        query_turns=cached_rotary_of_keys_alone),
    row("cached-rotary-of-queries-later", "values",
        "Queries are rotated by positions behind their chunk.",
        "`offset` read after the update of the cache, or a view of it that moves on",
        query_turns=lambda right, held, count: right.joining(held, count) + count),
    row("cached-rotary-of-slots", "values",
        "Positions of a rotation begin at 0 again once the ring went round.",
        "the slot of a token for its position; they differ once the ring went round",
        key_turns=lambda right, held, count: right.joining(held, count) % held.slots),
    row("cached-rotary-counts-on", "values",
        "The positions of a rotation count tokens that were taken back, too.",
        "an offset that grows at every chunk; a rollback and a reset move it back",
        facts={"holds": HeldCounting}, crop=cached_rotary_counts_on_crop,
        key_turns=cached_rotary_counts_on_key_turns),
    row("cached-rotary-of-the-longest", "values",
        "The positions of a rotation begin at the length of the longest sample.",
        "`lengths.max()` as offset of all samples; each has its own",
        key_turns=cached_rotary_of_the_longest),
    row("cached-rotary-padded-once", "values",
        "Positions of queries count from behind the left padding, and those of keys from its "
        "beginning.", "positions of queries without their left padding, and of keys with it",
        query_turns=cached_rotary_padded_once),
    row("cached-rotary-of-nodes", "values",
        "The nodes of a tree are rotated by their numbers, and not by their depths.",
        "`arange(nodes)` for the nodes of a tree; a node stands at its depth",
        key_turns=lambda right, held, count: held.totals[:, None] + np.arange(count)),
    row("cached-rotated-twice", "values",
        "Keys that the cache holds are rotated again when a later chunk attends them.",
        "keys that are kept rotated, and rotated again when they are read",
        attend=cached_rotated_twice),
    row("cached-rotary-of-one-document", "values",
        "Positions of keys count from the beginning of their document, and those of queries do not.",
        "positions of a document for its keys, and of the sample for queries of later chunks",
        key_turns=cached_rotary_of_one_document_key_turns,
        query_turns=lambda right, held, count: right.joining(held, count)),
    row("cached-rotary-base-ignored", "values",
        "The base of the rotation's frequencies is always 10000.",
        "`10000.0` in place of the argument", rotated=cached_rotary_base_ignored),
    row("cached-rotary-of-rounded-positions", "values",
        "Positions of a rotation are rounded to bfloat16.",
        "`arange(n, dtype=x.dtype)`; bfloat16 holds no odd number above 256",
        key_turns=cached_rotary_of_rounded_positions),
]  # fmt: skip
