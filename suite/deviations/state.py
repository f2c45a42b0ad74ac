"""Faults that keep answers, operands, options or buffers of earlier calls."""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.deviation import deviation, memory
from attention_conformance.suite.deviations.kernels.attention import Call, Kernel
from attention_conformance.suite.deviations.kernels.variants import Workspace
from attention_conformance.suite.spec.dtypes import round_to


def address(array: Rounded) -> tuple[int, tuple[int, ...]]:
    """Returns the memory address and the shape of an array."""
    return array.values.__array_interface__["data"][0], array.shape


def call_arrays(call: Call) -> tuple[Rounded | None, ...]:
    """Returns the arrays of a call. A cache by `id` must store these: otherwise a new array could get the
    id of a freed one, and whether a check fails would depend on the allocator."""
    return call.query, call.key, call.value, call.mask, call.bias


def lengths_and_dtype(call: Call) -> tuple[int, int, str]:
    return call.sizes.Lq, call.sizes.Lk, call.fmt.name


def cap_of_last_call(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    store = memory(right)
    store["cap"] = call.softcap or store.get("cap")
    return right.capped(scores, replace(call, softcap=store["cap"]))


def mask_of_last_call(right: Kernel, call: Call) -> np.ndarray | None:
    store, key = memory(right), (call.query.shape, call.key.shape, call.fmt.name)
    store[key] = allowed = right.allowed(call) if has_masking_argument(call) else store.get(key)
    return allowed


def causal_mask_with_old_masks(right: Kernel, call: Call) -> np.ndarray:
    triangle: np.ndarray = memory(right).setdefault(lengths_and_dtype(call)[:2], right.causal(call))
    if call.mask is not None and call.mask.values.shape == triangle.shape:
        triangle &= call.mask.values
    return triangle


def deliver_in_narrowest_dtype(right: Kernel, out: np.ndarray, call: Call) -> Any:
    store = memory(right)
    narrowest = store.get(out.shape, call.fmt)
    store[out.shape] = fmt = min(narrowest, call.fmt, key=lambda dtype: dtype.precision)
    return right.deliver(round_to(out, fmt), call)


def has_masking_argument(call: Call) -> bool:
    """Returns True if the call has a mask, key lengths, a causal flag or a window."""
    return call.mask is not None or call.lengths is not None or call.causal or bool(call.window)


def deliver_in_free_buffer(right: Kernel, out: np.ndarray, call: Call) -> Any:
    """Returns the answer in a buffer of its shape that no living answer uses."""
    pool = memory(right).setdefault((out.shape, call.fmt.name), [])
    buffer = next((buffer for buffer, user in pool if user() is None), np.empty(out.shape))
    buffer[...] = round_to(out, call.fmt)
    answer = Rounded(buffer, call.fmt)
    pool[:] = [entry for entry in pool if entry[0] is not buffer] + [(buffer, weakref.ref(answer))]
    return answer


def deliver_clearing_at_end(right: Kernel, out: np.ndarray, call: Call) -> Any:
    answer = right.deliver(out, call)
    weakref.finalize(answer, answer.values.fill, 0.0)
    return answer


row = partial(deviation, family="state", right=Kernel)


DEVIATIONS = [
    row("answers-kept-by-arrays", "stateless",
        "Answers are cached by the identity of the arrays: new contents get the old answer.",
        "`cache[id(q), id(k), id(v)]`, or `lru_cache` on tensors; contents may change in place",
        compute=lambda right, call: memory(right).setdefault(
            (*map(id, call_arrays(call)), call.causal), (right.compute(call), call_arrays(call)))[0]),
    row("keys-kept-by-array", "stateless",
        "Keys are read once for every array: what is written into the array later is not seen.",
        "a converted copy of k in `cache[id(k)]`; convert at every call, since contents may change",
        scores=lambda right, query, key, call: right.scores(query,
            memory(right).setdefault(id(call.key), (key.copy(), call.key))[0], call)),
    row("softcap-stays", "remembered",
        "A call without a softcap has the softcap of the call before.",
        "`self.softcap = softcap or self.softcap`; None sets it back", capped=cap_of_last_call),
    row("mask-stays", "remembered",
        "A call without a mask has the mask of the last call of its shape.",
        "`if mask is not None: self.mask = mask`; None sets it back", allowed=mask_of_last_call),
    row("visible-pairs-kept-by-size", "remembered",
        "The mask of a window is cached by Lq and Lk: another window gets the mask of the first.",
        "`cache[Lq, Lk]` for the mask of a window; its left and right side belong to the key",
        window_mask=lambda right, call, *sides:
            memory(right).setdefault(lengths_and_dtype(call)[:2], right.window_mask(call, *sides))),
    row("scale-kept-by-lengths", "remembered",
        "The default scale is cached by Lq and Lk: another D gets the scale of the first.",
        "`cache[Lq, Lk]` for `1 / sqrt(D)`; D belongs to the key",
        when=lambda call: call.scale is None,
        factor=lambda right, call: memory(right).setdefault(lengths_and_dtype(call), right.factor(call))),
    row("alibi-kept-by-size", "remembered",
        "The bias of ALiBi is cached by its shape: other slopes get the bias of the first.",
        "`cache[H, Lq, Lk]` for the bias of ALiBi; the slopes belong to the key",
        alibi=lambda right, slopes, call:
            memory(right).setdefault((len(slopes), *lengths_and_dtype(call)), right.alibi(slopes, call))),
    row("sinks-of-first-call", "remembered",
        "The sinks are those of the first call with as many heads.",
        "exp(sinks) made at the first call; sinks are parameters, and training moves them",
        when=lambda call: call.sinks is not None,
        with_sink_logits=lambda right, scores, call: right.with_sink_logits(scores, replace(
            call, sinks=memory(right).setdefault((call.sizes.H, call.fmt.name), call.sinks)))),
    row("triangle-gathers-masks", "remembered",
        "The causal triangle is cached by Lq and Lk, and the masks beside the flag are merged "
        "into it.", "`tri &= mask` on the triangle in `cache[Lq, Lk]`; make a new array of both",
        causal=causal_mask_with_old_masks),
    row("narrowest-dtype-stays", "remembered",
        "Answers are rounded to the narrowest dtype that was asked before in their shape.",
        "a buffer kept by its shape, or its dtype kept; the dtype belongs to the key",
        deliver=deliver_in_narrowest_dtype),
    row("scale-of-first-call", "remembered", "The scale is that of the first call of its shape.",
        "a kernel cached by shape with `scale` as a constant; the scale belongs to the key",
        factor=lambda right, call:
            memory(right).setdefault((call.query.shape, call.key.shape), right.factor(call))),
    row("workspace-not-cleared", "stateless",
        "NaN that an earlier call left in a workspace meets weights of zero, and spreads.",
        "a reused buffer is padded by weights of 0, and `0 * nan` is NaN; zero the part beyond Lk",
        right=Workspace),
    row("buffer-of-an-answer-that-is-gone", "kept_answers",
        "A buffer is used again as soon as the answer is gone, though views of it may be held.",
        "a weak reference to the answer, and not to its storage, says that a buffer is free",
        deliver=deliver_in_free_buffer),
    row("buffer-cleared-with-its-answer", "kept_answers",
        "The memory of an answer is cleared when the answer is gone, though views of it may be held.",
        "`weakref.finalize(answer, free)`; views of the answer may be held",
        deliver=deliver_clearing_at_end),
]  # fmt: skip
