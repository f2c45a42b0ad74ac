"""Faults of layers: returned weights and dropout, state, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np

from backends._numpy import Rounded
from suite.faults.fault import fault
from suite.faults.kernels.dropping import (
    SharedByHeads,
    SharedByQueries,
    SharedBySamples,
    Unscaled,
    Unseeded,
)
from suite.faults.kernels.layer import Heads, LayerCall, MultiHeadKernel, SelfAttentionKernel
from suite.faults.kernels.single import AdditiveKernel, DotKernel
from suite.spec.dtypes import DTYPES


@fault("values")
class WeightsSummed(MultiHeadKernel):
    """Average weights are the sum over the heads."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return weights.sum(1) if call.returned == "average" else weights


@fault("values")
class WeightsOfFirstHead(MultiHeadKernel):
    """Average weights are those of the first head."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return weights[:, 0] if call.returned == "average" else weights


@fault("values")
class WeightsOfGroupLeaders(MultiHeadKernel):
    """With grouped heads weights are averaged over the first head of each group."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        leaders = weights[:, :: call.sizes.group]
        return leaders.mean(1) if call.returned == "average" else weights


@fault("values")
class FirstHeadForAll(MultiHeadKernel):
    """The weights returned for every head are those of the first."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        shown = super().shown(weights, call)
        return shown if call.returned == "average" else np.repeat(shown[:, :1], shown.shape[1], 1)


@fault("values")
class WeightsAreScores(SelfAttentionKernel):
    """The weights returned are the scores."""

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        self.seen = scores
        return super().weights(scores, call)

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.where(np.isneginf(self.seen), 0, self.seen)[:, 0]


@fault("values")
class WeightsTransposed(MultiHeadKernel):
    """With Lq == Lk the weights returned are transposed."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        shown = super().shown(weights, call)
        return shown.swapaxes(-1, -2) if call.sizes.Lq == call.sizes.Lk else shown


@fault("values")
class AverageAttends(MultiHeadKernel):
    """Where average weights are returned, all heads attend with them."""

    def attend(self, weights: np.ndarray, value: np.ndarray, call: LayerCall) -> np.ndarray:
        if call.returned == "average":
            weights = np.broadcast_to(weights.mean(1, keepdims=True), weights.shape)
        return super().attend(weights, value, call)


