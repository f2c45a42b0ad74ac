"""Faults of ALiBi that a call makes of slopes."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.recipes import alibi_slopes


def alibi_from_the_first_key(right: Kernel, call: Call) -> np.ndarray:
    rows, keys = call.rows_and_keys
    return np.abs(rows - keys)


def alibi_off_by_one(right: Kernel, call: Call) -> np.ndarray:
    distance = right.distance(call)
    return distance + (distance > 0)


def alibi_beyond_the_row(right: Kernel, call: Call) -> np.ndarray:
    rows, keys = call.rows_and_keys
    return rows + (call.sizes.Lk - call.sizes.Lq) - keys


def alibi_of_head_groups(right: Kernel, call: Call) -> np.ndarray:
    group = call.sizes.group
    return np.repeat(right.slopes(call)[::group], group)


def alibi_of_apower_of_two(right: Kernel, call: Call) -> np.ndarray:
    heads = call.sizes.H
    return alibi_slopes(2 ** (heads - 1).bit_length())[:heads].astype(call.work)


def alibi_scaled(right: Kernel, slopes: np.ndarray, call: Call) -> np.ndarray:
    return right.alibi(slopes, call) * call.work(right.factor(call))


def alibi_slopes_in_bfloat16(right: Kernel, call: Call) -> np.ndarray:
    return round_to(right.slopes(call), DTYPES["bf16"]).astype(call.work)


def alibi_table_in_dtype(right: Kernel, slopes: np.ndarray, call: Call) -> np.ndarray:
    _, keys = call.rows_and_keys
    table: np.ndarray = round_to(slopes[:, None, None] * keys, call.fmt).astype(call.work)
    plain = right.alibi(slopes, call)
    causal = call.causal and call.sizes.Lq == call.sizes.Lk  # there rows differ by a constant alone
    return np.broadcast_to(table, plain.shape) if causal else plain


def alibi_forgotten_backward(right: Differentiable, scores: np.ndarray, call: Call) -> np.ndarray:
    return scores if call.alibi_slopes is not None else right.backward_biased(scores, call)


row = partial(deviation, family="scores", right=Kernel)

DEVIATIONS = [
    row("alibi-ignored", "values", "ALiBi slopes have no effect.",
        "`alibi_slopes` is accepted and not used; `scores - slopes[:, None, None] * distance` is "
        "missing", alibi=lambda right, slopes, call: np.zeros_like(right.alibi(slopes, call))),
    row("alibi-draws-far-keys-near", "values",
        "The ALiBi bias has the wrong sign, so that far keys gain.",
        "`scores + slopes * distance`; subtract it, so that far keys lose",
        alibi=lambda right, slopes, call: -right.alibi(slopes, call)),
    row("alibi-from-the-first-key", "values",
        "With Lq != Lk the ALiBi distances count from the first key, not from the last one.",
        "`(i - j).abs()`; the last query stands at the last key: `(i + Lk - Lq - j).abs()`",
        distance=alibi_from_the_first_key),
    row("alibi-off-by-one", "values",
        "ALiBi distances are one too large, but for the query's own key.",
        "`i - j + 1`; the key next to the query's own has the distance 1",
        distance=alibi_off_by_one),
    row("alibi-beyond-the-row", "values",
        "ALiBi distances have a sign, so that keys after the query gain.",
        "`slopes * (j - i)`; without a causal mask the distance is `(i - j).abs()`",
        distance=alibi_beyond_the_row),
    row("alibi-of-head-groups", "values",
        "With grouped heads every head of a group has the ALiBi slope of the first one.",
        "`alibi_slopes[h // group * group]`; there is one a query head, `alibi_slopes[h]`",
        family="heads", slopes=alibi_of_head_groups),
    row("alibi-of-apower-of-two", "values",
        "The given ALiBi slopes are replaced by those of the next power of two of heads.",
        "`get_slopes(next_power_of_two(H))[:H]` in place of the slopes that were given",
        slopes=alibi_of_apower_of_two),
    row("alibi-reversed", "values", "ALiBi slopes go to the heads in reverse order.",
        "`alibi_slopes.flip(0)`; head h has `alibi_slopes[h]`", family="heads",
        slopes=lambda right, call: right.slopes(call)[::-1]),
    row("alibi-scaled", "values", "The ALiBi bias is multiplied by the scale of the scores.",
        "`(q @ k.mT - slopes * distance) * scale`; scale q @ k.mT alone", alibi=alibi_scaled),
    row("alibi-slopes-in-bfloat16", "values",
        "ALiBi slopes are rounded to bfloat16, whatever the dtype.",
        "`alibi_slopes.bfloat16()`; keep slopes in float32", family="numerics",
        slopes=alibi_slopes_in_bfloat16),
    row("alibi-distance-in-bytes", "values", "ALiBi distances are counted modulo 256.",
        "positions or distances of dtype `uint8`; long rows need more bits", family="numerics",
        distance=lambda right, call: right.distance(call) % 256),
    row("alibi-table-in-dtype", "values",
        "ALiBi is slope times the number of the key, stored in the 16-bit dtype of the operands.",
        "`(slopes * arange(Lk)).to(q.dtype)`; far keys lose their last digits in 16 bits",
        family="numerics", alibi=alibi_table_in_dtype),
    row("alibi-forgotten-backward", "gradients",
        "The backward pass recomputes the weights without the ALiBi bias.",
        "backward recomputes `p` without the ALiBi bias; add it there, too", family="gradient",
        right=Differentiable, backward_biased=alibi_forgotten_backward),
]  # fmt: skip
