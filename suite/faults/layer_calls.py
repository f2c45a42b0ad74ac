"""Faults of layers: returned weights, state, and what they refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.holding import LayerHolding
from attention_conformance.suite.faults.kernels.layer import Heads, LayerCall, MultiHeadKernel
from attention_conformance.suite.faults.kernels.single import AdditiveKernel, DotKernel
from attention_conformance.suite.spec.dtypes import DTYPES

FAMILY = "layer"


@fault("values", "`weights.sum(1)`; the average over the heads is `weights.mean(1)`")
class WeightsSummed(MultiHeadKernel):
    """Returned average weights are the sum over the heads, not the mean."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return weights.sum(1) if call.returned == "average" else weights


@fault("values", "`weights[:, 0]`; the average over the heads is `weights.mean(1)`")
class WeightsOfFirstHead(MultiHeadKernel):
    """Returned average weights are those of the first head."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return weights[:, 0] if call.returned == "average" else weights


@fault("values", "`weights[:, ::group].mean(1)`; every query head counts: `weights.mean(1)`")
class WeightsOfGroupLeaders(MultiHeadKernel):
    """With grouped heads returned average weights count only the first head of each group."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        leaders = weights[:, :: call.sizes.group]
        return leaders.mean(1) if call.returned == "average" else weights


@fault("values", "`weights[:, :1].expand(-1, H, -1, -1)`; return every head's own")
class FirstHeadForAll(MultiHeadKernel):
    """The weights returned for every head are those of the first."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        shown = super().shown(weights, call)
        return shown if call.returned == "average" else np.repeat(shown[:, :1], shown.shape[1], 1)


@fault("values", "`return out, scores`; return `softmax(scores)`")
class WeightsAreScores(MultiHeadKernel):
    """Scores come back in place of the weights."""

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        self.seen = scores
        return super().weights(scores, call)

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().shown(np.where(np.isneginf(self.seen), 0, self.seen), call)


@fault("values", "`weights.mT`; the axes of weights are (..., query, key)")
class WeightsTransposed(MultiHeadKernel):
    """With Lq == Lk the weights returned are transposed."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        shown = super().shown(weights, call)
        return shown.swapaxes(-1, -2) if call.sizes.Lq == call.sizes.Lk else shown


