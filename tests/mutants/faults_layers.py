"""Mutants of layers: projections, masks, returned weights, dropout, paths, state, refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from backends._numpy import Rounded
from suite.spec.dtypes import DTYPES, round_to
from tests.mutants.layer_kernel import (
    AdditiveKernel,
    BatchNormKernel,
    ConcatKernel,
    DotKernel,
    LayerCall,
    LayerNormKernel,
    MaskedKernel,
    MultiHeadKernel,
    SelfAttentionKernel,
)
from tests.mutants.registry import mutant

Heads = tuple[np.ndarray, np.ndarray, np.ndarray]


# Projections, heads, merging


@mutant("layer_values")
class HeadsSplitBeforeProjection(MultiHeadKernel):
    """The input is split among the heads before it is projected: a head sees its own slice alone."""

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        kernel = self.kernel(name, call)
        width, heads, _ = kernel.shape
        if width % heads:
            return super().projected(x, name, call)
        own = np.arange(width)[:, None] // (width // heads) == np.arange(heads)
        y = x @ np.where(own[..., None], kernel, 0).reshape(width, -1)
        return self.split(self.with_bias(y, name, call), heads, call)


@mutant("layer_values")
class SplitWithoutTranspose(MultiHeadKernel):
    """Heads are split off by a reshape to (B, H, L, D) alone."""

    def split(self, y: np.ndarray, heads: int, call: LayerCall) -> np.ndarray:
        return y.reshape(y.shape[0], heads, y.shape[1], -1)


@mutant("layer_values")
class SplitSizeFirst(MultiHeadKernel):
    """A projection is split as (D, H): a head gets every H-th feature."""

    def split(self, y: np.ndarray, heads: int, call: LayerCall) -> np.ndarray:
        return np.moveaxis(y.reshape(*y.shape[:2], -1, heads), -1, 1)


@mutant("layer_values", like="E17")
class MergeWithoutTranspose(MultiHeadKernel):
    """Heads are merged by a reshape to (B, Lq, H Dv) alone."""

    def merge(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        return attended.reshape(call.sizes.B, call.sizes.Lq, -1)


@mutant("layer_values")
class MergeSizeFirst(MultiHeadKernel):
    """Heads are merged as (Dv, H), features of all heads side by side."""

    def merge(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.moveaxis(attended, 1, -1).reshape(call.sizes.B, call.sizes.Lq, -1)


@mutant("layer_values")
class HeadsMergedBackwards(MultiHeadKernel):
    """Heads are merged from the last to the first."""

    def merge(self, attended: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().merge(attended[:, ::-1], call)


@mutant("layer_contract")
class FreshProjections(MultiHeadKernel):
    """Heads are projected with the layer's kernels, then with new random ones, which are used."""

    def kernel(self, name: str, call: LayerCall) -> np.ndarray:
        given = super().kernel(name, call)
        if name == "output":
            return given
        drawn = self.__dict__.setdefault("drawn", np.random.default_rng(0))
        return drawn.standard_normal(given.shape).astype(given.dtype) / math.sqrt(len(given))


@mutant("layer_values")
class PackedHeadsFirst(MultiHeadKernel):
    """The packed projection of one tensor is split into heads first, then into q, k and v."""

    def heads(self, call: LayerCall) -> Heads:
        q, k, v = super().heads(call)
        if not call.own or call.sizes.H != call.sizes.Hkv or q.shape != v.shape:
            return q, k, v
        mixed = np.stack((q, k, v), 1).reshape(len(q), q.shape[1], 3, *q.shape[2:])
        return mixed[:, :, 0], mixed[:, :, 1], mixed[:, :, 2]


@mutant("layer_values")
class KeyAndValueKernelsSwapped(MultiHeadKernel):
    """Where their kernels fit, keys are projected as values and values as keys."""

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        p = call.parameters
        if p["key_kernel"].shape == p["value_kernel"].shape:
            name = {"key": "value", "value": "key"}.get(name, name)
        return super().projected(x, name, call)


@mutant("layer_values")
class ValuesFromKeys(MultiHeadKernel):
    """Where their widths fit, values are projected from the key, not from the value."""

    def heads(self, call: LayerCall) -> Heads:
        alike = call.key.shape == call.value.shape
        return super().heads(replace(call, value=call.key) if alike else call)


@mutant("layer_values")
class SharedKernel(MultiHeadKernel):
    """Where it fits, the query's kernel projects the keys, too."""

    def kernel(self, name: str, call: LayerCall) -> np.ndarray:
        found, query = super().kernel(name, call), super().kernel("query", call)
        return query if name == "key" and query.shape == found.shape else found


