"""Faults of compiled calls: kernels that pass for compiled ones, with the faults compilers have."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, Eager, Kernel
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.faults.kernels.layer import MultiHeadKernel

FAMILY = "state"


class CompiledKernel(Differentiable):
    """An honest kernel that is asked what compiled implementations are asked."""

    mode = "compiled"


def signature(call: Call) -> tuple[Any, ...]:
    """What a compile cache is keyed on: shapes and dtype."""
    return (call.query.shape, call.key.shape, call.value.shape, call.fmt.name)


@fault(
    "compiled_again",
    "the mask is captured while tracing, and a constant then; pass it as an argument",
)
class StaleMask(CompiledKernel):
    """The mask of the first call is a constant of the compiled program."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.masks: dict[tuple, np.ndarray] = {}

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        return self.masks.setdefault(signature(call), mask)


@fault(
    "compiled_again",
    "the bias is captured while tracing, and a constant then; pass it as an argument",
)
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


@fault("compiled_again", "v is captured while tracing, and a constant then; pass it as an argument")
class StaleValues(CompiledKernel):
    """The values of the first call are a constant of the compiled program."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.values: dict[tuple, np.ndarray] = {}

    def attend(self, scores: np.ndarray, value: np.ndarray, call: Call) -> np.ndarray:
        return super().attend(scores, self.values.setdefault(signature(call), value), call)


@fault(
    "values",
    "a compile cache by shapes and dtype; the scale belongs to the key (`static_argnames`)",
)
class StaleScale(CompiledKernel):
    """Compiled programs are cached by shapes and dtype: the scale is that of the first call."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.scales: dict[tuple, float] = {}

    def factor(self, call: Call) -> float:
        return self.scales.setdefault(signature(call), super().factor(call))


@fault(
    "values",
    "a compile cache by shapes and dtype; `is_causal` belongs to the key (`static_argnames`)",
)
class StaleFlag(CompiledKernel):
    """Compiled programs are cached by shapes and dtype: the first call's causal flag stays."""

    def __init__(self, backend: Any) -> None:
        super().__init__(backend)
        self.flags: dict[tuple, bool] = {}

    def allowed(self, call: Call) -> np.ndarray | None:
        causal = self.flags.setdefault(signature(call), call.causal)
        return super().allowed(Call(**{**vars(call), "causal": causal}))


@fault(
    "compiled_lengths",
    "Lk is a number of the first trace; read `k.shape[-2]` at run time, or compile for every Lk",
)
class StaleLength(CompiledKernel):
    """A compiled program divides by the number of keys that it was compiled for."""

    keys = 0

    def weights(self, scores: np.ndarray, call: Call) -> np.ndarray:
        self.keys = self.keys or scores.shape[-1]
        return super().weights(scores, call) * call.work(scores.shape[-1] / self.keys)


def fused_by_shape(
    right: CompiledKernel, query: np.ndarray, key: np.ndarray, call: Call
) -> np.ndarray:
    s = call.sizes
    if s.B == s.H == s.Lq == s.Lk == s.D:
        key = key.swapaxes(1, 2)
    return right.scores(query, key, call)


def empty_batch_guard_lost(right: CompiledKernel, call: Call) -> None:
    right.validate_operands(call)
    if call.sizes.B == 0:
        raise RuntimeError("cannot launch a kernel over an empty grid")


def causal_tiles(right: CompiledKernel, call: Call) -> np.ndarray:
    row, key = call.rows_and_keys
    return key <= row // 4 * 4 + 3


def compiled_empty_row(right: CompiledKernel, scores: np.ndarray, call: Call) -> np.ndarray:
    weights = right.weights(scores, call)
    empty = np.isneginf(scores).all(-1, keepdims=True)
    return np.where(empty, call.work(1 / max(scores.shape[-1], 1)), weights)


def compiled_gradient_of_mask(right: CompiledKernel, call: Call) -> np.ndarray | None:
    return right.allowed(Call(**{**vars(call), "lengths": None}))


def compiled_bias_without_gradient(right: CompiledKernel, call, cotangent, wrt):
    return right.backward(call, cotangent, wrt) | {"bias": None}


row = partial(deviation, family=FAMILY, right=CompiledKernel)

DEVIATIONS = [
    row("fused-by-shape", "values",
        "If all sizes are equal, the compiler's rewrite takes keys with heads and rows exchanged.",
        "a pattern that matches by sizes alone takes `k.transpose(1, 2)` for another transpose",
        family="layout", scores=fused_by_shape),
    row("empty-batch-guard-lost", "values", "With no samples (B = 0) the compiled program raises.",
        "a kernel launched over an empty grid; return an empty array if `B == 0`", family="shapes",
        validate_operands=empty_batch_guard_lost),
    row("scale-in-half", "values", "The compiled program has the scale as a float16 constant.",
        "`np.float16(scale)` while compiling; keep constants in float32", family="numerics",
        factor=lambda right, call: float(np.float32(right.factor(call)).astype(np.float16))),
    row("causal-tiles", "values", "The compiled causal mask is that of tiles of 4 rows.",
        "`j // 4 <= i // 4`; inside the tile on the diagonal it is `j <= i`", family="mask",
        causal=causal_tiles),
    row("stores-less", "values",
        "The compiled program rounds scores and weights to 16 bits, which is not declared.",
        "the compiler stores float32 intermediates in 16 bits; ask it to keep them",
        family="numerics", right=(CompiledKernel, Eager),
        facts={"numerics": "exact", "elections": Kernel.elections}),
    row("compiled-empty-row", "election",
        "A fully masked row is the mean of the values as soon as it is compiled.",
        "the guard for fully masked rows is folded away (fast-math); use `where(mask.any(-1), ...)`",
        family="mask", weights=compiled_empty_row),
    row("compiled-layer-keeps-one-mask", "values",
        "Of padding and a causal flag the compiled layer keeps only one.",
        "a rewrite takes one mask for the whole condition; both apply: `valid & causal`",
        family="mask", right=MultiHeadKernel, facts={"mode": "compiled"},
        joined=lambda right, parts: parts[0]),
    row("compiled-gradient-of-mask", "gradients",
        "The compiled backward pass leaves the key lengths out.",
        "the compiled backward pass recomputes `p` without the key lengths", family="gradient",
        backward_allowed=compiled_gradient_of_mask),
    row("compiled-bias-without-gradient", "gradients",
        "The compiled backward pass gives the bias no gradient.",
        "the compiled backward pass returns None for the bias; `dbias = ds`", family="gradient",
        backward=compiled_bias_without_gradient),
]  # fmt: skip
