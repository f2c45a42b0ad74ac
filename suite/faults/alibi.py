"""Faults of ALiBi that a call makes of slopes."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.recipes import alibi_slopes

FAMILY = "scores"


@fault(
    "values",
    "`alibi_slopes` is accepted and not used; `scores - slopes[:, None, None] * distance` is missing",
)
class AlibiIgnored(Kernel):
    """ALiBi slopes have no effect."""

    def alibi(self, slopes: np.ndarray, call: Call) -> np.ndarray:
        return np.zeros_like(super().alibi(slopes, call))


@fault("values", "`scores + slopes * distance`; subtract it, so that far keys lose")
class AlibiDrawsFarKeysNear(Kernel):
    """The ALiBi bias has the wrong sign, so that far keys gain."""

    def alibi(self, slopes: np.ndarray, call: Call) -> np.ndarray:
        return -super().alibi(slopes, call)


@fault(
    "values", "`(i - j).abs()`; the last query stands at the last key: `(i + Lk - Lq - j).abs()`"
)
class AlibiFromTheFirstKey(Kernel):
    """With Lq != Lk the ALiBi distances count from the first key, not from the last one."""

    def distance(self, call: Call) -> np.ndarray:
        rows, keys = call.rows_and_keys
        return np.abs(rows - keys)


@fault("values", "`i - j + 1`; the key next to the query's own has the distance 1")
class AlibiOffByOne(Kernel):
    """ALiBi distances are one too large, but for the query's own key."""

    def distance(self, call: Call) -> np.ndarray:
        distance = super().distance(call)
        return distance + (distance > 0)


@fault("values", "`slopes * (j - i)`; without a causal mask the distance is `(i - j).abs()`")
class AlibiBeyondTheRow(Kernel):
    """ALiBi distances have a sign, so that keys after the query gain."""

    def distance(self, call: Call) -> np.ndarray:
        rows, keys = call.rows_and_keys
        return rows + (call.sizes.Lk - call.sizes.Lq) - keys


@fault(
    "values",
    "`alibi_slopes[h // group * group]`; there is one a query head, `alibi_slopes[h]`",
    family="heads",
)
class AlibiOfHeadGroups(Kernel):
    """With grouped heads every head of a group has the ALiBi slope of the first one."""

    def slopes(self, call: Call) -> np.ndarray:
        group = call.sizes.group
        return np.repeat(super().slopes(call)[::group], group)


@fault("values", "`get_slopes(next_power_of_two(H))[:H]` in place of the slopes that were given")
class AlibiOfAPowerOfTwo(Kernel):
    """The given ALiBi slopes are replaced by those of the next power of two of heads."""

    def slopes(self, call: Call) -> np.ndarray:
        heads = call.sizes.H
        return alibi_slopes(2 ** (heads - 1).bit_length())[:heads].astype(call.work)


@fault("values", "`alibi_slopes.flip(0)`; head h has `alibi_slopes[h]`", family="heads")
class AlibiReversed(Kernel):
    """ALiBi slopes go to the heads in reverse order."""

    def slopes(self, call: Call) -> np.ndarray:
        return super().slopes(call)[::-1]


@fault("values", "`(q @ k.mT - slopes * distance) * scale`; scale q @ k.mT alone")
class AlibiScaled(Kernel):
    """The ALiBi bias is multiplied by the scale of the scores."""

    def alibi(self, slopes: np.ndarray, call: Call) -> np.ndarray:
        return super().alibi(slopes, call) * call.work(self.factor(call))


@fault("values", "`alibi_slopes.bfloat16()`; keep slopes in float32", family="numerics")
class AlibiSlopesInBfloat16(Kernel):
    """ALiBi slopes are rounded to bfloat16, whatever the dtype."""

    def slopes(self, call: Call) -> np.ndarray:
        return round_to(super().slopes(call), DTYPES["bf16"]).astype(call.work)


@fault(
    "values", "positions or distances of dtype `uint8`; long rows need more bits", family="numerics"
)
class AlibiDistanceInBytes(Kernel):
    """ALiBi distances are counted modulo 256."""

    def distance(self, call: Call) -> np.ndarray:
        return super().distance(call) % 256


@fault(
    "values",
    "`(slopes * arange(Lk)).to(q.dtype)`; far keys lose their last digits in 16 bits",
    family="numerics",
)
class AlibiTableInDtype(Kernel):
    """ALiBi is slope times the number of the key, stored in the 16-bit dtype of the operands."""

    def alibi(self, slopes: np.ndarray, call: Call) -> np.ndarray:
        _, keys = call.rows_and_keys
        table: np.ndarray = round_to(slopes[:, None, None] * keys, call.fmt).astype(call.work)
        plain = super().alibi(slopes, call)
        causal = (
            call.causal and call.sizes.Lq == call.sizes.Lk
        )  # there rows differ by a constant alone
        return np.broadcast_to(table, plain.shape) if causal else plain


@fault(
    "gradients",
    "backward recomputes `p` without the ALiBi bias; add it there, too",
    family="gradient",
)
class AlibiForgottenBackward(Differentiable):
    """The backward pass recomputes the weights without the ALiBi bias."""

    def backward_biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        return scores if call.alibi_slopes is not None else super().backward_biased(scores, call)