@mutant("layer_values", like="E1")
class KeyValueHeadsTiled(MultiHeadKernel):
    """Key/value heads are tiled, 0 1 0 1, not repeated, 0 0 1 1."""

    def expand(self, x: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.tile(x, (1, call.sizes.H // call.sizes.Hkv, 1, 1))


@mutant("layer_values")
class GroupsFromFirstHead(MultiHeadKernel):
    """With grouped heads all query heads use the first key/value head."""

    def expand(self, x: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.repeat(x[:, :1], call.sizes.H, 1) if x.shape[1] < call.sizes.H else x


class WithoutBias(MultiHeadKernel):
    """The bias `left_out` is not added."""

    left_out = ""

    def bias(self, name: str, call: LayerCall) -> np.ndarray | None:
        return None if name == self.left_out else super().bias(name, call)


@mutant("layer_values")
class QueryBiasDropped(WithoutBias):
    """Queries are projected without their bias."""

    left_out = "query"


@mutant("layer_values")
class ValueBiasDropped(WithoutBias):
    """Values are projected without their bias."""

    left_out = "value"


@mutant("layer_values")
class OutputBiasDropped(WithoutBias):
    """The output is projected without its bias."""

    left_out = "output"


@mutant("layer_values")
class OutputBiasOfEveryHead(MultiHeadKernel):
    """The output's bias is added once for every head."""

    def bias(self, name: str, call: LayerCall) -> np.ndarray | None:
        bias = super().bias(name, call)
        return bias if bias is None or name != "output" else bias * call.sizes.H


@mutant("layer_values")
class KeyBiasOnQuery(MultiHeadKernel):
    """The bias of the keys is added to the queries instead."""

    def with_bias(self, y: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        key = self.bias("key", call)
        if name == "query" and key is not None:
            y = y + self.expand(key.reshape(1, -1, call.sizes.D), call).reshape(-1)
        return y if name == "key" else super().with_bias(y, name, call)


@mutant("layer_values")
class BiasBeforeProjection(MultiHeadKernel):
    """Where it fits, the query's bias is added to the input, not to the projection."""

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        bias, kernel = self.bias(name, call), self.kernel(name, call)
        if name != "query" or bias is None or bias.shape != x.shape[-1:]:
            return super().projected(x, name, call)
        y = (x + bias) @ kernel.reshape(len(kernel), -1)
        return self.split(y, kernel.shape[1], call)


@mutant("layer_values", like="E10")
class ValuesCutToKeySize(SelfAttentionKernel):
    """Features of values beyond the keys' size are zero."""

    def attend(self, weights: np.ndarray, value: np.ndarray, call: LayerCall) -> np.ndarray:
        made = super().attend(weights, value, call)
        made[..., call.sizes.D :] = 0
        return made


# Scale and scores


@mutant("layer_values", like="D5")
class ScaleOfModel(MultiHeadKernel):
    """Scores are divided by the root of the model's width, not of the head's size."""

    def factor(self, call: LayerCall) -> float:
        return 1.0 / math.sqrt(call.sizes.D * call.sizes.H)


@mutant("layer_values")
class LayerScaleMissing(MultiHeadKernel):
    """Scores are not scaled."""

    def factor(self, call: LayerCall) -> float:
        return 1.0


@mutant("layer_values")
class ScaledTwice(MultiHeadKernel):
    """Queries are scaled before the product, and the scores after it."""

    def factor(self, call: LayerCall) -> float:
        return 1.0 / call.sizes.D


@mutant("layer_values")
class ScaleOfValues(MultiHeadKernel):
    """The scale is that of the values' size."""

    def factor(self, call: LayerCall) -> float:
        return 1.0 / math.sqrt(call.sizes.Dv)


@mutant("layer_values")
class ScaleOfAllFeatures(SelfAttentionKernel):
    """Scores are divided by the root of the input's width."""

    def factor(self, call: LayerCall) -> float:
        return 1.0 / math.sqrt(call.query.shape[-1])


@mutant("layer_values")
class BiasScaled(MultiHeadKernel):
    """The float bias is added before the scores are scaled."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.bias is None:
            return scores
        return scores + (super().biased(scores, call) - scores) * call.work(self.factor(call))


@mutant("layer_values", like="C16")
class BiasOfFirstSample(MultiHeadKernel):
    """Every sample gets the float bias of the first."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.bias is None or call.bias.values.ndim < 4:
            return super().biased(scores, call)
        return super().biased(scores, replace(call, bias=Rounded(call.bias.values[:1], call.fmt)))


@mutant("layer_values", like="C2")
class FloatMaskAsBoolean(MultiHeadKernel):
    """A float mask is taken for a boolean one: whatever is positive is hidden, the rest counts 0."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.bias is None:
            return scores
        hidden = super().biased(np.zeros_like(scores), call) > 0
        hidden &= ~hidden.all(-1, keepdims=True)
        return np.where(hidden, call.work(-np.inf), scores)


@mutant("layer_values")
class SoftmaxOverQueries(MultiHeadKernel):
    """Weights of a key sum to 1 over the queries."""

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().weights(scores.swapaxes(-1, -2), call).swapaxes(-1, -2)


# Masks


@mutant("layer_values", like="C20")
class SamplePaddingTiled(MultiHeadKernel):
    """Padding is tiled, not repeated, over the heads: rows of (B H) get the wrong sample's."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.tile(valid, (call.sizes.H, 1)).reshape(*valid.shape[:1], -1, 1, valid.shape[1])


@mutant("layer_values", like="C10")
class PaddingPerQuery(DotKernel):
    """With B == Lq padding (B, Lk) is taken for a mask (Lq, Lk)."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return valid[None, None] if len(valid) == call.sizes.Lq else super().padded(valid, call)


@mutant("layer_values", like="A22")
class PaddingHidesQueries(MultiHeadKernel):
    """With Lq == Lk padding hides rows of queries, not columns of keys."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        made = super().padded(valid, call)
        return made.swapaxes(-1, -2) if call.sizes.Lq == call.sizes.Lk else made


@mutant("layer_values", like="A11")
class PaddedQueriesHidden(MultiHeadKernel):
    """Where one tensor is query and key, padding hides its rows of queries, too."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        made = super().padded(valid, call)
        return made & made.swapaxes(-1, -2) if call.own else made


@mutant("layer_values")
class PaddingOffByOne(MultiHeadKernel):
    """The first key of the padding is attended."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        shifted = np.concatenate([valid[:, :1], valid[:, :-1]], 1)
        return super().padded(valid | shifted, call)


@mutant("layer_poison", like="C6")
class PaddingIgnored(MultiHeadKernel):
    """Padded keys are attended."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(np.ones_like(valid), call)


@mutant("layer_values")
class PaddingIgnoredWithWeights(MultiHeadKernel):
    """Padding is lost where weights are returned."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | (call.returned != "none"), call)


@mutant("layer_values", like="C25")
class LayerMaskInverted(MultiHeadKernel):
    """True in a boolean mask hides."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return ~mask


@mutant("election", like="B25")
class RawMaskInverted(MultiHeadKernel):
    """True in a boolean mask (Lq, Lk) hides, though True is declared to attend."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        assert call.mask is not None
        return ~mask if call.mask.values.ndim == 2 else mask


@mutant("layer_values")
class LayerMaskTransposed(MultiHeadKernel):
    """With Lq == Lk rows and columns of a boolean mask are exchanged."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask.swapaxes(-1, -2) if mask.shape[-1] == mask.shape[-2] else mask


@mutant("layer_values")
class SamplesAndHeadsExchanged(MultiHeadKernel):
    """With B == H samples and heads of a boolean mask are exchanged."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask.swapaxes(0, 1) if call.sizes.B == call.sizes.H else mask


@mutant("layer_head_permutation")
class LayerMaskOfFirstHead(MultiHeadKernel):
    """Every head gets the boolean mask of the first."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask[:, :1]


@mutant("layer_batch_permutation")
class LayerMaskOfFirstSample(MultiHeadKernel):
    """Every sample gets the boolean mask of the first."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask[:1]


@mutant("layer_key_permutation", like="M17")
class MaskAsLengths(MultiHeadKernel):
    """A mask whose rows are equal is converted to lengths, wherever its holes are."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        if mask.shape[-2] != 1:
            return mask
        return np.arange(call.sizes.Lk) < mask.sum(-1, keepdims=True)


@mutant("layer_future", like="B18")
class CausalFlagIgnored(SelfAttentionKernel):
    """The causal flag has no effect."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return np.ones((call.sizes.Lq, call.sizes.Lk), bool)


@mutant("layer_future", like="B9")
class CausalLostWithWeights(MultiHeadKernel):
    """The causal flag is lost where weights are returned."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.returned != "none")


@mutant("election", like="B13")
class CausalLostWithMask(MultiHeadKernel):
    """The causal flag is lost where a mask is given."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.mask is not None)


@mutant("layer_future", like="B13")
class CausalLostWithPadding(MultiHeadKernel):
    """The causal flag is lost where keys are padded."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.valid is not None)


@mutant("layer_values", like="B10")
class MaskLostWithCausal(MultiHeadKernel):
    """A boolean mask is lost where the causal flag is set."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask | call.causal


@mutant("layer_future", like="B20")
class CausalNeedsAnotherMask(MultiHeadKernel):
    """The causal flag has an effect only where there is another mask."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.mask is None and call.valid is None)


@mutant("layer_values", like="B13")
class CausalLostWithoutBatch(MultiHeadKernel):
    """The causal flag is lost where the input has no batch axis."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | call.single


@mutant("election", like="B2")
class CausalBottomRight(MultiHeadKernel):
    """With Lq != Lk the causal flag is aligned bottom-right, though top-left is declared."""

    def causal(self, call: LayerCall) -> np.ndarray:
        offset = call.sizes.Lk - call.sizes.Lq
        return np.arange(call.sizes.Lk) <= np.arange(call.sizes.Lq)[:, None] + offset


@mutant("layer_future")
class CausalSeesNext(MultiHeadKernel):
    """The causal flag lets a row see the key after its own."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return np.arange(call.sizes.Lk) <= np.arange(call.sizes.Lq)[:, None] + 1


@mutant("layer_values")
class CausalOrPadding(MaskedKernel):
    """A pair attends where either mask lets it."""

    def joined(self, parts: list[np.ndarray]) -> np.ndarray:
        return super().joined(parts) if len(parts) == 1 else parts[0] | parts[1]


@mutant("layer_values")
class LastMaskAlone(MaskedKernel):
    """Of two masks the second replaces the first."""

    def joined(self, parts: list[np.ndarray]) -> np.ndarray:
        return parts[-1]


@mutant("layer_values")
class CausalWithoutDiagonal(MaskedKernel):
    """A row does not see its own key, the first row apart."""

    def causal(self, call: LayerCall) -> np.ndarray:
        seen = np.arange(call.sizes.Lk) < np.arange(call.sizes.Lq)[:, None]
        return seen | (np.arange(call.sizes.Lk) == 0)


@mutant("layer_poison", like="C17")
class ScoresMultipliedByMask(MaskedKernel):
    """Hidden scores are multiplied by 0."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall) -> np.ndarray:
        return scores if allowed is None else scores * allowed


@mutant("layer_poison")
class HiddenScoresMinusThirty(DotKernel):
    """Hidden scores are -30, rows without keys apart."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        some = np.isfinite(hidden).any(-1, keepdims=True)
        return np.where(some & np.isneginf(hidden), call.work(-30), hidden)


@mutant("layer_poison")
class PenaltySubtracted(AdditiveKernel):
    """Hidden scores lose 10, rows without keys apart."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        some = np.isfinite(hidden).any(-1, keepdims=True)
        return np.where(some & np.isneginf(hidden), scores - call.work(10), hidden)


@mutant("layer_values")
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


@mutant("election", like="A9")
class PaddedSampleNan(MultiHeadKernel):
    """A sample whose keys are all padding is NaN, though zeros are declared."""

    def shifted(self, scores: np.ndarray) -> np.ndarray:
        return scores - scores.max(-1, keepdims=True)


@mutant("election")
class EmptyRowsUnmasked(MaskedKernel):
    """A row without keys attends them all, though zeros are declared."""

    def hide(self, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall) -> np.ndarray:
        hidden = super().hide(scores, allowed, call)
        return np.where(np.isneginf(hidden).all(-1, keepdims=True), scores, hidden)


@mutant("layer_values")
class PaddingLostWithMask(MultiHeadKernel):
    """Padding is lost where a boolean mask is given."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | (call.mask is not None), call)


@mutant("layer_values")
class PaddingLostWithBias(MultiHeadKernel):
    """Padding is lost where there is a float bias."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | (call.bias is not None), call)


@mutant("layer_values")
class PaddingLostWithGroups(MultiHeadKernel):
    """Padding is lost with grouped heads."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | (call.sizes.H != call.sizes.Hkv), call)


@mutant("layer_values")
class CausalLostWithBias(MultiHeadKernel):
    """The causal flag is lost where there is a float bias."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.bias is not None)


@mutant("layer_values")
class CausalLostForOneQuery(MultiHeadKernel):
    """The causal flag is lost where there is one query."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.sizes.Lq == 1)


@mutant("layer_values", like="C11")
class PaddingIgnoredForOneQuery(AdditiveKernel):
    """Padding is lost where the query has no axis of queries."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | call.single, call)


# Paths


@mutant("layer_paths", like="B13")
class CausalLostInTraining(MultiHeadKernel):
    """The causal flag is lost in training."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | call.training


@mutant("layer_paths", like="L14")
class PaddingLostWithoutGradients(MultiHeadKernel):
    """Padding is lost where no gradients are asked for."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | (not call.gradients), call)


@mutant("layer_paths", like="B10")
class MaskLostWithoutGradients(MultiHeadKernel):
    """A boolean mask is lost where no gradients are asked for."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask | (not call.gradients)


@mutant("layer_paths")
class ScaleMissingWithWeights(MultiHeadKernel):
    """Scores are not scaled where weights are returned for every head."""

    def factor(self, call: LayerCall) -> float:
        return 1.0 if call.returned == "head" else super().factor(call)


@mutant("layer_paths", like="C19")
class DenseMaskShifted(MultiHeadKernel):
    """A boolean mask is read one key too late."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.roll(mask, 1, -1)


@mutant("layer_paths", like="C2")
class BiasLostWithoutGradients(MultiHeadKernel):
    """The float bias is lost where no gradients are asked for."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().biased(scores, call) if call.gradients else scores


@mutant("layer_paths")
class HalfSumsInTraining(MultiHeadKernel):
    """In training features are stored in bfloat16 whatever the dtype."""

    def keep(self, x: np.ndarray, what: str, call: LayerCall) -> np.ndarray:
        coarse = call.training and what == "features"
        return round_to(x, DTYPES["bf16"]).astype(call.work) if coarse else x


# Returned weights


@mutant("layer_values")
class WeightsSummed(MultiHeadKernel):
    """Average weights are the sum over the heads."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return weights.sum(1) if call.returned == "average" else weights


@mutant("layer_values")
class WeightsOfFirstHead(MultiHeadKernel):
    """Average weights are those of the first head."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return weights[:, 0] if call.returned == "average" else weights


@mutant("layer_values")
class WeightsOfGroupLeaders(MultiHeadKernel):
    """With grouped heads weights are averaged over the first head of each group."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        leaders = weights[:, :: call.sizes.H // call.sizes.Hkv]
        return leaders.mean(1) if call.returned == "average" else weights


@mutant("layer_values")
class FirstHeadForAll(MultiHeadKernel):
    """The weights returned for every head are those of the first."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        shown = super().shown(weights, call)
        return shown if call.returned == "average" else np.repeat(shown[:, :1], shown.shape[1], 1)


@mutant("layer_values")
class WeightsAreScores(SelfAttentionKernel):
    """The weights returned are the scores."""

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        self.seen = scores
        return super().weights(scores, call)

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.where(np.isneginf(self.seen), 0, self.seen)[:, 0]


@mutant("layer_values")
class WeightsTransposed(MultiHeadKernel):
    """With Lq == Lk the weights returned are transposed."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        shown = super().shown(weights, call)
        return shown.swapaxes(-1, -2) if call.sizes.Lq == call.sizes.Lk else shown


@mutant("layer_values")
class AverageAttends(MultiHeadKernel):
    """Where average weights are returned, all heads attend with them."""

    def attend(self, weights: np.ndarray, value: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.returned == "average":
            weights = np.broadcast_to(weights.mean(1, keepdims=True), weights.shape)
        return super().attend(weights, value, call)


@mutant("layer_values")
class WeightsInFloat32(MultiHeadKernel):
    """Weights come back in float32 whatever the dtype."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        output, weights = super().attention(query, key, value, **rest)
        return output, weights and Rounded(weights.values, DTYPES["f32"])


@mutant("layer_values")
class WeightsAlwaysAveraged(MultiHeadKernel):
    """Weights are averaged over the heads though those of every head are asked for."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return weights.mean(1)


@mutant("election", like="F5")
class WeightsAfterDropout(MultiHeadKernel):
    """The weights returned are those after dropout, though those before it are declared."""

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().dropped(super().weights(scores, call), call)

    def dropped(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return weights


@mutant("layer_values")
class HiddenWeightsReturned(DotKernel):
    """The weights returned are those without the mask."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        self.bare = super().weights(scores, call)
        return scores

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return self.bare[:, 0]


# Dropout


@mutant("layer_dropout_off", like="F2")
class DropoutInEvaluation(MultiHeadKernel):
    """Weights are dropped in evaluation, too."""

    def rate(self, call: LayerCall) -> float:
        return call.rate


@mutant("layer_dropout", like="F6")
class DropoutNeverApplied(MultiHeadKernel):
    """Weights are dropped neither in training nor in evaluation."""

    def rate(self, call: LayerCall) -> float:
        return 0.0


@mutant("layer_dropout")
class DropoutNotRescaled(MultiHeadKernel):
    """Weights that are kept are not divided by 1 - rate."""

    def rescale(self, rate: float) -> float:
        return 1.0


@mutant("layer_dropout")
class DropoutRescaledByRate(DotKernel):
    """Weights that are kept are divided by the rate."""

    def rescale(self, rate: float) -> float:
        return 1.0 / rate


@mutant("layer_dropout")
class DropoutKeepsRate(DotKernel):
    """Weights are kept with the probability that is to drop them."""

    def pattern(self, shape: tuple[int, ...], rate: float, call: LayerCall) -> np.ndarray:
        return ~super().pattern(shape, rate, call)


@mutant("layer_dropout")
class DropoutOfAnotherRate(AdditiveKernel):
    """Weights are dropped at two thirds of the rate and scaled by the whole of it."""

    def pattern(self, shape: tuple[int, ...], rate: float, call: LayerCall) -> np.ndarray:
        return super().pattern(shape, rate * 2 / 3, call)


@mutant("layer_dropout", like="F8")
class DropoutSharedByHeads(MultiHeadKernel):
    """All heads share one pattern, though one for every element is declared."""

    def pattern(self, shape: tuple[int, ...], rate: float, call: LayerCall) -> np.ndarray:
        return super().pattern((shape[0], 1, *shape[2:]), rate, call)


@mutant("layer_dropout", like="F8")
class DropoutSharedBySamples(DotKernel):
    """All samples share one pattern, though one for every element is declared."""

    def pattern(self, shape: tuple[int, ...], rate: float, call: LayerCall) -> np.ndarray:
        return super().pattern((1, *shape[1:]), rate, call)


@mutant("layer_dropout")
class DropoutOfWholeKeys(MultiHeadKernel):
    """A key is dropped for all queries at once."""

    def pattern(self, shape: tuple[int, ...], rate: float, call: LayerCall) -> np.ndarray:
        return super().pattern((*shape[:2], 1, shape[3]), rate, call)


@mutant("layer_dropout")
class DropoutOfWholeQueries(AdditiveKernel):
    """All keys of a query are dropped at once."""

    def pattern(self, shape: tuple[int, ...], rate: float, call: LayerCall) -> np.ndarray:
        return super().pattern((*shape[:3], 1), rate, call)


@mutant("layer_dropout")
class DropoutBeforeSoftmax(MultiHeadKernel):
    """Scores are dropped, so that the weights that are kept sum to 1 again."""

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        rate = self.rate(call)
        if rate == 0:
            return super().weights(scores, call)
        kept = self.pattern(scores.shape, rate, call)
        return super().weights(np.where(kept, scores, call.work(-np.inf)), call)

    def dropped(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return weights


@mutant("layer_dropout")
class DropoutUnseeded(MultiHeadKernel):
    """Patterns depend on how many were drawn before, not on the seed alone."""

    drawn = 0

    def random(self, call: LayerCall) -> np.random.Generator:
        self.drawn += 1
        return np.random.default_rng((call.seed, self.drawn))


@mutant("layer_dropout")
class DropoutSeedIgnored(MultiHeadKernel):
    """The pattern does not depend on the seed."""

    def random(self, call: LayerCall) -> np.random.Generator:
        return np.random.default_rng(0)


@mutant("layer_dropout_off")
class DropoutByDefault(MultiHeadKernel):
    """In training a rate of 0 is taken for the default of 0.1."""

    def rate(self, call: LayerCall) -> float:
        return super().rate(call) or 0.1 * call.training


@mutant("layer_dropout_off")
class WholeDropoutNan(MultiHeadKernel):
    """At rate 1 dropped weights are 0 / 0."""

    def dropped(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        made = super().dropped(weights, call)
        return made / call.work(0) if self.rate(call) == 1 else made


@mutant("layer_dropout_off")
class DropoutRescaledInEvaluation(MultiHeadKernel):
    """In evaluation the output of the heads is multiplied by 1 - rate, besides what training scales."""

    def attend(self, weights: np.ndarray, value: np.ndarray, call: LayerCall) -> np.ndarray:
        made = super().attend(weights, value, call)
        return made if call.training else made * call.work(1 - call.rate)


# What a call leaves behind


@mutant("layer_contract")
class QueryBiasAddedInPlace(MultiHeadKernel):
    """Where it fits, the query's bias is added to the query itself."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        answer, bias = super().attention(query, key, value, **rest), rest.get("query_bias")
        if bias is not None and bias.values.size == query.shape[-1]:
            query.values[...] += bias.values.reshape(-1)
        return answer


@mutant("layer_contract")
class KernelScaledInPlace(MultiHeadKernel):
    """Every call leaves the scale multiplied onto the query's kernel."""

    def factor(self, call: LayerCall) -> float:
        factor = super().factor(call)
        call.parameters["query_kernel"].values[...] *= factor
        return factor


@mutant("layer_contract")
class PaddingShiftedInPlace(MultiHeadKernel):
    """Every call leaves one key more valid in the caller's own array."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        made = super().padded(valid.copy(), call)
        valid[:, 1:] |= valid[:, :-1].copy()
        return made


@mutant("layer_contract")
class LayerAnswersInOneBuffer(MultiHeadKernel):
    """Answers of one shape share a buffer: a later call overwrites an earlier answer."""

    def deliver(self, out: np.ndarray, call: LayerCall) -> Any:
        made = super().deliver(out, call)
        kept = self.__dict__.setdefault("kept", {})
        buffer = kept.setdefault((made.shape, call.fmt.name), made)
        buffer.values[...] = made.values
        return buffer


@mutant("layer_contract")
class StateKeptBetweenCalls(AdditiveKernel):
    """Every call adds a little of the answer before it where the shapes fit."""

    def deliver(self, out: np.ndarray, call: LayerCall) -> Any:
        before = getattr(self, "before", out * 0)
        self.before = out
        return super().deliver(out + before / 8 if before.shape == out.shape else out, call)


@mutant("layer_key_permutation")
class LayerMaskKeptByShape(MultiHeadKernel):
    """The first boolean mask of a shape serves all later calls of that shape."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        return kept.setdefault((mask.shape, call.query.shape, call.fmt.name), mask.copy())


@mutant("layer_values")
class CausalMaskKept(SelfAttentionKernel):
    """The causal mask of the first call is cut to serve shorter ones, and repeated for longer ones."""

    def causal(self, call: LayerCall) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", super().causal(call)[:4, :4])
        repeats = -(-call.sizes.Lk // 4)
        return np.tile(kept, (repeats, repeats))[: call.sizes.Lq, : call.sizes.Lk]


@mutant("layer_values")
class ParametersShared(MultiHeadKernel):
    """Layers whose kernels have the same shapes share the parameters of the first."""

    def kernel(self, name: str, call: LayerCall) -> np.ndarray:
        kernel = super().kernel(name, call)
        kept = self.__dict__.setdefault("kept", {})
        return kept.setdefault((name, kernel.shape, call.fmt.name), kernel)


@mutant("layer_poison")
class KeysCentredWithPadding(MultiHeadKernel):
    """Keys are centred by their mean over all positions, hidden ones, too."""

    def heads(self, call: LayerCall) -> Heads:
        q, k, v = super().heads(call)
        return q, k - k.mean(2, keepdims=True), v


# Refusals


@mutant("layer_bad_problem", like="C23")
class LayerMaskCutToFit(MultiHeadKernel):
    """A mask that is too large is cut to the problem's size."""

    def validate_mask(self, mask: Rounded, call: LayerCall) -> None:
        pass

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        s = call.sizes
        return mask[: s.B, : s.H, : s.Lq, : s.Lk] if mask.ndim == 4 else mask


@mutant("layer_bad_problem")
class ExcessSamplesIgnored(DotKernel):
    """Samples of keys and values beyond the queries' batch are ignored."""

    def validate_lengths(self, call: LayerCall) -> None:
        pass

    def heads(self, call: LayerCall) -> Heads:
        q, k, v = super().heads(call)
        return q, k[: len(q)], v[: len(q)]


@mutant("layer_bad_problem")
class ExcessKeysIgnored(AdditiveKernel):
    """Keys without values are not attended."""

    def validate_lengths(self, call: LayerCall) -> None:
        pass

    def heads(self, call: LayerCall) -> Heads:
        q, k, v = super().heads(call)
        return q, k[:, :, : v.shape[2]], v


@mutant("layer_bad_problem")
class QueryWidthCut(MultiHeadKernel):
    """A query that is too narrow is projected with the kernel's first rows."""

    def validate_widths(self, call: LayerCall) -> None:
        pass

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        kernel = self.kernel(name, call)[: x.shape[-1]]
        y = self.with_bias(x @ kernel.reshape(len(kernel), -1), name, call)
        return self.split(y, kernel.shape[1], call)


# Additive, dot and concat scores


@mutant("layer_values")
class TanhOmitted(AdditiveKernel):
    """The units have no tanh."""

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        return pairs


@mutant("layer_values")
class TanhOfEach(AdditiveKernel):
    """tanh of query and key each, then their sum."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().pairs(np.tanh(query), np.tanh(key), call)

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        return pairs


@mutant("layer_values")
class ScoreVectorIgnored(AdditiveKernel):
    """Units are summed, not weighted with the score vector."""

    def vector(self, call: LayerCall) -> np.ndarray | None:
        return None


@mutant("layer_values")
class ScoreVectorInside(AdditiveKernel):
    """The score vector is multiplied onto the units before the tanh."""

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        vector = super().vector(call)
        return np.tanh(pairs if vector is None else pairs * vector)

    def vector(self, call: LayerCall) -> np.ndarray | None:
        return None


@mutant("layer_values")
class AdditiveScoresScaled(AdditiveKernel):
    """Additive scores are divided by the root of the number of units."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().scores(query, key, call) / call.work(math.sqrt(query.shape[-1]))


@mutant("layer_values")
class QueryProjectionOmitted(AdditiveKernel):
    """Queries are left out of the sum where they are projected."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().pairs(query * ("query_kernel" not in call.parameters), key, call)


@mutant("layer_values")
class KeyMinusQuery(AdditiveKernel):
    """Queries are subtracted from keys, not added to them."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().pairs(-query, key, call)


@mutant("layer_values")
class LearnedScaleIgnored(DotKernel):
    """Scores are not multiplied by the learned scale."""

    def scale(self, call: LayerCall) -> np.ndarray:
        return np.ones((), call.work)


@mutant("layer_values")
class LearnedScaleDivides(DotKernel):
    """Scores are divided by the learned scale."""

    def scale(self, call: LayerCall) -> np.ndarray:
        return 1 / super().scale(call)


@mutant("layer_values")
class DotScoresScaled(DotKernel):
    """Without a learned scale scores are divided by the root of the size."""

    def scale(self, call: LayerCall) -> np.ndarray:
        root = call.work(math.sqrt(call.query.shape[-1]))
        return super().scale(call) if "scale" in call.parameters else 1 / root


@mutant("layer_values")
class ConcatScaleOutside(ConcatKernel):
    """The scale is multiplied onto the tanh, not inside it."""

    def pairs(self, query: np.ndarray, key: np.ndarray, call: LayerCall) -> np.ndarray:
        return super(ConcatKernel, self).pairs(query, key, call)

    def active(self, pairs: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().active(pairs, call) * self.number("scale", call)


@mutant("layer_values")
class ConcatWeightIgnored(ConcatKernel):
    """Scores are not multiplied by the learned weight."""

    def number(self, name: str, call: LayerCall) -> np.ndarray:
        return super().number("scale" if name == "scale" else "", call)


# Norms


@mutant("layer_values")
class EpsilonOutsideRoot(LayerNormKernel):
    """Epsilon is added to the root of the variance."""

    def reciprocal(self, variance: np.ndarray, call: LayerCall) -> np.ndarray:
        return 1 / (np.sqrt(variance) + call.work(2.0**-10))


@mutant("layer_values")
class VarianceUnbiased(LayerNormKernel):
    """The variance is divided by one less than the number of features."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        return x.mean(2, keepdims=True), x.var(2, keepdims=True, ddof=1)


@mutant("layer_values")
class LayerNormOverPositions(LayerNormKernel):
    """Layer norm takes mean and variance over the positions."""

    axes = (1,)


@mutant("layer_values")
class LayerNormOverSample(LayerNormKernel):
    """Layer norm takes mean and variance over all features of a sample."""

    axes = (1, 2)


@mutant("layer_values")
class LayerNormNotCentred(LayerNormKernel):
    """The mean is not subtracted."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = super().moments(x, call)
        return mean * 0, variance


@mutant("layer_values")
class GainIsOnePlus(LayerNormKernel):
    """The gain is 1 more than the parameter."""

    def mapped(self, y: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().mapped(y, call) + (y if "gain" in call.parameters else 0)


@mutant("layer_values")
class BatchNormPerPosition(BatchNormKernel):
    """Batch norm takes mean and variance of every position apart."""

    axes = (0,)


@mutant("layer_values")
class BatchNormPerSample(BatchNormKernel):
    """Batch norm takes mean and variance of every sample apart."""

    axes = (1,)


@mutant("layer_values")
class BatchVarianceUnbiased(BatchNormKernel):
    """The variance of a batch is divided by one less than the number of its tokens."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        mean, variance = super().moments(x, call)
        tokens = x.shape[0] * x.shape[1]
        return mean, variance * call.work(tokens / (tokens - 1)) if call.training else variance


@mutant("layer_values")
class LearnedMomentsInTraining(BatchNormKernel):
    """In training, too, what was learned is used."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        return super().moments(x, replace(call, training=False))


@mutant("layer_values")
class BatchMomentsInEvaluation(BatchNormKernel):
    """In evaluation, too, mean and variance are those of the batch."""

    def moments(self, x: np.ndarray, call: LayerCall) -> tuple[np.ndarray, np.ndarray]:
        return super().moments(x, replace(call, training=True))
