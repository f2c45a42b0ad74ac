"""Attention kernels in Pallas that JAX ships: of GPUs and TPUs. On a CPU Pallas interprets them.

Numbers of 64 bits are off: with them the kernels for GPUs raise an error about dtypes of indices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from attention_conformance.backends._jax.attention import key_value_seq_lengths
from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.masks import AttentionCall, flagged_arguments, split_native
from attention_conformance.backends.prepared import PreparedCall, attention_call
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs

BLOCK, SPLITS, LANES = 16, 2, 128
"""The smallest block of the kernels for GPUs, the parts into which the keys of a decoding step are split,
and the smallest block of keys of the kernel for TPUs."""

LENGTHS: Parameter[AttentionCall] = Parameter("lengths", ("padding",), key_value_seq_lengths)

NO_FLOAT64 = tuple(name for name in DTYPES if name != "f64")


class Pallas(Implementation):
    """A kernel with operands (B, L, H, D)."""

    backend: JaxEngine

    later = frozenset({"kernels"})

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, Case) and 0 in (case.sizes.B, case.sizes.Lq, case.sizes.Lk):
            return "the kernel divides by its sizes"
        return super().unsupported(case)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        native = split_native(inputs, causal=True, lengths=True)
        arguments = flagged_arguments(self.backend, inputs, native, (LENGTHS,))
        kernel = self.kernel(inputs, native.causal)
        call = attention_call(kernel, arguments, inputs, axis_order="blhd")
        return call.under(self.backend.compilers.surroundings(inputs.dtype))

    def kernel(self, inputs: Inputs, causal: bool) -> Callable[..., Any]:
        """The function of the arrays."""
        raise NotImplementedError

    @property
    def interpreted(self) -> bool:
        """True if Pallas interprets the kernel."""
        return self.backend.device == "cpu"


class GpuMha(Pallas):
    """`jax.experimental.pallas.ops.gpu.attention.mha` in blocks of 16."""

    name = "pallas-gpu-mha"
    declared = Declared(
        numerics="fused",
        features=frozenset({"causal", "native-causal", "scale", "gradient", "other-shapes"}),
        dtypes=NO_FLOAT64,
        elections={"causal-alignment": "top-left", "value-size": "raises"},
        limits=Limits(lengths_multiple_of=(BLOCK,), equal_heads=True),
    )

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, Case) and case.mask is not None and case.sizes.Lq > case.sizes.Lk:
            # Finding pallas-mha-causal.
            return "with the causal flag and more queries than keys it reads behind the keys"
        return super().unsupported(case)

    def kernel(self, inputs: Inputs, causal: bool) -> Callable[..., Any]:
        from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha

        # The backward pass takes as many blocks of queries as of keys.
        halves = [max(length // 2, 1) for length in (inputs.sizes.Lq, inputs.sizes.Lk)]
        blocks = BlockSizes(BLOCK, BLOCK, *halves, *halves)

        def call(query: Any, key: Any, value: Any) -> Any:
            return mha(
                query, key, value, None, inputs.effective_scale, causal, blocks,
                interpret=self.interpreted,
            )  # fmt: skip

        return call


class GpuDecode(Pallas):
    """`jax.experimental.pallas.ops.gpu.decode_attention.gqa`: one query, and the keys in two parts."""

    name = "pallas-gpu-decode"
    declared = Declared(
        # Parts are stored and added in the dtype.
        numerics="stepwise",
        features=frozenset({"padding", "scale", "grouped-heads", "other-shapes"}),
        refusals={"gradient": "the kernel is for decoding"},
        dtypes=NO_FLOAT64,
        limits=Limits(queries=1, lengths_multiple_of=(1, SPLITS * BLOCK)),
    )

    def kernel(self, inputs: Inputs, causal: bool) -> Callable[..., Any]:
        from jax.experimental.pallas.ops.gpu.decode_attention import gqa

        def call(query: Any, key: Any, value: Any, lengths: Any = None) -> Any:
            return gqa(
                query[:, 0], key, value, None, lengths, sm_scale=inputs.effective_scale,
                block_k=BLOCK, k_splits=SPLITS, interpret=self.interpreted,
            )[:, None]  # fmt: skip

        return call


class TpuSplash(Pallas):
    """`jax.experimental.pallas.ops.tpu.splash_attention` in blocks of 16 queries and 128 keys."""

    name = "pallas-tpu-splash"
    declared = Declared(
        # The scale is multiplied into the queries before the call.
        numerics={"f32": "exact", "bf16": "working", "f16": "working"},
        features=frozenset(
            {
                "causal",
                "native-causal",
                "scale",
                "softcap",
                "grouped-heads",
                "gradient",
                "other-shapes",
            }
        ),
        dtypes=NO_FLOAT64,
        elections={"causal-alignment": "top-left"},
        limits=Limits(lengths_multiple_of=(BLOCK, LANES), head_sizes=(64, 128)),
    )

    def kernel(self, inputs: Inputs, causal: bool) -> Callable[..., Any]:
        from jax.experimental.pallas.ops.tpu import splash_attention as splash

        sizes = inputs.sizes
        mask = (splash.CausalMask if causal else splash.FullMask)((sizes.Lq, sizes.Lk))
        blocks = splash.BlockSizes(BLOCK, LANES, LANES, BLOCK, LANES, LANES, BLOCK, LANES)
        kernel = splash.make_splash_mha(
            splash.MultiHeadMask([mask] * sizes.H), block_sizes=blocks, head_shards=1, q_seq_shards=1,
            attn_logits_soft_cap=inputs.feature("softcap") or None, interpret=self.interpreted,
        )  # fmt: skip
        swap = partial(self.backend.numpy.swapaxes, axis1=1, axis2=2)

        def call(query: Any, key: Any, value: Any) -> Any:
            return swap(self.backend.jax.vmap(kernel)(
                swap(query * inputs.effective_scale), swap(key), swap(value)
            ))  # fmt: skip

        return call
