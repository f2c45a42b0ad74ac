"""Faults that use the memory of an answer again while a view of the answer, or its numbers, are held."""

from __future__ import annotations

import sys
import weakref
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.spec.dtypes import round_to


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


def buffer_cleared_with_its_answer(right: Kernel, out: np.ndarray, call: Call) -> Any:
    answer = right.deliver(out, call)
    weakref.finalize(answer, answer.values.fill, 0.0)
    return answer


row = partial(deviation, family="state", right=Pool)

DEVIATIONS = [
    row("buffer-of-an-answer-that-is-gone", "kept_answers",
        "A buffer is used again as soon as the answer is gone, though views of it may be held.",
        "a weak reference to the answer, and not to its storage, says that a buffer is free"),
    row("buffer-cleared-with-its-answer", "kept_answers",
        "The memory of an answer is cleared when the answer is gone, though views of it may be held.",
        "`weakref.finalize(answer, free)`; views of the answer may be held", right=Kernel,
        deliver=buffer_cleared_with_its_answer),
    row("buffer-of-few-references", "kept_answers",
        "A buffer is used again when only the pool refers to the answer, though views of it may "
        "be held.", "`sys.getrefcount(answer)` says that a buffer is free; views do not count",
        mark=lambda right, answer: answer,
        free=lambda right, entry: entry[1] is not None and sys.getrefcount(entry[1]) == 2),
]  # fmt: skip
