"""Faults of layers: returned weights, state, and what they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.holding import LayerHolding
from attention_conformance.suite.faults.kernels.layer import Heads, LayerCall, MultiHeadKernel
from attention_conformance.suite.faults.kernels.single import AdditiveKernel, DotKernel
from attention_conformance.suite.spec.dtypes import DTYPES

FAMILY = "layer"


def weights_summed(right: MultiHeadKernel, weights: np.ndarray, call: LayerCall) -> np.ndarray:
    return weights.sum(1) if call.returned == "average" else weights


def weights_of_first_head(
    right: MultiHeadKernel, weights: np.ndarray, call: LayerCall
) -> np.ndarray:
    return weights[:, 0] if call.returned == "average" else weights


def weights_of_group_leaders(
    right: MultiHeadKernel, weights: np.ndarray, call: LayerCall
) -> np.ndarray:
    leaders = weights[:, :: call.sizes.group]
    return leaders.mean(1) if call.returned == "average" else weights


def first_head_for_all(right: MultiHeadKernel, weights: np.ndarray, call: LayerCall) -> np.ndarray:
    shown = right.shown(weights, call)
    return shown if call.returned == "average" else np.repeat(shown[:, :1], shown.shape[1], 1)


@fault("values", "`return out, scores`; return `softmax(scores)`")
class WeightsAreScores(MultiHeadKernel):
    """Scores come back in place of the weights."""

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        self.seen = scores
        return super().weights(scores, call)

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().shown(np.where(np.isneginf(self.seen), 0, self.seen), call)


def weights_transposed(right: MultiHeadKernel, weights: np.ndarray, call: LayerCall) -> np.ndarray:
    shown = right.shown(weights, call)
    return shown.swapaxes(-1, -2) if call.sizes.Lq == call.sizes.Lk else shown


def average_attends(
    right: MultiHeadKernel, weights: np.ndarray, value: np.ndarray, call: LayerCall
) -> np.ndarray:
    if call.returned == "average":
        weights = np.broadcast_to(weights.mean(1, keepdims=True), weights.shape)
    return right.attend(weights, value, call)


def weights_in_float32(
    right: MultiHeadKernel, query: Rounded, key: Rounded, value: Rounded, **rest: Any
) -> Any:
    output, weights = right.attention(query, key, value, **rest)
    return output, weights and Rounded(weights.values, DTYPES["f32"])


@fault("values", "`softmax(scores)` before the mask is returned; return the weights that attend")
class HiddenWeightsReturned(DotKernel):
    """Returned weights are those without the mask."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        self.bare = super().weights(scores, call)
        return scores

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return self.bare[:, 0]


def query_bias_added_in_place(
    right: MultiHeadKernel, query: Rounded, key: Rounded, value: Rounded, **rest: Any
) -> Any:
    answer, bias = right.attention(query, key, value, **rest), rest.get("query_bias")
    if bias is not None and bias.values.size == query.shape[-1]:
        query.values[...] += bias.values.reshape(-1)
    return answer


def kernel_scaled_in_place(right: MultiHeadKernel, call: LayerCall) -> float:
    factor = right.factor(call)
    call.parameters["query_kernel"].values[...] *= factor
    return factor


def padding_shifted_in_place(
    right: MultiHeadKernel, valid: np.ndarray, call: LayerCall
) -> np.ndarray:
    mask = right.padded(valid.copy(), call)
    valid[:, 1:] |= valid[:, :-1].copy()
    return mask


@fault(
    "contract", "`self.out` is returned at every call; return a new array or a copy", family="state"
)
class LayerAnswersInOneBuffer(MultiHeadKernel):
    """Answers of one shape share a buffer, so that a later call overwrites an earlier answer."""

    def deliver(self, out: np.ndarray, call: LayerCall) -> Any:
        answer = super().deliver(out, call)
        kept = self.__dict__.setdefault("kept", {})
        buffer = kept.setdefault((answer.shape, call.fmt.name), answer)
        buffer.values[...] = answer.values
        return buffer


