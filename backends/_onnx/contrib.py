"""ONNX Runtime's own operators MultiHeadAttention and GroupQueryAttention, of the domain com.microsoft
(docs/ContribOperators.md there). Operands are packed, (B, L, H D)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._onnx.attention import (
    FIRST,
    behind_a_cache,
    check_packed,
    in_full,
    packed,
)
from attention_conformance.backends._onnx.engine import OnnxEngine
from attention_conformance.backends._onnx.graph import Symbol
from attention_conformance.backends.declared import ATTENTION_FEATURES, Declared
from attention_conformance.backends.masks import (
    Native,
    dense_of,
    feature_arrays,
    merged_bias,
    rank4,
    split_native,
)
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation, Limits
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal

DOMAIN = "com.microsoft"

HEAD_SIZES = tuple(range(8, 1025, 8))
"""Head sizes of GroupQueryAttention: multiples of 8."""


ELECTIONS = {
    "fully-masked-row": "nan",
    "minus-inf-row": "nan",
    "nan-in-masked-key": "leaks",
    "nan-in-masked-value": "leaks",
    "nan-in-attended-value": "reaches-them",
    "nan-in-query": "nan",
    "integer-mask": "raises",
}
"""Elections of both operators."""


def group_query(
    query: Symbol, new: Sequence[Symbol], past: Sequence[Symbol | None], last: Symbol, total: Symbol,
    *, bias: Symbol | None = None, sinks: Symbol | None = None,
    scales: Sequence[Symbol | None] = (None, None), chunks: Symbol | None = None,
    table: Sequence[Symbol | None] = (None, None), **attributes: Any,
) -> tuple[Symbol, Symbol, Symbol]:  # fmt: skip
    """GroupQueryAttention of a query (B, Lq, H, D) and new keys and values (B, L, Hkv, D): the output
    (B, Lq, H, D), and the cache with the new tokens."""
    B, Lq, H, D = query.shape
    rows, key, value = query.graph.add(
        "GroupQueryAttention", *map(packed, (query, *new)), *past, last, total, *table, None, bias, sinks,
        *scales, None, None, chunks, domain=DOMAIN, outputs=3, shape=lambda: (B, Lq, H * D),
        num_heads=H, kv_num_heads=new[0].shape[2], **attributes,
    )  # fmt: skip
    return rows.reshape((B, Lq, H, D)), key, value


class ContribAttention(Implementation):
    """Both operators have one additive mask (B or 1, H or 1, Lq, Lk) and a causal flag."""

    backend: OnnxEngine

    def prepare(self, inputs: Inputs) -> PreparedCall:
        check_packed(inputs)
        backend, native = self.backend, self.divided(inputs)
        query, key, value = backend.memory.operands(inputs, "blhd")
        arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
        mask = dense_of(inputs, native.rest)
        if mask is not None and mask.dtype.kind != "b":
            arguments["bias"] = backend.array(
                mask, None
            )  # a mask of another dtype, passed unchanged
        elif (added := merged_bias(inputs, native.rest)) is not None:
            arguments["bias"] = backend.array(in_full(rank4(added), inputs), inputs.dtype)
        arguments |= self.more(inputs, native)
        attributes = self.attributes(inputs, native)

        def attention(query: Symbol, key: Symbol, value: Symbol, **rest: Symbol) -> Symbol:
            return self.node(query, key, value, rest, attributes)

        return backend.recorded(PreparedCall(attention, arguments, axis_order="blhd"))

    def divided(self, inputs: Inputs) -> Native:
        """The mask split into attributes, inputs, and the rest."""
        raise NotImplementedError

    def more(self, inputs: Inputs, native: Native) -> dict[str, Any]:
        """Further arrays of the operator."""
        return {}

    def attributes(self, inputs: Inputs, native: Native) -> dict[str, Any]:
        """The operator's attributes, without the numbers of heads."""
        return {"scale": inputs.scale}

    def node(
        self, query: Symbol, key: Symbol, value: Symbol, rest: Mapping[str, Symbol],
        attributes: Mapping[str, Any],
    ) -> Symbol:  # fmt: skip
        """The operator's output (B, Lq, H, Dv)."""
        raise NotImplementedError