@fault("values", "`weights = weights.mean(1)` before `weights @ v`; average only what is returned")
class AverageAttends(MultiHeadKernel):
    """If average weights are asked for, all heads attend with them."""

    def attend(self, weights: np.ndarray, value: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.returned == "average":
            weights = np.broadcast_to(weights.mean(1, keepdims=True), weights.shape)
        return super().attend(weights, value, call)


@fault("values", "`softmax(scores.float())` is returned; use `.to(q.dtype)`", family="contract")
class WeightsInFloat32(MultiHeadKernel):
    """Weights come back in float32 whatever the dtype."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        output, weights = super().attention(query, key, value, **rest)
        return output, weights and Rounded(weights.values, DTYPES["f32"])


@fault("values", "`weights.mean(1)` although `average_attn_weights=False`")
class WeightsAlwaysAveraged(MultiHeadKernel):
    """Weights are averaged over the heads, though those of every head are asked for."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return weights.mean(1)


@fault(
    "election", "`weights = dropout(weights)` is returned; keep those before it", family="dropout"
)
class WeightsAfterDropout(MultiHeadKernel):
    """The weights returned are those after dropout, though those before it are declared."""

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().dropped(super().weights(scores, call), call)

    def dropped(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return weights


@fault("values", "`softmax(scores)` before the mask is returned; return the weights that attend")
class HiddenWeightsReturned(DotKernel):
    """Returned weights are those without the mask."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        self.bare = super().weights(scores, call)
        return scores

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return self.bare[:, 0]


@fault("contract", "`query += b_q`; use `q = query + b_q`", family="contract")
class QueryBiasAddedInPlace(MultiHeadKernel):
    """The query's bias is added to the caller's own array."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        answer, bias = super().attention(query, key, value, **rest), rest.get("query_bias")
        if bias is not None and bias.values.size == query.shape[-1]:
            query.values[...] += bias.values.reshape(-1)
        return answer


@fault("contract", "`self.w_q *= scale` in `forward`; use `w_q * scale`", family="contract")
class KernelScaledInPlace(MultiHeadKernel):
    """Every call multiplies the query's kernel by the scale, in place."""

    def factor(self, call: LayerCall) -> float:
        factor = super().factor(call)
        call.parameters["query_kernel"].values[...] *= factor
        return factor


@fault("contract", "`valid[:, 1:] |= ...` on the caller's mask; work on a copy", family="contract")
class PaddingShiftedInPlace(MultiHeadKernel):
    """Every call makes one key more valid in the caller's padding mask."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        mask = super().padded(valid.copy(), call)
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


@fault(
    "stateless",
    "weights folded or packed in the constructor; make them of the parameters at every call",
    family="state",
)
class LayerFoldedAtCreation(LayerHolding):
    """The layer computes with copies of its parameters that were made when it was created."""

    def taken(
        self, held: Mapping[str, Rounded], made: Mapping[str, Rounded]
    ) -> Mapping[str, Rounded]:
        return made


@fault(
    "stateless",
    "a product of two weights that is kept at creation; absorb them at every call",
    family="state",
)
class LayerAbsorbedAtCreation(LayerHolding):
    """The output projection, absorbed into other weights, stays as it was at the layer's creation."""

    def taken(
        self, held: Mapping[str, Rounded], made: Mapping[str, Rounded]
    ) -> Mapping[str, Rounded]:
        return {n: made[n] if n.startswith("output") else array for n, array in held.items()}


@fault(
    "bad_problem",
    "`mask[:, :, :Lq, :Lk]`; raise ValueError if the mask does not broadcast",
    family="contract",
)
class LayerMaskCutToFit(MultiHeadKernel):
    """A mask that is too large is cut, not refused."""

    def validate_mask(self, mask: Rounded, call: LayerCall) -> None:
        pass

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        s = call.sizes
        return mask[: s.B, : s.H, : s.Lq, : s.Lk] if mask.ndim == 4 else mask


@fault(
    "bad_problem",
    "`k[:B]`, `v[:B]`; raise ValueError if `k.shape[0] != q.shape[0]`",
    family="contract",
)
class ExcessSamplesIgnored(DotKernel):
    """More samples of keys than of queries are accepted, and the last ones ignored."""

    def validate_lengths(self, call: LayerCall) -> None:
        pass

    def heads(self, call: LayerCall) -> Heads:
        q, k, v = super().heads(call)
        return q, k[: len(q)], v[: len(q)]


@fault(
    "bad_problem",
    "`k[:, : v.shape[1]]`; raise ValueError if `k.shape[1] != v.shape[1]`",
    family="contract",
)
class ExcessKeysIgnored(AdditiveKernel):
    """More keys than values are accepted, and those without a value ignored."""

    def validate_lengths(self, call: LayerCall) -> None:
        pass

    def heads(self, call: LayerCall) -> Heads:
        q, k, v = super().heads(call)
        return q, k[:, :, : v.shape[2]], v


@fault(
    "bad_problem",
    "`x @ w_q[: x.shape[-1]]`; raise ValueError if the widths differ",
    family="contract",
)
class QueryWidthCut(MultiHeadKernel):
    """A query that is too narrow is projected with the first rows of the kernel."""

    def validate_widths(self, call: LayerCall) -> None:
        pass

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        kernel = self.kernel(name, call)[: x.shape[-1]]
        y = self.with_bias(x @ kernel.reshape(len(kernel), -1), name, call)
        return self.split(y, kernel.shape[1], call)
