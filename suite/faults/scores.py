"""Faults of the scores: softcap, bias."""

from __future__ import annotations

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.fault import fault
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


@fault(
    "values", "`softcap` is accepted and not used; `softcap * tanh(scores / softcap)` is missing"
)
class CapIgnored(Kernel):
    """The softcap has no effect."""

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return scores


@fault("values", "a path for `Lq == 1` without `softcap * tanh(scores / softcap)`")
class CapIgnoredInDecoding(Kernel):
    """With one query the softcap has no effect."""

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return scores if call.sizes.Lq == 1 else super().capped(scores, call)


@fault("values", "`tanh(scores / softcap)`; multiply again: `softcap * tanh(scores / softcap)`")
class CapNotMultiplied(Kernel):
    """tanh(scores / softcap) is not multiplied by softcap."""

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
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


@fault("values", "`bias` is accepted and not used; `scores = scores + bias` is missing")
class BiasIgnored(Kernel):
    """The bias has no effect."""

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return scores


@fault("values", "`scores - bias`; a bias is added")
class BiasSubtracted(Kernel):
    """The bias is subtracted, not added."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
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


@fault(
    "values", "`mask if mask is not None else bias`; both apply: `where(mask, scores + bias, -inf)`"
)
class BiasDroppedWithMask(Kernel):
    """Beside a mask or a causal flag the bias has no effect."""

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return super().biased(scores, call) if self.allowed(call) is None else scores


@fault(
    "values", "`bias[:, 0]` or `bias[:, :1]` for all heads; head h has `bias[:, h]`", family="heads"
)
class BiasOfFirstHead(Kernel):
    """Every head gets the bias of the first."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        return rank4(loaded)[:, :1] if array is call.bias else loaded


@fault("values", "`bias[0]` or `bias[:1]` for all samples; sample b has `bias[b]`", family="heads")
class BiasOfFirstSample(Kernel):
    """Every sample gets the bias of the first."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        return rank4(loaded)[:1] if array is call.bias else loaded


@fault(
    "values",
    "`bias[:, h // group * group]`; a bias is indexed by the query head, `bias[:, h]`",
    family="heads",
)
class BiasOfGroupLeader(Kernel):
    """With grouped heads the bias of a group's first head serves the whole group."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        if array is not call.bias or rank4(loaded).shape[1] == 1:
            return loaded
        group = call.sizes.group
        return np.repeat(rank4(loaded)[:, ::group], group, axis=1)


@fault(
    "boolean_equals_additive",
    "`bias.bool()` as a mask; an additive mask attends where it is 0: `bias == 0`",
    family="mask",
)
class BinaryBiasInverted(Kernel):
    """A bias of 0 and -inf is cast to a boolean mask, in which -inf attends and 0 hides."""

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        bias = None if call.bias is None else rank4(call.bias.values)
        if bias is None or not np.isneginf(bias).any() or np.isfinite(bias[bias != 0]).any():
            return super().biased(scores, call)
        return np.where(bias != 0, scores, call.work(-np.inf))


@fault(
    "election",
    "`bias.clamp(min=-1e4)`, or -1e4 for -inf; keep -inf, and treat fully masked rows apart",
    family="mask",
)
class MinusInfMadeFinite(Kernel):
    """-inf in a bias becomes -1e4, so that a row of nothing else averages its values."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        return np.maximum(loaded, call.work(-1e4)) if array is call.bias else loaded


@fault("boolean_equals_additive", "`bias.squeeze()` broadcasts as (Lq, Lk); keep (B, 1, 1, Lk)")
class BatchBiasAsQueryBias(Kernel):
    """With B == Lq a key bias per sample (B, 1, 1, Lk) is taken for (Lq, Lk)."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded, s = super().load(array, call), call.sizes
        alike = array is call.bias and s.B == s.Lq and loaded.shape == (s.B, 1, 1, s.Lk)
        return loaded.swapaxes(0, 2) if alike else loaded


@fault("values", "`bias.squeeze(1)` broadcasts as (H, Lq, Lk); keep (B, 1, Lq, Lk)")
class BatchBiasAsHeadBias(Kernel):
    """With B == H a bias per sample is taken for a bias per head."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded, s = super().load(array, call), call.sizes
        if array is not call.bias or s.B != s.H or rank4(loaded).shape[:2] != (s.B, 1):
            return loaded
        return loaded.swapaxes(0, 1)


@fault("values", "`bias.mT`, or `bias[key, query]`; the axes of a bias are (..., query, key)")
class SquareBiasTransposed(Kernel):
    """With Lq == Lk rows and columns of the bias are exchanged."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        square = array is call.bias and loaded.shape[-1] == loaded.shape[-2]
        return loaded.swapaxes(-1, -2) if square else loaded


@fault(
    "values",
    "every block loads `bias[..., :64, :]`; the rows of block n begin at `64 * n`",
    family="tiles",
)
class BiasOfFirstRows(Kernel):
    """Rows are computed in blocks of 64: every block gets the bias of the first."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        return loaded[..., np.arange(loaded.shape[-2]) % 64, :] if array is call.bias else loaded


@fault(
    "values",
    "`hidden = scores == -inf`; a mask may hide with -1e9 or `finfo.min`, too",
    family="mask",
)
class HiddenByInfinityAlone(Kernel):
    """Only a score of -inf hides a key; one of -3e4 or `finfo.min` keeps some weight."""

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        shifted = super().shifted(scores)
        low = np.isfinite(shifted) & (shifted < -1e4)
        return np.where(low, -3.0, shifted)
