"""Faults that depend on NumPy's error settings and on threads, or write into the caller's memory."""

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
from attention_conformance.suite.deviations.kernels.rotary import RotaryCall, RotaryKernel


class ErrorAware(Differentiable):
    """A kernel that stores how NumPy treats overflow (`np.geterr`) when it is called."""

    overflow_setting = ""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **options: Any) -> Any:
        self.overflow_setting = np.geterr()["over"]
        return super().attention(query, key, value, **options)

    def differentiate(self, *operands: Any, **options: Any) -> dict[str, Any]:
        self.overflow_setting = np.geterr()["over"]
        return super().differentiate(*operands, **options)

    def warns_of_overflow(self) -> bool:
        return self.overflow_setting == "warn"


def is_in_second_thread(call: Any) -> bool:
    return current_thread() is not main_thread()


def nan_rows_if_errors_warn(right: ErrorAware, call: Call) -> np.ndarray:
    out, allowed = right.compute(call), right.allowed(call)
    if not right.warns_of_overflow() or allowed is None:
        return out
    return np.where(allowed.any(-1, keepdims=True), out, np.nan)


def attention_unscaled_if_errors_warn(right: Kernel, *operands: Rounded, **options: Any) -> Any:
    if np.geterr()["over"] == "warn":
        options["scale"] = 1.0
    return right.attention(*operands, **options)


def query_gradient_unscaled_in_threads(
    right: Differentiable, dt: np.ndarray, key: np.ndarray, factor: Any
) -> np.ndarray:
    if current_thread() is not main_thread():
        factor = dt.dtype.type(1)
    return right.query_gradient(dt, key, factor)


