"""Replacement of pools (paged arrays) by the tokens in them, with a framework's own functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_conformance.backends.memory import Shape
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators import in_pages
from attention_conformance.suite.spec.operators.in_pages import (
    TABLE,
    case_without_pages,
    heads_first,
    is_pooled,
    readable,
    slots,
    slots_of,
)

if TYPE_CHECKING:
    from attention_conformance.backends.protocol import Backend


def in_slots(backend: Backend, inputs: Inputs) -> dict[str, Any]:
    """Returns {"slots": int64 (B, Lk)}, the slot of each token, for `from_pages`. Returns {} without
    pages. Raises ValueError for a malformed page table."""
    if "page_table" not in inputs.arrays:
        return {}
    refuse_malformed(inputs.arrays, inputs)
    return {"slots": backend.array(readable(slots(inputs)), None)}


def refuse_malformed(arrays: Mapping[str, Any], inputs: Inputs) -> None:
    """Raise ValueError if the pools have different sizes, and the errors of `in_pages.refuse_malformed`
    for a malformed page table or malformed lengths."""
    pools = in_pages.pool_axes_by_name(inputs).items()
    pool_sizes = {tuple(arrays[name].shape[axes.index(x)] for x in "ps") for name, axes in pools}
    if len(pool_sizes) > 1:
        raise ValueError(f"expected pools of one size, got {pool_sizes}")
    ((pages, size),) = pool_sizes
    table, counts = (arrays[name] for name in TABLE)
    in_pages.refuse_malformed(table, counts, size, pages, inputs.sizes.B)


def from_pages(
    arrays: Mapping[str, Any],
    slots: Any,
    inputs: Inputs,
    take: Callable[[Any, Any], Any],
    reshape: Callable[[Any, Shape], Any],
    transpose: Callable[[Any, Shape], Any],
) -> dict[str, Any]:
    """Returns the arrays of a call in which the tokens at `slots` (B, Lk) replace each pool.

    Replaced arrays are (B, Lk, .), or (B, Hkv, Lk, .) with heads. Scales that all tokens share get the
    same order of axes. Without a page table the arrays are returned unchanged. `take`, `reshape` and
    `transpose` are functions of the framework; take(array, indices) returns slices along the first axis.
    """
    if "page_table" not in arrays:
        return dict(arrays)
    axes, tokens, case = case_without_pages(inputs.case).axes, dict[str, Any](), inputs.case
    for name, x in arrays.items():
        if name in TABLE:
            continue
        pool_axes, in_front = axes.get(name, ""), heads_first(case, axes.get(name, ""))
        if is_pooled(pool_axes):
            if in_front:
                x = transpose(x, (0, 2, 1, *range(3, len(x.shape))))
            x = take(reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])), slots)
            in_front = False
        has_heads = len(x.shape) == 4 and name.endswith(("_codes", "_scale", "_zero"))
        tokens[name] = transpose(x, (0, 2, 1, 3)) if has_heads and not in_front else x
    return tokens


def with_new_tokens(arrays: Mapping[str, np.ndarray], inputs: Inputs) -> dict[str, np.ndarray]:
    """Returns the arrays without new tokens; the tokens are stored in the pools. Unchanged if the call
    stores no tokens."""
    if not in_pages.stored_pool_names(inputs.case):
        return dict(arrays)
    refuse_malformed(arrays, inputs)
    inputs = replace(inputs, arrays={**inputs.arrays, **arrays})
    stored = in_pages.with_stored_tokens(inputs).arrays
    return {name: stored[name] for name in arrays if name in stored}


def from_numpy_pages(arrays: Mapping[str, np.ndarray], inputs: Inputs) -> dict[str, np.ndarray]:
    """Returns `from_pages` of NumPy arrays, with the slots of their own page table and lengths."""
    if "page_table" not in arrays:
        return dict(arrays)
    refuse_malformed(arrays, inputs)
    table, counts = arrays["page_table"], arrays["key_lengths"]
    slots = readable(slots_of(table, counts, inputs.letters["s"], inputs.sizes.Lk))
    return from_pages(arrays, slots, inputs, lambda x, slots: x[slots], np.reshape, np.transpose)
