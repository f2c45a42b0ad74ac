"""Faults of layers: masks."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.layer import Heads, LayerCall, MultiHeadKernel
from attention_conformance.suite.faults.kernels.single import (
    AdditiveKernel,
    DotKernel,
    MaskedKernel,
)

FAMILY = "mask"


@fault("values", "`valid.repeat(H, 1)` for B * H rows; use `valid.repeat_interleave(H, dim=0)`")
class SamplePaddingTiled(MultiHeadKernel):
    """Padding is tiled over the heads, not repeated: heads get the padding of another sample."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.tile(valid, (call.sizes.H, 1)).reshape(*valid.shape[:1], -1, 1, valid.shape[1])


@fault(
    "values",
    "`valid[None, :, None]` broadcasts over heads; it is `valid[:, None, None]`",
    family="heads",
)
class PaddingPerHead(MultiHeadKernel):
    """With B == H padding per sample is taken for padding per head."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        mask = super().padded(valid, call)
        return mask.swapaxes(0, 1) if call.sizes.B == call.sizes.H else mask


@fault("values", "a mask (B, Lk) broadcasts as (Lq, Lk); use `mask[:, None]`")
class PaddingPerQuery(DotKernel):
    """With B == Lq padding (B, Lk) is taken for a mask (Lq, Lk)."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return valid[None, None] if len(valid) == call.sizes.Lq else super().padded(valid, call)


@fault("values", "`valid[:, None, :, None]`; padding is of keys: `valid[:, None, None, :]`")
class PaddingHidesQueries(MultiHeadKernel):
    """With Lq == Lk padding hides rows of queries, not columns of keys."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        mask = super().padded(valid, call)
        return mask.swapaxes(-1, -2) if call.sizes.Lq == call.sizes.Lk else mask


@fault("values", "`valid[:, :, None] & valid[:, None, :]`; key padding hides keys alone")
class PaddedQueriesHidden(MultiHeadKernel):
    """In self-attention padding hides queries, too, not keys alone."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        mask = super().padded(valid, call)
        return mask & mask.swapaxes(-1, -2) if call.own else mask


@fault("values", "`j <= length`; a length counts the keys: `j < length`")
class PaddingOffByOne(MultiHeadKernel):
    """The first key of the padding is seen."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        shifted = np.concatenate([valid[:, :1], valid[:, :-1]], 1)
        return super().padded(valid | shifted, call)


@fault(
    "poison", "`key_padding_mask` is accepted and not used; hide with `masked_fill(padding, -inf)`"
)
class PaddingIgnored(MultiHeadKernel):
    """Padding has no effect."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(np.ones_like(valid), call)


@fault("values", "a path for `need_weights=True` that leaves out `key_padding_mask`")
class PaddingIgnoredWithWeights(MultiHeadKernel):
    """Padding has no effect if weights are returned."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | (call.returned != "none"), call)


@fault(
    "values", "`masked_fill(mask, -inf)`, as in `nn.MultiheadAttention`; here True attends: `~mask`"
)
class LayerMaskInverted(MultiHeadKernel):
    """A boolean mask is read the other way round: True hides a key."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return ~mask


@fault(
    "election",
    "a path for masks (Lq, Lk) with `masked_fill(mask, -inf)`; True attends in every rank",
)
class RawMaskInverted(MultiHeadKernel):
    """In a mask (Lq, Lk) True hides a key, though True is declared to attend."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        assert call.mask is not None
        return ~mask if call.mask.values.ndim == 2 else mask


@fault("values", "`mask.mT`; the axes of a mask are (..., query, key)")
class LayerMaskTransposed(MultiHeadKernel):
    """With Lq == Lk rows and columns of a boolean mask are exchanged."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask.swapaxes(-1, -2) if mask.shape[-1] == mask.shape[-2] else mask


@fault(
    "values",
    "`mask.transpose(0, 1)`, `view(H, B, Lq, Lk)`; the axes are (B, H, Lq, Lk)",
    family="heads",
)
class SamplesAndHeadsExchanged(MultiHeadKernel):
    """With B == H samples and heads of a boolean mask are exchanged."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask.swapaxes(0, 1) if call.sizes.B == call.sizes.H else mask


@fault(
    "head_independence",
    "`mask[:, 0]` or `mask[:, :1]` for all heads; head h has `mask[:, h]`",
    family="heads",
)
class LayerMaskOfFirstHead(MultiHeadKernel):
    """Every head gets the boolean mask of the first."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask[:, :1]


@fault(
    "batch_independence",
    "`mask[0]` or `mask[:1]` for all samples; sample b has `mask[b]`",
    family="heads",
)
class LayerMaskOfFirstSample(MultiHeadKernel):
    """Every sample gets the boolean mask of the first."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask[:1]


@fault(
    "key_permutation",
    "`lengths = mask.sum(-1)`; `j < length` is the mask only if all True come first",
)
class MaskAsLengths(MultiHeadKernel):
    """A mask whose rows are equal is converted to lengths, wherever its holes are."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        if mask.shape[-2] != 1:
            return mask
        return np.arange(call.sizes.Lk) < mask.sum(-1, keepdims=True)


@fault("future", "`is_causal` (`use_causal_mask`) is accepted and not used; hide j > i")
class CausalFlagIgnored(MultiHeadKernel):
    """The causal flag has no effect."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return np.ones((call.sizes.Lq, call.sizes.Lk), bool)


@fault("future", "a path for `need_weights=True` without the causal mask")
class CausalLostWithWeights(MultiHeadKernel):
    """The causal flag has no effect if weights are returned."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.returned != "none")


