"""Mutants at fault in the scores: scale, softcap, bias."""

from __future__ import annotations

import math

import numpy as np

from backends._numpy import Rounded
from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Eager, Fused, Kernel, rank4
from suite.spec.dtypes import round_to


@fault("values", like="D3")
class ScaleIgnored(Kernel):
    """An explicit scale has no effect."""

    def factor(self, call: Call) -> float:
        return 1.0 / math.sqrt(call.sizes.D)


@fault("default_scale", like="D2")
class DefaultScaleIsOne(Kernel):
    """Without an explicit scale nothing is scaled."""

    def factor(self, call: Call) -> float:
        return 1.0 if call.scale is None else call.scale


@fault("values")
class ScaleZeroIsDefault(Kernel):
    """`scale or default`: a scale of 0 is taken for none."""

    def factor(self, call: Call) -> float:
        return call.scale or 1.0 / math.sqrt(call.sizes.D)


@fault("score_variance", like="D3")
class ScaleOneIsDefault(Kernel):
    """A scale of 1 is taken for none."""

    def factor(self, call: Call) -> float:
        return 1.0 / math.sqrt(call.sizes.D) if call.scale in (None, 1.0) else call.scale


@fault("values", like="D1")
class ScaleSignLost(Kernel):
    """The root of |scale| on queries and keys: a negative scale becomes positive."""

    def factor(self, call: Call) -> float:
        return abs(super().factor(call))


