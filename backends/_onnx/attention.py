"""The standard's operator Attention, of opset 23 to 25 (https://onnx.ai/onnx/operators/onnx__Attention.html).

query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv), or packed (B, L, H D); one mask, boolean
or added to the scores; a causal flag, scale and softcap as attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._onnx.engine import OnnxEngine
from attention_conformance.backends._onnx.graph import Symbol
from attention_conformance.backends.declared import ATTENTION_FEATURES, Declared
from attention_conformance.backends.masks import Native, dense_of, merged_bias, split_native
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal

FIRST = "the case has no keys before the queries, so the cache would be empty"
"""The reason for cases without a cache."""


def packed(x: Symbol) -> Symbol:
    """Reshape (B, L, H, D) to (B, L, H D)."""
    return x.reshape((*x.shape[:2], x.shape[2] * x.shape[3]))


def of_values(query: Symbol, value: Symbol) -> tuple[int, ...]:
    """The shape of the output: the query's shape with the size of values."""
    return (*query.shape[:-1], value.shape[-1])


def check_packed(inputs: Inputs) -> None:
    """Raise ValueError if keys and values have different numbers of heads."""
    if inputs.key.ndim != 4 or inputs.key.shape[1] != inputs.value.shape[1]:
        raise ValueError("packed keys and values have one number of heads")


def in_full(mask: np.ndarray, inputs: Inputs, queries: bool = True) -> np.ndarray:
    """A mask or bias whose axis of keys and, with `queries`, axis of queries have full size."""
    *outer, Lk = mask.shape
    if queries and len(outer) and outer[-1] == 1:
        outer[-1] = inputs.sizes.Lq
    return np.broadcast_to(mask, (*outer, inputs.sizes.Lk if Lk == 1 else Lk))


def behind_a_cache(inputs: Inputs) -> Native:
    """The mask split into flags and rest, for a causal flag that is bottom-right because of a cache."""
    parts = inputs.mask.parts if inputs.mask is not None else ()
    flagged = [part for part in parts if isinstance(part, Causal) and part.bottom_right]
    if inputs.form == "dense" or not flagged:
        return Native(rest=parts)
    return Native(causal=True, rest=tuple(part for part in parts if part not in flagged))


class Attention(Implementation):
    """The operator with operands of rank 4. Masks other than causal are arrays, which may broadcast."""

    backend: OnnxEngine

    name = "attention-23"
    declared = Declared(
        features=ATTENTION_FEATURES,
        refusals={"native-window": "before opset 25 the operator has no window"},
        elections={
            "fully-masked-row": "zeros",
            "minus-inf-row": "zeros",
            "no-keys": "raises",
            "causal-alignment": "top-left",
            "causal-with-mask": "intersect",
            "nan-in-masked-key": "leaks",
            "nan-in-masked-value": "leaks",
            "nan-in-attended-value": "reaches-them",
            "nan-in-query": "nan",
            "value-size": "accepted",
            "integer-mask": "added",
            "subnormal-output": "kept",
            "score-overflow": "finite",
        },
        merges_mask_into_bias=True,
    )
    opset = 23
    axis_order = "bhld"
    queries_in_full = False
    """Whether the axis of queries of a mask must have full size."""

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, Case) and case.dtype.name == "f64":
            for name in ("scale", "softcap"):
                number = case.option(name)
                if number is not None and float(np.float32(number)) != number:
                    return f"the attribute {name} is float32, which cannot hold {number}"
        return super().unsupported(case)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.call(inputs)

    def call(self, inputs: Inputs, short: bool = False) -> PreparedCall:
        """The call; with `short` the mask has one key less, which hides the last key."""
        backend, native = self.backend, self.divided(inputs)
        query, key, value = backend.memory.operands(inputs, self.axis_order)
        arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
        biased = inputs.bias is not None
        added = merged_bias(inputs, native.rest) if biased else dense_of(inputs, native.rest)
        if added is not None:
            # The operator does not broadcast a last axis of size 1: it would mask only the first key.
            written = in_full(added, inputs, self.queries_in_full)
            written = written[..., :-1] if short else written
            name = "bias" if biased else "mask"
            arguments[name] = backend.array(written, inputs.dtype if biased else None)
        if native.lengths is not None:
            counts = native.lengths.lengths(inputs.sizes, inputs.seed)
            arguments["lengths"] = backend.array(counts, None)
        attributes = self.attributes(inputs, native)

        def attention(query, key, value, mask=None, bias=None, lengths=None):
            rest = (mask if bias is None else bias, None, None, lengths)
            return self.node(query, key, value, rest, attributes)

        plain = PreparedCall(attention, arguments, axis_order=self.axis_order)
        return backend.recorded(plain, self.opset)

    def divided(self, inputs: Inputs) -> Native:
        """The mask split into attributes, inputs, and the rest."""
        return split_native(inputs, causal=True)

    def attributes(self, inputs: Inputs, native: Native) -> dict[str, Any]:
        """The operator's attributes, without the numbers of heads."""
        attributes = {"scale": inputs.scale, "softcap": inputs.feature("softcap")}
        return attributes | ({"is_causal": 1} if native.causal else {})

    def node(
        self, query: Symbol, key: Symbol, value: Symbol, rest: tuple[Symbol | None, ...],
        attributes: Mapping[str, Any],
    ) -> Symbol:  # fmt: skip
        """The output in the operands' axis order; `rest` are mask, past key, past value and lengths."""
        output: Symbol = query.graph.add(
            "Attention",
            query,
            key,
            value,
            *rest,
            shape=lambda: of_values(query, value),
            **attributes,
        )
        return output


