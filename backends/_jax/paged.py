"""Paged attention that JAX ships: the definition of its ragged kernel for TPUs, and a kernel for GPUs,
which Pallas interprets on a CPU."""

from __future__ import annotations

from typing import Any

from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends._jax.pallas import NO_FLOAT64
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.operators import Arrays, OperatorFunction
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.paged import FEATURES, PAGED


class JaxPaged(OperatorFunction):
    """A function over pages (P, S, Hkv, D)."""

    backend: JaxEngine

    operator = PAGED
    later = frozenset({"kernels"})

    def prepare(self, inputs: Inputs) -> PreparedCall:
        within = self.backend.compilers.surroundings(inputs.dtype)
        return super().prepare(inputs).under(within)


class RaggedReference(JaxPaged):
    """`ref_ragged_paged_attention`, always causal; keys and values are stored head by head in turn."""

    name = "ragged-reference"
    declared = Declared(
        # Scores are float32, and weights are stored in the dtype.
        numerics="eager",
        features=FEATURES | {"length-arrays"},
        dtypes=NO_FLOAT64,
        refusals={
            "value-size": "keys and values lie in one array",
            "heads-before-slots": "pages have slots before heads",
        },
        elections={"nan-behind-last-key": "blocked"},
    )

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, Case) and case.option("alignment") == "all":
            return "the function is always causal"
        return super().unsupported(case)

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
    """`jax.experimental.pallas.ops.gpu.paged_attention`: one query of every sample, and the pages in two
    parts if their number is even. The query is scaled before the call."""

    name = "pallas-gpu-paged"
    declared = Declared(
        numerics="stepwise",
        features=FEATURES,
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
