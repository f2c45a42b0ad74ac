"""ONNX Runtime's own operators MultiHeadAttention and GroupQueryAttention, of the domain com.microsoft
(docs/ContribOperators.md there). Operands are packed, (B, L, H D).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._onnx.attention import (
    NO_PAST_KEYS,
    bottom_right_flag,
    check_packed,
    in_full,
    packed,
    recorded,
)
from attention_conformance.backends._onnx.graph import OPSET, Symbol
from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.declared import ADDED, ATTENTION_FEATURES, NANS, Declared
from attention_conformance.backends.kernel import FrameworkFunction, Kernel
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.masks import (
    AttentionCall,
    Native,
    merged_bias,
    rank4,
    split_native,
)
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal

DOMAIN = "com.microsoft"

HEAD_SIZES = tuple(range(8, 1025, 8))
"""Head sizes of GroupQueryAttention: multiples of 8."""


ELECTIONS = {n: one for n, one in (ADDED | NANS).items() if n != "value-size"} | {
    "integer-mask": "raises"
}
"""Elections of both operators."""


def group_query(
    query: Symbol, new: Sequence[Symbol], past: Sequence[Symbol | None], last: Symbol, total: Symbol,
    *, bias: Symbol | None = None, sinks: Symbol | None = None, chunks: Symbol | None = None,
    table: Sequence[Symbol | None] = (None, None), **attributes: Any,
) -> tuple[Symbol, Symbol, Symbol]:  # fmt: skip
    """Record GroupQueryAttention of a query (B, Lq, H, D) and new keys and values (B, L, Hkv, D). Returns
    the output (B, Lq, H, D), and the cached keys and values with the new tokens.

    `last` (B,), `total` (1,), `chunks` (B,): int32, the index of the last key, the number of keys, and
    the number of queries. Calls pass them by the names of `GROUP_QUERY.parameters`."""
    B, Lq, H, D = query.shape
    rows, key, value = query.graph.add(
        "GroupQueryAttention", *map(packed, (query, *new)), *past, last, total, *table, None, bias,
        sinks, None, None, None, None, chunks, domain=DOMAIN, outputs=3,
        shape=lambda: (B, Lq, H * D), num_heads=H, kv_num_heads=new[0].shape[2], **attributes,
    )  # fmt: skip
    return rows.reshape((B, Lq, H, D)), key, value


def mask(call: AttentionCall) -> Any:
    """Returns mask and bias as one array (B or 1, H or 1, Lq, Lk) that is added to the scores; None
    without both."""
    inputs, native = call.inputs, call.native
    dense = native.dense(inputs)
    if dense is not None and dense.dtype.kind != "b":
        return call.backend.array(dense, None)  # a mask of another dtype, passed unchanged
    bias = merged_bias(inputs, native.dense_parts)
    if bias is None:
        return None
    return call.backend.array(in_full(rank4(bias), inputs), inputs.dtype)


def lengths_without_flag(inputs: Inputs) -> Native:
    """Returns the mask divided into lengths, the causal flag if Lq = Lk, and the rest."""
    return split_native(inputs, causal=inputs.sizes.Lq == inputs.sizes.Lk, lengths=True)


def multi_head_graph(impl: FrameworkFunction, inputs: Inputs) -> Callable[..., Symbol]:
    """Returns the function that records MultiHeadAttention. Keys beyond the lengths get -inf in place of
    the default -10000 (finding masked-by-ten-thousand)."""
    check_packed(inputs)
    native = impl.row.native(inputs)
    attributes: dict[str, Any] = {"scale": inputs.scale}
    if native.causal:
        attributes["unidirectional"] = 1
    if native.paddings:
        attributes["mask_filter_value"] = -np.inf

    def node(
        query: Symbol, key: Symbol, value: Symbol, bias: Symbol | None = None,
        lengths: Symbol | None = None,
    ) -> Symbol:  # fmt: skip
        (B, Lq, H, _), Dv = query.shape, value.shape[3]
        output = query.graph.add(
            "MultiHeadAttention", *map(packed, (query, key, value)), None, lengths, bias, domain=DOMAIN,
            shape=lambda: (B, Lq, H * Dv), num_heads=H, **attributes,
        )  # fmt: skip
        return output.reshape((B, Lq, H, Dv))

    return node


MULTI_HEAD = Kernel(
    "ms-multi-head",
    "MultiHeadAttention",
    (
        Parameter("bias", value=mask),
        Parameter("lengths", value=partial(AttentionCall.lengths, integers=np.int32)),
    ),
    Declared(
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
    ),
    calls=multi_head_graph,
    through=recorded(OPSET),
    divide=lengths_without_flag,
)


def flag_and_window(inputs: Inputs) -> Native:
    """Returns the mask divided into the causal flag, a window that ends at its query, and the rest. A
    window needs the flag."""
    native = split_native(inputs, causal=True, window=True)
    window = native.window
    if window is None:
        return native
    if not (native.causal if window.right is None else window.right == 0):
        return native.without_window()
    return replace(native, causal=True, window=None if window.left is None else window)


def per_sample(call: AttentionCall, count: int) -> Any:
    """Returns the number `count` for every sample, (B,) int32."""
    return call.backend.array(np.full(call.inputs.sizes.B, count, np.int32), None)


def chunk_lengths(call: AttentionCall) -> Any:
    """Returns the number of queries for every sample, (B,), if the causal flag is used, or None."""
    return per_sample(call, call.inputs.sizes.Lq) if call.native.causal else None


def key_total(call: AttentionCall) -> Any:
    """Returns the number of keys, (1,) int32."""
    return call.backend.array(np.array([call.inputs.sizes.Lk], np.int32), None)


def grouped_graph(
    is_cached: bool, impl: FrameworkFunction, inputs: Inputs
) -> Callable[..., Symbol]:
    """Returns the function that records GroupQueryAttention. `is_cached`: the keys before the queries are
    a cache."""
    check_packed(inputs)
    native = impl.row.native(inputs)
    attributes: dict[str, Any] = {
        "scale": inputs.scale, "causal": int(native.causal), "softcap": inputs.feature("softcap")
    }  # fmt: skip
    if native.window is not None and native.window.left is not None:
        if native.window.left < 0:
            raise ValueError("local_window_size includes the query's own key: expected 1 or more")
        attributes["local_window_size"] = 1 + native.window.left

    def node(query: Symbol, key: Symbol, value: Symbol, **arrays: Any) -> Symbol:
        past = key.shape[1] - query.shape[1] if is_cached else 0
        new = [x[:, past:] for x in (key, value)]
        cache = [x[:, :past].transpose((0, 2, 1, 3)) for x in (key, value)] if past else [None] * 2
        return group_query(query, new, cache, **arrays, **attributes)[0]

    return node


def unsupported_with_cache(case: Case) -> str | None:
    """Returns the reason why a case is not supported with a cache, or None."""
    s, parts = case.sizes, case.mask.parts if case.mask is not None else ()
    if s.Lk <= s.Lq:
        return NO_PAST_KEYS
    flagged = any(isinstance(part, Causal) and part.bottom_right for part in parts)
    if s.B > 1 and s.Lq > 1 and (case.form == "dense" or not flagged):
        return "with several samples and queries the operator is always causal"
    return None


GROUP_QUERY = MULTI_HEAD.but(
    name="ms-group-query",
    function="GroupQueryAttention",
    parameters=(
        Parameter("bias", value=mask),
        Parameter("last", value=lambda call: per_sample(call, call.inputs.sizes.Lk - 1)),
        Parameter("total", value=key_total),
        Parameter("sinks", value=AttentionCall.sinks),
    ),
    declared=Declared(
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
    ),
    calls=partial(grouped_graph, False),
    divide=flag_and_window,
)
"""Without a cache: a prompt, or an encoder's layer."""

GROUP_QUERY_CACHED = GROUP_QUERY.but(
    name="ms-group-query-cache",
    parameters=(*GROUP_QUERY.parameters, Parameter("chunks", value=chunk_lengths)),
    declared=GROUP_QUERY.declared.refusing(
        {
            "native-causal": "with a cache the causal flag is bottom-right",
            "native-window": "a window needs the causal flag, which is bottom-right with a cache",
        }
    ).but(limits=Limits(head_sizes=HEAD_SIZES)),
    calls=partial(grouped_graph, True),
    divide=bottom_right_flag,
    refusal=unsupported_with_cache,
)
"""With a cache of the keys before the queries; the causal flag is bottom-right."""
