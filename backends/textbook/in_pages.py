"""Textbook code over pages: tokens are taken from their slots before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attention_conformance.backends.in_pages import from_pages
from attention_conformance.backends.textbook.layer import Operations
from attention_conformance.suite.spec.inputs import Inputs


def unpaged(
    ops: Operations, arrays: Mapping[str, Any], inputs: Inputs, slots: Any
) -> dict[str, Any]:
    """The arrays with tokens taken from the slots (B, Lk) of pools.

    Codes pass through the dtype of their scale: not every framework takes slices of 8-bit numbers.
    """
    if "page_table" in arrays:
        scales = {name: name.replace("_codes", "_scale") for name in arrays}
        arrays = {
            name: x if scales[name] == name else ops.like(x, arrays[scales[name]])
            for name, x in arrays.items()
        }
    return from_pages(arrays, slots, inputs, ops.take, ops.reshape, ops.transpose)


def stored(ops: Operations, pool: Any, tokens: Any, slots: Any) -> Any:
    """A pool (P, S, ...) with tokens (B, Lq, ...) in the last of the slots (B, Lk)."""
    at = ops.reshape(slots[:, slots.shape[1] - tokens.shape[1] :], (-1,))
    return put(ops, pool, at, ops.reshape(tokens, (-1, *pool.shape[2:])))


def put(ops: Operations, pool: Any, slots: Any, tokens: Any) -> Any:
    """A pool (P, S, ...) with tokens (N, ...) in its slots (N,)."""
    pages, size, *rest = pool.shape
    flat = ops.reshape(pool, (pages * size, *rest))
    return ops.reshape(ops.put(flat, slots, tokens), (pages, size, *rest))