@fault("values")
class WeightsInFloat32(MultiHeadKernel):
    """Weights come back in float32 whatever the dtype."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        output, weights = super().attention(query, key, value, **rest)
        return output, weights and Rounded(weights.values, DTYPES["f32"])


@fault("values")
class WeightsAlwaysAveraged(MultiHeadKernel):
    """Weights are averaged over the heads though those of every head are asked for."""

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return weights.mean(1)


@fault("election", like="F5")
class WeightsAfterDropout(MultiHeadKernel):
    """The weights returned are those after dropout, though those before it are declared."""

    def weights(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().dropped(super().weights(scores, call), call)

    def dropped(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return weights


@fault("values")
class HiddenWeightsReturned(DotKernel):
    """The weights returned are those without the mask."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        self.bare = super().weights(scores, call)
        return scores

    def shown(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        return self.bare[:, 0]


@fault("dropout_off", like="F2")
class DropoutInEvaluation(MultiHeadKernel):
    """Weights are dropped in evaluation, too."""

    def rate(self, call: LayerCall) -> float:
        return call.rate


@fault("dropout", like="F6")
class DropoutNeverApplied(MultiHeadKernel):
    """Weights are dropped neither in training nor in evaluation."""

    def rate(self, call: LayerCall) -> float:
        return 0.0


@fault("dropout")
class DropoutNotRescaled(Unscaled, MultiHeadKernel):
    """Weights that are kept are not divided by 1 - rate."""


@fault("dropout")
class DropoutRescaledByRate(DotKernel):
    """Weights that are kept are divided by the rate."""

    def rescale(self, rate: float) -> float:
        return 1.0 / rate


@fault("dropout")
class DropoutKeepsRate(DotKernel):
    """Weights are kept with the probability that is to drop them."""

    def pattern(self, shape: tuple[int, ...], rate: float, call: LayerCall) -> np.ndarray:
        return ~super().pattern(shape, rate, call)


@fault("dropout")
class DropoutOfAnotherRate(AdditiveKernel):
    """Weights are dropped at two thirds of the rate and scaled by the whole of it."""

    def pattern(self, shape: tuple[int, ...], rate: float, call: LayerCall) -> np.ndarray:
        return super().pattern(shape, rate * 2 / 3, call)


@fault("dropout", like="F8")
class DropoutSharedByHeads(SharedByHeads, MultiHeadKernel):
    """All heads share one pattern, though one for every element is declared."""


@fault("dropout", like="F8")
class DropoutSharedBySamples(SharedBySamples, DotKernel):
    """All samples share one pattern, though one for every element is declared."""


@fault("dropout")
class DropoutOfWholeKeys(SharedByQueries, MultiHeadKernel):
    """A key is dropped for all queries at once."""


@fault("dropout")
class DropoutOfWholeQueries(AdditiveKernel):
    """All keys of a query are dropped at once."""

    def pattern(self, shape: tuple[int, ...], rate: float, call: LayerCall) -> np.ndarray:
        return super().pattern((*shape[:3], 1), rate, call)


@fault("dropout")
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


@fault("dropout")
class DropoutUnseeded(MultiHeadKernel):
    """Patterns depend on how many were drawn before, not on the seed alone."""

    drawn = 0

    def random(self, call: LayerCall) -> np.random.Generator:
        self.drawn += 1
        return np.random.default_rng((call.seed, self.drawn))


@fault("dropout")
class DropoutSeedIgnored(Unseeded, MultiHeadKernel):
    """The pattern does not depend on the seed."""


@fault("dropout_off")
class DropoutByDefault(MultiHeadKernel):
    """In training a rate of 0 is taken for the default of 0.1."""

    def rate(self, call: LayerCall) -> float:
        return super().rate(call) or 0.1 * call.training


@fault("dropout_off")
class WholeDropoutNan(MultiHeadKernel):
    """At rate 1 dropped weights are 0 / 0."""

    def dropped(self, weights: np.ndarray, call: LayerCall) -> np.ndarray:
        dropped_weights = super().dropped(weights, call)
        return dropped_weights / call.work(0) if self.rate(call) == 1 else dropped_weights


@fault("dropout_off")
class DropoutRescaledInEvaluation(MultiHeadKernel):
    """In evaluation the output of the heads is multiplied by 1 - rate, besides what training scales."""

    def attend(self, weights: np.ndarray, value: np.ndarray, call: LayerCall) -> np.ndarray:
        features = super().attend(weights, value, call)
        return features if call.training else features * call.work(1 - call.rate)


@fault("contract")
class QueryBiasAddedInPlace(MultiHeadKernel):
    """Where it fits, the query's bias is added to the query itself."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        answer, bias = super().attention(query, key, value, **rest), rest.get("query_bias")
        if bias is not None and bias.values.size == query.shape[-1]:
            query.values[...] += bias.values.reshape(-1)
        return answer


@fault("contract")
class KernelScaledInPlace(MultiHeadKernel):
    """Every call leaves the scale multiplied onto the query's kernel."""

    def factor(self, call: LayerCall) -> float:
        factor = super().factor(call)
        call.parameters["query_kernel"].values[...] *= factor
        return factor


@fault("contract")
class PaddingShiftedInPlace(MultiHeadKernel):
    """Every call leaves one key more valid in the caller's own array."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        mask = super().padded(valid.copy(), call)
        valid[:, 1:] |= valid[:, :-1].copy()
        return mask


@fault("contract")
class LayerAnswersInOneBuffer(MultiHeadKernel):
    """Answers of one shape share a buffer: a later call overwrites an earlier answer."""

    def deliver(self, out: np.ndarray, call: LayerCall) -> Any:
        answer = super().deliver(out, call)
        kept = self.__dict__.setdefault("kept", {})
        buffer = kept.setdefault((answer.shape, call.fmt.name), answer)
        buffer.values[...] = answer.values
        return buffer


@fault("contract")
class StateKeptBetweenCalls(AdditiveKernel):
    """Every call adds a little of the answer before it where the shapes fit."""

    def deliver(self, out: np.ndarray, call: LayerCall) -> Any:
        before = getattr(self, "before", out * 0)
        self.before = out
        return super().deliver(out + before / 8 if before.shape == out.shape else out, call)


@fault("key_permutation")
class LayerMaskKeptByShape(MultiHeadKernel):
    """The first boolean mask of a shape serves all later calls of that shape."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        return kept.setdefault((mask.shape, call.query.shape, call.fmt.name), mask.copy())


@fault("values")
class CausalMaskKept(SelfAttentionKernel):
    """The causal mask of the first call is cut to serve shorter ones, and repeated for longer ones."""

    def causal(self, call: LayerCall) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", super().causal(call)[:4, :4])
        repeats = -(-call.sizes.Lk // 4)
        return np.tile(kept, (repeats, repeats))[: call.sizes.Lq, : call.sizes.Lk]


@fault("values")
class ParametersShared(MultiHeadKernel):
    """Layers whose kernels have the same shapes share the parameters of the first."""

    def kernel(self, name: str, call: LayerCall) -> np.ndarray:
        kernel = super().kernel(name, call)
        kept = self.__dict__.setdefault("kept", {})
        return kept.setdefault((name, kernel.shape, call.fmt.name), kernel)


@fault("bad_problem", like="C23")
class LayerMaskCutToFit(MultiHeadKernel):
    """A mask that is too large is cut to the problem's size."""

    def validate_mask(self, mask: Rounded, call: LayerCall) -> None:
        pass

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        s = call.sizes
        return mask[: s.B, : s.H, : s.Lq, : s.Lk] if mask.ndim == 4 else mask


@fault("bad_problem")
class ExcessSamplesIgnored(DotKernel):
    """Samples of keys and values beyond the queries' batch are ignored."""

    def validate_lengths(self, call: LayerCall) -> None:
        pass

    def heads(self, call: LayerCall) -> Heads:
        q, k, v = super().heads(call)
        return q, k[: len(q)], v[: len(q)]


@fault("bad_problem")
class ExcessKeysIgnored(AdditiveKernel):
    """Keys without values are not attended."""

    def validate_lengths(self, call: LayerCall) -> None:
        pass

    def heads(self, call: LayerCall) -> Heads:
        q, k, v = super().heads(call)
        return q, k[:, :, : v.shape[2]], v


@fault("bad_problem")
class QueryWidthCut(MultiHeadKernel):
    """A query that is too narrow is projected with the kernel's first rows."""

    def validate_widths(self, call: LayerCall) -> None:
        pass

    def projected(self, x: np.ndarray, name: str, call: LayerCall) -> np.ndarray:
        kernel = self.kernel(name, call)[: x.shape[-1]]
        y = self.with_bias(x @ kernel.reshape(len(kernel), -1), name, call)
        return self.split(y, kernel.shape[1], call)
