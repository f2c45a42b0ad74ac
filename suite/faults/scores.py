"""Faults of the scores: softcap, bias."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel, rank4

FAMILY = "scores"


@fault(
    "values",
    "`scale * cap * tanh(q @ k.mT / cap)`; scale first: `cap * tanh(scale * q @ k.mT / cap)`",
)
class ScaleAfterCap(Kernel):
    """The softcap is applied before the scale."""

    def compute(self, call: Call) -> np.ndarray:
        self.after = self.factor(call)
        return super().compute(call)

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        return query @ key.swapaxes(-1, -2)

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return super().capped(scores, call) * call.work(self.after)


def cap_ignored_in_decoding(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    return scores if call.sizes.Lq == 1 else right.capped(scores, call)


def cap_not_multiplied(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    return scores if call.softcap is None else np.tanh(scores / call.work(call.softcap))


@fault("values", "`softcap * tanh((scores + bias) / softcap)`; cap first, then `+ bias`")
class CapAfterBias(Kernel):
    """The bias is added before the softcap."""

    def compute(self, call: Call) -> np.ndarray:
        self.late = super().capped
        return super().compute(call)

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return scores

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return self.late(super().biased(scores, call), call)


def bias_subtracted(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    loaded = right.load(array, call)
    return np.where(np.isneginf(loaded), loaded, -loaded) if array is call.bias else loaded


@fault("values", "`(q @ k.mT + bias) * scale`; scale first: `q @ k.mT * scale + bias`")
class BiasScaled(Kernel):
    """The bias is added before the scores are scaled."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        if array is not call.bias:
            return loaded
        factor = call.work(abs(self.factor(call)) or 1.0)
        return np.where(np.isneginf(loaded), loaded, loaded * factor)


