"""Faults of ALiBi that a call makes of slopes."""

from __future__ import annotations

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Kernel
from suite.faults.kernels.gradient import Differentiable
from suite.spec.dtypes import DTYPES, round_to
from suite.spec.recipes import alibi_slopes


@fault("values")
class AlibiIgnored(Kernel):
    """Slopes are taken, and nothing is added."""

    def alibi(self, slopes: np.ndarray, call: Call) -> np.ndarray:
        return np.zeros_like(super().alibi(slopes, call))


@fault("values")
class AlibiDrawsFarKeysNear(Kernel):
    """The bias is added with the other sign."""

    def alibi(self, slopes: np.ndarray, call: Call) -> np.ndarray:
        return -super().alibi(slopes, call)


@fault("values")
class AlibiFromTheFirstKey(Kernel):
    """The first row stands at the first key, however many keys come before it."""

    def distance(self, call: Call) -> np.ndarray:
        rows, keys = call.rows_and_keys
        return np.abs(rows - keys)


@fault("values")
class AlibiOffByOne(Kernel):
    """Keys behind their row are one further away."""

    def distance(self, call: Call) -> np.ndarray:
        distance = super().distance(call)
        return distance + (distance > 0)


@fault("values")
class AlibiBeyondTheRow(Kernel):
    """Keys beyond the row are drawn nearer the further they are: the distance has a sign."""

    def distance(self, call: Call) -> np.ndarray:
        rows, keys = call.rows_and_keys
        return rows + (call.sizes.Lk - call.sizes.Lq) - keys


@fault("values")
class AlibiOfHeadGroups(Kernel):
    """The query heads of a group share the slope of its first."""

    def slopes(self, call: Call) -> np.ndarray:
        group = call.sizes.group
        return np.repeat(super().slopes(call)[::group], group)


@fault("values")
class AlibiOfAPowerOfTwo(Kernel):
    """The slopes of the next power of two are made anew, and cut."""

    def slopes(self, call: Call) -> np.ndarray:
        heads = call.sizes.H
        return alibi_slopes(2 ** (heads - 1).bit_length())[:heads].astype(call.work)


@fault("values")
class AlibiReversed(Kernel):
    """Slopes are those of the heads in the other order."""

    def slopes(self, call: Call) -> np.ndarray:
        return super().slopes(call)[::-1]


@fault("values")
class AlibiScaled(Kernel):
    """The bias is added before the scores are scaled."""

    def alibi(self, slopes: np.ndarray, call: Call) -> np.ndarray:
        return super().alibi(slopes, call) * call.work(self.factor(call))


@fault("values")
class AlibiSlopesInBfloat16(Kernel):
    """Slopes are stored in bfloat16, whatever the dtype."""

    def slopes(self, call: Call) -> np.ndarray:
        return round_to(super().slopes(call), DTYPES["bf16"]).astype(call.work)


@fault("values")
class AlibiDistanceInBytes(Kernel):
    """Distances are counted in 8 bits."""

    def distance(self, call: Call) -> np.ndarray:
        return super().distance(call) % 256


@fault("values")
class AlibiTableInDtype(Kernel):
    """Keys are numbered from 0, and the products stored in the case's dtype, as some models have it."""

    def alibi(self, slopes: np.ndarray, call: Call) -> np.ndarray:
        _, keys = call.rows_and_keys
        table: np.ndarray = round_to(slopes[:, None, None] * keys, call.fmt).astype(call.work)
        plain = super().alibi(slopes, call)
        causal = (
            call.causal and call.sizes.Lq == call.sizes.Lk
        )  # there rows differ by a constant alone
        return np.broadcast_to(table, plain.shape) if causal else plain


@fault("gradients")
class AlibiForgottenBackward(Differentiable):
    """The backward pass recomputes the weights without the bias."""

    def backward_biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return scores if call.alibi_slopes is not None else super().backward_biased(scores, call)
