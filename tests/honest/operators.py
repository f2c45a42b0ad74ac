"""Honest variants of other operators, of dropout and of derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.suite.deviations.kernels.attention import Call
from attention_conformance.suite.deviations.kernels.dropout import Dropping
from attention_conformance.suite.deviations.kernels.gradient import (
    Differentiable,
    DifferentiableFused,
)
from attention_conformance.suite.deviations.kernels.layer_gradient import (
    NormDifferentiable,
    Standard,
)
from attention_conformance.suite.deviations.kernels.merge import MergeKernel
from attention_conformance.suite.deviations.kernels.packed import Pack, PackedKernel
from attention_conformance.suite.deviations.kernels.rotary import (
    RotaryCall,
    RotaryKernel,
    RotaryTableCast,
)
from attention_conformance.suite.deviations.kernels.single import BatchNormKernel, LayerNormKernel
from attention_conformance.suite.spec.dtypes import DType, round_to
from attention_conformance.suite.spec.inputs import Inputs


class DroppingFused(Dropping, DifferentiableFused):
    """Weights are stored in the case's dtype, and dropped as they are stored."""

    mean = Differentiable.mean  # the fused one is of weights before dropout


class DroppingShared(Dropping):
    """One pattern for all samples and heads, as it is declared."""

    dropout = "shared"

    def pattern(self, shape: tuple[int, ...], rate: float, call: Call) -> np.ndarray:
        return super().pattern(shape[2:], rate, call)


class DifferentiableBlocks(DifferentiableFused):
    """Running sums of gradients stored in the case's dtype after every 4 rows or keys."""

    rounding = DeclaredRounding(gradient_blocks={"bf16": (4, 4), "f16": (4, 4)})

    def summed(self, a: np.ndarray, b: np.ndarray, call: Call) -> np.ndarray:
        total = np.zeros((*a.shape[:-1], b.shape[-1]), a.dtype)
        for start in range(0, a.shape[-1], 4):
            part = total + a[..., start : start + 4] @ b[..., start : start + 4, :]
            total = round_to(part, call.fmt).astype(call.work)
        return total

    def value_gradient(self, weights: np.ndarray, cotangent: np.ndarray, call: Call) -> np.ndarray:
        return self.summed(weights.swapaxes(-1, -2), cotangent, call)


class MergeRunningSum(MergeKernel):
    """Sums that are rescaled as a larger log-sum-exp comes, and divided at the end."""

    def merged(
        self, outputs: np.ndarray, lse: np.ndarray, fmt: DType
    ) -> tuple[np.ndarray, np.ndarray]:
        largest = np.full(lse.shape[1:], -np.inf, lse.dtype)
        output, total = np.zeros(outputs.shape[1:], lse.dtype), np.zeros(lse.shape[1:], lse.dtype)
        for o, one in zip(outputs, lse, strict=True):
            new = np.maximum(largest, one)
            base = np.where(np.isneginf(new), lse.dtype.type(0), new)
            old, weight = np.exp(largest - base), np.exp(one - base)
            output = output * old[..., None] + weight[..., None] * o
            total = total * old + weight
            largest = new
        base = np.where(np.isneginf(largest), lse.dtype.type(0), largest)
        divisor = np.where(total == 0, lse.dtype.type(1), total)
        return output / divisor[..., None], np.log(total) + base


class _NormUncentred(NormDifferentiable):
    """a D + b x + c in working precision, where b and c depend on sum D x and sum D."""

    def input_gradient(
        self, dy: np.ndarray, gain: np.ndarray | None, standard: Standard, inputs: Inputs
    ) -> np.ndarray:
        work: Any = np.float64 if inputs.dtype.name == "f64" else np.float32
        moved = (dy if gain is None else dy * gain).astype(work)
        x, mean, root = (np.asarray(a, work) for a in (standard.x, standard.mean, standard.root))
        if standard.learned:
            return (root * moved).astype(np.float64)
        n = work(np.prod([x.shape[axis] for axis in self.axes]))
        with_x, alone = ((moved * y).sum(self.axes, keepdims=True) for y in (x, work(1)))
        slope = (alone * mean - with_x) * root * root * root / n
        shift = -slope * mean - alone * root / n
        return (root * moved + slope * x + shift).astype(np.float64)


