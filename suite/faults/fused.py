"""Faults where query, key and value are parts of one array, as a fused projection gives them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.arguments import around, whole
from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.attention import Kernel
from attention_conformance.suite.faults.kernels.gradient import Differentiable


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


row = partial(deviation, family="layout", right=OfOneProjection)

DEVIATIONS = [
    row("fused-is-three-then-heads", "fused_operands",
        "Parts of one array are taken for those of (B, L, 3, H, D), also where they are (B, L, "
        "H, 3, D).", "the storage is read as (B, L, 3, H, D); use the strides of each operand",
        taken=fused_is_three_then_heads),
    row("values-behind-keys", "fused_operands",
        "Values are read as far behind the keys as the keys lie behind the queries.",
        "`value = key + (key - query)` by pointers; use the pointer of the value",
        taken=values_behind_keys),
    row("fused-has-no-gap", "fused_operands",
        "Rows of parts of one array are taken to lie H D numbers apart, as they do by themselves.",
        "the row stride is worked out as H D; use `stride(1)` of each operand",
        taken=fused_has_no_gap),
    row("fused-gradients-exchanged", "fused_gradients",
        "The gradients of keys and values that are parts of one array are exchanged.",
        "one buffer of gradients is cut in another order than q, k, v", right=Differentiable,
        differentiate=fused_gradients_exchanged),
]  # fmt: skip
