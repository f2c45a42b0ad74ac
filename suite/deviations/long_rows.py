"""Faults of long rows in one dtype: one key among many is skipped, counted twice or exchanged."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.suite.deviations.deviation import Deviation, deviation
from attention_conformance.suite.deviations.kernels.attention import Call, Eager, Fused, Kernel
from attention_conformance.suite.spec.dtypes import DTYPES


def faulty_key(call: Call) -> int:
    """Returns the index of the key at which a fault happens: no end of the row, no multiple of a tile."""
    return int(call.sizes.Lk * 0.618)


def scores_lacking_key(right: Kernel, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
    scores = right.scores(query, key, call)
    scores[..., faulty_key(call)] = -np.inf
    return scores


def hide_doubling_key(
    right: Kernel, scores: np.ndarray, allowed: np.ndarray | None, call: Call
) -> np.ndarray:
    scores = right.hide(scores, allowed, call)
    scores[..., faulty_key(call)] += call.work(np.log(2))
    return scores


def scores_exchanged(right: Kernel, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
    scores, first = right.scores(query, key, call), faulty_key(call)
    scores[..., [first, first + 7]] = scores[..., [first + 7, first]]
    return scores


SKIPPED = (
    "between two tiles or splits of a long row one key is skipped: see `start` and `stop` of each"
)
OVERLAP = "two tiles or splits of a long row overlap by one key: see `start` and `stop` of each"
ORDERED = "k is read in another order (pages, swizzled lanes) than v; index both alike"

FAULTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "drop-akey": ("one key of {} is not seen", SKIPPED, {"scores": scores_lacking_key}),
    "count-akey-twice": ("one key of {} counts twice", OVERLAP, {"hide": hide_doubling_key}),
    "exchange-keys": (
        "two keys of {} are exchanged, and their values are not", ORDERED, {"scores": scores_exchanged}),
}  # fmt: skip
"""The sentence, the hint and the changed step of each fault."""

LENGTHS = {
    "long-rows": ("a row of more than 512", 513, 2**20),
    "very-long-rows": ("a row of more than 4096", 4097, 2**20),
    "rows-of2049": ("2049", 2049, 2049),
}
"""The numbers of keys at which a fault happens: in words, the smallest and the largest."""


def row(fault: str, rows: str, dtype: str, right: type[Kernel], suffix: str = "") -> Deviation:
    """Returns the deviation of the kernel `right` with the fault `FAULTS[fault]`, in one dtype and for
    the numbers of keys `LENGTHS[rows]`. `suffix`: the end of its name."""
    sentence, hint, steps = FAULTS[fault]
    words, least, most = LENGTHS[rows]
    sentence = f"In {DTYPES[dtype].long_name} {sentence.format(words)}"
    if right is Eager:
        sentence += ", in a kernel that stores its scores"
    return deviation(
        f"{rows}-{fault}{suffix}", "long_rows", f"{sentence}.", hint, family="tiles", right=right,
        when=lambda call: least <= call.sizes.Lk <= most and call.fmt.name == dtype, **steps,
    )  # fmt: skip


DEVIATIONS = [
    row("drop-akey", "long-rows", "f32", Kernel),
    row("drop-akey", "long-rows", "bf16", Fused, "-bfloat16"),
    row("drop-akey", "long-rows", "f16", Fused, "-float16"),
    row("drop-akey", "very-long-rows", "f32", Kernel),
    row("drop-akey", "very-long-rows", "bf16", Fused, "-bfloat16"),
    row("drop-akey", "rows-of2049", "bf16", Fused),
    row("drop-akey", "rows-of2049", "bf16", Eager, "-of-stored-scores"),
    row("count-akey-twice", "long-rows", "f32", Kernel),
    row("count-akey-twice", "long-rows", "bf16", Fused, "-bfloat16"),
    row("count-akey-twice", "rows-of2049", "bf16", Fused),
    row("count-akey-twice", "rows-of2049", "bf16", Eager, "-of-stored-scores"),
    row("exchange-keys", "long-rows", "f32", Kernel),
    row("exchange-keys", "long-rows", "bf16", Fused, "-bfloat16"),
    row("exchange-keys", "very-long-rows", "f32", Kernel),
    row("exchange-keys", "rows-of2049", "bf16", Fused),
    row("exchange-keys", "rows-of2049", "bf16", Eager, "-of-stored-scores"),
]
