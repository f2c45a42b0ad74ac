"""Faults of layers: masks."""

from __future__ import annotations

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.layer import Heads, LayerCall, MultiHeadKernel, SelfAttentionKernel
from suite.faults.kernels.single import AdditiveKernel, DotKernel, MaskedKernel


@fault("values", like="C20")
class SamplePaddingTiled(MultiHeadKernel):
    """Padding is tiled, not repeated, over the heads: rows of (B H) get the wrong sample's."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.tile(valid, (call.sizes.H, 1)).reshape(*valid.shape[:1], -1, 1, valid.shape[1])


@fault("values", like="C13")
class PaddingPerHead(MultiHeadKernel):
    """With B == H padding per sample is taken for padding per head."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        mask = super().padded(valid, call)
        return mask.swapaxes(0, 1) if call.sizes.B == call.sizes.H else mask


@fault("values", like="C10")
class PaddingPerQuery(DotKernel):
    """With B == Lq padding (B, Lk) is taken for a mask (Lq, Lk)."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return valid[None, None] if len(valid) == call.sizes.Lq else super().padded(valid, call)


@fault("values", like="A22")
class PaddingHidesQueries(MultiHeadKernel):
    """With Lq == Lk padding hides rows of queries, not columns of keys."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        mask = super().padded(valid, call)
        return mask.swapaxes(-1, -2) if call.sizes.Lq == call.sizes.Lk else mask


@fault("values", like="A11")
class PaddedQueriesHidden(MultiHeadKernel):
    """Where one tensor is query and key, padding hides its rows of queries, too."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        mask = super().padded(valid, call)
        return mask & mask.swapaxes(-1, -2) if call.own else mask


@fault("values")
class PaddingOffByOne(MultiHeadKernel):
    """The first key of the padding is attended."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        shifted = np.concatenate([valid[:, :1], valid[:, :-1]], 1)
        return super().padded(valid | shifted, call)


@fault("poison", like="C6")
class PaddingIgnored(MultiHeadKernel):
    """Padded keys are attended."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(np.ones_like(valid), call)


@fault("values")
class PaddingIgnoredWithWeights(MultiHeadKernel):
    """Padding is lost where weights are returned."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | (call.returned != "none"), call)


@fault("values", like="C25")
class LayerMaskInverted(MultiHeadKernel):
    """True in a boolean mask hides."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return ~mask


@fault("election", like="B25")
class RawMaskInverted(MultiHeadKernel):
    """True in a boolean mask (Lq, Lk) hides, though True is declared to attend."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        assert call.mask is not None
        return ~mask if call.mask.values.ndim == 2 else mask


@fault("values")
class LayerMaskTransposed(MultiHeadKernel):
    """With Lq == Lk rows and columns of a boolean mask are exchanged."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask.swapaxes(-1, -2) if mask.shape[-1] == mask.shape[-2] else mask


@fault("values")
class SamplesAndHeadsExchanged(MultiHeadKernel):
    """With B == H samples and heads of a boolean mask are exchanged."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask.swapaxes(0, 1) if call.sizes.B == call.sizes.H else mask


@fault("head_independence")
class LayerMaskOfFirstHead(MultiHeadKernel):
    """Every head gets the boolean mask of the first."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask[:, :1]


@fault("batch_independence")
class LayerMaskOfFirstSample(MultiHeadKernel):
    """Every sample gets the boolean mask of the first."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask[:1]


@fault("key_permutation", like="M17")
class MaskAsLengths(MultiHeadKernel):
    """A mask whose rows are equal is converted to lengths, wherever its holes are."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        if mask.shape[-2] != 1:
            return mask
        return np.arange(call.sizes.Lk) < mask.sum(-1, keepdims=True)


@fault("future", like="B18")
class CausalFlagIgnored(SelfAttentionKernel):
    """The causal flag has no effect."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return np.ones((call.sizes.Lq, call.sizes.Lk), bool)


@fault("future", like="B9")
class CausalLostWithWeights(MultiHeadKernel):
    """The causal flag is lost where weights are returned."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.returned != "none")


@fault("election", like="B13")
class CausalLostWithMask(MultiHeadKernel):
    """The causal flag is lost where a mask is given."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.mask is not None)


