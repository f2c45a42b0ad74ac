"""Faults whose gradients depend on other passes, on what asks for one, and on memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.ambient import memory_from, whole
from attention_conformance.suite.deviations.deviation import deviation, memory
from attention_conformance.suite.deviations.gradients import handing
from attention_conformance.suite.deviations.kernels.attention import Call, Kernel
from attention_conformance.suite.deviations.kernels.gradient import Differentiable
from attention_conformance.suite.deviations.layouts import (
    elements,
    first,
    of_cache,
    of_more_heads,
    shared,
    unaligned,
)
from attention_conformance.suite.deviations.state import address


class OutputTakenBack(Differentiable):
    """D is the sum of dout times the output that was handed out."""

    def compute(self, call: Call) -> np.ndarray:
        self.call = call
        return super().compute(call)

    def deliver(self, out: np.ndarray, call: Call) -> Any:
        answer = super().deliver(out, call)
        if call is self.__dict__.get("call"):
            self.__dict__.setdefault("handed", {})[address(call.query)] = answer
        return answer

    def backward(self, call, cotangent, wrt):
        self.out = self.__dict__.get("handed", {}).get(address(call.query))
        return super().backward(call, cotangent, wrt)

    def mean(
        self, weights: np.ndarray, dp: np.ndarray, cotangent: np.ndarray, value: np.ndarray
    ) -> np.ndarray:
        if self.out is None or self.out.shape != cotangent.shape:
            return super().mean(weights, dp, cotangent, value)
        D = (cotangent * self.out.values).sum(-1, keepdims=True)
        return np.asarray(D, weights.dtype)


def one_of_two_gets_the_other(
    right: Differentiable, query: Rounded, key: Rounded, value: Rounded, *rest: Any, **more: Any
) -> Any:
    gradients = right.differentiate(query, key, value, *rest, **more)
    if set(more.get("wrt", ())) == {"key", "value"} and key.shape == value.shape:
        gradients["key"], gradients["value"] = gradients["value"], gradients["key"]
    return gradients


def losing(
    operand: str, change: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> Callable[..., Any]:
    """The backward pass that changes the gradient of one operand: a function of it and of the operand."""
    return handing(
        lambda g, call, wrt: {
            operand: change(np.asarray(g[operand]), getattr(call, operand).values)
        }
    )


def one_row_off(gradient: np.ndarray, values: np.ndarray) -> np.ndarray:
    _, heads, rows, _ = elements(values)
    if heads != values.shape[3] or rows <= values.shape[1] * heads:
        return gradient
    return np.concatenate([gradient[:, :, :1], gradient[:, :, :-1]], 2)


def in_order_if_transposed(gradient: np.ndarray, values: np.ndarray) -> np.ndarray:
    transposed = values.strides[-1] != values.itemsize
    return gradient.swapaxes(-1, -2).reshape(gradient.shape) if transposed else gradient


def fused(*arrays: Rounded) -> bool:
    """True if arrays are different parts of one array."""
    places = {each.values.ctypes.data for each in arrays}
    return len({id(whole(each.values)) for each in arrays}) == 1 and len(places) == len(arrays)


Operands = tuple[Rounded, Rounded, Rounded]


def of_parts(change: Callable[..., Operands]) -> Callable[..., Any]:
    """The step that reads operands in another way if they are parts of one array."""

    def attention(right: Kernel, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        if query.values.size and fused(query, key, value):
            query, key, value = change(query, key, value)
        return right.attention(query, key, value, **rest)

    return attention


def fused_is_three_then_heads(query: Rounded, key: Rounded, value: Rounded) -> Operands:
    B, H, L, D = query.shape
    if not query.shape == key.shape == value.shape:
        return query, key, value
    rows = np.resize(whole(query.values).reshape(-1), (B, L, 3, H, D))
    q, k, v = (Rounded(rows[:, :, n].swapaxes(1, 2), query.fmt) for n in range(3))
    return q, k, v


def fused_has_no_gap(query: Rounded, key: Rounded, value: Rounded) -> Operands:
    def packed(array: Rounded) -> Rounded:
        B, H, L, D = array.shape
        read = np.resize(memory_from(array.values), (B, L, H, D))
        return Rounded(read.swapaxes(1, 2), array.fmt)

    return packed(query), packed(key), packed(value)


def fused_gradients_exchanged(
    right: Differentiable, query: Rounded, key: Rounded, value: Rounded, *more: Any, **rest: Any
) -> dict[str, Any]:
    gradients = right.differentiate(query, key, value, *more, **rest)
    if fused(query, key, value) and key.shape == value.shape and "value" in gradients:
        gradients["key"], gradients["value"] = gradients["value"], gradients["key"]
    return gradients


def fused_value_gradient_cut(
    right: Differentiable, query: Rounded, key: Rounded, value: Rounded, *more: Any, **rest: Any
) -> dict[str, Any]:
    gradients = right.differentiate(query, key, value, *more, **rest)
    if fused(query, key, value) and "value" in gradients:
        gradients["value"].values[..., 128:] = 0
    return gradients


def saved(right: Differentiable, call: Call) -> np.ndarray:
    memory(right)[call.query.shape, call.key.shape] = call
    return right.compute(call)


def of_the_last_forward_pass(right: Differentiable, call: Call, *more: Any) -> dict[str, Any]:
    return right.backward(memory(right).get((call.query.shape, call.key.shape), call), *more)


def saved_once(right: Differentiable, call: Call, *more: Any) -> dict[str, Any]:
    gradients, done = right.backward(call, *more), memory(right).setdefault("done", [])
    if any(query is call.query for query in done):
        gradients["key"] = np.zeros_like(gradients["key"])
    done[:] = [*done[-8:], call.query]
    return gradients


def first_cotangent_kept(
    right: Differentiable, call: Call, cotangent: np.ndarray, wrt: tuple[str, ...]
) -> dict[str, Any]:
    query, before = memory(right).get("last", (None, cotangent))
    cotangent = before if query is call.query else cotangent
    memory(right)["last"] = call.query, cotangent
    return right.backward(call, cotangent, wrt)


row = partial(deviation, family="gradient", right=Differentiable)

DEVIATIONS = [
    row("saved-once", "gradient_passes",
        "A second backward pass of one forward pass gives keys no gradient.",
        "backward frees or overwrites what it reads; with `retain_graph=True` it runs again",
        backward=saved_once),
    row("first-cotangent-kept", "gradient_passes",
        "A second backward pass of one forward pass takes the dout of the first.",
        "dout cached by the forward pass; take the one that backward is given",
        backward=first_cotangent_kept),
    row("output-taken-back", "gradient_passes",
        "D is the sum of dout times the output that was handed out: `out += residual` changes "
        "gradients.",
        "`ctx.out = out` in forward; use `ctx.save_for_backward(out)`, which sees that it was changed",
        right=OutputTakenBack),
    row("saved-in-static-buffers", "gradient_passes",
        "The backward pass reads the operands of the last forward pass of the same shapes.",
        "`self.q = q` in forward; use `ctx.save_for_backward(q, k, v)`",
        compute=saved, backward=of_the_last_forward_pass),
    row("one-array-as-query", "gradient_of_one_array",
        "One array that is query, key and value gets the gradient of the query alone.",
        "`if q is k is v: return dq`; return `dq + dk + dv`, or each by itself",
        shared_operand_gradient=lambda right, g: g["query"]),
    row("one-array-twice-as-key", "gradient_of_one_array",
        "One array that is query, key and value gets the key's gradient in place of the value's.",
        "`dq + dk + dk`; it is `dq + dk + dv`",
        shared_operand_gradient=lambda right, g: g["query"] + 2 * g["key"]),
    row("key-beside-query-forgotten", "gradient_alone",
        "If query and key ask for a gradient and the value does not, that of the key is zero.",
        "dk is computed only if the values ask, too; ask for `ctx.needs_input_grad[1]` alone",
        backward=handing(lambda g, call, wrt:
            {"key": 0 * g["key"]} if {*wrt} == {"query", "key"} else {})),
    row("one-of-two-gets-the-other", "gradient_alone",
        "If key and value ask for a gradient and the query does not, the two are swapped.",
        "gradients that are asked for are returned without None for others; keep the order q, k, v",
        differentiate=one_of_two_gets_the_other),
    row("shared-key-gradient-summed", "gradient_layouts",
        "Keys expanded along the batch get the gradient of all samples at each sample.",
        "`dk.sum(0)` for a stride of 0; after `expand` autograd sums by itself",
        backward=losing("key", lambda g, key: 0 * g + g.sum(0) if shared(key, 0) else g)),
    row("key-gradient-of-cache-lost", "gradient_layouts",
        "Keys that are a slice of a longer cache get no gradient in heads after the first.",
        "dk written by `k.stride()` of a longer cache; dk is an array of its own: `dk.stride()`",
        backward=losing("key", lambda g, key: g * (first(g, 1) | (not of_cache(key))))),
    row("value-gradient-of-more-heads-lost", "gradient_layouts",
        "Values that are a slice of more heads get no gradient in samples after the first.",
        "dv written by `v.stride()` of an array with more heads; use `dv.stride()`",
        backward=losing("value", lambda g, value: g * (first(g, 0) | (not of_more_heads(value))))),
    row("query-gradient-of-fused-misplaced", "gradient_layouts",
        "The gradient of queries that are a slice of a fused projection is written one row off.",
        "dq written by H * D for rows of a fused projection; use `dq.stride(2)`",
        backward=losing("query", one_row_off)),
    row("key-gradient-of-unaligned-lost", "gradient_layouts",
        "Keys that begin at no multiple of 16 bytes get no gradient in the first component.",
        "stores of 16 bytes; if `data_ptr() % 16` is not 0, store element by element",
        backward=losing("key", lambda g, key: g * ~(first(g, 3) & unaligned(key)))),
    row("value-gradient-in-order", "inner_gradient_layouts",
        "The gradient of values that are a transposed view comes back transposed in memory.",
        "`empty_like(v)` has the strides of v, and is read as contiguous; use `dv.stride()`",
        backward=losing("value", in_order_if_transposed)),
    row("fused-is-three-then-heads", "fused_operands",
        "Parts of one array are taken for those of (B, L, 3, H, D), also where they are (B, L, "
        "H, 3, D).", "the storage is read as (B, L, 3, H, D); use the strides of each operand",
        family="layout", right=Kernel, attention=of_parts(fused_is_three_then_heads)),
    row("fused-has-no-gap", "fused_operands",
        "Rows of parts of one array are taken to lie H D numbers apart, as they do by themselves.",
        "the row stride is worked out as H D; use `stride(1)` of each operand",
        family="layout", right=Kernel, attention=of_parts(fused_has_no_gap)),
    row("fused-gradients-exchanged", "fused_gradients",
        "The gradients of keys and values that are parts of one array are exchanged.",
        "one buffer of gradients is cut in another order than q, k, v", family="layout",
        differentiate=fused_gradients_exchanged),
    row("fused-value-gradient-cut", "fused_gradients",
        "Values that are a part of one array get no gradient in components after the 128th.",
        "dv of a fused projection is written in one tile of 128; loop over tiles of D",
        family="layout", differentiate=fused_value_gradient_cut),
]  # fmt: skip
