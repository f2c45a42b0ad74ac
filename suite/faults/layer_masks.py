"""Faults of layers: masks."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.layer import Heads, LayerCall, MultiHeadKernel
from attention_conformance.suite.faults.kernels.single import (
    AdditiveKernel,
    DotKernel,
)

FAMILY = "mask"


def sample_padding_tiled(right: MultiHeadKernel, valid: np.ndarray, call: LayerCall) -> np.ndarray:
    return np.tile(valid, (call.sizes.H, 1)).reshape(*valid.shape[:1], -1, 1, valid.shape[1])


def padding_per_head(right: MultiHeadKernel, valid: np.ndarray, call: LayerCall) -> np.ndarray:
    mask = right.padded(valid, call)
    return mask.swapaxes(0, 1) if call.sizes.B == call.sizes.H else mask


def padding_per_query(right: DotKernel, valid: np.ndarray, call: LayerCall) -> np.ndarray:
    return valid[None, None] if len(valid) == call.sizes.Lq else right.padded(valid, call)


def padding_hides_queries(right: MultiHeadKernel, valid: np.ndarray, call: LayerCall) -> np.ndarray:
    mask = right.padded(valid, call)
    return mask.swapaxes(-1, -2) if call.sizes.Lq == call.sizes.Lk else mask


def padded_queries_hidden(right: MultiHeadKernel, valid: np.ndarray, call: LayerCall) -> np.ndarray:
    mask = right.padded(valid, call)
    return mask & mask.swapaxes(-1, -2) if call.own else mask


def padding_off_by_one(right: MultiHeadKernel, valid: np.ndarray, call: LayerCall) -> np.ndarray:
    shifted = np.concatenate([valid[:, :1], valid[:, :-1]], 1)
    return right.padded(valid | shifted, call)


def padding_ignored_with_weights(
    right: MultiHeadKernel, valid: np.ndarray, call: LayerCall
) -> np.ndarray:
    return right.padded(valid | (call.returned != "none"), call)


def raw_mask_inverted(right: MultiHeadKernel, mask: np.ndarray, call: LayerCall) -> np.ndarray:
    assert call.mask is not None
    return ~mask if call.mask.values.ndim == 2 else mask


def layer_mask_transposed(right: MultiHeadKernel, mask: np.ndarray, call: LayerCall) -> np.ndarray:
    return mask.swapaxes(-1, -2) if mask.shape[-1] == mask.shape[-2] else mask


def samples_and_heads_exchanged(
    right: MultiHeadKernel, mask: np.ndarray, call: LayerCall
) -> np.ndarray:
    return mask.swapaxes(0, 1) if call.sizes.B == call.sizes.H else mask


def mask_as_lengths(right: MultiHeadKernel, mask: np.ndarray, call: LayerCall) -> np.ndarray:
    if mask.shape[-2] != 1:
        return mask
    return np.arange(call.sizes.Lk) < mask.sum(-1, keepdims=True)


def causal_needs_another_mask(right: MultiHeadKernel, call: LayerCall) -> np.ndarray:
    return right.causal(call) | (call.mask is None and call.valid is None)


def layer_causal_bottom_right(right: MultiHeadKernel, call: LayerCall) -> np.ndarray:
    offset = call.sizes.Lk - call.sizes.Lq
    return np.arange(call.sizes.Lk) <= np.arange(call.sizes.Lq)[:, None] + offset


def layer_causal_sees_next(right: MultiHeadKernel, call: LayerCall) -> np.ndarray:
    return np.arange(call.sizes.Lk) <= np.arange(call.sizes.Lq)[:, None] + 1


def hidden_scores_minus_thirty(
    right: DotKernel, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall
) -> np.ndarray:
    hidden = right.hide(scores, allowed, call)
    some = np.isfinite(hidden).any(-1, keepdims=True)
    return np.where(some & np.isneginf(hidden), call.work(-30), hidden)


def penalty_subtracted(
    right: AdditiveKernel, scores: np.ndarray, allowed: np.ndarray | None, call: LayerCall
) -> np.ndarray:
    hidden = right.hide(scores, allowed, call)
    some = np.isfinite(hidden).any(-1, keepdims=True)
    return np.where(some & np.isneginf(hidden), scores - call.work(10), hidden)


def keys_centred_with_padding(right: MultiHeadKernel, call: LayerCall) -> Heads:
    q, k, v = right.heads(call)
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


row = partial(deviation, family=FAMILY, right=MultiHeadKernel)

DEVIATIONS = [
    row("sample-padding-tiled", "values",
        "Padding is tiled over the heads, not repeated: heads get the padding of another sample.",
        "`valid.repeat(H, 1)` for B * H rows; use `valid.repeat_interleave(H, dim=0)`",
        padded=sample_padding_tiled),
    row("padding-per-head", "values",
        "With B == H padding per sample is taken for padding per head.",
        "`valid[None, :, None]` broadcasts over heads; it is `valid[:, None, None]`",
        family="heads", padded=padding_per_head),
    row("padding-per-query", "values", "With B == Lq padding (B, Lk) is taken for a mask (Lq, Lk).",
        "a mask (B, Lk) broadcasts as (Lq, Lk); use `mask[:, None]`", right=DotKernel,
        padded=padding_per_query),
    row("padding-hides-queries", "values",
        "With Lq == Lk padding hides rows of queries, not columns of keys.",
        "`valid[:, None, :, None]`; padding is of keys: `valid[:, None, None, :]`",
        padded=padding_hides_queries),
    row("padded-queries-hidden", "values",
        "In self-attention padding hides queries, too, not keys alone.",
        "`valid[:, :, None] & valid[:, None, :]`; key padding hides keys alone",
        padded=padded_queries_hidden),
    row("padding-off-by-one", "values", "The first key of the padding is seen.",
        "`j <= length`; a length counts the keys: `j < length`", padded=padding_off_by_one),
    row("padding-ignored", "poison", "Padding has no effect.",
        "`key_padding_mask` is accepted and not used; hide with `masked_fill(padding, -inf)`",
        padded=lambda right, valid, call: right.padded(np.ones_like(valid), call)),
    row("padding-ignored-with-weights", "values", "Padding has no effect if weights are returned.",
        "a path for `need_weights=True` that leaves out `key_padding_mask`",
        padded=padding_ignored_with_weights),
    row("layer-mask-inverted", "values",
        "A boolean mask is read the other way round: True hides a key.",
        "`masked_fill(mask, -inf)`, as in `nn.MultiheadAttention`; here True attends: `~mask`",
        masked=lambda right, mask, call: ~mask),
    row("raw-mask-inverted", "election",
        "In a mask (Lq, Lk) True hides a key, though True is declared to attend.",
        "a path for masks (Lq, Lk) with `masked_fill(mask, -inf)`; True attends in every rank",
        masked=raw_mask_inverted),
    row("layer-mask-transposed", "values",
        "With Lq == Lk rows and columns of a boolean mask are exchanged.",
        "`mask.mT`; the axes of a mask are (..., query, key)", masked=layer_mask_transposed),
    row("samples-and-heads-exchanged", "values",
        "With B == H samples and heads of a boolean mask are exchanged.",
        "`mask.transpose(0, 1)`, `view(H, B, Lq, Lk)`; the axes are (B, H, Lq, Lk)", family="heads",
        masked=samples_and_heads_exchanged),
    row("layer-mask-of-first-head", "head_independence",
        "Every head gets the boolean mask of the first.",
        "`mask[:, 0]` or `mask[:, :1]` for all heads; head h has `mask[:, h]`", family="heads",
        masked=lambda right, mask, call: mask[:, :1]),
    row("layer-mask-of-first-sample", "batch_independence",
        "Every sample gets the boolean mask of the first.",
        "`mask[0]` or `mask[:1]` for all samples; sample b has `mask[b]`", family="heads",
        masked=lambda right, mask, call: mask[:1]),
    row("mask-as-lengths", "key_permutation",
        "A mask whose rows are equal is converted to lengths, wherever its holes are.",
        "`lengths = mask.sum(-1)`; `j < length` is the mask only if all True come first",
        masked=mask_as_lengths),
    row("causal-flag-ignored", "future", "The causal flag has no effect.",
        "`is_causal` (`use_causal_mask`) is accepted and not used; hide j > i",
        causal=lambda right, call: np.ones((call.sizes.Lq, call.sizes.Lk), bool)),
    row("causal-lost-with-weights", "future",
        "The causal flag has no effect if weights are returned.",
        "a path for `need_weights=True` without the causal mask",
        causal=lambda right, call: right.causal(call) | (call.returned != "none")),
    row("causal-lost-with-mask", "election", "Beside a mask the causal flag has no effect.",
        "`if mask is None: mask = causal`; both apply: `mask & causal`",
        causal=lambda right, call: right.causal(call) | (call.mask is not None)),
    row("causal-lost-with-padding", "future", "Beside padding the causal flag has no effect.",
        "the padding replaces the causal mask; both apply: `valid & causal`",
        causal=lambda right, call: right.causal(call) | (call.valid is not None)),
    row("mask-lost-with-causal", "values", "With the causal flag a boolean mask has no effect.",
        "`if is_causal: mask = None`; both apply: `mask & causal`",
        masked=lambda right, mask, call: mask | call.causal),
    row("causal-needs-another-mask", "future",
        "The causal flag has an effect only beside another mask.",
        "`if mask is not None: mask = mask & causal`; alone, too, the flag hides",
        causal=causal_needs_another_mask),
    row("causal-lost-without-batch", "values",
        "Without a batch axis the causal flag has no effect.",
        "a path for inputs (L, E) without the causal mask",
        causal=lambda right, call: right.causal(call) | call.single),
    row("layer-causal-bottom-right", "election",
        "With Lq != Lk the causal flag is aligned bottom-right, though top-left is declared.",
        "`tril(diagonal=Lk - Lq)`, `j <= i + Lk - Lq`; top-left is `tril()`, `j <= i`",
        causal=layer_causal_bottom_right),
    row("layer-causal-sees-next", "future", "A causal query sees the next key.",
        "`tril(diagonal=1)` or `j <= i + 1`; a causal mask is `j <= i`",
        causal=layer_causal_sees_next),
    row("hidden-scores-minus-thirty", "poison", "Hidden keys have the score -30, not -inf.",
        "`masked_fill(~mask, -30)`; scores may lie below: use -inf", right=DotKernel,
        hide=hidden_scores_minus_thirty),
    row("penalty-subtracted", "poison",
        "10 is subtracted from hidden scores, which keep some weight.",
        "`scores - 10 * ~mask`; a hidden key keeps some weight: `where(mask, scores, -inf)`",
        right=AdditiveKernel, hide=penalty_subtracted),
    row("keys-centred-with-padding", "poison",
        "Keys are centred by a mean in which hidden keys count, so that NaN in padding spreads.",
        "`k - k.mean(-2, keepdim=True)`; padding must not enter the mean",
        heads=keys_centred_with_padding),
    row("padded-sample-nan", "election",
        "A sample whose keys are all padding is NaN, though zeros are declared.",
        "`softmax` of a row of -inf is NaN; set rows without keys to 0",
        shifted=lambda right, scores: scores - scores.max(-1, keepdims=True)),
]  # fmt: skip