@fault("election", "`if mask is None: mask = causal`; both apply: `mask & causal`")
class CausalLostWithMask(MultiHeadKernel):
    """Beside a mask the causal flag has no effect."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.mask is not None)


@fault("future", "the padding replaces the causal mask; both apply: `valid & causal`")
class CausalLostWithPadding(MultiHeadKernel):
    """Beside padding the causal flag has no effect."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.valid is not None)


@fault("values", "`if is_causal: mask = None`; both apply: `mask & causal`")
class MaskLostWithCausal(MultiHeadKernel):
    """With the causal flag a boolean mask has no effect."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask | call.causal


@fault("future", "`if mask is not None: mask = mask & causal`; alone, too, the flag hides")
class CausalNeedsAnotherMask(MultiHeadKernel):
    """The causal flag has an effect only beside another mask."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.mask is None and call.valid is None)


@fault("values", "a path for inputs (L, E) without the causal mask")
class CausalLostWithoutBatch(MultiHeadKernel):
    """Without a batch axis the causal flag has no effect."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | call.single


@fault("election", "`tril(diagonal=Lk - Lq)`, `j <= i + Lk - Lq`; top-left is `tril()`, `j <= i`")
class LayerCausalBottomRight(MultiHeadKernel):
    """With Lq != Lk the causal flag is aligned bottom-right, though top-left is declared."""

    def causal(self, call: LayerCall) -> np.ndarray:
        offset = call.sizes.Lk - call.sizes.Lq
        return np.arange(call.sizes.Lk) <= np.arange(call.sizes.Lq)[:, None] + offset


@fault("future", "`tril(diagonal=1)` or `j <= i + 1`; a causal mask is `j <= i`")
class LayerCausalSeesNext(MultiHeadKernel):
    """A causal query sees the next key."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return np.arange(call.sizes.Lk) <= np.arange(call.sizes.Lq)[:, None] + 1


@fault("values", "`causal | valid`; a key is seen if both allow it: `causal & valid`")
class CausalOrPadding(MaskedKernel):
    """A key is seen if one of two masks allows it, not only if both do."""

    def joined(self, parts: list[np.ndarray]) -> np.ndarray:
        return super().joined(parts) if len(parts) == 1 else parts[0] | parts[1]


@fault("values", "`mask = second` overwrites the first; both apply: `first & second`")
class LastMaskAlone(MaskedKernel):
    """Of two masks the second replaces the first."""

    def joined(self, parts: list[np.ndarray]) -> np.ndarray:
        return parts[-1]


@fault("values", "`j < i`, `tril(diagonal=-1)`; a causal mask is `j <= i`")
class CausalWithoutDiagonal(MaskedKernel):
    """A causal query does not see its own key, unless it is the first."""

    def causal(self, call: LayerCall) -> np.ndarray:
        seen = np.arange(call.sizes.Lk) < np.arange(call.sizes.Lq)[:, None]
        return seen | (np.arange(call.sizes.Lk) == 0)


@fault("poison", "`scores * mask`; a score of 0 has a weight: use `masked_fill(~mask, -inf)`")
class ScoresMultipliedByMask(MaskedKernel):
    """The mask multiplies the scores: hidden ones are 0, not -inf."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall) -> np.ndarray:
        return scores if allowed is None else scores * allowed


@fault("poison", "`masked_fill(~mask, -30)`; scores may lie below: use -inf")
class HiddenScoresMinusThirty(DotKernel):
    """Hidden keys have the score -30, not -inf."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        some = np.isfinite(hidden).any(-1, keepdims=True)
        return np.where(some & np.isneginf(hidden), call.work(-30), hidden)


@fault(
    "poison", "`scores - 10 * ~mask`; a hidden key keeps some weight: `where(mask, scores, -inf)`"
)
class PenaltySubtracted(AdditiveKernel):
    """10 is subtracted from hidden scores, which keep some weight."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        some = np.isfinite(hidden).any(-1, keepdims=True)
        return np.where(some & np.isneginf(hidden), scores - call.work(10), hidden)


@fault("poison", "`k - k.mean(-2, keepdim=True)`; padding must not enter the mean")
class KeysCentredWithPadding(MultiHeadKernel):
    """Keys are centred by a mean in which hidden keys count, so that NaN in padding spreads."""

    def heads(self, call: LayerCall) -> Heads:
        q, k, v = super().heads(call)
        return q, k - k.mean(2, keepdims=True), v


@fault(
    "values", "`softmax(scores) * mask`; mask before: `softmax(scores.masked_fill(~mask, -inf))`"
)
class MaskAfterSoftmax(MultiHeadKernel):
    """Weights are hidden after the softmax, so that those of a row do not add to 1."""

    def compute(self, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        self.pairs = self.allowed(call)
        return super().compute(call)

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall) -> np.ndarray:
        return scores

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        weights = super().weights(scores, call)
        return weights if self.pairs is None else np.where(self.pairs, weights, 0)


@fault("election", "`softmax` of a row of -inf is NaN; set rows without keys to 0")
class PaddedSampleNan(MultiHeadKernel):
    """A sample whose keys are all padding is NaN, though zeros are declared."""

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        return scores - scores.max(-1, keepdims=True)


@fault("election", "`mask | ~mask.any(-1, keepdim=True)` against NaN; set fully masked rows to 0")
class EmptyRowsUnmasked(MaskedKernel):
    """A fully masked row attends all keys, though zeros are declared."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        return np.where(np.isneginf(hidden).all(-1, keepdims=True), scores, hidden)
