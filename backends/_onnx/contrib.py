"""ONNX Runtime's own operators MultiHeadAttention and GroupQueryAttention, of the domain com.microsoft
(docs/ContribOperators.md there). Operands are packed, (B, L, H D).

GroupQueryAttention also attends a cache of int8 or int4 codes, and writes codes. Two int4 codes are a
byte: 8 more than the first one, and 16 times 8 more than the second one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from attention_conformance.backends._onnx.engine import OnnxEngine
from attention_conformance.backends._onnx.graph import OPSET, Symbol, concatenated
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
from attention_conformance.backends.memory import coded
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal
from attention_conformance.suite.spec.operators.quantized import FEATURES, KINDS, QUANTIZED
from attention_conformance.suite.spec.operators.quantized_write import FEATURES as WRITE_FEATURES
from attention_conformance.suite.spec.operators.quantized_write import QUANTIZED_WRITE

DOMAIN = "com.microsoft"

HEAD_SIZES = tuple(range(8, 1025, 8))
"""Head sizes of GroupQueryAttention: multiples of 8."""


ELECTIONS = {n: one for n, one in (ADDED | NANS).items() if n != "value-size"} | {
    "integer-mask": "raises"
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


def mask(call: AttentionCall) -> Any:
    """Mask and bias as one array (B or 1, H or 1, Lq, Lk), which is added to the scores, or None."""
    inputs, native = call.inputs, call.native
    dense = native.dense(inputs)
    if dense is not None and dense.dtype.kind != "b":
        return call.backend.array(dense, None)  # a mask of another dtype, passed unchanged
    bias = merged_bias(inputs, native.dense_parts)
    if bias is None:
        return None
    return call.backend.array(in_full(rank4(bias), inputs), inputs.dtype)


def lengths_without_flag(inputs: Inputs) -> Native:
    """The mask split into lengths, the flag with as many keys as queries, and the rest."""
    return split_native(inputs, causal=inputs.sizes.Lq == inputs.sizes.Lk, lengths=True)


def multi_head_graph(impl: FrameworkFunction, inputs: Inputs) -> Callable[..., Symbol]:
    """The function that records MultiHeadAttention, with -inf for keys beyond the lengths in place of the
    default -10000 (finding masked-by-ten-thousand)."""
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
    """The mask split into the causal flag, a window that ends at its query, and the rest: a window needs
    the flag."""
    native = split_native(inputs, causal=True, window=True)
    window = native.window
    if window is None:
        return native
    if not (native.causal if window.right is None else window.right == 0):
        return native.without_window()
    return replace(native, causal=True, window=None if window.left is None else window)


def per_sample(call: AttentionCall, count: int) -> Any:
    """The number `count` for every sample, (B,) int32."""
    return call.backend.array(np.full(call.inputs.sizes.B, count, np.int32), None)


def chunks(call: AttentionCall) -> Any:
    """The numbers of queries (B,) if the causal flag is used, or None."""
    return per_sample(call, call.inputs.sizes.Lq) if call.native.causal else None


def total(call: AttentionCall) -> Any:
    """The number of keys (1,)."""
    return call.backend.array(np.array([call.inputs.sizes.Lk], np.int32), None)


def grouped_graph(
    is_cached: bool, impl: FrameworkFunction, inputs: Inputs
) -> Callable[..., Symbol]:
    """The function that records GroupQueryAttention. If `is_cached`, the keys before the queries are a
    cache."""
    check_packed(inputs)
    native = impl.row.native(inputs)
    attributes: dict[str, Any] = {
        "scale": inputs.scale, "causal": int(native.causal), "softcap": inputs.feature("softcap")
    }  # fmt: skip
    if native.window is not None and native.window.left is not None:
        if native.window.left < 0:
            raise ValueError("local_window_size includes the query's own key: expected 1 or more")
        attributes["local_window_size"] = 1 + native.window.left

    def node(query: Symbol, key: Symbol, value: Symbol, **others: Any) -> Symbol:
        past = key.shape[1] - query.shape[1] if is_cached else 0
        new = [x[:, past:] for x in (key, value)]
        cache = [x[:, :past].transpose((0, 2, 1, 3)) for x in (key, value)] if past else [None] * 2
        return group_query(query, new, cache, **others, **attributes)[0]

    return node


def unsupported_with_cache(case: Case) -> str | None:
    """The reason why a case is not supported with a cache, or None."""
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
        Parameter("total", value=total),
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
    parameters=(*GROUP_QUERY.parameters, Parameter("chunks", value=chunks)),
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


FLOATS = "on the CPU a cache of codes is int8 or int4"

REFUSALS = {
    "e4m3-codes": FLOATS,
    "e5m2-codes": FLOATS,
    "zero-points": "GroupQueryAttention has no zero points",
    "scales-of-tokens": "GroupQueryAttention has a scale for the tensor, or for every component",
    "scales-of-tiles": "GroupQueryAttention has a scale for the tensor, or for every component",
    "pages": "the operator over pages has no kernel for the CPU",
    "value-size": "GroupQueryAttention has values of the keys' size",
    "gradient": "models have no gradients",
}


class CodedGroupQuery(Implementation):
    """GroupQueryAttention over a cache of codes, which writes new tokens. Without new tokens the last
    tokens are passed as scale times code, and written again. A head's scale is repeated D times."""

    backend: OnnxEngine

    name = "ms-group-query-codes"
    operator = QUANTIZED
    declared = Declared(
        numerics="fused", dtypes=("f32", "f16"), features=FEATURES, refusals=REFUSALS,
        limits=Limits(head_sizes=HEAD_SIZES),
    )  # fmt: skip

    def prepare(self, inputs: Inputs) -> PreparedCall:
        case, s = inputs.case, inputs.sizes
        attributes = {"causal": int(case.option("alignment") == "causal"), "scale": inputs.scale}

        def call(query: Symbol, **arrays: Symbol) -> Any:
            past_length, writes = s.Lk - s.Lq, case.option("writes")
            new = [arrays[name] for name in KINDS if writes]
            for name in KINDS if not writes else ():
                codes, scale = arrays[f"{name}_codes"], arrays[f"{name}_scale"]
                new.append((codes[:, :, past_length:].cast(scale.dtype) * scale).cast(query.dtype))
            caches = [arrays[f"{name}_codes"][:, :, :past_length] for name in KINDS]
            answer = attend_codes(query, new, caches, arrays, case, attributes)
            return answer if writes else answer[0]

        prepared = PreparedCall(call, coded(self.backend, inputs), inputs.outputs)
        return self.backend.recorded(prepared)

    def refusal(self, case: Case) -> str | None:
        s = case.sizes
        if case.option("alignment") == "all" and s.B > 1 and 1 < s.Lq < s.Lk:
            return "with several samples and queries behind a cache the operator is causal"
        return None


