"""Textbook code over pages: attention query by query, and writing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.in_pages import from_pages
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.operators import Arrays
from attention_conformance.backends.textbook.layer import Operations, TextbookOperator
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.paged import FEATURES, PAGED, parts
from attention_conformance.suite.spec.operators.paged_write import FEATURES as WRITE_FEATURES
from attention_conformance.suite.spec.operators.paged_write import PAGED_WRITE


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


def slots_first(ops: Operations, pool: Any, inputs: Inputs) -> Any:
    """A pool of the case as (P, S, ...). Its own inverse."""
    return ops.transpose(pool, (0, 2, 1, 3)) if inputs.case.option("layout") == "hnd" else pool


def stored(ops: Operations, pool: Any, tokens: Any, slots: Any) -> Any:
    """A pool (P, S, ...) with tokens (B, Lq, ...) in the last of the slots (B, Lk)."""
    at = ops.reshape(slots[:, slots.shape[1] - tokens.shape[1] :], (-1,))
    return put(ops, pool, at, ops.reshape(tokens, (-1, *pool.shape[2:])))


def put(ops: Operations, pool: Any, slots: Any, tokens: Any) -> Any:
    """A pool (P, S, ...) with tokens (N, ...) in its slots (N,)."""
    pages, size, *rest = pool.shape
    flat = ops.reshape(pool, (pages * size, *rest))
    return ops.reshape(ops.put(flat, slots, tokens), (pages, size, *rest))


class TextbookPaged(TextbookOperator):
    """Every query attends all slots of its sample's table, and those behind the last key are hidden."""

    name = "textbook-paged"
    operator = PAGED
    declared = Declared(
        features=FEATURES,
        bitwise=("rerun", "pages"),
        elections={"nan-behind-last-key": "leaks"},
    )

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        n, given = inputs.letters, inputs.arrays
        hidden = np.ones((inputs.sizes.Lq, 1, 1, n["t"] * n["s"]), bool)
        for rows, _, shown in parts(inputs.case):
            hidden[rows, 0, 0, : shown.shape[1]] = ~shown
        samples = np.repeat(np.arange(inputs.sizes.B), inputs.case.option("segments")[0])
        made = {
            "page_table": given["page_table"].astype(np.int32),
            "hidden": hidden,
            "sample": samples.astype(np.int32),
        }
        arrays = {name: self.backend.array(x, None) for name, x in made.items()}
        return sequences(self.backend, inputs) | arrays

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        ops, s = self.ops, inputs.sizes
        pages = ops.take(x["page_table"], x["sample"])  # (Lq, T)
        pools = (slots_first(ops, x[name], inputs) for name in ("key", "value"))
        taken = (ops.reshape(ops.take(of, pages), (s.Lq, -1, *of.shape[2:])) for of in pools)
        k, v = (ops.transpose(of, (0, 2, 1, 3)) for of in taken)  # (Lq, Hkv, T S, .)
        q = ops.reshape(x["query"], (s.Lq, s.Hkv, s.group, s.D))
        answer = self.weighted(q, k, v, x["hidden"], inputs)
        return ops.reshape(answer, (s.Lq, s.H, s.Dv))


class TextbookPagedWrite(TextbookOperator):
    """Writing in operations that all frameworks have; the pools of the call stay as they are."""

    name = "textbook-paged-write"
    operator = PAGED_WRITE
    declared = Declared(numerics="exact", features=WRITE_FEATURES)
    own_class = True

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        skipped = inputs.arrays["slot_mapping"] < 0
        return super().arguments(inputs) | {"skipped": self.backend.array(skipped, None)}

    def compute(self, x: Arrays, inputs: Inputs) -> tuple[Any, ...]:
        ops = self.ops

        def write(name: str) -> Any:
            paged = slots_first(ops, x[f"{name}_cache"], inputs)
            pages, size = paged.shape[:2]
            larger = ops.concat([paged, paged[:1]], 0)  # the last page takes skipped tokens
            slots = ops.fill(x["slot_mapping"], x["skipped"], pages * size)
            return slots_first(ops, put(ops, larger, slots, x[name])[:pages], inputs)

        return write("key"), write("value")
