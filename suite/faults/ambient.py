"""Faults in a mode that is switched on around a call, in another thread, or beside one."""

from __future__ import annotations

import time
from threading import current_thread, local, main_thread
from typing import Any

import numpy as np

from backends._numpy import Rounded
from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Kernel
from suite.faults.kernels.rotary import RotaryKernel, Turn


@fault(
    "ambient", "a global setting (`np.seterr`) chooses the path; the answer must not depend on it"
)
class UnscaledWhereErrorsWarn(Kernel):
    """If NumPy is set to warn of overflow, scores are not scaled."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        if np.geterr()["over"] == "warn":
            rest["scale"] = 1.0
        return super().attention(query, key, value, **rest)


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