def pack_int4(codes: Symbol) -> Symbol:
    """Pack int4 codes (..., D) into bytes (..., D / 2)."""
    unsigned = codes.cast(np.int32) + 8
    return (unsigned[..., ::2] + unsigned[..., 1::2] * 16).cast(np.uint8)


def unpack_int4(packed_codes: Symbol) -> Symbol:
    """Unpack bytes (..., D / 2) into int4 codes (..., D), stored as int8."""
    shape = packed_codes.shape
    byte_values = packed_codes.cast(np.int32).reshape((*shape, 1))
    high = byte_values / 16
    pairs = concatenated([byte_values - high * 16, high], -1)
    return (pairs.reshape((*shape[:-1], 2 * shape[-1])) - 8).cast(np.int8)


def attend_codes(
    query: Symbol, new: list[Symbol], caches: list[Symbol], arrays: Mapping[str, Symbol], case: Case,
    attributes: Mapping[str, Any],
) -> tuple[Symbol, Symbol, Symbol]:  # fmt: skip
    """The operator's output (B, H, Lq, D), and the codes of the cache with the new tokens (B, Hkv, L, D).

    query (B, H, Lq, D), new keys and values (B, Hkv, Lq, D), caches of codes (B, Hkv, past, D)
    """
    graph, (B, _, Lq, D), Hkv = query.graph, query.shape, new[0].shape[1]
    bits, stored_dtype = (4, np.uint8) if case.option("codes") == "int4" else (8, np.int8)
    stored_size = D * bits // 8
    length = Lq + caches[0].shape[2]
    granularity = "PER_TENSOR" if case.option("scales") == "tensor" else "PER_CHANNEL"
    scales = []
    for name in KINDS:
        scale = arrays[f"{name}_scale"]
        scales.append(
            scale.reshape((1,))
            if granularity == "PER_TENSOR"
            else scale.expanded((1, Hkv, 1, D)).reshape((Hkv * D,))
        )
    last, total = graph.constant([length - 1] * B, "int32"), graph.constant([length], "int32")
    chunks = graph.constant([Lq] * B, "int32") if attributes.get("causal", 1) else None
    if bits == 4:
        caches = [pack_int4(codes) for codes in caches]
    query, *new = (x.transpose((0, 2, 1, 3)) for x in (query, *new))
    rows, *present_codes = group_query(
        query, new, caches, last, total, scales=scales, chunks=chunks, k_quant_type=granularity,
        v_quant_type=granularity, kv_cache_bit_width=bits, **attributes,
    )  # fmt: skip
    shape = (B, Hkv, length, stored_size)
    symbols = [Symbol(graph, x.name, stored_dtype, lambda: shape) for x in present_codes]
    key, value = map(unpack_int4, symbols) if bits == 4 else symbols
    return rows.transpose((0, 2, 1, 3)), key, value


class GroupQueryWrites(Implementation):
    """The codes that GroupQueryAttention writes into an empty cache, from keys and values of a prompt."""

    backend: OnnxEngine

    name = "ms-group-query-writes"
    operator = QUANTIZED_WRITE
    declared = Declared(
        numerics="exact", dtypes=("f32", "f16"), features=WRITE_FEATURES, refusals=REFUSALS,
        limits=Limits(head_sizes=HEAD_SIZES),
    )  # fmt: skip

    def prepare(self, inputs: Inputs) -> PreparedCall:
        s = inputs.sizes

        def call(key: Symbol, value: Symbol, **arrays: Symbol) -> tuple[Symbol, Symbol]:
            empty = key.graph.constant(np.zeros((s.B, s.Hkv, 0, s.D), np.int8))
            written = attend_codes(key, [key, value], [empty, empty], arrays, inputs.case, {})
            return written[1], written[2]

        arguments = coded(self.backend, inputs)
        return self.backend.recorded(PreparedCall(call, arguments, inputs.outputs))
