"""Faults of heads, groups of heads and samples."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel

FAMILY = "heads"


@fault(
    "groups_equal_repeated_heads",
    "`k.repeat(1, group, 1, 1)`, `h % Hkv`; use `repeat_interleave(group, dim=1)`, `h // group`",
)
class HeadsTiled(Kernel):
    """Key/value heads are tiled (0, 1, 0, 1), not repeated (0, 0, 1, 1)."""

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        return np.tile(x, (1, call.sizes.group, 1, 1))


@fault(
    "groups_equal_repeated_heads",
    "`v.repeat(1, group, 1, 1)`; k and v both need `repeat_interleave(group, dim=1)`",
)
class ValueHeadsTiled(Kernel):
    """Value heads are tiled, key heads repeated."""

    def compute(self, call: Call) -> np.ndarray:
        self.seen = 0
        return super().compute(call)

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        self.seen += 1
        if self.seen > 1:  # keys are expanded after the values
            return super().expand(x, call)
        return np.tile(x, (1, call.sizes.group, 1, 1))


def first_key_head_only(right: Kernel, x: np.ndarray, call: Call) -> np.ndarray:
    s = call.sizes
    return x if s.H == s.Hkv else np.repeat(x[:, :1], s.H, axis=1)


def wide_groups_cross_tiles(right: Kernel, x: np.ndarray, call: Call) -> np.ndarray:
    group = call.sizes.group
    if group <= 16:
        return right.expand(x, call)
    return x[:, np.arange(call.sizes.H) // 16 * 16 // group]


def heads_rounded_down(right: Kernel, call: Call) -> np.ndarray:
    out = right.compute(call)
    out[:, 2 ** int(np.log2(max(call.sizes.H, 1))) :] = 0
    return out


def odd_head_paired(right: Kernel, call: Call) -> np.ndarray:
    out = right.compute(call)
    H = call.sizes.H
    if H > 1 and H % 2:
        out[:, -1] = out[:, -2]
    return out


def keys_of_first_sample(right: Kernel, x: np.ndarray, call: Call) -> np.ndarray:
    own = right.expand(x, call)
    return np.broadcast_to(own[:1], own.shape) if len(own) else own


def single_key_of_first_head(right: Kernel, call: Call) -> np.ndarray:
    out = right.compute(call)
    return np.broadcast_to(out[:, :1], out.shape) if call.sizes.Lk == 1 else out


row = partial(deviation, family=FAMILY, right=Kernel)

DEVIATIONS = [
    row("first-key-head-only", "groups_equal_repeated_heads",
        "With grouped heads every query head uses the first key/value head.",
        "`k[:, :1].expand(-1, H, -1, -1)`; query head h reads `k[:, h // group]`",
        expand=first_key_head_only),
    row("wide-groups-cross-tiles", "values",
        "With groups of more than 16 query heads, 16 heads in a row share the key head of the first.",
        "tiles of 16 query heads with one key head each; take `h // group` for every head",
        expand=wide_groups_cross_tiles),
    row("heads-rounded-down", "values", "Heads beyond the largest power of two are not computed.",
        "a grid of `2 ** int(log2(H))` heads; launch H, or round up and mask",
        compute=heads_rounded_down),
    row("odd-head-paired", "head_independence",
        "With an odd number of heads the last answers like the one before it.",
        "heads written in pairs, `range(0, H - 1, 2)`; the last of an odd number needs its own turn",
        compute=odd_head_paired),
    row("keys-of-first-sample", "batch_independence",
        "Every sample attends the keys and values of the first.",
        "`k[0]`, `v[0]`, or a batch stride of 0; sample b reads `k[b]` and `v[b]`",
        expand=keys_of_first_sample),
    row("single-key-of-first-head", "single_key",
        "With one key every head answers the value of the first key/value head.",
        "`if Lk == 1: return v[:, :1]`; every query head answers the value of its own head",
        compute=single_key_of_first_head),
]  # fmt: skip