class _NormChain(NormDifferentiable):
    """The chain through mean, variance, root and quotient, every step stored."""

    numerics = "stepwise"

    def step(self, x: np.ndarray, inputs: Inputs) -> np.ndarray:
        return round_to(x, inputs.dtype)

    def gain_gradient(self, dy: np.ndarray, standard: Standard, inputs: Inputs) -> np.ndarray:
        normal = self.step(self.step(standard.x - standard.mean, inputs) * standard.root, inputs)
        return self.step(dy * normal, inputs).sum((0, 1))

    def input_gradient(
        self, dy: np.ndarray, gain: np.ndarray | None, standard: Standard, inputs: Inputs
    ) -> np.ndarray:
        def kept(x: np.ndarray) -> np.ndarray:
            return self.step(x, inputs)

        moved = dy if gain is None else kept(dy * gain)
        shifted, deviation = kept(standard.x - kept(standard.mean)), kept(1 / standard.root)
        direct = kept(moved / deviation)
        if standard.learned:
            return direct
        n = np.prod([standard.x.shape[axis] for axis in self.axes])
        against = kept(moved * -kept(kept(shifted / deviation) / deviation))
        by_root = kept(against.sum(self.axes, keepdims=True))
        by_variance = kept(kept(by_root / (2 * deviation)) / n)
        by_square = kept(shifted * by_variance)
        through = kept(kept(direct + by_square) + by_square)
        by_mean = kept(-kept(through.sum(self.axes, keepdims=True)) / n)
        return through + by_mean


class LayerNormChain(_NormChain, LayerNormKernel):
    """Layer norm with the backward pass of single steps."""


class BatchNormUncentred(_NormUncentred, BatchNormKernel):
    """Batch norm with a backward pass by sums that are not centred."""


class BatchNormChain(_NormChain, BatchNormKernel):
    """Batch norm with the backward pass of single steps."""


class PackedAllPairs(PackedKernel):
    """All pairs at once; those that do not attend are set to -inf before the softmax."""

    elections = {"nan-in-other-segment": "others", "segment-without-keys": "nan"}

    def output(self, pack: Pack) -> np.ndarray:
        hidden = np.ones((len(pack.query), len(pack.key)), bool)
        for rows, keys in self.segments(pack):
            hidden[rows, keys] = ~self.allowed(pack, rows, keys)
        everything = slice(0, len(pack.query)), slice(0, len(pack.key))
        scores, v = self.scores(pack, *everything)
        weights = self.softmax(np.where(hidden, -np.inf, scores), pack)
        out: np.ndarray = (weights @ v).transpose(1, 0, 2)
        return out


class PackedEager(PackedKernel):
    """Scores and weights are stored in the dtype of the case."""

    numerics = "eager"

    def softmax(self, scores: np.ndarray, pack: Pack) -> np.ndarray:
        weights = super().softmax(round_to(scores, pack.fmt).astype(pack.work), pack)
        return round_to(weights, pack.fmt).astype(pack.work)


class RotaryByExponential(RotaryKernel):
    """Frequencies as exp(-e ln base), each step in float32."""

    def frequencies(self, call: RotaryCall) -> tuple[np.ndarray, Any]:
        if call.rotation.scaling != "none":
            return super().frequencies(call)
        size = call.rotation.size
        exponent = np.arange(0, size, 2).astype(call.work) / call.work(size)
        return np.exp(-exponent * np.log(call.work(call.rotation.base))), call.work(1)


class RotaryEager(RotaryTableCast):
    """Sine and cosine, products and sums stored in the query's dtype; half a turn by concatenation."""

    numerics = "eager"

    def rotate(self, call: RotaryCall) -> np.ndarray:
        size, (one, two) = call.rotation.size, self.pairs(call)
        cosine, sine = self.table(call)
        x = call.x.astype(call.work)
        swapped = x[..., :size].copy()
        swapped[..., one], swapped[..., two] = -x[..., two], x[..., one]
        both = [np.zeros((*x.shape[:-1], size), call.work) for _ in range(2)]
        for full, part in zip(both, (cosine, -sine if call.inverse else sine), strict=True):
            full[..., one] = full[..., two] = part
        products = [
            round_to(a * b, call.fmt).astype(call.work)
            for a, b in zip((x[..., :size], swapped), both, strict=True)
        ]
        return np.concatenate([products[0] + products[1], x[..., size:]], -1)