class MultiHead(ContribAttention):
    """MultiHeadAttention, with -inf for keys beyond the lengths in place of the default -10000 (finding
    masked-by-ten-thousand)."""

    name = "ms-multi-head"
    declared = Declared(
        numerics="exact",
        dtypes=("f32",),
        features=ATTENTION_FEATURES,
        refusals={
            "softcap": "MultiHeadAttention has no softcap",
            "native-window": "MultiHeadAttention has no window",
            "grouped-heads": "MultiHeadAttention has as many key heads as query heads",
            # Finding unidirectional-last-query. The flag is used only with as many keys as queries.
            "native-causal": "the causal flag is right only with as many keys as queries",
        },
        elections=ELECTIONS
        | {"no-keys": "zeros", "value-size": "accepted", "subnormal-output": "kept"},
        merges_mask_into_bias=True,
    )

    def divided(self, inputs: Inputs) -> Native:
        s = inputs.sizes
        return split_native(inputs, causal=s.Lq == s.Lk, lengths=True)

    def more(self, inputs: Inputs, native: Native) -> dict[str, Any]:
        if native.lengths is None:
            return {}
        counts = native.lengths.lengths(inputs.sizes, inputs.seed)
        return {"lengths": self.backend.array(counts.astype(np.int32), None)}

    def attributes(self, inputs: Inputs, native: Native) -> dict[str, Any]:
        more: dict[str, Any] = {"unidirectional": 1} if native.causal else {}
        if native.lengths is not None:
            more["mask_filter_value"] = -np.inf
        return super().attributes(inputs, native) | more

    def node(
        self, query: Symbol, key: Symbol, value: Symbol, rest: Mapping[str, Symbol],
        attributes: Mapping[str, Any],
    ) -> Symbol:  # fmt: skip
        (B, Lq, H, _), Dv = query.shape, value.shape[3]
        output = query.graph.add(
            "MultiHeadAttention", *map(packed, (query, key, value)), None, rest.get("lengths"),
            rest.get("bias"), domain=DOMAIN, shape=lambda: (B, Lq, H * Dv), num_heads=H, **attributes,
        )  # fmt: skip
        return output.reshape((B, Lq, H, Dv))


class GroupQuery(ContribAttention):
    """GroupQueryAttention without a cache: a prompt, or an encoder's layer."""

    name = "ms-group-query"
    declared = Declared(
        numerics="exact",
        dtypes=("f32", "f16"),
        features=ATTENTION_FEATURES | {"sinks"},
        refusals={
            "value-size": "GroupQueryAttention has values of the keys' size",
            # Finding group-query-empty-batch.
            "empty-batch": "GroupQueryAttention divides by the number of its samples",
            "empty-queries": "GroupQueryAttention needs at least one query",
        },
        elections=ELECTIONS
        | {
            "causal-alignment": "top-left",
            "causal-with-mask": "intersect",
            "value-size": "raises",
            "score-overflow": "finite",
            "subnormal-output": "kept",
        },
        merges_mask_into_bias=True,
        limits=Limits(head_sizes=HEAD_SIZES, equal_lengths=True),
    )
    cached = False
    """Whether the keys before the queries are a cache."""

    def divided(self, inputs: Inputs) -> Native:
        native = split_native(inputs, causal=True, window=True)
        window = native.window
        if window is None:
            return native
        # A window needs the causal flag, so it must end at its query.
        if not (native.causal if window.right is None else window.right == 0):
            return replace(native, window=None, rest=(*native.rest, window))
        return replace(native, causal=True, window=None if window.left is None else window)

    def more(self, inputs: Inputs, native: Native) -> dict[str, Any]:
        s, backend = inputs.sizes, self.backend
        lengths = np.full(s.B, s.Lk - 1, np.int32)
        arrays = {"last": backend.array(lengths, None)}
        arrays["total"] = backend.array(np.array([s.Lk], np.int32), None)
        if self.cached and native.causal:
            arrays["chunks"] = backend.array(np.full(s.B, s.Lq, np.int32), None)
        return arrays | feature_arrays(backend, inputs)

    def attributes(self, inputs: Inputs, native: Native) -> dict[str, Any]:
        more: dict[str, Any] = {"causal": int(native.causal)}
        if native.window is not None and native.window.left is not None:
            if native.window.left < 0:
                raise ValueError(
                    "local_window_size includes the query's own key: expected 1 or more"
                )
            more["local_window_size"] = 1 + native.window.left
        more["softcap"] = inputs.feature("softcap")
        return super().attributes(inputs, native) | more

    def node(
        self, query: Symbol, key: Symbol, value: Symbol, rest: Mapping[str, Symbol],
        attributes: Mapping[str, Any],
    ) -> Symbol:  # fmt: skip
        past = key.shape[1] - query.shape[1] if self.cached else 0
        new = [x[:, past:] for x in (key, value)]
        cache = [x[:, :past].transpose((0, 2, 1, 3)) for x in (key, value)] if past else [None] * 2
        settings: dict[str, Any] = {**rest, **attributes}
        return group_query(query, new, cache, **settings)[0]


class CachedGroupQuery(GroupQuery):
    """GroupQueryAttention with a cache of the keys before the queries; its causal
    flag is bottom-right."""

    name = "ms-group-query-cache"
    declared = GroupQuery.declared.refusing(
        {
            "native-causal": "with a cache the causal flag is bottom-right",
            "native-window": "a window needs the causal flag, which is bottom-right with a cache",
        }
    ).but(limits=Limits(head_sizes=HEAD_SIZES))
    cached = True

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, Case):
            s, parts = case.sizes, case.mask.parts if case.mask is not None else ()
            if s.Lk <= s.Lq:
                return FIRST
            flagged = any(isinstance(part, Causal) and part.bottom_right for part in parts)
            if s.B > 1 and s.Lq > 1 and (case.form == "dense" or not flagged):
                return "with several samples and queries the operator is always causal"
        return super().unsupported(case)

    def divided(self, inputs: Inputs) -> Native:
        return behind_a_cache(inputs)