@fault("future", like="B13")
class CausalLostWithPadding(MultiHeadKernel):
    """The causal flag is lost where keys are padded."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.valid is not None)


@fault("values", like="B10")
class MaskLostWithCausal(MultiHeadKernel):
    """A boolean mask is lost where the causal flag is set."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask | call.causal


@fault("future", like="B20")
class CausalNeedsAnotherMask(MultiHeadKernel):
    """The causal flag has an effect only where there is another mask."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.mask is None and call.valid is None)


@fault("values", like="B13")
class CausalLostWithoutBatch(MultiHeadKernel):
    """The causal flag is lost where the input has no batch axis."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | call.single


@fault("election", like="B2")
class LayerCausalBottomRight(MultiHeadKernel):
    """With Lq != Lk the causal flag is aligned bottom-right, though top-left is declared."""

    def causal(self, call: LayerCall) -> np.ndarray:
        offset = call.sizes.Lk - call.sizes.Lq
        return np.arange(call.sizes.Lk) <= np.arange(call.sizes.Lq)[:, None] + offset


@fault("future")
class LayerCausalSeesNext(MultiHeadKernel):
    """The causal flag lets a row see the key after its own."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return np.arange(call.sizes.Lk) <= np.arange(call.sizes.Lq)[:, None] + 1


@fault("values")
class CausalOrPadding(MaskedKernel):
    """A pair attends where either mask lets it."""

    def joined(self, parts: list[np.ndarray]) -> np.ndarray:
        return super().joined(parts) if len(parts) == 1 else parts[0] | parts[1]


@fault("values")
class LastMaskAlone(MaskedKernel):
    """Of two masks the second replaces the first."""

    def joined(self, parts: list[np.ndarray]) -> np.ndarray:
        return parts[-1]


@fault("values")
class CausalWithoutDiagonal(MaskedKernel):
    """A row does not see its own key, the first row apart."""

    def causal(self, call: LayerCall) -> np.ndarray:
        seen = np.arange(call.sizes.Lk) < np.arange(call.sizes.Lq)[:, None]
        return seen | (np.arange(call.sizes.Lk) == 0)


@fault("poison", like="C17")
class ScoresMultipliedByMask(MaskedKernel):
    """Hidden scores are multiplied by 0."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall) -> np.ndarray:
        return scores if allowed is None else scores * allowed


@fault("poison")
class HiddenScoresMinusThirty(DotKernel):
    """Hidden scores are -30, rows without keys apart."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        some = np.isfinite(hidden).any(-1, keepdims=True)
        return np.where(some & np.isneginf(hidden), call.work(-30), hidden)


@fault("poison")
class PenaltySubtracted(AdditiveKernel):
    """Hidden scores lose 10, rows without keys apart."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        some = np.isfinite(hidden).any(-1, keepdims=True)
        return np.where(some & np.isneginf(hidden), scores - call.work(10), hidden)


@fault("poison")
class KeysCentredWithPadding(MultiHeadKernel):
    """Keys are centred by their mean over all positions, hidden ones, too."""

    def heads(self, call: LayerCall) -> Heads:
        q, k, v = super().heads(call)
        return q, k - k.mean(2, keepdims=True), v


@fault("values")
class MaskAfterSoftmax(MultiHeadKernel):
    """Weights are hidden after the softmax and not normalised again."""

    def compute(self, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        self.pairs = self.allowed(call)
        return super().compute(call)

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall) -> np.ndarray:
        return scores

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        weights = super().weights(scores, call)
        return weights if self.pairs is None else np.where(self.pairs, weights, 0)


@fault("election", like="A9")
class PaddedSampleNan(MultiHeadKernel):
    """A sample whose keys are all padding is NaN, though zeros are declared."""

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        return scores - scores.max(-1, keepdims=True)


@fault("election")
class EmptyRowsUnmasked(MaskedKernel):
    """A row without keys attends them all, though zeros are declared."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        return np.where(np.isneginf(hidden).all(-1, keepdims=True), scores, hidden)
