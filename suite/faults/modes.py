"""Faults of compiled calls: kernels that pass for compiled ones, with the faults compilers have."""

from __future__ import annotations

from typing import Any

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Eager, Kernel
from suite.faults.kernels.gradient import Differentiable
from suite.faults.kernels.layer import MultiHeadKernel


class CompiledKernel(Differentiable):
    """An honest kernel that is asked what compiled implementations are asked."""

    mode = "compiled"


def signature(call: Call) -> tuple[Any, ...]:
    """What a compile cache is keyed on: shapes and dtype."""
    return (call.query.shape, call.key.shape, call.value.shape, call.fmt.name)


@fault("compiled_again", like="L5")
class StaleMask(CompiledKernel):
    """The mask of the first call is a constant of the compiled program."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.masks: dict[tuple, np.ndarray] = {}

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return self.masks.setdefault(signature(call), mask)


@fault("compiled_again")
class StaleBias(CompiledKernel):
    """The bias of the first call is a constant of the compiled program."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.biases: dict[tuple, Any] = {}

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if call.bias is None:
            return scores
        bias = self.biases.setdefault(signature(call), call.bias)
        return super().biased(scores, Call(**{**vars(call), "bias": bias}))


@fault("compiled_again")
class StaleValues(CompiledKernel):
    """The second call is answered with the values of the first one."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.values: dict[tuple, np.ndarray] = {}

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        return super().attend(scores, self.values.setdefault(signature(call), value), call)


@fault("values")
class StaleScale(CompiledKernel):
    """Compiled programs are kept by shapes and dtype alone: the scale is that of the first call."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.scales: dict[tuple, float] = {}

    def factor(self, call: Call) -> float:
        return self.scales.setdefault(signature(call), super().factor(call))


@fault("values")
class StaleFlag(CompiledKernel):
    """Compiled programs are kept by shapes and dtype alone: the causal flag is that of the first call."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.flags: dict[tuple, bool] = {}

    def allowed(self, call: Call) -> np.ndarray | None:
        causal = self.flags.setdefault(signature(call), call.causal)
        return super().allowed(Call(**{**vars(call), "causal": causal}))


@fault("compiled_lengths")
class StaleLength(CompiledKernel):
    """The mean over the keys divides by the number of keys that it was compiled for."""

    keys = 0

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        self.keys = self.keys or scores.shape[-1]
        return super().weights(scores, call) * call.work(scores.shape[-1] / self.keys)


@fault("values", like="L1")
class FusedByShape(CompiledKernel):
    """Where all sizes coincide the rewrite takes the keys of all heads transposed."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        s = call.sizes
        if s.B == s.H == s.Lq == s.Lk == s.D:
            key = key.swapaxes(1, 2)
        return super().scores(query, key, call)


@fault("values", like="K3")
class EmptyBatchGuardLost(CompiledKernel):
    """The compiled program has lost the guard for an empty batch, and raises."""

    def validate_operands(self, call: Call) -> None:
        super().validate_operands(call)
        if call.sizes.B == 0:
            raise RuntimeError("cannot launch a kernel over an empty grid")


@fault("values")
class ScaleInHalf(CompiledKernel):
    """The scale has become a constant in the case's dtype."""

    def factor(self, call: Call) -> float:
        return float(np.float32(super().factor(call)).astype(np.float16))


@fault("values", like="L1")
class CausalTiles(CompiledKernel):
    """The compiled causal mask is that of tiles of 4 rows."""

    def causal(self, call: Call) -> np.ndarray:
        row, key = call.rows_and_keys
        return key <= row // 4 * 4 + 3


@fault("values")
class StoresLess(CompiledKernel, Eager):
    """The compiled program stores in the case's dtype what it was asked to keep in float32."""

    numerics = "exact"
    elections = Kernel.elections


@fault("election")
class CompiledEmptyRow(CompiledKernel):
    """A row without keys gives the mean of all values once it is compiled."""

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        weights = super().weights(scores, call)
        empty = np.isneginf(scores).all(-1, keepdims=True)
        return np.where(empty, call.work(1 / max(scores.shape[-1], 1)), weights)


@fault("values")
class CompiledLayerKeepsOneMask(MultiHeadKernel):
    """Of padding and a causal flag the compiled layer keeps the padding alone."""

    mode = "compiled"

    def joined(self, parts: list[np.ndarray]) -> np.ndarray:
        return parts[0]


@fault("gradients", like="I3")
class CompiledGradientOfMask(CompiledKernel):
    """The compiled backward pass leaves the padding out."""

    def backward_allowed(self, call: Call) -> np.ndarray | None:
        return self.allowed(Call(**{**vars(call), "lengths": None}))


@fault("gradients")
class CompiledBiasWithoutGradient(CompiledKernel):
    """The compiled backward pass has no gradient of the bias."""

    def backward(self, call, cotangent, wrt):
        return super().backward(call, cotangent, wrt) | {"bias": None}
