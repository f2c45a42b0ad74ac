"""ONNX Runtime's GroupQueryAttention over a cache of int8 or int4 codes: attention, and writing codes.

Two int4 codes are a byte: 8 more than the first one, and 16 times 8 more than the second one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.backends._onnx.contrib import HEAD_SIZES, group_query
from attention_conformance.backends._onnx.engine import OnnxEngine
from attention_conformance.backends._onnx.graph import Symbol, concatenated
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.memory import coded
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.quantized import FEATURES, KINDS, QUANTIZED
from attention_conformance.suite.spec.operators.quantized_write import FEATURES as WRITE_FEATURES
from attention_conformance.suite.spec.operators.quantized_write import QUANTIZED_WRITE

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
    """New tokens are written and attended. If a case has none, its last tokens arrive as scale times
    code, and the operator writes their codes again. Scales of heads are passed for every component."""

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
            past, writes = s.Lk - s.Lq, case.option("writes")
            new = [arrays[name] for name in KINDS if writes]
            for name in KINDS if not writes else ():
                codes, scale = arrays[f"{name}_codes"], arrays[f"{name}_scale"]
                new.append((codes[:, :, past:].cast(scale.dtype) * scale).cast(query.dtype))
            caches = [arrays[f"{name}_codes"][:, :, :past] for name in KINDS]
            answer = attended(query, new, caches, arrays, case, attributes)
            return answer if writes else answer[0]

        made = PreparedCall(call, coded(self.backend, inputs), inputs.outputs)
        return self.backend.recorded(made)

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, Case) and case.option("alignment") == "all":
            s = case.sizes
            if s.B > 1 and 1 < s.Lq < s.Lk:
                return "with several samples and queries behind a cache the operator is causal"
        return super().unsupported(case)


def in_bytes(codes: Symbol) -> Symbol:
    """int4 codes (..., D) as bytes (..., D / 2)."""
    raised = codes.cast(np.int32) + 8
    return (raised[..., ::2] + raised[..., 1::2] * 16).cast(np.uint8)


def from_bytes(packed_codes: Symbol) -> Symbol:
    """Bytes (..., D / 2) as int4 codes (..., D), a code in a byte."""
    shape = packed_codes.shape
    numbers = packed_codes.cast(np.int32).reshape((*shape, 1))
    second = numbers / 16
    both = concatenated([numbers - second * 16, second], -1)
    return (both.reshape((*shape[:-1], 2 * shape[-1])) - 8).cast(np.int8)


def attended(
    query: Symbol, new: list[Symbol], caches: list[Symbol], arrays: Mapping[str, Symbol], case: Case,
    attributes: Mapping[str, Any],
) -> tuple[Symbol, Symbol, Symbol]:  # fmt: skip
    """The operator's output (B, H, Lq, D), and the codes of the cache with the new tokens (B, Hkv, L, D).

    query (B, H, Lq, D), new keys and values (B, Hkv, Lq, D), caches of codes (B, Hkv, past, D)
    """
    graph, (B, _, Lq, D), Hkv = query.graph, query.shape, new[0].shape[1]
    bits, stored = (4, np.uint8) if case.option("codes") == "int4" else (8, np.int8)
    size = D * bits // 8
    length = Lq + caches[0].shape[2]
    per = "PER_TENSOR" if case.option("scales") == "tensor" else "PER_CHANNEL"
    scales = []
    for name in KINDS:
        scale = arrays[f"{name}_scale"]
        scales.append(
            scale.reshape((1,))
            if per == "PER_TENSOR"
            else scale.expanded((1, Hkv, 1, D)).reshape((Hkv * D,))
        )
    last, total = graph.constant([length - 1] * B, "int32"), graph.constant([length], "int32")
    chunks = graph.constant([Lq] * B, "int32") if attributes.get("causal", 1) else None
    if bits == 4:
        caches = [in_bytes(codes) for codes in caches]
    query, *new = (x.transpose((0, 2, 1, 3)) for x in (query, *new))
    rows, *present = group_query(
        query, new, caches, last, total, scales=scales, chunks=chunks, k_quant_type=per,
        v_quant_type=per, kv_cache_bit_width=bits, **attributes,
    )  # fmt: skip
    shape = (B, Hkv, length, size)
    made = [Symbol(graph, x.name, stored, lambda: shape) for x in present]
    key, value = map(from_bytes, made) if bits == 4 else made
    return rows.transpose((0, 2, 1, 3)), key, value


class GroupQueryWrites(Implementation):
    """The codes that the operator puts into its cache, from keys and values of a prompt."""

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
            written = attended(key, [key, value], [empty, empty], arrays, inputs.case, {})
            return written[1], written[2]

        arguments = coded(self.backend, inputs)
        return self.backend.recorded(PreparedCall(call, arguments, inputs.outputs))
