"""Packed and paged attention that JAX ships: `jax.nn.dot_product_attention`, where each segment is a
sample of a batch; the reference function of the ragged kernel for TPUs; and a kernel for GPUs, which
Pallas interprets on a CPU."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import numpy as np

from attention_conformance.backends._jax.attention import JAX_NN
from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends._jax.pallas import NO_FLOAT64
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.memory import operand_arrays
from attention_conformance.backends.operators import Arrays, OperatorFunction
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators import packed, paged


class JaxNnPacked(Implementation):
    """Packed attention with segments as a batch (B, longest, H, D), padded with zeros, with
    `query_seq_lengths` and `key_value_seq_lengths`. The answer is packed again."""

    backend: JaxEngine

    name = "jax-nn-packed"
    operator = packed.PACKED
    declared = Declared(
        numerics=JAX_NN.declared.numerics,
        features=packed.FEATURES,
        refusals={
            "causal-bottom-right": "is_causal is aligned at the first query",
            "value-size": JAX_NN.declared.refusals["value-size"],
        },
        elections={"nan-in-other-segment": "nobody", "segment-without-keys": "zeros"},
    )

    @cached_property
    def layout_programs(self) -> tuple[Any, Any]:
        """`unpacked_rows` and `packed_tokens` as programs, in every dtype. They are not judged."""
        jit = self.backend.jax.jit
        return jit(unpacked_rows), jit(partial(packed_tokens, self.backend.numpy))

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend, (unpack, pack) = self.backend, self.layout_programs
        if len(inputs.key) != len(inputs.value):
            raise ValueError("a batch needs as many values as keys")
        arguments = operand_arrays(backend, inputs)
        for name in ("query", "key"):
            lengths = inputs.arrays[f"{name}_lengths"].astype(np.int32)
            arguments[f"{name}_lengths"] = backend.array(lengths, None)
            arguments[f"{name}_indices"] = backend.array(token_indices(lengths), None)
        attend = partial(
            backend.jax.nn.dot_product_attention,
            scale=inputs.scale,
            is_causal=inputs.case.option("alignment") != "all",
            implementation="xla",
        )

        def call(
            query: Any, key: Any, value: Any, query_lengths: Any, key_lengths: Any,
            query_indices: Any, key_indices: Any,
        ) -> Any:  # fmt: skip
            rows = unpack(query, key, value, query_indices, key_indices)
            answer = attend(
                *rows, query_seq_lengths=query_lengths, key_value_seq_lengths=key_lengths
            )
            return pack(query, answer, query_indices)

        constants = (inputs.scale, inputs.case.option("alignment"))
        prepared = PreparedCall(call, arguments, constants=constants)
        return backend.jitted_native(self, prepared, inputs.dtype)


def unpacked_rows(
    query: Any, key: Any, value: Any, query_indices: Any, key_indices: Any
) -> list[Any]:
    """Returns tokens (L, H, D), unpacked to a batch (B, longest, H, D) that is padded with zeros."""
    tokens_and_indices = ((query, query_indices), (key, key_indices), (value, key_indices))
    return [
        tokens.at[indices].get(mode="fill", fill_value=0) for tokens, indices in tokens_and_indices
    ]


def packed_tokens(numpy: Any, query: Any, answer: Any, query_indices: Any) -> Any:
    """Returns a batch (B, longest, H, Dv), packed to tokens (Lq, H, Dv). `numpy` is `jax.numpy`."""
    tokens = numpy.zeros_like(answer, shape=(len(query), *answer.shape[2:]))
    return tokens.at[query_indices].set(answer, mode="drop")


def token_indices(lengths: np.ndarray) -> np.ndarray:
    """Returns the indices (B, longest) of the tokens of segments. Padding has an index beyond all
    tokens."""
    starts, offsets = (
        packed.cumulative_lengths(lengths),
        np.arange(max(int(lengths.max(initial=0)), 1)),
    )
    is_token = offsets < lengths[:, None]
    return np.where(is_token, starts[:-1, None] + offsets, starts[-1]).astype(np.int32)


class JaxPaged(OperatorFunction):
    """A function over pages (P, S, Hkv, D)."""

    backend: JaxEngine

    operator = paged.PAGED
    postponed = frozenset({"kernels"})

    def prepare(self, inputs: Inputs) -> PreparedCall:
        within = self.backend.surroundings(inputs.dtype)
        return super().prepare(inputs).under(within)


class RaggedReference(JaxPaged):
    """`ref_ragged_paged_attention`, which is always causal. Its pages have each head's key next to its
    value."""

    name = "ragged-reference"
    declared = Declared(
        # Scores are float32, and weights are stored in the dtype.
        numerics="eager",
        features=paged.FEATURES | {"length-arrays"},
        dtypes=NO_FLOAT64,
        refusals={
            "value-size": "keys and values lie in one array",
            "heads-before-slots": "pages have slots before heads",
        },
        elections={"nan-behind-last-key": "blocked"},
    )

    def refusal(self, case: Case) -> str | None:
        full_attention = case.option("alignment") == "all"
        return "the function is always causal" if full_attention else None

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        from jax.experimental.pallas.ops.tpu.ragged_paged_attention import (
            ref_ragged_paged_attention,
        )

        numpy, left = self.backend.numpy, inputs.case.option("left")
        P, S, Hkv, D = x["key"].shape
        pages = numpy.reshape(numpy.stack([x["key"], x["value"]], 3), (P, S, 2 * Hkv, D))
        return ref_ragged_paged_attention(
            x["query"], pages, x["key_lengths"], x["page_table"], x["query_offsets"],
            numpy.array([len(x["key_lengths"])], numpy.int32), sm_scale=inputs.effective_scale,
            sliding_window=None if left is None else left + 1,
            soft_cap=inputs.case.option("softcap"),
        )  # fmt: skip


class GpuPaged(JaxPaged):
    """`jax.experimental.pallas.ops.gpu.paged_attention`, with one query per sample. An even number of
    pages is split in two parts. The query is scaled before the call."""

    name = "pallas-gpu-paged"
    declared = Declared(
        numerics="stepwise",
        features=paged.FEATURES,
        refusals={
            "window": "the kernel has no window",
            "value-size": "the pools have one shape",
            "heads-before-slots": "the adapter passes pages with slots before heads",
            "gradient": "the kernel is for decoding",
        },
        dtypes=NO_FLOAT64,
        limits=Limits(head_sizes=(16, 32, 64, 128), page_sizes=(16, 32)),
    )

    def unsupported(self, case: AnyCase) -> str | None:
        if not isinstance(case, Case) or {*case.option("segments")[0]} != {1}:
            return "the kernel takes one query of every sample"
        return super().unsupported(case)

    def compute(self, x: Arrays, inputs: Inputs) -> Any:
        from jax.experimental.pallas.ops.gpu.paged_attention import paged_attention

        keys, values = (
            self.backend.numpy.transpose(x[name], (2, 0, 1, 3)) for name in ("key", "value")
        )
        return paged_attention(
            x["query"] * inputs.effective_scale, keys, values, x["page_table"], x["key_lengths"],
            pages_per_compute_block=1, k_splits=1 + (x["page_table"].shape[1] + 1) % 2,
            attn_logits_soft_cap=inputs.case.option("softcap"),
            interpret=self.backend.device == "cpu",
        )  # fmt: skip
