"""Pallas kernels of attention for GPUs and TPUs that JAX ships. On a CPU Pallas interprets them.

Numbers of 64 bits are off: with them the kernels for GPUs raise an error about dtypes of indices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from attention_conformance.backends._jax.attention import LENGTHS as KEY_LENGTHS
from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.kernel import FrameworkFunction, Kernel, function_of_row
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.masks import EFFECTIVE_SCALE, AttentionCall
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs

BLOCK, SPLITS, LANES = 16, 2, 128
"""The smallest block of the kernels for GPUs, the parts into which the keys of a decoding step are split,
and the smallest block of keys of the kernel for TPUs."""

LENGTHS: Parameter[AttentionCall] = Parameter("lengths", ("padding",), KEY_LENGTHS)
CAUSAL: Parameter[AttentionCall] = Parameter(
    "causal", ("native-causal",), lambda call: call.native.causal
)

NO_FLOAT64 = tuple(name for name in DTYPES if name != "f64")


def without_elements(case: Case) -> str | None:
    """Returns the reason why a case without elements is not supported, or None."""
    if 0 in (case.sizes.B, case.sizes.Lq, case.sizes.Lk):
        return "the kernel divides by its sizes"
    return None


def without_elements_or_more_queries(case: Case) -> str | None:
    """Returns the reason of `without_elements`, or that of a causal case with more queries than keys
    (finding pallas-mha-causal), or None."""
    if case.mask is not None and case.sizes.Lq > case.sizes.Lk:
        return "with the causal flag and more queries than keys it reads behind the keys"
    return without_elements(case)


def in_default_precision(
    impl: FrameworkFunction, inputs: Inputs, call: PreparedCall
) -> PreparedCall:
    """Returns the call in JAX's default mode: 64-bit numbers are off, except in float64."""
    return call.under(impl.backend.surroundings(inputs.dtype))


