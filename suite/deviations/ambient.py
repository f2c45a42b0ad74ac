"""Faults in modes and threads around a call, and of what is written beside an answer."""

from __future__ import annotations

import time
from functools import partial
from threading import current_thread, main_thread
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.deviation import deviation, memory
from attention_conformance.suite.deviations.kernels.attention import Call, Kernel, rank4
from attention_conformance.suite.deviations.kernels.gradient import Differentiable
from attention_conformance.suite.deviations.kernels.rotary import RotaryKernel, Turn


class Reporting(Differentiable):
    """A kernel that knows whether floating-point errors warn around its call."""

    reported = ""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        self.reported = np.geterr()["over"]
        return super().attention(query, key, value, **rest)

    def differentiate(self, *operands: Any, **rest: Any) -> dict[str, Any]:
        self.reported = np.geterr()["over"]
        return super().differentiate(*operands, **rest)

    def warns(self) -> bool:
        return self.reported == "warn"


def in_second_thread(call: Any) -> bool:
    return current_thread() is not main_thread()


def empty_rows_by_errors(right: Reporting, call: Call) -> np.ndarray:
    out, allowed = right.compute(call), right.allowed(call)
    if not right.warns() or allowed is None:
        return out
    return np.where(allowed.any(-1, keepdims=True), out, np.nan)


def unscaled_where_errors_warn(
    right: Kernel, query: Rounded, key: Rounded, value: Rounded, **rest: Any
) -> Any:
    if np.geterr()["over"] == "warn":
        rest["scale"] = 1.0
    return right.attention(query, key, value, **rest)


def unscaled_gradients_in_threads(
    right: Differentiable, dt: np.ndarray, key: np.ndarray, factor: Any
) -> np.ndarray:
    if current_thread() is not main_thread():
        factor = dt.dtype.type(1)
    return right.query_gradient(dt, key, factor)


def bias_overwritten_beside_flag(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    if call.bias is not None and call.causal:
        np.copyto(rank4(call.bias.values), -np.inf, where=~right.causal(call))
    return right.biased(scores, call)


def whole(values: np.ndarray) -> np.ndarray:
    """The array that a view is a part of. The base of a strided view is no array, and has a base."""
    base: Any = values
    while getattr(base, "base", None) is not None:
        base = base.base
    return np.asarray(base)


def memory_from(values: np.ndarray) -> np.ndarray:
    """The numbers of the array (n,) that a view is a part of, from the first number of the view on."""
    start = values.ctypes.data - whole(values).ctypes.data
    return whole(values).reshape(-1)[start // values.itemsize :]


def keys_padded_in_place(
    right: Kernel, query: Rounded, key: Rounded, value: Rounded, **rest: Any
) -> Any:
    if key.values.size:
        ends = sum((n - 1) * s for n, s in zip(key.shape, key.values.strides, strict=True))
        last = ends // key.values.itemsize
        memory_from(key.values)[last + 1 : last + 1 + key.shape[-1]] = 0
    return right.attention(query, key, value, **rest)


def mask_padded_in_place(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    step = mask.strides[-2] if mask.ndim > 1 else 0
    gap = min(step - mask.shape[-1], -mask.shape[-1] % 8)
    if mask.dtype == bool and mask.strides[-1] == 1 and gap > 0:
        keys = mask.shape[-1]
        for n in range(mask.shape[-2]):
            memory_from(mask[0, 0])[n * step + keys : n * step + keys + gap] = False
    return mask


def one_buffer_for_all_threads(right: Kernel, call: Call) -> np.ndarray:
    values = right.expand(right.load(call.value, call), call)
    buffer = memory(right).setdefault((values.shape, values.dtype), values)
    buffer[...] = values
    time.sleep(0)  # as where a kernel waits for its device
    return right.attend(right.final_scores(call), right.with_sink_values(buffer, call), call)


def table_of_the_first_thread(right: RotaryKernel, turn: Turn) -> tuple[np.ndarray, np.ndarray]:
    if current_thread() is main_thread():
        memory(right)["table"] = right.table(turn)
    return memory(right)["table"]


def bias_cleared_backward(right: Differentiable, call: Call, *more: Any) -> dict[str, Any]:
    gradients = right.backward(call, *more)
    assert call.bias is not None
    call.bias.values[...] += gradients["bias"]
    return gradients


row = partial(deviation, family="state", right=Differentiable)
writing = partial(deviation, family="state", right=Kernel)

DEVIATIONS = [
    writing("mask-of-one-thread", "ambient",
        "Masks have an effect only in the thread that made the kernel.",
        "`threading.local()` filled in `__init__`; other threads find it empty",
        family="state", when=in_second_thread, allowed=lambda right, call: None),
    writing("one-buffer-for-all-threads", "ambient",
        "Calls in several threads write their values into one buffer.",
        "`self.buffer[...] = v` in every call; calls at once need a buffer each",
        family="state", compute=one_buffer_for_all_threads),
    writing("rotary-base-of-the-first-thread", "ambient",
        "Other threads use the table that the main thread made last.",
        "the table is made if `current_thread() is main_thread()`; make it for every call",
        family="state", right=RotaryKernel, table=table_of_the_first_thread),
    row("bias-cleared-backward-beside-flag", "gradients",
        "The backward pass adds the gradient of the scores to the bias, beside a causal flag.",
        "`bias.add_(grad)` in the backward pass; return the gradient",
        family="state", when=lambda call: call.bias is not None and call.causal,
        backward=bias_cleared_backward),
    row("empty-rows-by-errors", "ambient",
        "A row without keys is NaN where floating-point errors warn, and zeros elsewhere.",
        "empty rows are found by an error that a setting turns off; look at the mask",
        right=Reporting, compute=empty_rows_by_errors),
    row("no-gradient-of-values-where-errors-warn", "ambient_gradients",
        "Where floating-point errors warn, the gradient of the values is half of what it should "
        "be.", "a debugging switch chooses another backward pass, which nobody tested",
        right=Reporting,
        value_gradient=lambda right, *given: right.value_gradient(*given) / (1 + right.warns())),
    row("mask-kept-by-thread", "ambient", "A thread other than the first one keeps its first mask.",
        "a thread keeps its first mask in `threading.local()`; read the mask of every call",
        right=Kernel, when=in_second_thread,
        masked=lambda right, mask, call:
            memory(right).setdefault((current_thread(), mask.shape), mask)),
    row("unscaled-where-errors-warn", "ambient",
        "If NumPy is set to warn of overflow, scores are not scaled.",
        "a global setting (`np.seterr`) chooses the path; the answer must not depend on it",
        right=Kernel, attention=unscaled_where_errors_warn),
    row("unscaled-gradients-in-threads", "ambient_gradients",
        "In a second thread the gradient of the query lacks the scale.",
        "the scale is state of the first thread; pass it to the backward pass",
        query_gradient=unscaled_gradients_in_threads),
    writing("bias-overwritten-beside-flag", "values",
        "Beside a causal flag the hidden pairs are written into the bias.",
        "`attn_mask.masked_fill_(~causal, -inf)`; `masked_fill` makes a new array",
        biased=bias_overwritten_beside_flag),
    writing("keys-padded-in-place", "layouts",
        "Behind the last key the row of a tile that is not full is set to zero, where the keys lie.",
        "the last tile is padded where the keys lie; load it with a mask, or copy it",
        attention=keys_padded_in_place),
    writing("mask-padded-in-place", "mask_layouts",
        "The rows of a mask are filled up with False to a multiple of eight keys, where they lie.",
        "the mask is padded where it lies; copy it into a padded array",
        masked=mask_padded_in_place),
]  # fmt: skip
