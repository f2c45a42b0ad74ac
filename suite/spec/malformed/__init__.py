"""Malformed problems: requests without a meaning. An implementation must raise; a silent answer fails.

A row has, by its name: the features without which the problem cannot be passed, what is wrong, and the
change that spoils the operator's well-formed problem. A fourth value says which answers are right, too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.suite.spec.malformed.changes import (
    added,
    by_sample,
    changed,
    entry,
    indexed,
    last_page,
    mask,
    other_slots,
    same_as,
    sample_1_as,
    script,
    small_pool,
    unchecked,
    with_heads_repeated,
)
from attention_conformance.suite.spec.malformed.problem import MalformedCase, Row, malformed
from attention_conformance.suite.spec.masks import Window
from attention_conformance.suite.spec.operators import OPERATORS
from attention_conformance.suite.spec.operators.steps import Crop, Pick, Reset

__all__ = ["MALFORMED_CASES", "MalformedCase"]

_RATES: dict[str, Row] = {
    "rate-above-one": ("dropout", "a rate of dropout of 2", changed(rate=2.0, training=True)),
    "rate-negative": ("dropout", "a rate of dropout of -0.5", changed(rate=-0.5, training=True)),
}  # fmt: skip

_ATTENTION: dict[str, Row] = {
    "heads-do-not-divide": ("grouped-heads", "4 query heads with 3 key/value heads",
        indexed(key=np.s_[:, :3], value=np.s_[:, :3])),
    "more-key-heads-than-query-heads": ("grouped-heads", "2 query heads with 4 key/value heads",
        indexed(query=np.s_[:, :2])),
    "key-value-heads-differ": ("", "4 key heads with 2 value heads", indexed(value=np.s_[:, ::2])),
    "query-key-size-differ": ("", "queries of size 8 with keys of size 6", indexed(key=np.s_[..., :6])),
    "key-value-lengths-differ": ("", "7 keys with 6 values", indexed(value=np.s_[:, :, :6])),
    "batch-differs": ("", "a batch of 2 queries with a batch of 3 keys and values",
        indexed(key=[0, 1, 0], value=[0, 1, 0])),
    "mask-too-few-keys": ("mask mask-array", "a mask (5, 6) for 7 keys", mask("dense", 5, 6)),
    "mask-too-many-queries": ("mask mask-array", "a mask (6, 7) for 5 queries", mask("dense", 6, 7)),
    "mask-wrong-batch": ("mask mask-array", "a mask (3, 1, 5, 7) for a batch of 2",
        mask("dense", 3, 1, 5, 7)),
    "mask-wrong-heads": ("mask mask-array", "a mask (2, 3, 5, 7) for 4 heads",
        mask("dense", 2, 3, 5, 7)),
    "mask-rank-5": ("mask mask-array", "a mask of rank 5", mask("dense", 2, 2, 4, 5, 7)),
    "bias-too-few-keys": ("bias mask-array", "a bias (2, 4, 5, 6) for 7 keys",
        changed(bias=np.zeros((2, 4, 5, 6)))),
    "negative-window": ("native-window", "a native sliding window of -2 to the left",
        changed(mask=Window(-2, 0))),
    "key-rank-3": ("", "queries of rank 4 with keys of rank 3", indexed(key=0)),
    **_RATES,
}  # fmt: skip

_MULTI_HEAD: dict[str, Row] = {
    "width-does-not-divide": ("splits-width", "a width of 12 split among 5 heads",
        changed(sizes=lambda x: replace(x.sizes, H=5, Hkv=5))),
    "mask-too-few-keys": ("mask raw-mask", "a mask (5, 8) for 9 keys", mask("raw", 5, 8)),
    "mask-too-many-queries": ("mask raw-mask", "a mask (6, 9) for 5 queries", mask("raw", 6, 9)),
    "mask-wrong-batch": ("mask raw-mask", "a mask (3, 5, 9) for 2 samples and 4 heads",
        mask("raw", 3, 5, 9)),
    "mask-rank-5": ("mask raw-mask", "a mask of rank 5", mask("raw", 1, 2, 4, 5, 9)),
    **_RATES,
}  # fmt: skip

_LAYER: dict[str, Row] = {
    "key-value-lengths-differ": ("", "9 keys with 8 values", indexed(value=np.s_[:, :8])),
    "batch-differs": ("", "2 samples of queries with 3 of keys and values",
        indexed(key=[0, 0, 0], value=[0, 0, 0])),
    "query-width-differs": ("", "queries two features narrower than the layer's",
        indexed(query=np.s_[..., :-2])),
}  # fmt: skip

_ROTARY: dict[str, Row] = {
    "odd-head-size": ("", "queries of 15 components, which make no pairs",
        indexed(query=np.s_[..., :15])),
    "position-missing": ("positions", "16 positions for 17 queries", indexed(position=np.s_[:16])),
    "position-wrong-batch": ("positions gathered-positions",
        "positions of 3 samples for a batch of 2",
        changed(position=lambda x: np.tile(x.arrays["position"], (3, 1)))),
    "position-negative": ("positions position-table", "a position of -1", added(position=-1)),
    "position-beyond-table": ("positions position-table",
        "a position of 17 for a table of 17 positions", added(position=1)),
    "position-fractional": ("positions position-table",
        "positions of 0, 0.5, 1 and so on for a table of whole numbers",
        changed(position=lambda x: x.arrays["position"] * 0.5)),
}  # fmt: skip

_PACKED: dict[str, Row] = {
    "values-missing": ("", "24 keys with 23 values", indexed(value=np.s_[:-1])),
    "lengths-beyond-keys": ("length-arrays", "lengths of segments that add up to 27 for 24 keys",
        added(key_lengths=(0, 0, 3))),
    "lengths-short-of-keys": ("length-arrays", "lengths of segments that add up to 21 for 24 keys",
        added(key_lengths=(0, 0, -3))),
    "length-negative": ("length-arrays", "a segment of -2 keys among those that add up to 24",
        added(key_lengths=(-7, 7, 0))),
}  # fmt: skip

_CACHED: dict[str, Row] = {
    "values-missing": ("", "9 keys with 8 values", indexed(value=np.s_[:, :, :8])),
    "key-value-heads-differ": ("", "2 key heads with 1 value head", indexed(value=np.s_[:, :1])),
    "query-key-size-differ": ("", "queries of size 8 with keys of size 6", indexed(key=np.s_[..., :6])),
    "rollback-beyond-length": ("rollback", "a rollback of 7 tokens from a cache of 5", script(Crop(7))),
    "rollback-negative": ("rollback", "a rollback of -2 tokens", script(Crop(-2))),
    "capacity-zero": ("", "a cache of 0 slots", unchecked(capacity=0), same_as()),
    "capacity-negative": ("", "a cache of -3 slots", unchecked(capacity=-3), same_as()),
    "history-beyond-batch": ("reorder", "sample 0 goes on with the history of sample 2 in a batch of 2",
        script(Pick((2, 1))), sample_1_as(script(Pick((1, 1))))),
    "history-negative": ("reorder", "sample 0 goes on with the history of sample -1",
        script(Pick((-1, 1))), sample_1_as(script(Pick((1, 1))))),
    "reset-beyond-batch": ("reset subsets", "a reset of sample 2 in a batch of 2",
        script(Reset((2,))), same_as()),
    "rollback-beyond-batch": ("rollback subsets", "a rollback of sample 2 in a batch of 2",
        script(Crop(2, (2,))), same_as()),
    "padding-negative": ("left-padding", "left padding of -1 tokens",
        unchecked(padding=(-1, 0)), same_as(unchecked(padding=(0, 0)))),
    "padding-beyond-length": ("left-padding", "left padding of 20 tokens of a sample with 9",
        unchecked(padding=(20, 0)), sample_1_as(unchecked(padding=(1, 0)))),
}  # fmt: skip

_IN_PAGES: dict[str, Row] = {
    "pages-of-two-sizes": ("", "two pools, in which pages have other sizes", small_pool),
    "samples-without-table": ("", "lengths of all samples with a page table of one sample less",
        indexed(page_table=np.s_[:-1])),
    "page-beyond-pool": ("", "page P in a table of P pages",
        entry("page_table", last_page, lambda x: x.letters["p"]), by_sample),
    "page-negative": ("", "page -1 among those of a sample",
        entry("page_table", last_page, -1), by_sample),
    "keys-beyond-table": ("length-arrays", "a sample with a key more than its row of the table has slots",
        entry("key_lengths", 1, lambda x: x.letters["t"] * x.letters["s"] + 1), by_sample),
    "keys-negative": ("length-arrays", "a sample of -2 keys", entry("key_lengths", 1, -2), by_sample),
}  # fmt: skip

_PAGED: dict[str, Row] = {
    "queries-missing": ("length-arrays", "lengths that add up to 12 for 9 queries",
        entry("query_lengths", 2, 8), by_sample),
    "offsets-fall": ("length-arrays", "cumulative lengths of queries of 0, 5, 4 and 9",
        changed(query_lengths=np.array([5.0, -1.0, 5.0]))),
}  # fmt: skip

_PAGED_WRITE: dict[str, Row] = {
    "slots-missing": ("", "8 slots for 9 tokens", indexed(slot_mapping=np.s_[:8])),
    "slot-beyond-pool": ("", "slot P S in pools of P pages of S slots",
        entry("slot_mapping", 1, lambda x: x.letters["p"] * x.letters["s"]), other_slots),
}  # fmt: skip

MALFORMED_CASES: tuple[MalformedCase, ...] = (
    *malformed(_ATTENTION, "sdpa", first=with_heads_repeated),
    *malformed(_MULTI_HEAD, "multi-head", needs="batch cross"),
    *malformed(
        _LAYER,
        *(n for n, o in OPERATORS.items() if o.is_layer and o.questions.well_formed),
        needs="batch cross",
    ),
    *malformed(_ROTARY, "rotary"),
    *malformed(_PACKED, "packed"),
    *malformed(_CACHED, "cached"),
    *malformed(_IN_PAGES, *(name for name, operator in OPERATORS.items() if operator.asks.pages)),
    *malformed(_PAGED, "paged"),
    *malformed(_PAGED_WRITE, "paged-write"),
)
