"""Writing into pages: other slots, tokens and pools."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attention_conformance.suite.judge.diagnosis.layers import Another
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.paged import flat_slots


def cleared(inputs: Inputs) -> Inputs:
    """The inputs with zeros in all pages that get a token."""
    slots, arrays = inputs.arrays["slot_mapping"].astype(int), {}
    pages = np.unique(slots[slots >= 0] // inputs.letters["s"])
    for name in ("key_cache", "value_cache"):
        arrays[name] = inputs.arrays[name].copy()
        arrays[name][pages] = 0.0
    return inputs.replace(**arrays)


def of_paged_write(inputs: Inputs) -> Iterator[Another]:
    """Other slots, tokens and pools."""
    slots, count = inputs.arrays["slot_mapping"], inputs.letters["p"] * inputs.letters["s"]
    kept = slots >= 0
    pools = {n: flat_slots(inputs.case, inputs.arrays[f"{n}_cache"]) for n in ("key", "value")}
    old = {name: pool[np.where(kept, slots, 0).astype(int)] for name, pool in pools.items()}
    narrow = {name: round_to(inputs.arrays[name], DTYPES["bf16"]) for name in old}
    for other, sentence, hint in (
        ({"slot_mapping": np.where(kept, np.minimum(slots + 1, count - 1), slots)},
         "Every token is written one slot late.", "lengths that already count the new token"),
        ({"slot_mapping": np.where(kept, slots, slots + count)},
         "Tokens with a negative slot are written to slots counted from the end of the pool.",
         "`cache[slots]` with negative slots"),
        ({"slot_mapping": np.maximum(slots, 0)},
         "Tokens with a negative slot are written to slot 0.", "`clamp(min=0)`"),
        ({"slot_mapping": np.where(slots < -1, slots + count, slots)},
         "Of negative slots only -1 is skipped.", "`slot != -1` for `slot >= 0`"),
        ({"slot_mapping": np.where(kept, (slots[:1] + np.arange(len(slots))) % count, slots)},
         "Tokens are written one behind the other from the slot of the first one.",
         "`slots[0] + arange(n)`"),
        ({"key": old["key"]}, "Keys are not written.", ""),
        ({"value": old["value"]}, "Values are not written.", ""),
        (narrow, "Tokens pass through bfloat16.", "a cache dtype in between"),
    ):  # fmt: skip
        yield inputs.replace(**other), sentence, "paged", hint
    hint = "a page that is allocated for every chunk and zeroed"
    yield cleared(inputs), "A page is cleared before tokens are written into it.", "paged", hint