def bias_dropped_with_mask(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    return right.biased(scores, call) if right.allowed(call) is None else scores


def bias_of_first_head(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    loaded = right.load(array, call)
    return rank4(loaded)[:, :1] if array is call.bias else loaded


def bias_of_first_sample(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    loaded = right.load(array, call)
    return rank4(loaded)[:1] if array is call.bias else loaded


def bias_of_group_leader(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    loaded = right.load(array, call)
    if array is not call.bias or rank4(loaded).shape[1] == 1:
        return loaded
    group = call.sizes.group
    return np.repeat(rank4(loaded)[:, ::group], group, axis=1)


def binary_bias_inverted(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    bias = None if call.bias is None else rank4(call.bias.values)
    if bias is None or not np.isneginf(bias).any() or np.isfinite(bias[bias != 0]).any():
        return right.biased(scores, call)
    return np.where(bias != 0, scores, call.work(-np.inf))


def minus_inf_made_finite(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    loaded = right.load(array, call)
    return np.maximum(loaded, call.work(-1e4)) if array is call.bias else loaded


def batch_bias_as_query_bias(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    loaded, s = right.load(array, call), call.sizes
    alike = array is call.bias and s.B == s.Lq and loaded.shape == (s.B, 1, 1, s.Lk)
    return loaded.swapaxes(0, 2) if alike else loaded


def batch_bias_as_head_bias(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    loaded, s = right.load(array, call), call.sizes
    if array is not call.bias or s.B != s.H or rank4(loaded).shape[:2] != (s.B, 1):
        return loaded
    return loaded.swapaxes(0, 1)


def square_bias_transposed(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    loaded = right.load(array, call)
    square = array is call.bias and loaded.shape[-1] == loaded.shape[-2]
    return loaded.swapaxes(-1, -2) if square else loaded


def bias_of_first_rows(right: Kernel, array: Rounded, call: Call) -> np.ndarray:
    loaded = right.load(array, call)
    return loaded[..., np.arange(loaded.shape[-2]) % 64, :] if array is call.bias else loaded


def hidden_by_infinity_alone(right: Kernel, scores: np.ndarray) -> np.ndarray:
    shifted = right.shifted(scores)
    low = np.isfinite(shifted) & (shifted < -1e4)
    return np.where(low, -3.0, shifted)


row = partial(deviation, family=FAMILY, right=Kernel)

DEVIATIONS = [
    row("cap-ignored", "values", "The softcap has no effect.",
        "`softcap` is accepted and not used; `softcap * tanh(scores / softcap)` is missing",
        capped=lambda right, scores, call: scores),
    row("cap-ignored-in-decoding", "values", "With one query the softcap has no effect.",
        "a path for `Lq == 1` without `softcap * tanh(scores / softcap)`",
        capped=cap_ignored_in_decoding),
    row("cap-not-multiplied", "values", "tanh(scores / softcap) is not multiplied by softcap.",
        "`tanh(scores / softcap)`; multiply again: `softcap * tanh(scores / softcap)`",
        capped=cap_not_multiplied),
    row("bias-ignored", "values", "The bias has no effect.",
        "`bias` is accepted and not used; `scores = scores + bias` is missing",
        biased=lambda right, scores, call: scores),
    row("bias-subtracted", "values", "The bias is subtracted, not added.",
        "`scores - bias`; a bias is added", load=bias_subtracted),
    row("bias-dropped-with-mask", "values",
        "Beside a mask or a causal flag the bias has no effect.",
        "`mask if mask is not None else bias`; both apply: `where(mask, scores + bias, -inf)`",
        biased=bias_dropped_with_mask),
    row("bias-of-first-head", "values", "Every head gets the bias of the first.",
        "`bias[:, 0]` or `bias[:, :1]` for all heads; head h has `bias[:, h]`", family="heads",
        load=bias_of_first_head),
    row("bias-of-first-sample", "values", "Every sample gets the bias of the first.",
        "`bias[0]` or `bias[:1]` for all samples; sample b has `bias[b]`", family="heads",
        load=bias_of_first_sample),
    row("bias-of-group-leader", "values",
        "With grouped heads the bias of a group's first head serves the whole group.",
        "`bias[:, h // group * group]`; a bias is indexed by the query head, `bias[:, h]`",
        family="heads", load=bias_of_group_leader),
    row("binary-bias-inverted", "boolean_equals_additive",
        "A bias of 0 and -inf is cast to a boolean mask, in which -inf attends and 0 hides.",
        "`bias.bool()` as a mask; an additive mask attends where it is 0: `bias == 0`",
        family="mask", biased=binary_bias_inverted),
    row("minus-inf-made-finite", "election",
        "-inf in a bias becomes -1e4, so that a row of nothing else averages its values.",
        "`bias.clamp(min=-1e4)`, or -1e4 for -inf; keep -inf, and treat fully masked rows apart",
        family="mask", load=minus_inf_made_finite),
    row("batch-bias-as-query-bias", "boolean_equals_additive",
        "With B == Lq a key bias per sample (B, 1, 1, Lk) is taken for (Lq, Lk).",
        "`bias.squeeze()` broadcasts as (Lq, Lk); keep (B, 1, 1, Lk)",
        load=batch_bias_as_query_bias),
    row("batch-bias-as-head-bias", "values",
        "With B == H a bias per sample is taken for a bias per head.",
        "`bias.squeeze(1)` broadcasts as (H, Lq, Lk); keep (B, 1, Lq, Lk)",
        load=batch_bias_as_head_bias),
    row("square-bias-transposed", "values",
        "With Lq == Lk rows and columns of the bias are exchanged.",
        "`bias.mT`, or `bias[key, query]`; the axes of a bias are (..., query, key)",
        load=square_bias_transposed),
    row("bias-of-first-rows", "values",
        "Rows are computed in blocks of 64: every block gets the bias of the first.",
        "every block loads `bias[..., :64, :]`; the rows of block n begin at `64 * n`",
        family="tiles", load=bias_of_first_rows),
    row("hidden-by-infinity-alone", "values",
        "Only a score of -inf hides a key; one of -3e4 or `finfo.min` keeps some weight.",
        "`hidden = scores == -inf`; a mask may hide with -1e9 or `finfo.min`, too", family="mask",
        shifted=hidden_by_infinity_alone),
]  # fmt: skip
