"""Textbook operators: merge, packed, paged and latent attention, attention over codes, and writing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.backends.declared import Declared, DeclaredRounding
from attention_conformance.backends.in_pages import from_pages, in_slots
from attention_conformance.backends.memory import operand_arrays, with_scale_per_component
from attention_conformance.backends.operators import Arrays
from attention_conformance.backends.textbook.attention import attention
from attention_conformance.backends.textbook.operations import Operations, TextbookOperator
from attention_conformance.suite.spec.dtypes import CODES, DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators import (
    latent,
    merge,
    packed,
    paged,
    paged_write,
    quantized,
    quantized_write,
)
from attention_conformance.suite.spec.operators.in_pages import NEW, stored_pool_names
from attention_conformance.suite.spec.operators.tiles import TILE
from attention_conformance.suite.spec.vocabulary import OPERANDS


class TextbookLatent(TextbookOperator):
    """Latent attention. Latents are projected to keys and values of all heads; the rotary key is repeated
    for each head."""

    name = "textbook-latent"
    operator = latent.LATENT
    declared = Declared(
        features=latent.FEATURES | latent.SERVED,
        elections={"nan-behind-last-key": "blocked"},
        rounding=DeclaredRounding(absorbs=dict.fromkeys(DTYPES, False)),
    )

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        return super().arguments(inputs) | in_slots(self.backend, inputs)

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        arrays, lse = x.copy(), "lse" in inputs.outputs
        mask, slots = arrays.pop("mask", None), arrays.pop("slots", None)
        names = stored_pool_names(inputs.case)
        for name in names:
            arrays[name] = with_tokens_in_last_slots(
                self.ops, arrays[name], arrays[f"{NEW}{name}"], slots
            )
        tokens = without_pages(self.ops, arrays, inputs, slots)
        if "latent_codes" in tokens:
            tokens["latent"] = self.dequantized_latents(tokens)
        answer = self.latent_attention(tokens, mask, inputs.effective_scale, lse)
        pools = [arrays[name] for name in names]
        return (*(answer if lse else (answer,)), *pools) if pools else answer

    def dequantized_latents(self, x: Arrays) -> Any:
        """Returns the latents (B, Lk, R) of codes, in the dtype of the query."""
        ops, scale, R = self.ops, x["latent_scale"], x["latent_codes"].shape[2]
        scales = ops.repeat(scale, TILE, 2)[..., :R]
        return ops.cast_like(ops.cast_like(x["latent_codes"], scale) * scales, x["query"])

    def latent_attention(self, x: Arrays, mask: Any, scale: float, lse: bool) -> Any:
        """Returns the output (B, H, Lq, Dv); with `lse` the pair of output and log-sum-exp (B, H, Lq)."""
        ops, heads = self.ops, x["query"].shape[1]
        key, value = (self.projected(x["latent"], x[name]) for name in ("w_uk", "w_uv"))
        B, Lk, E = x["key_rope"].shape
        rope = ops.repeat(ops.reshape(x["key_rope"], (B, 1, Lk, E)), heads, 1)
        query = ops.concat([x["query"], x["query_rope"]], -1)
        key = ops.concat([key, rope], -1)
        return attention(ops, query, key, value, mask, None, scale, lse=lse)

    def projected(self, latents: Any, kernel: Any) -> Any:
        """Returns keys or values (B, H, Lk, m): the latents (B, Lk, R) times a projection `kernel` (R, H,
        m)."""
        ops, (B, Lk, R), (_, H, m) = self.ops, latents.shape, kernel.shape
        flat = latents @ ops.reshape(kernel, (R, H * m))
        return ops.permute_dims(ops.reshape(flat, (B, Lk, H, m)), (0, 2, 1, 3))


class TextbookMerge(TextbookOperator):
    """A merge of partial outputs, weighted by the softmax of their log-sum-exp."""

    name = "textbook-merge"
    operator = merge.MERGE
    declared = Declared(numerics="exact", features=merge.FEATURES)
    has_fixed_numerics = True

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        wide_dtype, shape = inputs.dtype.widened, inputs.full_shape("lse")
        wider = self.ops.astype(x["partial_output"], wide_dtype.long_name)
        zeros = self.backend.array(np.zeros(shape), wide_dtype)
        merged, total = self.merged(wider, x["partial_lse"], zeros)
        return self.ops.astype(merged, inputs.dtype.long_name), total

    def merged(self, output: Any, lse: Any, zeros: Any) -> tuple[Any, Any]:
        """Returns the merged output (B, H, Lq, Dv) and log-sum-exp (B, H, Lq).

        `output` (parts, B, H, Lq, Dv) and `lse` (parts, B, H, Lq) are those of the parts; `zeros` (B, H,
        Lq) have the dtype of the result. In rows without keys the largest log-sum-exp is -inf, and -inf -
        (-inf) must be avoided.
        """
        ops = self.ops
        largest = ops.max(lse, 0)
        has_no_keys = largest == -np.inf
        offset = ops.fill(largest, has_no_keys, 0.0)
        exponentials = ops.exp(lse - ops.reshape(offset, (1, *offset.shape)))
        total = ops.sum(exponentials, 0)
        divisor = ops.fill(total, has_no_keys, 1.0)
        weights = exponentials / ops.reshape(divisor, (1, *divisor.shape))
        merged = ops.sum(ops.reshape(weights, (*weights.shape, 1)) * output, 0)
        logarithm = ops.fill(offset + ops.log(divisor), has_no_keys, -np.inf)
        return merged, logarithm + zeros


class TextbookPacked(TextbookOperator):
    """Packed attention. All scores are computed; those of pairs in different segments are set to -inf."""

    name = "textbook-packed"
    operator = packed.PACKED
    declared = Declared(
        features=packed.FEATURES,
        elections={"nan-in-other-segment": "others", "segment-without-keys": "nan"},
    )

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        hidden = self.backend.array(packed.hidden_pairs(inputs.case)[None], None)
        return operand_arrays(self.backend, inputs) | {"hidden": hidden}

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        """Returns plain attention of (L, H, D) operands, in which `hidden` pairs have no weight."""
        ops = self.ops
        q, k, v = (
            ops.permute_dims(ops.reshape(x[name], (1, *x[name].shape)), (0, 2, 1, 3))
            for name in OPERANDS
        )
        answer = attention(
            ops, q, k, v, None, None, inputs.effective_scale, hidden=x["hidden"]
        )  # (1, H, Lq, Dv)
        return ops.permute_dims(answer, (0, 2, 1, 3))[0]


def without_pages(
    ops: Operations, arrays: Mapping[str, Any], inputs: Inputs, slots: Any
) -> dict[str, Any]:
    """Returns the arrays of a call, in which the tokens at `slots` (B, Lk) replace the pools.

    Codes are cast to the dtype of their scale, because not every framework slices 8-bit numbers.
    """
    if "page_table" in arrays:
        scales = {name: name.replace("_codes", "_scale") for name in arrays}
        arrays = {
            name: x if scales[name] == name else ops.cast_like(x, arrays[scales[name]])
            for name, x in arrays.items()
        }
    return from_pages(arrays, slots, inputs, ops.take, ops.reshape, ops.permute_dims)


def slots_first(ops: Operations, pool: Any, inputs: Inputs) -> Any:
    """Converts a pool from the layout of the case to (P, S, ...), or back."""
    return ops.permute_dims(pool, (0, 2, 1, 3)) if inputs.case.option("layout") == "hnd" else pool


def with_tokens_in_last_slots(ops: Operations, pool: Any, tokens: Any, slots: Any) -> Any:
    """Returns a pool (P, S, ...) with the tokens (B, Lq, ...) in the last Lq of the slots (B, Lk)."""
    last_slots = ops.reshape(slots[:, slots.shape[1] - tokens.shape[1] :], (-1,))
    return put(ops, pool, last_slots, ops.reshape(tokens, (-1, *pool.shape[2:])))


def put(ops: Operations, pool: Any, slots: Any, tokens: Any) -> Any:
    """Returns a pool (P, S, ...) with tokens (N, ...) in its slots (N,)."""
    pages, size, *inner = pool.shape
    flat = ops.reshape(pool, (pages * size, *inner))
    return ops.reshape(ops.put(flat, slots, tokens), (pages, size, *inner))


class TextbookPaged(TextbookOperator):
    """Paged attention. Every query attends over all slots of its sample's table; those behind the last
    key are masked."""

    name = "textbook-paged"
    operator = paged.PAGED
    declared = Declared(
        features=paged.FEATURES,
        bitwise=("rerun", "pages"),
        elections={"nan-behind-last-key": "leaks"},
    )

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        n, arrays_of_case = inputs.letters, inputs.arrays
        hidden = np.ones((inputs.sizes.Lq, 1, 1, n["t"] * n["s"]), bool)
        for rows, _, attends in paged.parts(inputs.case):
            hidden[rows, 0, 0, : attends.shape[1]] = ~attends
        samples = np.repeat(np.arange(inputs.sizes.B), inputs.case.option("segments")[0])
        arrays_in_numpy = {
            "page_table": arrays_of_case["page_table"].astype(np.int32),
            "hidden": hidden,
            "sample": samples.astype(np.int32),
        }
        arrays = {name: self.backend.array(x, None) for name, x in arrays_in_numpy.items()}
        return operand_arrays(self.backend, inputs) | arrays

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        ops, s = self.ops, inputs.sizes
        pages = ops.take(x["page_table"], x["sample"])  # (Lq, T)
        pools = (slots_first(ops, x[name], inputs) for name in ("key", "value"))
        slots = (ops.reshape(ops.take(pool, pages), (s.Lq, -1, *pool.shape[2:])) for pool in pools)
        k, v = (ops.permute_dims(x, (0, 2, 1, 3)) for x in slots)  # (Lq, Hkv, T S, .)
        q = ops.reshape(x["query"], (s.Lq, s.Hkv, s.group, s.D))
        answer = attention(
            ops, q, k, v, None, None, inputs.effective_scale,
            softcap=inputs.case.option("softcap"), hidden=x["hidden"],
        )  # fmt: skip
        return ops.reshape(answer, (s.Lq, s.H, s.Dv))


class TextbookPagedWrite(TextbookOperator):
    """Writes tokens into copies of the pools; the pools of the call stay unchanged."""

    name = "textbook-paged-write"
    operator = paged_write.PAGED_WRITE
    declared = Declared(numerics="exact", features=paged_write.FEATURES)
    has_fixed_numerics = True

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        skipped = inputs.arrays["slot_mapping"] < 0
        return super().arguments(inputs) | {"skipped": self.backend.array(skipped, None)}

    def compute(self, x: Arrays, inputs: Inputs) -> tuple[Any, ...]:
        ops = self.ops

        def write(name: str) -> Any:
            pool = slots_first(ops, x[f"{name}_cache"], inputs)
            pages, size = pool.shape[:2]
            longer = ops.concat([pool, pool[:1]], 0)  # the last page takes skipped tokens
            slots = ops.fill(x["slot_mapping"], x["skipped"], pages * size)
            return slots_first(ops, put(ops, longer, slots, x[name])[:pages], inputs)

        return write("key"), write("value")


class QuantizingOperator(TextbookOperator):
    """Textbook code that quantizes keys and values to codes."""

    def new_codes(self, name: str, arrays: Arrays, inputs: Inputs) -> Any:
        """Returns the codes (B, Hkv, L, .) of new keys or values."""
        ops, code, x = self.ops, CODES[inputs.case.option("codes")], arrays[name]
        scale, zero = (
            None if array is None else quantized.newest_scales(array, x.shape[2])
            for array in (arrays[f"{name}_scale"], arrays.get(f"{name}_zero"))
        )
        x = ops.cast_like(x, scale) / scale
        if zero is not None:
            x = x + ops.cast_like(zero, scale)
        x = ops.clip(x, -code.max, code.max)
        return ops.astype(ops.round(x) if code.is_whole else x, code.long_name)


class TextbookQuantized(QuantizingOperator):
    """Attention over codes. Keys and values are codes times scales, rounded to the query's dtype."""

    name = "textbook-quantized"
    operator = quantized.QUANTIZED
    declared = Declared(features=quantized.FEATURES)

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        mask, backend = quantized.allowed(inputs), self.backend
        hidden = {} if mask is None else {"hidden": backend.array(~mask, None)}
        return super().arguments(inputs) | in_slots(backend, inputs) | hidden

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        arrays = x.copy()
        query, hidden, slots = (arrays.pop(name, None) for name in ("query", "hidden", "slots"))
        pools = with_scale_per_component(arrays, inputs, self.ops.repeat)
        tokens = without_pages(self.ops, pools, inputs, slots)
        new = {
            f"{name}_codes": self.all_codes(name, tokens, inputs)
            for name in quantized.KINDS
            if name in tokens
        }
        key, value = (self.dequantized(name, tokens | new, query) for name in quantized.KINDS)
        output = attention(
            self.ops, query, key, value, None, None, inputs.effective_scale, hidden=hidden
        )
        if slots is not None:
            new = {n: self.put_codes(pools, n, codes, slots, inputs) for n, codes in new.items()}
        return (output, *new.values()) if new else output

    def all_codes(self, name: str, arrays: Arrays, inputs: Inputs) -> Any:
        """Returns all codes of keys or values (`name`): those in the cache, whose last ones are replaced
        by the codes of the new tokens. Codes are cast to the dtype of the scale, because not every
        framework joins arrays of 8-bit numbers."""
        ops, scale, new = self.ops, arrays[f"{name}_scale"], self.new_codes(name, arrays, inputs)
        past = arrays[f"{name}_codes"].shape[2] - new.shape[2]
        parts = [
            ops.cast_like(arrays[f"{name}_codes"], scale)[:, :, :past],
            ops.cast_like(new, scale),
        ]
        return ops.astype(ops.concat(parts, 2), CODES[inputs.case.option("codes")].long_name)

    def put_codes(self, arrays: Arrays, name: str, codes: Any, slots: Any, inputs: Inputs) -> Any:
        """Returns the pool of codes with the last Lq of `codes` (B, Hkv, Lk, .) in the last of `slots`
        (B, Lk)."""
        ops, scale = self.ops, arrays[name.replace("codes", "scale")]
        pool = slots_first(ops, ops.cast_like(arrays[name], scale), inputs)
        tokens = ops.permute_dims(
            ops.cast_like(codes, scale)[:, :, -inputs.sizes.Lq :], (0, 2, 1, 3)
        )
        dtype = CODES[inputs.case.option("codes")].long_name
        return ops.astype(
            slots_first(ops, with_tokens_in_last_slots(ops, pool, tokens, slots), inputs), dtype
        )

    def dequantized(self, name: str, arrays: Arrays, query: Any) -> Any:
        """Returns keys or values (`name`) from their codes, in the query's dtype."""
        ops, scale = self.ops, arrays[f"{name}_scale"]
        codes = ops.cast_like(arrays[f"{name}_codes"], scale)
        if f"{name}_zero" in arrays:
            codes = codes - ops.cast_like(arrays[f"{name}_zero"], scale)
        return ops.cast_like(codes * scale, query)


class TextbookQuantizedWrite(QuantizingOperator):
    """Quantization: x / scale + zero, clipped to the range of the codes and rounded to the nearest
    code."""

    name = "textbook-quantized-write"
    operator = quantized_write.QUANTIZED_WRITE
    declared = Declared(numerics="exact", features=quantized_write.FEATURES)
    has_fixed_numerics = True

    def compute(self, x: Arrays, inputs: Inputs) -> tuple[Any, ...]:
        arrays = with_scale_per_component(x, inputs, self.ops.repeat)
        return tuple(self.new_codes(name, arrays, inputs) for name in quantized.KINDS)
