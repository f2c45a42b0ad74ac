"""Faults in a mode that is switched on around a call, in another thread, or beside one."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from threading import current_thread, local, main_thread
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation, fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.faults.kernels.rotary import RotaryKernel, Turn

FAMILY = "state"


def unscaled_where_errors_warn(
    right: Kernel, query: Rounded, key: Rounded, value: Rounded, **rest: Any
) -> Any:
    if np.geterr()["over"] == "warn":
        rest["scale"] = 1.0
    return right.attention(query, key, value, **rest)


@fault("ambient", "`threading.local()` filled in `__init__`; other threads find it empty")
class MaskOfOneThread(Kernel):
    """Masks have an effect only in the thread that made the kernel."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.state = local()
        self.state.masks = True

    def allowed(self, call: Call) -> np.ndarray | None:
        return super().allowed(call) if getattr(self.state, "masks", False) else None


@fault("ambient", "`self.buffer[...] = v` in every call; calls at once need a buffer each")
class OneBufferForAllThreads(Kernel):
    """Calls in several threads write their values into one buffer."""

    def compute(self, call: Call) -> np.ndarray:
        values = self.expand(self.load(call.value, call), call)
        kept = self.__dict__.setdefault("kept", {})
        buffer = kept.setdefault((values.shape, values.dtype), values)
        buffer[...] = values
        time.sleep(0)  # as where a kernel waits for its device
        return self.attend(self.final(call), self.with_sink(buffer, call), call)


@fault(
    "ambient",
    "`self.q = q` and later `self.q`; another thread's call replaces it: use local variables",
)
class OperandsInTheKernel(Kernel):
    """A call keeps its operands in the kernel, where a call of another thread replaces them."""

    def compute(self, call: Call) -> np.ndarray:
        self.latest = call
        time.sleep(0)
        query = self.load(call.query, call)
        key = self.expand(self.load(call.key, call), call)
        allowed, scores = self.allowed(call), self.capped(self.scores(query, key, call), call)
        call = self.latest
        value = self.with_sink(self.expand(self.load(call.value, call), call), call)
        scores = self.sunk(self.hide(self.biased(scores, call), allowed, call), call)
        return self.attend(scores, value, call)


@fault(
    "ambient", "the table is made if `current_thread() is main_thread()`; make it for every call"
)
class RotaryBaseOfTheFirstThread(RotaryKernel):
    """Other threads use the table that the main thread made last."""

    def table(self, turn: Turn) -> tuple[np.ndarray, np.ndarray]:
        if current_thread() is main_thread():
            self.kept = super().table(turn)
        return self.kept


@fault(
    "ambient", "a thread keeps its first mask in `threading.local()`; read the mask of every call"
)
class MaskKeptByThread(Kernel):
    """A thread other than the first one keeps its first mask."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        if current_thread() is main_thread():
            return mask
        kept = self.__dict__.setdefault("kept", {})
        return kept.setdefault((current_thread(), mask.shape), mask)


@fault("ambient", "answers stand in one buffer while errors are reported; allocate every answer")
class OneAnswerWhereErrorsWarn(Kernel):
    """Where floating-point errors warn, a later answer overwrites the earlier one."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        if self.reported != "warn":
            return super().deliver(out, call)
        answers = self.__dict__.setdefault("answers", {})
        answer = answers.setdefault((out.shape, call.fmt.name), super().deliver(out, call))
        answer.values[...] = super().deliver(out, call).values
        return answer

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        self.reported = np.geterr()["over"]
        return super().attention(query, key, value, **rest)


