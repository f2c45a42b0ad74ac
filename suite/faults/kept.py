"""Faults that use the memory of an answer again while a view of the answer, or its numbers, are held."""

from __future__ import annotations

import sys
import weakref
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.spec.dtypes import round_to

FAMILY = "state"


class Pool(Kernel):
    """Answers are written into buffers, which are used again when `free` says so."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        pool = self.__dict__.setdefault("pool", {}).setdefault((out.shape, call.fmt.name), [])
        buffer = next((each[0] for each in pool if self.free(each)), None)
        if buffer is None:
            buffer = np.empty(out.shape)
            pool.append([buffer, None])
        buffer[...] = round_to(out, call.fmt)
        answer = Rounded(buffer, call.fmt)
        next(each for each in pool if each[0] is buffer)[1] = self.mark(answer)
        return answer

    def mark(self, answer: Rounded) -> Any:
        """What tells later whether an answer is still held."""
        return weakref.ref(answer)

    def free(self, entry: list[Any]) -> bool:
        return entry[1] is not None and entry[1]() is None


@fault(
    "kept_answers",
    "a weak reference to the answer, and not to its storage, says that a buffer is free",
)
class BufferOfAnAnswerThatIsGone(Pool):
    """A buffer is used again as soon as the answer is gone, though views of it may be held."""


@fault("kept_answers", "`weakref.finalize(answer, free)`; views of the answer may be held")
class BufferClearedWithItsAnswer(Kernel):
    """The memory of an answer is cleared when the answer is gone, though views of it may be held."""

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        weakref.finalize(answer, answer.values.fill, 0.0)
        return answer


@fault("kept_answers", "`sys.getrefcount(answer)` says that a buffer is free; views do not count")
class BufferOfFewReferences(Pool):
    """A buffer is used again when only the pool refers to the answer, though views of it may be held."""

    def mark(self, answer: Rounded) -> Any:
        return answer

    def free(self, entry: list[Any]) -> bool:
        return entry[1] is not None and sys.getrefcount(entry[1]) == 2
