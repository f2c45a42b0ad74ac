"""Faults of layers: masks, alone, beside options and on one path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.suite.deviations.deviation import (
    Deviation,
    deviation,
    has_groups,
    has_one_query,
)
from attention_conformance.suite.deviations.kernels.layer import (
    Array,
    Heads,
    LayerCall,
    MultiHeadKernel,
)
from attention_conformance.suite.deviations.kernels.single import AdditiveKernel, DotKernel
from attention_conformance.suite.spec.dtypes import DTYPES, round_to


def heads_with_centred_keys(right: MultiHeadKernel, call: LayerCall) -> Heads:
    q, k, v = right.heads(call)
    return q, k - k.mean(2, keepdims=True), v


def hide_adding_padding(
    right: MultiHeadKernel, scores: Array, allowed: Array | None, call: LayerCall
) -> Array:
    assert call.valid is not None
    valid = right.padding_mask(call.valid.values, call)
    return right.hide(scores + valid, right.allowed(replace(call, valid=None)), call)


row = partial(deviation, family="mask", right=MultiHeadKernel)
no_causal = partial(row, causal=lambda right, call: np.ones_like(right.causal(call)))
no_padding = partial(
    row, padding_mask=lambda right, valid, call: np.ones_like(valid[:, None, None])
)
no_mask = partial(row, masked=lambda right, mask, call: np.ones_like(mask))
no_bias = partial(row, family="scores", biased=lambda right, scores, call: scores)
hides_queries = partial(row, when=lambda call: call.sizes.Lq == call.sizes.Lk,
    padding_mask=lambda right, valid, call: right.padding_mask(valid, call).swapaxes(-1, -2))  # fmt: skip
path = partial(deviation, family="layer", right=MultiHeadKernel)

IGNORING = {
    "causal": (no_causal, "the causal flag", "the causal mask"),
    "padding": (no_padding, "padding", "the padding"),
    "mask": (no_mask, "a boolean mask", "the boolean mask"),
    "bias": (no_bias, "a float mask", "the float mask"),
}
"""Rows of an argument without effect, by argument, and words for the argument."""

LOST = {
    "with-weights": ("If weights are returned,", "`need_weights=True`",
        lambda call: call.returned != "none", {"causal": "future", "mask": "values"}),
    "with-average-weights": ("If average weights are returned,", "returned average weights",
        lambda call: call.returned == "average", {"causal": "values"}),
    "with-mask": ("Beside a boolean mask", "boolean masks",
        lambda call: call.mask is not None, {"causal": "election", "padding": "values"}),
    "with-bias": ("Beside a float mask", "float masks",
        lambda call: call.bias is not None, {"causal": "values", "padding": "values", "mask": "values"}),
    "with-padding": ("Beside padding", "padding",
        lambda call: call.valid is not None, {"causal": "future", "mask": "values"}),
    "with-causal": ("With the causal flag", "the causal flag",
        lambda call: call.causal, {"mask": "values"}),
    "with-groups": ("With grouped heads", "grouped heads", has_groups, {"padding": "values"}),
    "for-one-query": ("With one query", "`Lq == 1`", has_one_query, {"causal": "values"}),
    "across": ("In cross-attention", "cross-attention",
        lambda call: not call.self_attention, {"padding": "values"}),
    "without-batch": ("Without a batch axis", "inputs (L, E)",
        lambda call: call.squeezed, {"causal": "values", "padding": "values"}),
    "in-training": ("In training", "`training=True`", lambda call: call.training, {"causal": "paths"}),
    "with-dropout": ("While weights are dropped,", "training with dropout",
        lambda call: call.training and call.rate > 0, {"causal": "dropout", "padding": "dropout"}),
    "with-arate": ("In a layer with dropout, in evaluation, too,", "layers with dropout",
        lambda call: call.rate > 0, {"causal": "dropout_off"}),
    "without-gradients": ("If no gradients are asked for,", "`torch.no_grad()`",
        lambda call: not call.gradients, {"padding": "paths", "mask": "paths", "bias": "paths"}),
}  # fmt: skip
"""Conditions under which a layer ignores an argument, by the end of a deviation's name: words, words for
the path of code, the condition, and its arguments, each with the check that kills the deviation."""


def lost_arguments() -> Iterator[Deviation]:
    """Yields the deviations in which an argument of `IGNORING` has no effect in a condition of `LOST`."""
    for end, (words, path, when, arguments) in LOST.items():
        for argument, killed_by in arguments.items():
            ignoring, noun, omitted = IGNORING[argument]
            yield ignoring(f"{argument}-lost-{end}", killed_by, f"{words} {noun} has no effect.",
                           f"a path for {path} that leaves out {omitted}", when=when)  # fmt: skip


DEVIATIONS = [
    *lost_arguments(),
    row("mask-after-softmax", "values",
        "Weights are hidden after the softmax, so that those of a row do not add to 1.",
        "`softmax(scores) * mask`; mask before: `softmax(scores.masked_fill(~mask, -inf))`",
        hide=lambda right, scores, allowed, call: scores,
        weights=lambda right, scores, call: right.weights(scores, call)
            * np.asarray(1 if right.allowed(call) is None else right.allowed(call), scores.dtype)),
    row("sample-padding-tiled", "values",
        "Padding is tiled over the heads, not repeated: heads get the padding of another sample.",
        "`valid.repeat(H, 1)` for B * H rows; use `valid.repeat_interleave(H, dim=0)`",
        padding_mask=lambda right, valid, call:
            np.tile(valid, (call.sizes.H, 1)).reshape(*valid.shape[:1], -1, 1, valid.shape[1])),
    row("padding-tiled-over-queries", "values",
        "Lengths are tiled over queries, not repeated: queries get the padding of another sample.",
        "`valid_lens.repeat(Lq)`; use `valid_lens.repeat_interleave(Lq)`", right=AdditiveKernel,
        padding_mask=lambda right, valid, call: np.tile(valid, (call.sizes.Lq, 1)).reshape(
            len(valid), 1, call.sizes.Lq, -1)),
    row("padding-per-head", "values",
        "With B == H padding per sample is taken for padding per head.",
        "`valid[None, :, None]` broadcasts over heads; it is `valid[:, None, None]`",
        family="heads", when=lambda call: call.sizes.B == call.sizes.H,
        padding_mask=lambda right, valid, call: right.padding_mask(valid, call).swapaxes(0, 1)),
    row("padding-per-query", "values", "With B == Lq padding (B, Lk) is taken for a mask (Lq, Lk).",
        "a mask (B, Lk) broadcasts as (Lq, Lk); use `mask[:, None]`", right=DotKernel,
        padding_mask=lambda right, valid, call:
            valid[None, None] if len(valid) == call.sizes.Lq else right.padding_mask(valid, call)),
    hides_queries("padding-hides-queries", "values",
        "With Lq == Lk padding hides rows of queries, not columns of keys.",
        "`valid[:, None, :, None]`; padding is of keys: `valid[:, None, None, :]`"),
    hides_queries("padding-hides-queries-as-nan", "poison",
        "With Lq == Lk padding hides rows of queries, which become NaN, not columns of keys.",
        "`valid[:, None, :, None]`; padding is of keys: `valid[:, None, None, :]`",
        weights=lambda right, scores, call: np.where(
            np.isneginf(scores).all(-1, keepdims=True), np.nan, right.weights(scores, call))),
    row("padded-queries-hidden", "values",
        "In self-attention padding hides queries, too, not keys alone.",
        "`valid[:, :, None] & valid[:, None, :]`; key padding hides keys alone",
        when=lambda call: call.self_attention,
        padding_mask=lambda right, valid, call:
            right.padding_mask(valid, call) & right.padding_mask(valid, call).swapaxes(-1, -2)),
    row("padding-off-by-one", "values", "The first key of the padding is seen.",
        "`j <= length`; a length counts the keys: `j < length`",
        padding_mask=lambda right, valid, call:
            right.padding_mask(valid | np.concatenate([valid[:, :1], valid[:, :-1]], 1), call)),
    row("padding-added", "values", "Padding is added to the scores as 0 and 1.",
        "`scores + valid` of booleans; hide padding: `scores.masked_fill(~valid, -inf)`",
        when=lambda call: call.valid is not None, hide=hide_adding_padding),
    no_padding("padding-ignored", "poison", "Padding has no effect.",
        "`key_padding_mask` is accepted and not used; hide with `masked_fill(padding, -inf)`"),
    row("raw-mask-inverted", "election",
        "In a mask (Lq, Lk) True hides a key, though True is declared to attend.",
        "a path for masks (Lq, Lk) with `masked_fill(mask, -inf)`; True attends in every rank",
        when=lambda call: call.mask.values.ndim == 2, masked=lambda right, mask, call: ~mask),
    row("samples-and-heads-exchanged", "values",
        "With B == H samples and heads of a boolean mask are exchanged.",
        "`mask.transpose(0, 1)`, `view(H, B, Lq, Lk)`; the axes are (B, H, Lq, Lk)", family="heads",
        masked=lambda right, mask, call:
            mask.swapaxes(0, 1) if call.sizes.B == call.sizes.H else mask),
    row("mask-as-lengths", "key_permutation",
        "A mask whose rows are equal is converted to lengths, wherever its holes are.",
        "`lengths = mask.sum(-1)`; `j < length` is the mask only if all True come first",
        masked=lambda right, mask, call: mask
            if mask.shape[-2] != 1 else np.arange(call.sizes.Lk) < mask.sum(-1, keepdims=True)),
    no_padding("padding-ignored-with-weights", "values",
        "If weights are returned, padding has no effect.",
        "a path for `need_weights=True` that leaves out the padding",
        when=lambda call: call.returned != "none"),
    no_causal("causal-flag-ignored", "future", "The causal flag has no effect.",
        "`is_causal` (`use_causal_mask`) is accepted and not used; hide j > i"),
    no_causal("causal-needs-another-mask", "future",
        "The causal flag has an effect only beside another mask.",
        "`if mask is not None: mask = mask & causal`; alone, too, the flag hides",
        when=lambda call: call.mask is None and call.valid is None),
    row("layer-causal-bottom-right", "election",
        "With Lq != Lk the causal flag is aligned bottom-right, though top-left is declared.",
        "`tril(diagonal=Lk - Lq)`, `j <= i + Lk - Lq`; top-left is `tril()`, `j <= i`",
        causal=lambda right, call: np.arange(call.sizes.Lk) <= np.arange(call.sizes.Lq)[:, None]
            + (call.sizes.Lk - call.sizes.Lq)),
    row("layer-causal-sees-next", "future", "A causal query sees the next key.",
        "`tril(diagonal=1)` or `j <= i + 1`; a causal mask is `j <= i`",
        causal=lambda right, call:
            np.arange(call.sizes.Lk) <= np.arange(call.sizes.Lq)[:, None] + 1),
    row("keys-centred-with-padding", "poison",
        "Keys are centred by a mean in which hidden keys count, so that NaN in padding spreads.",
        "`k - k.mean(-2, keepdim=True)`; padding must not enter the mean",
        heads=heads_with_centred_keys),
    row("padded-sample-nan", "election",
        "A sample whose keys are all padding is NaN, though zeros are declared.",
        "`softmax` of a row of -inf is NaN; set rows without keys to 0",
        shifted=lambda right, scores: scores - scores.max(-1, keepdims=True)),
    no_padding("padding-ignored-for-one-query", "values",
        "For a query without a length axis padding has no effect.",
        "a path for a query (B, E) that leaves out the padding", right=AdditiveKernel,
        when=lambda call: call.squeezed),
    path("scale-missing-with-weights", "paths",
        "Scores are not scaled if the weights of every head are returned.",
        "a path for `need_weights=True` without `/ sqrt(D)`", family="scale",
        when=lambda call: call.returned == "head", factor=lambda right, call: 1.0),
    path("dense-mask-shifted", "paths", "A boolean mask is read one key off.",
        "`mask[..., j - 1]`; key j has `mask[..., j]`", family="mask",
        masked=lambda right, mask, call: np.roll(mask, 1, -1)),
    path("half-sums-in-training", "paths",
        "In training features are rounded to bfloat16, whatever the dtype.",
        '`autocast("cpu", torch.bfloat16)` around training; keep the dtype of the input',
        family="numerics",
        keep=lambda right, x, kind, call: round_to(x, DTYPES["bf16"]).astype(call.work)
            if call.training and kind == "features" else x),
    no_causal("causal-alone-ignored", "election",
        "The causal flag is taken for a hint about the mask: without a mask it has no effect.",
        "`is_causal` read as a hint about `attn_mask`; alone, too, it hides",
        when=lambda call: call.mask is None),
    path("one-memory-one-kernel", "one_memory",
        "Keys and values that are one array are both projected by the kernel of keys.",
        "`if key is value: v = w_k(key)`; values have `w_v`, also if both are one array",
        kernel=lambda right, name, call: right.kernel("key"
            if name == "value" and call.key is call.value and (not call.self_attention) else name, call)),
]  # fmt: skip