@fault("ambient", "empty rows are found by an error that a setting turns off; look at the mask")
class EmptyRowsByErrors(Kernel):
    """A row without keys is NaN where floating-point errors warn, and zeros elsewhere."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        self.reported = np.geterr()["over"]
        return super().attention(query, key, value, **rest)

    def compute(self, call: Call) -> np.ndarray:
        out, allowed = super().compute(call), self.allowed(call)
        if self.reported != "warn" or allowed is None:
            return out
        return np.where(allowed.any(-1, keepdims=True), out, np.nan)


@fault(
    "ambient",
    "one mode's branch has `k.repeat(1, n, 1, 1)`; `repeat_interleave` keeps groups together",
)
class HeadsTiledWhereErrorsWarn(Kernel):
    """Where floating-point errors warn, query head h reads key head h modulo their number."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        self.reported = np.geterr()["over"]
        return super().attention(query, key, value, **rest)

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        if self.reported != "warn":
            return super().expand(x, call)
        return np.tile(x, (1, call.sizes.group, 1, 1))


@fault("ambient", "one mode's branch reads `bias[:1]`, as if all samples shared the bias")
class BiasOfFirstSampleWhereErrorsWarn(HeadsTiledWhereErrorsWarn):
    """Where floating-point errors warn, every sample has the bias of the first one."""

    def expand(self, x: np.ndarray, call: Call) -> np.ndarray:
        return Kernel.expand(self, x, call)

    def biased(self, scores: np.ndarray, call: Call) -> np.ndarray:
        bias = call.bias
        if self.reported == "warn" and bias is not None and len(bias.shape) == 4:
            call = replace(call, bias=replace(bias, values=bias.values[:1]))
        return super().biased(scores, call)


@fault("ambient_gradients", "a mode's own backward pass sums heads as if they were tiled")
class GroupsTiledBackwardsWhereErrorsWarn(Differentiable):
    """Where floating-point errors warn, gradients of grouped keys and values go to other heads."""

    def differentiate(self, *operands: Any, **rest: Any) -> dict[str, Any]:
        self.tiled = np.geterr()["over"] == "warn"
        return super().differentiate(*operands, **rest)

    def grouped(self, x: np.ndarray, call: Call) -> np.ndarray:
        if not self.tiled:
            return super().grouped(x, call)
        s = call.sizes
        return x.reshape(s.B, s.group, s.Hkv, *x.shape[2:]).sum(1)


def unscaled_gradients_in_threads(
    right: Differentiable, dt: np.ndarray, key: np.ndarray, factor: Any
) -> np.ndarray:
    if current_thread() is not main_thread():
        factor = dt.dtype.type(1)
    return right.query_gradient(dt, key, factor)


@fault("ambient_gradients", "a debugging switch chooses another backward pass, which nobody tested")
class NoGradientOfValuesWhereErrorsWarn(Differentiable):
    """Where floating-point errors warn, the gradient of the values is half of what it should be."""

    def differentiate(self, *operands: Any, **rest: Any) -> dict[str, Any]:
        self.halved = np.geterr()["over"] == "warn"
        return super().differentiate(*operands, **rest)

    def value_gradient(self, weights: np.ndarray, cotangent: np.ndarray, call: Call) -> np.ndarray:
        gradient = super().value_gradient(weights, cotangent, call)
        return gradient / 2 if self.halved else gradient


def key_gradient_of_one_group_in_threads(
    right: Differentiable, dt: np.ndarray, query: np.ndarray, factor: Any
) -> np.ndarray:
    if current_thread() is not main_thread():
        dt, query = dt[..., -1:, :], query[..., -1:, :]
    return right.key_gradient(dt, query, factor)


row = partial(deviation, family=FAMILY, right=Differentiable)

DEVIATIONS = [
    row("unscaled-where-errors-warn", "ambient",
        "If NumPy is set to warn of overflow, scores are not scaled.",
        "a global setting (`np.seterr`) chooses the path; the answer must not depend on it",
        right=Kernel, attention=unscaled_where_errors_warn),
    row("unscaled-gradients-in-threads", "ambient_gradients",
        "In a second thread the gradient of the query lacks the scale.",
        "the scale is state of the first thread; pass it to the backward pass",
        query_gradient=unscaled_gradients_in_threads),
    row("key-gradient-of-one-group-in-threads", "ambient_gradients",
        "In a second thread the gradient of the keys is that of the last query.",
        "threads share the running sum, and the last one wins; give each call a sum",
        key_gradient=key_gradient_of_one_group_in_threads),
]  # fmt: skip