class Attention24(Attention):
    """Opset 24, with the number of keys of each sample as an input."""

    name = "attention-24"
    opset = 24
    queries_in_full = True

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        """A call with a mask that is too short, which must hide the keys beyond its end."""
        mask, keys = inputs.dense_mask, inputs.sizes.Lk
        if mask is None or inputs.bias is not None or inputs.form != "dense" or keys < 2:
            return {}
        short = inputs.with_dense(mask_array=mask & (np.arange(keys) < keys - 1))
        if short.has_empty_rows:
            return {}
        return {"shorter mask": replace(self.call(short, short=True), problem=short)}

    def divided(self, inputs: Inputs) -> Native:
        native = split_native(inputs, causal=True, lengths=True)
        # With lengths the causal flag is bottom-right: the last query is aligned with the last valid key.
        return split_native(inputs, causal=True) if native.causal else native


class PackedAttention(Attention24):
    """Opset 24 with operands of rank 3, (B, L, H D)."""

    name = "attention-24-packed"
    axis_order = "blhd"

    def prepare(self, inputs: Inputs) -> PreparedCall:
        check_packed(inputs)
        return super().prepare(inputs)

    def node(
        self, query: Symbol, key: Symbol, value: Symbol, rest: tuple[Symbol | None, ...],
        attributes: Mapping[str, Any],
    ) -> Symbol:  # fmt: skip
        (B, Lq, H, _), Dv = query.shape, value.shape[3]
        output: Symbol = query.graph.add(
            "Attention", *map(packed, (query, key, value)), *rest, shape=lambda: (B, Lq, H * Dv),
            q_num_heads=H, kv_num_heads=key.shape[2], **attributes,
        )  # fmt: skip
        return output.reshape((B, Lq, H, Dv))


class CachedAttention(Attention):
    """Keys before the queries are a cache (past_key, past_value), as in decoding or a later chunk
    of a prompt.

    The causal flag is bottom-right.
    """

    name = "attention-24-cache"
    declared = Attention.declared.refusing(
        {"native-causal": "with a cache the causal flag is bottom-right"}
    )
    opset = 24
    queries_in_full = True

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, Case) and case.sizes.Lk <= case.sizes.Lq:
            return FIRST
        return super().unsupported(case)

    def divided(self, inputs: Inputs) -> Native:
        return behind_a_cache(inputs)

    def node(
        self, query: Symbol, key: Symbol, value: Symbol, rest: tuple[Symbol | None, ...],
        attributes: Mapping[str, Any],
    ) -> Symbol:  # fmt: skip
        past = key.shape[2] - query.shape[2]
        new, cache = ([x[:, :, p] for x in (key, value)] for p in (slice(past, None), slice(past)))
        operands = (query, *new, rest[0], *cache)
        output, _, _ = query.graph.add(
            "Attention", *operands, outputs=3, shape=lambda: of_values(query, value), **attributes
        )
        return output


class Attention25(Attention):
    """Opset 25, with two attributes for a sliding window."""

    name = "attention-25"
    declared = Attention.declared.taking("native-window")
    opset = 25
    queries_in_full = True

    def divided(self, inputs: Inputs) -> Native:
        return split_native(inputs, causal=True, window=True)

    def attributes(self, inputs: Inputs, native: Native) -> dict[str, Any]:
        attributes = super().attributes(inputs, native)
        if native.window is None:
            return attributes
        sides = {"left_window_size": native.window.left, "right_window_size": native.window.right}
        return attributes | {name: -1 if size is None else size for name, size in sides.items()}


BY_DEFINITION = (Attention, Attention24, PackedAttention, CachedAttention)
"""Implementations that both runtimes can compute by the operator's definition."""
