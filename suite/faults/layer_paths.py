"""Faults of layers where masks meet options, or on one path alone."""

from __future__ import annotations

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.layer import LayerCall, MultiHeadKernel
from suite.faults.kernels.single import AdditiveKernel
from suite.spec.dtypes import DTYPES, round_to


@fault("values")
class PaddingLostWithMask(MultiHeadKernel):
    """Padding is lost where a boolean mask is given."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | (call.mask is not None), call)


@fault("values")
class PaddingLostWithBias(MultiHeadKernel):
    """Padding is lost where there is a float bias."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | (call.bias is not None), call)


@fault("values")
class PaddingLostWithGroups(MultiHeadKernel):
    """Padding is lost with grouped heads."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | (call.sizes.H != call.sizes.Hkv), call)


@fault("values")
class CausalLostWithBias(MultiHeadKernel):
    """The causal flag is lost where there is a float bias."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.bias is not None)


@fault("values")
class CausalLostForOneQuery(MultiHeadKernel):
    """The causal flag is lost where there is one query."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.sizes.Lq == 1)


@fault("values", like="C11")
class PaddingIgnoredForOneQuery(AdditiveKernel):
    """Padding is lost where the query has no axis of queries."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | call.single, call)


@fault("paths", like="B13")
class CausalLostInTraining(MultiHeadKernel):
    """The causal flag is lost in training."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | call.training


@fault("paths", like="L14")
class PaddingLostWithoutGradients(MultiHeadKernel):
    """Padding is lost where no gradients are asked for."""

    def padded(self, valid: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().padded(valid | (not call.gradients), call)


@fault("paths", like="B10")
class MaskLostWithoutGradients(MultiHeadKernel):
    """A boolean mask is lost where no gradients are asked for."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return mask | (not call.gradients)


@fault("paths")
class ScaleMissingWithWeights(MultiHeadKernel):
    """Scores are not scaled where weights are returned for every head."""

    def factor(self, call: LayerCall) -> float:
        return 1.0 if call.returned == "head" else super().factor(call)


@fault("paths", like="C19")
class DenseMaskShifted(MultiHeadKernel):
    """A boolean mask is read one key too late."""

    def masked(self, mask: np.ndarray, call: LayerCall) -> np.ndarray:
        return np.roll(mask, 1, -1)


@fault("paths", like="C2")
class BiasLostWithoutGradients(MultiHeadKernel):
    """The float bias is lost where no gradients are asked for."""

    def biased(self, scores: np.ndarray, call: LayerCall) -> np.ndarray:
        return super().biased(scores, call) if call.gradients else scores


@fault("paths")
class HalfSumsInTraining(MultiHeadKernel):
    """In training features are stored in bfloat16 whatever the dtype."""

    def keep(self, x: np.ndarray, what: str, call: LayerCall) -> np.ndarray:
        coarse = call.training and what == "features"
        return round_to(x, DTYPES["bf16"]).astype(call.work) if coarse else x


@fault("election")
class CausalAloneIgnored(MultiHeadKernel):
    """The causal flag is taken for a hint beside a mask: alone it is ignored."""

    def causal(self, call: LayerCall) -> np.ndarray:
        return super().causal(call) | (call.mask is None)


@fault("one_memory")
class OneMemoryOneKernel(MultiHeadKernel):
    """Keys and values that are one array are projected by the kernel of the keys."""

    def kernel(self, name: str, call: LayerCall) -> np.ndarray:
        shared = name == "value" and call.key is call.value and not call.own
        return super().kernel("key" if shared else name, call)