@fault(
    "contract",
    "a buffer that still holds the answer before; clear it at every call",
    family="state",
)
class StateKeptBetweenCalls(AdditiveKernel):
    """Every call adds an eighth of the answer before it, if shapes fit."""

    def deliver(self, out: np.ndarray, call: LayerCall) -> Any:
        before = getattr(self, "before", out * 0)
        self.before = out
        return super().deliver(out + before / 8 if before.shape == out.shape else out, call)


@fault(
    "key_permutation",
    "mask kept in a dict under its shape; two masks of one shape may differ",
    family="state",
)
class LayerMaskKeptByShape(MultiHeadKernel):
    """The first boolean mask of a shape serves all later calls of that shape."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        return kept.setdefault((mask.shape, call.query.shape, call.fmt.name), mask.copy())


@fault(
    "values",
    "`self.causal` made at the first call; make it for Lq and Lk of every call",
    family="state",
)
class CausalMaskKept(MultiHeadKernel):
    """The causal mask of the first call is cut for shorter calls and repeated for longer ones."""

    def causal(self, call: LayerCall) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", super().causal(call)[:4, :4])
        repeats = -(-call.sizes.Lk // 4)
        return np.tile(kept, (repeats, repeats))[: call.sizes.Lq, : call.sizes.Lk]


@fault(
    "values",
    "weights kept in a cache under their shape; the layer belongs to the key",
    family="state",
)
class ParametersShared(MultiHeadKernel):
    """Layers whose kernels have the same shapes share the parameters of the first."""

    def kernel(self, name: str, call: LayerCall) -> np.ndarray:
        kernel = super().kernel(name, call)
        kept = self.__dict__.setdefault("kept", {})
        return kept.setdefault((name, kernel.shape, call.fmt.name), kernel)


def layer_absorbed_at_creation(
    right: LayerHolding, held: Mapping[str, Rounded], made: Mapping[str, Rounded]
) -> Mapping[str, Rounded]:
    return {n: made[n] if n.startswith("output") else array for n, array in held.items()}


def layer_mask_cut_to_fit_validate_mask(
    right: MultiHeadKernel, mask: Rounded, call: LayerCall
) -> None:
    pass


def layer_mask_cut_to_fit_masked(
    right: MultiHeadKernel, mask: np.ndarray, call: LayerCall
) -> np.ndarray:
    s = call.sizes
    return mask[: s.B, : s.H, : s.Lq, : s.Lk] if mask.ndim == 4 else mask


def excess_samples_ignored_validate_lengths(right: DotKernel, call: LayerCall) -> None:
    pass


def excess_samples_ignored_heads(right: DotKernel, call: LayerCall) -> Heads:
    q, k, v = right.heads(call)
    return q, k[: len(q)], v[: len(q)]


def excess_keys_ignored_validate_lengths(right: AdditiveKernel, call: LayerCall) -> None:
    pass


def excess_keys_ignored_heads(right: AdditiveKernel, call: LayerCall) -> Heads:
    q, k, v = right.heads(call)
    return q, k[:, :, : v.shape[2]], v


def query_width_cut_validate_widths(right: MultiHeadKernel, call: LayerCall) -> None:
    pass


def query_width_cut_projected(
    right: MultiHeadKernel, x: np.ndarray, name: str, call: LayerCall
) -> np.ndarray:
    kernel = right.kernel(name, call)[: x.shape[-1]]
    y = right.with_bias(x @ kernel.reshape(len(kernel), -1), name, call)
    return right.split(y, kernel.shape[1], call)


row = partial(deviation, family=FAMILY, right=MultiHeadKernel)

DEVIATIONS = [
    row("weights-summed", "values",
        "Returned average weights are the sum over the heads, not the mean.",
        "`weights.sum(1)`; the average over the heads is `weights.mean(1)`", shown=weights_summed),
    row("weights-of-first-head", "values", "Returned average weights are those of the first head.",
        "`weights[:, 0]`; the average over the heads is `weights.mean(1)`",
        shown=weights_of_first_head),
    row("weights-of-group-leaders", "values",
        "With grouped heads returned average weights count only the first head of each group.",
        "`weights[:, ::group].mean(1)`; every query head counts: `weights.mean(1)`",
        shown=weights_of_group_leaders),
    row("first-head-for-all", "values",
        "The weights returned for every head are those of the first.",
        "`weights[:, :1].expand(-1, H, -1, -1)`; return every head's own",
        shown=first_head_for_all),
    row("weights-transposed", "values", "With Lq == Lk the weights returned are transposed.",
        "`weights.mT`; the axes of weights are (..., query, key)", shown=weights_transposed),
    row("average-attends", "values",
        "If average weights are asked for, all heads attend with them.",
        "`weights = weights.mean(1)` before `weights @ v`; average only what is returned",
        attend=average_attends),
    row("weights-in-float32", "values", "Weights come back in float32 whatever the dtype.",
        "`softmax(scores.float())` is returned; use `.to(q.dtype)`", family="contract",
        attention=weights_in_float32),
    row("weights-always-averaged", "values",
        "Weights are averaged over the heads, though those of every head are asked for.",
        "`weights.mean(1)` although `average_attn_weights=False`",
        shown=lambda right, weights, call: weights.mean(1)),
    row("weights-after-dropout", "election",
        "The weights returned are those after dropout, though those before it are declared.",
        "`weights = dropout(weights)` is returned; keep those before it", family="dropout",
        weights=lambda right, scores, call: right.dropped(right.weights(scores, call), call),
        dropped=lambda right, weights, call: weights),
    row("query-bias-added-in-place", "contract",
        "The query's bias is added to the caller's own array.",
        "`query += b_q`; use `q = query + b_q`", family="contract",
        attention=query_bias_added_in_place),
    row("kernel-scaled-in-place", "contract",
        "Every call multiplies the query's kernel by the scale, in place.",
        "`self.w_q *= scale` in `forward`; use `w_q * scale`", family="contract",
        factor=kernel_scaled_in_place),
    row("padding-shifted-in-place", "contract",
        "Every call makes one key more valid in the caller's padding mask.",
        "`valid[:, 1:] |= ...` on the caller's mask; work on a copy", family="contract",
        padded=padding_shifted_in_place),
    row("layer-folded-at-creation", "stateless",
        "The layer computes with copies of its parameters that were made when it was created.",
        "weights folded or packed in the constructor; make them of the parameters at every call",
        family="state", right=LayerHolding, taken=lambda right, held, made: made),
    row("layer-absorbed-at-creation", "stateless",
        "The output projection, absorbed into other weights, stays as it was at the layer's creation.",
        "a product of two weights that is kept at creation; absorb them at every call",
        family="state", right=LayerHolding, taken=layer_absorbed_at_creation),
    row("layer-mask-cut-to-fit", "bad_problem", "A mask that is too large is cut, not refused.",
        "`mask[:, :, :Lq, :Lk]`; raise ValueError if the mask does not broadcast",
        family="contract", validate_mask=layer_mask_cut_to_fit_validate_mask,
        masked=layer_mask_cut_to_fit_masked),
    row("excess-samples-ignored", "bad_problem",
        "More samples of keys than of queries are accepted, and the last ones ignored.",
        "`k[:B]`, `v[:B]`; raise ValueError if `k.shape[0] != q.shape[0]`", family="contract",
        right=DotKernel, validate_lengths=excess_samples_ignored_validate_lengths,
        heads=excess_samples_ignored_heads),
    row("excess-keys-ignored", "bad_problem",
        "More keys than values are accepted, and those without a value ignored.",
        "`k[:, : v.shape[1]]`; raise ValueError if `k.shape[1] != v.shape[1]`", family="contract",
        right=AdditiveKernel, validate_lengths=excess_keys_ignored_validate_lengths,
        heads=excess_keys_ignored_heads),
    row("query-width-cut", "bad_problem",
        "A query that is too narrow is projected with the first rows of the kernel.",
        "`x @ w_q[: x.shape[-1]]`; raise ValueError if the widths differ", family="contract",
        validate_widths=query_width_cut_validate_widths, projected=query_width_cut_projected),
]  # fmt: skip
