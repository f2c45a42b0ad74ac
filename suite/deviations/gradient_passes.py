"""Faults of gradients that depend on other passes, on which arguments need one, and on memory layout."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.deviations.ambient import base_array, memory_from
from attention_conformance.suite.deviations.deviation import deviation, edited, memory
from attention_conformance.suite.deviations.kernels.attention import Array, Call, Kernel
from attention_conformance.suite.deviations.kernels.gradient import Differentiable
from attention_conformance.suite.deviations.layouts import (
    element_strides,
    is_broadcast,
    is_first,
    is_slice_of_heads,
    is_slice_of_rows,
    is_unaligned,
)
from attention_conformance.suite.deviations.state import address


class OutputReread(Differentiable):
    """A kernel that computes the mean in the softmax's gradient from the output array that the caller
    got."""

    def compute(self, call: Call) -> Array:
        self.call = call
        return super().compute(call)

    def deliver(self, out: Array, call: Call) -> Any:
        answer = super().deliver(out, call)
        if call is self.__dict__.get("call"):
            self.__dict__.setdefault("outputs", {})[address(call.query)] = answer
        return answer

    def backward(self, call, cotangent, wrt):
        self.out = self.__dict__.get("outputs", {}).get(address(call.query))
        return super().backward(call, cotangent, wrt)

    def mean(self, weights: Array, dp: Array, cotangent: Array, value: Array) -> Array:
        if self.out is None or self.out.shape != cotangent.shape:
            return super().mean(weights, dp, cotangent, value)
        D = (cotangent * self.out.values).sum(-1, keepdims=True)
        return np.asarray(D, weights.dtype)


def pair_swapped(
    gradients: dict[str, Any], query: Rounded, key: Rounded, value: Rounded, *_: Any, **options: Any
) -> dict[str, Any]:
    is_pair = {*options["wrt"]} == {"key", "value"} and key.shape == value.shape
    return {"key": gradients["value"], "value": gradients["key"]} if is_pair else {}


def edit_gradient(operand: str, change: Callable[[Array, Array], Array]) -> Callable[..., Any]:
    """Returns a backward pass that replaces the gradient of one operand by `change(gradient,
    operand)`."""
    return edited("backward", lambda g, call, cotangent, wrt:
        {operand: change(np.asarray(g[operand]), getattr(call, operand).values)})  # fmt: skip


def one_row_late_if_fused(gradient: Array, values: Array) -> Array:
    """Returns the gradient, shifted by one row if the operand is a slice of a fused projection: if its
    rows are farther apart than its heads need."""
    _, heads, rows, _ = element_strides(values)
    if heads != values.shape[3] or rows <= values.shape[1] * heads:
        return gradient
    return np.concatenate([gradient[:, :, :1], gradient[:, :, :-1]], 2)


def transposed_in_memory(gradient: Array, values: Array) -> Array:
    transposed = values.strides[-1] != values.itemsize
    return gradient.swapaxes(-1, -2).reshape(gradient.shape) if transposed else gradient


def are_parts_of_one_array(*arrays: Rounded) -> bool:
    """Returns True if the arrays are different parts of one array."""
    addresses = {array.values.ctypes.data for array in arrays}
    bases = {id(base_array(array.values)) for array in arrays}
    return len(bases) == 1 and len(addresses) == len(arrays)


Operands = tuple[Rounded, Rounded, Rounded]
"""Query, key and value."""


def attention_of_parts(change: Callable[..., Operands]) -> Callable[..., Any]:
    """Returns a step `attention`. If query, key and value are parts of one array, the step replaces them
    by `change(query, key, value)`."""

    def attention(
        right: Kernel, query: Rounded, key: Rounded, value: Rounded, **options: Any
    ) -> Any:
        if query.values.size and are_parts_of_one_array(query, key, value):
            query, key, value = change(query, key, value)
        return right.attention(query, key, value, **options)

    return attention


def read_three_then_heads(query: Rounded, key: Rounded, value: Rounded) -> Operands:
    B, H, L, D = query.shape
    if not query.shape == key.shape == value.shape:
        return query, key, value
    fused = np.resize(base_array(query.values).reshape(-1), (B, L, 3, H, D))
    q, k, v = (Rounded(fused[:, :, n].swapaxes(1, 2), query.fmt) for n in range(3))
    return q, k, v


def read_without_gaps(query: Rounded, key: Rounded, value: Rounded) -> Operands:
    def without_gaps(array: Rounded) -> Rounded:
        B, H, L, D = array.shape
        values = np.resize(memory_from(array.values), (B, L, H, D))
        return Rounded(values.swapaxes(1, 2), array.fmt)

    return without_gaps(query), without_gaps(key), without_gaps(value)


def exchanged_if_fused(
    gradients: dict[str, Any], query: Rounded, key: Rounded, value: Rounded, *_: Any, **options: Any
) -> dict[str, Any]:
    if not are_parts_of_one_array(query, key, value) or key.shape != value.shape:
        return {}
    return {"key": gradients["value"], "value": gradients["key"]} if "value" in gradients else {}


def value_cut_if_fused(
    gradients: dict[str, Any], query: Rounded, key: Rounded, value: Rounded, *_: Any, **options: Any
) -> dict[str, Any]:
    if are_parts_of_one_array(query, key, value) and "value" in gradients:
        gradients["value"].values[..., 128:] = 0
    return gradients


def compute_and_store_call(right: Differentiable, call: Call) -> Array:
    memory(right)[call.query.shape, call.key.shape] = call
    return right.compute(call)


def backward_of_stored_call(right: Differentiable, call: Call, *arguments: Any) -> dict[str, Any]:
    return right.backward(memory(right).get((call.query.shape, call.key.shape), call), *arguments)


def backward_forgetting_keys(right: Differentiable, call: Call, *arguments: Any) -> dict[str, Any]:
    """Returns the gradients. The gradient of the keys is 0 in a second backward pass of one forward
    pass."""
    gradients, queries = (
        right.backward(call, *arguments),
        memory(right).setdefault("queries", []),
    )
    if any(query is call.query for query in queries):
        gradients["key"] = np.zeros_like(gradients["key"])
    queries[:] = [*queries[-8:], call.query]
    return gradients


def backward_of_first_cotangent(
    right: Differentiable, call: Call, cotangent: Array, wrt: tuple[str, ...]
) -> dict[str, Any]:
    last_query, last_cotangent = memory(right).get("last", (None, cotangent))
    cotangent = last_cotangent if last_query is call.query else cotangent
    memory(right)["last"] = call.query, cotangent
    return right.backward(call, cotangent, wrt)


row = partial(deviation, family="gradient", right=Differentiable)

DEVIATIONS = [
    row("saved-once", "gradient_passes",
        "A second backward pass of one forward pass gives keys no gradient.",
        "backward frees or overwrites what it reads; with `retain_graph=True` it runs again",
        backward=backward_forgetting_keys),
    row("first-cotangent-kept", "gradient_passes",
        "A second backward pass of one forward pass takes the dout of the first.",
        "dout cached by the forward pass; take the one that backward is given",
        backward=backward_of_first_cotangent),
    row("output-taken-back", "gradient_passes",
        "D is the sum of dout times the output that was handed out: `out += residual` changes "
        "gradients.",
        "`ctx.out = out` in forward; use `ctx.save_for_backward(out)`, which sees that it was changed",
        right=OutputReread),
    row("saved-in-static-buffers", "gradient_passes",
        "The backward pass reads the operands of the last forward pass of the same shapes.",
        "`self.q = q` in forward; use `ctx.save_for_backward(q, k, v)`",
        compute=compute_and_store_call, backward=backward_of_stored_call),
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
        backward=edited("backward", lambda g, call, cotangent, wrt:
            {"key": 0 * g["key"]} if {*wrt} == {"query", "key"} else {})),
    row("one-of-two-gets-the-other", "gradient_alone",
        "If key and value ask for a gradient and the query does not, the two are swapped.",
        "gradients that are asked for are returned without None for others; keep the order q, k, v",
        differentiate=edited("differentiate", pair_swapped)),
    row("shared-key-gradient-summed", "gradient_layouts",
        "Keys expanded along the batch get the gradient of all samples at each sample.",
        "`dk.sum(0)` for a stride of 0; after `expand` autograd sums by itself",
        backward=edit_gradient("key", lambda g, key: 0 * g + g.sum(0) if is_broadcast(key, 0) else g)),
    row("key-gradient-of-cache-lost", "gradient_layouts",
        "Keys that are a slice of a longer cache get no gradient in heads after the first.",
        "dk written by `k.stride()` of a longer cache; dk is an array of its own: `dk.stride()`",
        backward=edit_gradient("key", lambda g, key: g * (is_first(g, 1) | (not is_slice_of_rows(key))))),
    row("value-gradient-of-more-heads-lost", "gradient_layouts",
        "Values that are a slice of more heads get no gradient in samples after the first.",
        "dv written by `v.stride()` of an array with more heads; use `dv.stride()`",
        backward=edit_gradient("value", lambda g, value:
            g * (is_first(g, 0) | (not is_slice_of_heads(value))))),
    row("query-gradient-of-fused-misplaced", "gradient_layouts",
        "The gradient of queries that are a slice of a fused projection is written one row off.",
        "dq written by H * D for rows of a fused projection; use `dq.stride(2)`",
        backward=edit_gradient("query", one_row_late_if_fused)),
    row("key-gradient-of-unaligned-lost", "gradient_layouts",
        "Keys that begin at no multiple of 16 bytes get no gradient in the first component.",
        "stores of 16 bytes; if `data_ptr() % 16` is not 0, store element by element",
        backward=edit_gradient("key", lambda g, key: g * ~(is_first(g, 3) & is_unaligned(key)))),
    row("value-gradient-in-order", "inner_gradient_layouts",
        "The gradient of values that are a transposed view comes back transposed in memory.",
        "`empty_like(v)` has the strides of v, and is read as contiguous; use `dv.stride()`",
        backward=edit_gradient("value", transposed_in_memory)),
    row("fused-is-three-then-heads", "fused_operands",
        "Parts of one array are taken for those of (B, L, 3, H, D), also where they are (B, L, "
        "H, 3, D).", "the storage is read as (B, L, 3, H, D); use the strides of each operand",
        family="layout", right=Kernel, attention=attention_of_parts(read_three_then_heads)),
    row("fused-has-no-gap", "fused_operands",
        "Rows of parts of one array are taken to lie H D numbers apart, as they do by themselves.",
        "the row stride is worked out as H D; use `stride(1)` of each operand",
        family="layout", right=Kernel, attention=attention_of_parts(read_without_gaps)),
    row("fused-gradients-exchanged", "fused_gradients",
        "The gradients of keys and values that are parts of one array are exchanged.",
        "one buffer of gradients is cut in another order than q, k, v", family="layout",
        differentiate=edited("differentiate", exchanged_if_fused)),
    row("fused-value-gradient-cut", "fused_gradients",
        "Values that are a part of one array get no gradient in components after the 128th.",
        "dv of a fused projection is written in one tile of 128; loop over tiles of D",
        family="layout", differentiate=edited("differentiate", value_cut_if_fused)),
]  # fmt: skip