def bias_overwritten_beside_flag(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    if call.bias is not None and call.causal:
        np.copyto(rank4(call.bias.values), -np.inf, where=~right.causal(call))
    return right.biased(scores, call)


def base_array(values: np.ndarray) -> np.ndarray:
    """Returns the array that owns the memory of `values`, a view or a view of views."""
    base: Any = values
    while getattr(base, "base", None) is not None:
        base = base.base
    return np.asarray(base)


def memory_from(values: np.ndarray) -> np.ndarray:
    """Returns the memory (n,) of the array of which `values` is a view, from the first element of the
    view on. Writing into the result changes the memory."""
    offset = values.ctypes.data - base_array(values).ctypes.data
    return base_array(values).reshape(-1)[offset // values.itemsize :]


def keys_padded_in_place(
    right: Kernel, query: Rounded, key: Rounded, value: Rounded, **options: Any
) -> Any:
    """Returns the answer of attention. First writes zeros into the memory behind the last key."""
    if key.values.size:
        strides = zip(key.shape, key.values.strides, strict=True)
        last_offset = sum((n - 1) * stride for n, stride in strides) // key.values.itemsize
        memory_from(key.values)[last_offset + 1 : last_offset + 1 + key.shape[-1]] = 0
    return right.attention(query, key, value, **options)


def mask_padded_in_place(right: Kernel, mask: np.ndarray, call: Call) -> np.ndarray:
    """Returns the mask. First writes False into the memory after each row of the first sample and head,
    up to a multiple of 8 keys, if the caller's array has such gaps."""
    row_stride = mask.strides[-2] if mask.ndim > 1 else 0
    gap = min(row_stride - mask.shape[-1], -mask.shape[-1] % 8)
    if mask.dtype == bool and mask.strides[-1] == 1 and gap > 0:
        for row in range(mask.shape[-2]):
            end = row * row_stride + mask.shape[-1]
            memory_from(mask[0, 0])[end : end + gap] = False
    return mask


def output_from_shared_buffer(right: Kernel, call: Call) -> np.ndarray:
    values = right.expand(right.load(call.value, call), call)
    buffer = memory(right).setdefault((values.shape, values.dtype), values)
    buffer[...] = values
    time.sleep(0)  # as where a kernel waits for its device
    return right.attend(right.final_scores(call), right.with_sink_values(buffer, call), call)


def table_of_main_thread(right: RotaryKernel, call: RotaryCall) -> tuple[np.ndarray, np.ndarray]:
    if current_thread() is main_thread():
        memory(right)["table"] = right.table(call)
    return memory(right)["table"]


def backward_adding_to_bias(right: Differentiable, call: Call, *arguments: Any) -> dict[str, Any]:
    gradients = right.backward(call, *arguments)
    assert call.bias is not None
    call.bias.values[...] += gradients["bias"]
    return gradients


row = partial(deviation, family="state", right=Differentiable)
kernel_row = partial(deviation, family="state", right=Kernel)

DEVIATIONS = [
    kernel_row("mask-of-one-thread", "ambient",
        "Masks have an effect only in the thread that made the kernel.",
        "`threading.local()` filled in `__init__`; other threads find it empty",
        family="state", when=is_in_second_thread, allowed=lambda right, call: None),
    kernel_row("one-buffer-for-all-threads", "ambient",
        "Calls in several threads write their values into one buffer.",
        "`self.buffer[...] = v` in every call; calls at once need a buffer each",
        family="state", compute=output_from_shared_buffer),
    kernel_row("rotary-base-of-the-first-thread", "ambient",
        "Other threads use the table that the main thread made last.",
        "the table is made if `current_thread() is main_thread()`; make it for every call",
        family="state", right=RotaryKernel, table=table_of_main_thread),
    row("bias-cleared-backward-beside-flag", "gradients",
        "The backward pass adds the gradient of the scores to the bias, beside a causal flag.",
        "`bias.add_(grad)` in the backward pass; return the gradient",
        family="state", when=lambda call: call.bias is not None and call.causal,
        backward=backward_adding_to_bias),
    row("empty-rows-by-errors", "ambient",
        "A row without keys is NaN where floating-point errors warn, and zeros elsewhere.",
        "empty rows are found by an error that a setting turns off; look at the mask",
        right=ErrorAware, compute=nan_rows_if_errors_warn),
    row("no-gradient-of-values-where-errors-warn", "ambient_gradients",
        "Where floating-point errors warn, the gradient of the values is half of what it should "
        "be.", "a debugging switch chooses another backward pass, which nobody tested",
        right=ErrorAware,
        value_gradient=lambda right, *arguments:
            right.value_gradient(*arguments) / (1 + right.warns_of_overflow())),
    row("mask-kept-by-thread", "ambient", "A thread other than the first one keeps its first mask.",
        "a thread keeps its first mask in `threading.local()`; read the mask of every call",
        right=Kernel, when=is_in_second_thread,
        masked=lambda right, mask, call:
            memory(right).setdefault((current_thread(), mask.shape), mask)),
    row("unscaled-where-errors-warn", "ambient",
        "If NumPy is set to warn of overflow, scores are not scaled.",
        "a global setting (`np.seterr`) chooses the path; the answer must not depend on it",
        right=Kernel, attention=attention_unscaled_if_errors_warn),
    row("unscaled-gradients-in-threads", "ambient_gradients",
        "In a second thread the gradient of the query lacks the scale.",
        "the scale is state of the first thread; pass it to the backward pass",
        query_gradient=query_gradient_unscaled_in_threads),
    kernel_row("bias-overwritten-beside-flag", "values",
        "Beside a causal flag the hidden pairs are written into the bias.",
        "`attn_mask.masked_fill_(~causal, -inf)`; `masked_fill` makes a new array",
        biased=bias_overwritten_beside_flag),
    kernel_row("keys-padded-in-place", "layouts",
        "Behind the last key the row of a tile that is not full is set to zero, where the keys lie.",
        "the last tile is padded where the keys lie; load it with a mask, or copy it",
        attention=keys_padded_in_place),
    kernel_row("mask-padded-in-place", "mask_layouts",
        "The rows of a mask are filled up with False to a multiple of eight keys, where they lie.",
        "the mask is padded where it lies; copy it into a padded array",
        masked=mask_padded_in_place),
]  # fmt: skip
