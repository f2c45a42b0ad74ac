"""Faults whose gradients depend on other passes, on what asks for one, and on memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.ambient import around, whole
from attention_conformance.suite.deviations.deviation import deviation, fault, memory
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


class Saving(Differentiable):
    """Saves the operands of a forward pass in one place for every shape."""

    def compute(self, call: Call) -> np.ndarray:
        saved = self.__dict__.setdefault("saved", {})
        saved[call.query.shape, call.key.shape] = call
        return super().compute(call)

    def of_forward(self, call: Call) -> Call:
        """The call of the last forward pass in these shapes."""
        return self.__dict__.get("saved", {}).get((call.query.shape, call.key.shape), call)


@fault(
    "gradient_passes",
    "`ctx.out = out` in forward; use `ctx.save_for_backward(out)`, which sees that it was changed",
    family="gradient",
)
class OutputTakenBack(Differentiable):
    """D is the sum of dout times the output that was handed out: `out += residual` changes gradients."""

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


class OfOneProjection(Kernel):
    """Operands that are parts of one array are read in another way."""

    def attention(self, query: Rounded, key: Rounded, value: Rounded, **rest: Any) -> Any:
        if query.values.size and fused(query, key, value):
            query, key, value = self.taken(query, key, value)
        return super().attention(query, key, value, **rest)

    def taken(self, query: Rounded, key: Rounded, value: Rounded) -> tuple[Rounded, ...]:
        raise NotImplementedError


def fused_is_three_then_heads(
    right: OfOneProjection, query: Rounded, key: Rounded, value: Rounded
) -> tuple[Rounded, ...]:
    B, H, L, D = query.shape
    if not query.shape == key.shape == value.shape:
        return query, key, value
    rows = np.resize(whole(query.values).reshape(-1), (B, L, 3, H, D))
    return tuple(Rounded(rows[:, :, n].swapaxes(1, 2), query.fmt) for n in range(3))


def values_behind_keys(
    right: OfOneProjection, query: Rounded, key: Rounded, value: Rounded
) -> tuple[Rounded, ...]:
    step = key.values.ctypes.data - query.values.ctypes.data
    place = (step + key.values.ctypes.data - whole(key.values).ctypes.data) // value.values.itemsize
    flat = whole(key.values).reshape(-1)
    steps = [n // value.values.itemsize for n in value.values.strides]
    last = place + sum((n - 1) * s for n, s in zip(value.shape, steps, strict=True))
    if place < 0 or last >= flat.size or value.shape[1] != query.shape[1]:
        return query, key, flipped(value)
    read = np.lib.stride_tricks.as_strided(flat[place:], value.shape, value.values.strides)
    return query, key, Rounded(read, value.fmt)


def flipped(array: Rounded) -> Rounded:
    """The array with its rows in reverse order."""
    return Rounded(array.values[:, :, ::-1], array.fmt)


def fused_has_no_gap(
    right: OfOneProjection, query: Rounded, key: Rounded, value: Rounded
) -> tuple[Rounded, ...]:
    def packed(array: Rounded) -> Rounded:
        B, H, L, D = array.shape
        read = np.resize(around(array.values), (B, L, H, D))
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


def saved_once(right: Saving, call: Call, *more: Any) -> dict[str, Any]:
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


row = partial(deviation, family="gradient", right=Saving)
laid_out = partial(deviation, family="gradient", right=Differentiable)
fused_row = partial(deviation, family="layout", right=OfOneProjection)

DEVIATIONS = [
    row("saved-once", "gradient_passes",
        "A second backward pass of one forward pass gives keys no gradient.",
        "backward frees or overwrites what it reads; with `retain_graph=True` it runs again",
        family="gradient", backward=saved_once),
    row("first-cotangent-kept", "gradient_passes",
        "A second backward pass of one forward pass takes the dout of the first.",
        "dout cached by the forward pass; take the one that backward is given",
        family="gradient", right=Differentiable, backward=first_cotangent_kept),
    row("saved-in-static-buffers", "gradient_passes",
        "The backward pass reads the operands of the last forward pass of the same shapes.",
        "`self.q = q` in forward; use `ctx.save_for_backward(q, k, v)`",
        backward=lambda right, call, *more: right.backward(right.of_forward(call), *more)),
    row("scale-of-last-forward-pass", "gradient_passes",
        "The backward pass takes the scale of the last forward pass of the same shapes.",
        "`self.scale = scale` in forward; use `ctx.scale = scale`",
        backward=lambda right, call, *more:
            right.backward(replace(call, scale=right.of_forward(call).scale), *more)),
    row("weights-of-last-forward-pass", "gradient_passes",
        "The gradient of the values takes the weights of the last forward pass of the same shapes.",
        "`self.weights = p` in forward; use `ctx.save_for_backward(p)`",
        backward=lambda right, call, *more: right.backward(call, *more)
            | {"value": right.backward(right.of_forward(call), *more)["value"]}),
    row("one-array-as-query", "gradient_of_one_array",
        "One array that is query, key and value gets the gradient of the query alone.",
        "`if q is k is v: return dq`; return `dq + dk + dv`, or each by itself",
        right=Differentiable, of_one_array=lambda right, g: sum(g[name] for name in ("query",))),
    row("one-array-as-memory", "gradient_of_one_array",
        "One array that is query, key and value gets the gradients of query and key alone.",
        "`if q is k is v: return dq + dk`; return `dq + dk + dv`, or each by itself",
        right=Differentiable,
        of_one_array=lambda right, g: sum(g[name] for name in ("query", "key"))),
    row("one-array-twice-as-key", "gradient_of_one_array",
        "One array that is query, key and value gets the key's gradient in place of the value's.",
        "`dq + dk + dk`; it is `dq + dk + dv`", right=Differentiable,
        of_one_array=lambda right, g: sum(g[name] for name in ("query", "key", "key"))),
    row("key-beside-query-forgotten", "gradient_alone",
        "If query and key ask for a gradient and the value does not, that of the key is zero.",
        "dk is computed only if the values ask, too; ask for `ctx.needs_input_grad[1]` alone",
        right=Differentiable,
        backward=handing(lambda g, call, wrt:
            {"key": 0 * g["key"]} if {*wrt} == {"query", "key"} else {})),
    row("query-beside-value-doubled", "gradient_alone",
        "If query and value ask for a gradient and the key does not, the query's is doubled.",
        "two branches both add dq; ask for each `ctx.needs_input_grad[i]` once",
        right=Differentiable,
        backward=handing(lambda g, call, wrt:
            {"query": 2 * g["query"]} if {*wrt} == {"query", "value"} else {})),
    row("one-of-two-gets-the-other", "gradient_alone",
        "If key and value ask for a gradient and the query does not, the two are swapped.",
        "gradients that are asked for are returned without None for others; keep the order q, k, v",
        right=Differentiable, differentiate=one_of_two_gets_the_other),
    laid_out("shared-key-gradient-summed", "gradient_layouts",
        "Keys expanded along the batch get the gradient of all samples at each sample.",
        "`dk.sum(0)` for a stride of 0; after `expand` autograd sums by itself",
        backward=losing("key", lambda g, key: 0 * g + g.sum(0) if shared(key, 0) else g)),
    laid_out("key-gradient-of-cache-lost", "gradient_layouts",
        "Keys that are a slice of a longer cache get no gradient in heads after the first.",
        "dk written by `k.stride()` of a longer cache; dk is an array of its own: `dk.stride()`",
        backward=losing("key", lambda g, key: g * (first(g, 1) | (not of_cache(key))))),
    laid_out("value-gradient-of-more-heads-lost", "gradient_layouts",
        "Values that are a slice of more heads get no gradient in samples after the first.",
        "dv written by `v.stride()` of an array with more heads; use `dv.stride()`",
        backward=losing("value", lambda g, value: g * (first(g, 0) | (not of_more_heads(value))))),
    laid_out("query-gradient-of-fused-misplaced", "gradient_layouts",
        "The gradient of queries that are a slice of a fused projection is written one row off.",
        "dq written by H * D for rows of a fused projection; use `dq.stride(2)`",
        backward=losing("query", one_row_off)),
    laid_out("key-gradient-of-unaligned-lost", "gradient_layouts",
        "Keys that begin at no multiple of 16 bytes get no gradient in the first component.",
        "stores of 16 bytes; if `data_ptr() % 16` is not 0, store element by element",
        backward=losing("key", lambda g, key: g * ~(first(g, 3) & unaligned(key)))),
    laid_out("value-gradient-in-order", "inner_gradient_layouts",
        "The gradient of values that are a transposed view comes back transposed in memory.",
        "`empty_like(v)` has the strides of v, and is read as contiguous; use `dv.stride()`",
        backward=losing("value", in_order_if_transposed)),
    fused_row("fused-is-three-then-heads", "fused_operands",
        "Parts of one array are taken for those of (B, L, 3, H, D), also where they are (B, L, "
        "H, 3, D).", "the storage is read as (B, L, 3, H, D); use the strides of each operand",
        taken=fused_is_three_then_heads),
    fused_row("values-behind-keys", "fused_operands",
        "Values are read as far behind the keys as the keys lie behind the queries.",
        "`value = key + (key - query)` by pointers; use the pointer of the value",
        taken=values_behind_keys),
    fused_row("fused-has-no-gap", "fused_operands",
        "Rows of parts of one array are taken to lie H D numbers apart, as they do by themselves.",
        "the row stride is worked out as H D; use `stride(1)` of each operand",
        taken=fused_has_no_gap),
    fused_row("fused-gradients-exchanged", "fused_gradients",
        "The gradients of keys and values that are parts of one array are exchanged.",
        "one buffer of gradients is cut in another order than q, k, v", right=Differentiable,
        differentiate=fused_gradients_exchanged),
    fused_row("fused-value-gradient-cut", "fused_gradients",
        "Values that are a part of one array get no gradient in components after the 128th.",
        "dv of a fused projection is written in one tile of 128; loop over tiles of D",
        right=Differentiable, differentiate=fused_value_gradient_cut),
]  # fmt: skip