@fault("default_scale", like="D7")
class ScaleOfPaddedSize(Kernel):
    """The default scale is that of D rounded up to a multiple of 8."""

    def factor(self, call: Call) -> float:
        padded = -(-call.sizes.D // 8) * 8
        return 1.0 / math.sqrt(padded) if call.scale is None else call.scale


@fault("default_scale", like="D5")
class ScaleOfAllHeads(Kernel):
    """The default scale is that of all heads together, 1 / sqrt(H D)."""

    def factor(self, call: Call) -> float:
        s = call.sizes
        return 1.0 / math.sqrt(max(s.H, 1) * s.D) if call.scale is None else call.scale


@fault("values")
class ScaleTwice(Kernel):
    """An explicit scale is multiplied onto the default one."""

    def factor(self, call: Call) -> float:
        return (1.0 if call.scale is None else call.scale) / math.sqrt(call.sizes.D)


@fault("values")
class ScaleRounded(Fused):
    """The scale is rounded to the case's dtype."""

    def factor(self, call: Call) -> float:
        return float(round_to(super().factor(call), call.fmt))


@fault("precision")
class ScaleThroughFloat32(Kernel):
    """The scale goes through float32 on its way to a float64 call."""

    def factor(self, call: Call) -> float:
        return float(np.float32(super().factor(call)))


@fault("values")
class ScaleAfterCap(Kernel):
    """The softcap is applied before the scale."""

    def compute(self, call: Call) -> np.ndarray:
        self.after = self.factor(call)
        return super().compute(call)

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        return query @ key.swapaxes(-1, -2)

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return super().capped(scores, call) * call.work(self.after)


@fault("values", like="M8")
class CapIgnored(Kernel):
    """softcap has no effect."""

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return scores


@fault("values", like="M8")
class CapIgnoredInDecoding(Kernel):
    """softcap has no effect where there is one query."""

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return scores if call.sizes.Lq == 1 else super().capped(scores, call)


@fault("values")
class CapNotMultiplied(Kernel):
    """tanh(scores / softcap) is not multiplied by softcap."""

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return scores if call.softcap is None else np.tanh(scores / call.work(call.softcap))


@fault("values")
class CapAfterBias(Kernel):
    """The bias is added before the softcap."""

    def compute(self, call: Call) -> np.ndarray:
        self.late = super().capped
        return super().compute(call)

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return scores

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return self.late(super().biased(scores, call), call)


@fault("values", like="C16")
class BiasIgnored(Kernel):
    """The bias has no effect."""

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return scores


@fault("values", like="M12")
class BiasSubtracted(Kernel):
    """The finite part of the bias enters with the wrong sign."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        return np.where(np.isneginf(loaded), loaded, -loaded) if array is call.bias else loaded


@fault("values")
class BiasScaled(Kernel):
    """The bias is added before the scores are scaled."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        if array is not call.bias:
            return loaded
        factor = call.work(abs(self.factor(call)) or 1.0)
        return np.where(np.isneginf(loaded), loaded, loaded * factor)


@fault("values", like="B10")
class BiasDroppedWithMask(Kernel):
    """Where there is a mask, the bias is dropped."""

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return super().biased(scores, call) if self.allowed(call) is None else scores


@fault("values")
class BiasOfFirstHead(Kernel):
    """Every head gets the bias of the first."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        return rank4(loaded)[:, :1] if array is call.bias else loaded


@fault("values")
class BiasOfFirstSample(Kernel):
    """Every sample gets the bias of the first."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        return rank4(loaded)[:1] if array is call.bias else loaded


@fault("values")
class BiasOfGroupLeader(Kernel):
    """With grouped heads the bias of a group's first head serves the group."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        if array is not call.bias or rank4(loaded).shape[1] == 1:
            return loaded
        group = call.sizes.group
        return np.repeat(rank4(loaded)[:, ::group], group, axis=1)


@fault("boolean_equals_additive", like="C2")
class BinaryBiasInverted(Kernel):
    """A bias of nothing but 0 and -inf is cast to a boolean mask, non-zero attends."""

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        bias = None if call.bias is None else rank4(call.bias.values)
        if bias is None or not np.isneginf(bias).any() or np.isfinite(bias[bias != 0]).any():
            return super().biased(scores, call)
        return np.where(bias != 0, scores, call.work(-np.inf))


@fault("election")
class MinusInfMadeFinite(Kernel):
    """-inf in a bias becomes -1e4: a row of nothing else averages its values."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        return np.maximum(loaded, call.work(-1e4)) if array is call.bias else loaded


@fault("election", like="G6")
class UnscaledScoresOverflow(Kernel):
    """The product of queries and keys is held in float16 before it is scaled."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        product = query @ key.swapaxes(-1, -2)
        if call.fmt.name == "f16":
            product = np.where(
                np.abs(product) > call.fmt.max, np.copysign(np.inf, product), product
            )
        return product * call.work(self.factor(call))


@fault("values")
class QueryScaledInDtype(Eager):
    """The query is multiplied by the scale and rounded to the case's dtype before the product."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        factor = call.work(self.factor(call))
        scaled: np.ndarray = round_to(query * factor, call.fmt).astype(call.work)
        return self.keep(scaled @ key.swapaxes(-1, -2), "scores", call)


@fault("boolean_equals_additive", like="C10")
class BatchBiasAsQueryBias(Kernel):
    """With B == Lq a key bias per sample (B, 1, 1, Lk) is taken for (Lq, Lk)."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded, s = super().load(array, call), call.sizes
        alike = array is call.bias and s.B == s.Lq and loaded.shape == (s.B, 1, 1, s.Lk)
        return loaded.swapaxes(0, 2) if alike else loaded


@fault("values", like="C13")
class BatchBiasAsHeadBias(Kernel):
    """With B == H a bias per sample is taken for a bias per head."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded, s = super().load(array, call), call.sizes
        if array is not call.bias or s.B != s.H or rank4(loaded).shape[:2] != (s.B, 1):
            return loaded
        return loaded.swapaxes(0, 1)


@fault("values")
class SquareBiasTransposed(Kernel):
    """With Lq == Lk rows and columns of the bias are exchanged."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        square = array is call.bias and loaded.shape[-1] == loaded.shape[-2]
        return loaded.swapaxes(-1, -2) if square else loaded


@fault("values")
class BiasOfFirstRows(Kernel):
    """Rows are computed in blocks of 64: every block gets the bias of the first."""

    def load(self, array: Rounded, call: Call) -> np.ndarray:
        loaded = super().load(array, call)
        return loaded[..., np.arange(loaded.shape[-2]) % 64, :] if array is call.bias else loaded


@fault("values")
class ScaleOnePercentOff(Eager):
    """In bfloat16 the scale is one percent too large."""

    def factor(self, call: Call) -> float:
        return super().factor(call) * (1.01 if call.fmt.name == "bf16" else 1.0)


@fault("values")
class HiddenByInfinityAlone(Kernel):
    """Scores far below the largest of their row are raised, but for those of minus infinity."""

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        shifted = super().shifted(scores)
        low = np.isfinite(shifted) & (shifted < -1e4)
        return np.where(low, -3.0, shifted)