def mha(impl: FrameworkFunction, inputs: Inputs) -> Callable[..., Any]:
    """Returns the kernel in blocks of 16. The backward pass has as many blocks of queries as of keys."""
    from jax.experimental.pallas.ops.gpu.attention import BlockSizes

    function, interpret = function_of_row(impl, inputs), impl.backend.device == "cpu"
    halves = [max(length // 2, 1) for length in (inputs.sizes.Lq, inputs.sizes.Lk)]
    blocks = BlockSizes(BLOCK, BLOCK, *halves, *halves)

    def call(query: Any, key: Any, value: Any, causal: bool, scale: float) -> Any:
        return function(query, key, value, None, scale, causal, blocks, interpret=interpret)

    return call


def decode(impl: FrameworkFunction, inputs: Inputs) -> Callable[..., Any]:
    """Returns the kernel for one query, with the keys in two parts."""
    settings = {"block_k": BLOCK, "k_splits": SPLITS, "interpret": impl.backend.device == "cpu"}
    function = function_of_row(impl, inputs)

    def call(query: Any, key: Any, value: Any, scale: float, lengths: Any = None) -> Any:
        return function(query[:, 0], key, value, None, lengths, sm_scale=scale, **settings)[:, None]

    return call


def splash(impl: FrameworkFunction, inputs: Inputs) -> Callable[..., Any]:
    """Returns the kernel in blocks of 16 queries and 128 keys. Queries are multiplied by the scale before
    the call."""
    from jax.experimental.pallas.ops.tpu import splash_attention

    backend, sizes, make_kernel = impl.backend, inputs.sizes, function_of_row(impl, inputs)
    blocks = splash_attention.BlockSizes(BLOCK, LANES, LANES, BLOCK, LANES, LANES, BLOCK, LANES)
    swap = partial(backend.numpy.swapaxes, axis1=1, axis2=2)

    def call(query: Any, key: Any, value: Any, causal: bool, scale: float) -> Any:
        mask_class = splash_attention.CausalMask if causal else splash_attention.FullMask
        kernel = make_kernel(
            splash_attention.MultiHeadMask([mask_class((sizes.Lq, sizes.Lk))] * sizes.H),
            block_sizes=blocks, head_shards=1, q_seq_shards=1,
            attn_logits_soft_cap=inputs.feature("softcap") or None,
            interpret=backend.device == "cpu",
        )  # fmt: skip
        return swap(backend.jax.vmap(kernel)(swap(query * scale), swap(key), swap(value)))

    return call


def splash_reference(impl: FrameworkFunction, inputs: Inputs) -> Callable[..., Any]:
    """Returns the reference function with which JAX tests the kernel for TPUs."""
    backend, s, make_attention = impl.backend, inputs.sizes, function_of_row(impl, inputs)
    swap = partial(backend.numpy.swapaxes, axis1=1, axis2=2)
    softcap = inputs.feature("softcap") or None

    def call(
        query: Any, key: Any, value: Any, scale: float, mask: Any = True, sinks: Any = None
    ) -> Any:
        def attend_sample(mask: Any, *heads: Any) -> Any:
            return make_attention(mask)(*heads, None, sinks, attn_logits_soft_cap=softcap)

        mask = backend.numpy.broadcast_to(mask, (s.B, s.H, s.Lq, s.Lk))
        return swap(
            backend.jax.vmap(attend_sample)(mask, swap(query * scale), swap(key), swap(value))
        )

    return call


GPU_MHA = Kernel(
    "pallas-gpu-mha",
    "jax.experimental.pallas.ops.gpu.attention.mha",
    (CAUSAL, EFFECTIVE_SCALE),
    Declared(
        numerics="fused",
        features=frozenset({"causal", "native-causal", "scale", "gradient", "other-shapes"}),
        dtypes=NO_FLOAT64,
        elections={"causal-alignment": "top-left", "value-size": "raises"},
        limits=Limits(lengths_multiple_of=(BLOCK,), equal_heads=True),
    ),
    calls=mha,
    through=in_default_precision,
    refusal=without_elements_or_more_queries,
    postponed=frozenset({"kernels"}),
)

GPU_DECODE = GPU_MHA.but(
    name="pallas-gpu-decode",
    function="jax.experimental.pallas.ops.gpu.decode_attention.gqa",
    parameters=(LENGTHS, EFFECTIVE_SCALE),
    declared=Declared(
        # Parts are stored and added in the dtype.
        numerics="stepwise",
        features=frozenset({"padding", "scale", "grouped-heads", "other-shapes"}),
        refusals={"gradient": "the kernel is for decoding"},
        dtypes=NO_FLOAT64,
        limits=Limits(queries=1, lengths_multiple_of=(1, SPLITS * BLOCK)),
    ),
    calls=decode,
    refusal=without_elements,
)

TPU_SPLASH = GPU_MHA.but(
    name="pallas-tpu-splash",
    function="jax.experimental.pallas.ops.tpu.splash_attention.make_splash_mha",
    declared=Declared(
        # The scale is multiplied into the queries before the call.
        numerics={"f32": "exact", "bf16": "working", "f16": "working"},
        features=GPU_MHA.declared.features | {"softcap", "grouped-heads"},
        dtypes=NO_FLOAT64,
        elections={"causal-alignment": "top-left"},
        limits=Limits(lengths_multiple_of=(BLOCK, LANES), head_sizes=(64, 128)),
    ),
    calls=splash,
    refusal=without_elements,
)

SPLASH_REFERENCE = Kernel(
    "splash-reference",
    "jax.experimental.pallas.ops.tpu.splash_attention.make_masked_mha_reference",
    (
        Parameter("mask", ("mask", "padding", "window", "causal"), AttentionCall.mask),
        Parameter("sinks", ("sinks",), AttentionCall.sinks),
        EFFECTIVE_SCALE,
    ),
    Declared(
        numerics="exact",
        features=frozenset(
            {
                "mask", "padding", "window", "causal", "sinks", "scale", "softcap", "grouped-heads",
                "value-size", "gradient", "other-shapes",
            }
        ),
        dtypes=("f32",),
    ),
    calls=splash_reference,
    through=in_default_precision,
    postponed=frozenset({"variations", "kernels"}),
)  # fmt: skip
