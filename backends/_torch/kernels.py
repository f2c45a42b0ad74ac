"""`scaled_dot_product_attention`, with torch's choice of the kernel and with each kernel forced."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from attention_conformance.backends._torch.attention import SUBNORMAL
from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.declared import (
    ADDED,
    AS_CLASS,
    ATTENTION_FEATURES,
    INTERSECTED,
    LEAKING_GRADIENTS,
    LOWEST_IN_FLOAT32,
    ZEROS,
    Declared,
    DeclaredRounding,
)
from attention_conformance.backends.kernel import (
    FrameworkFunction,
    Kernel,
    calls_with_explicit_arguments,
    function_of_row,
)
from attention_conformance.backends.masks import IS_CAUSAL, SCALE, AttentionCall
from attention_conformance.backends.prepared import PreparedCall, kernel_missing
from attention_conformance.backends.protocol import Backend
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs

NATIVE = "torch.nn.functional.scaled_dot_product_attention"

FAST_EXP = {"bf16": 1.08e-4, "f16": 1.08e-4}
"""Relative error of the exponential in the CPU's flash kernel for 16-bit dtypes (`fexp_u20`: Malossi et
al. 2015, degree 3). The error of its polynomial for 2^f, 0 <= f < 1, is at most 1.071e-4."""

GRADIENT_BLOCKS = {"bf16": (32, 512), "f16": (32, 512)}
"""Block sizes in queries and keys of the backward pass of the CPU's flash kernel. Gradients of blocks are
summed in the case's dtype (`cpu_flash_attention_backward`: products with beta = 1)."""

# Finding nan-query-hidden: NaN is lost if keys fill no vector of the CPU; in float64 only on some CPUs.
NAN_QUERY = {"f32": "zeros", "bf16": "zeros", "f16": "zeros"}


def without_flag(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the arguments with the causal flag merged into `attn_mask`; None unless both are passed."""
    mask = arguments.get("attn_mask")
    if mask is None or not arguments.get("is_causal"):
        return None
    lengths = arguments["query"].shape[-2], arguments["key"].shape[-2]
    past = mask.new_ones(lengths).bool().tril()
    merged = mask & past if mask.dtype == past.dtype else mask.masked_fill(~past, float("-inf"))
    return {n: x for n, x in arguments.items() if n != "is_causal"} | {"attn_mask": merged}


def enable_gqa_argument(call: AttentionCall) -> Any:
    """Returns the argument `enable_gqa`: True if queries and keys have different numbers of heads, else
    None."""
    return call.inputs.query.shape[1] != call.inputs.key.shape[1] or None


def calls_with_neutral_arguments(
    impl: FrameworkFunction, inputs: Inputs, plain: PreparedCall
) -> dict[str, PreparedCall]:
    """Returns calls with one neutral value as an explicit argument, by description."""
    return calls_with_explicit_arguments(impl, inputs, plain) | plain.with_additional_arguments(
        {"enable_gqa=True": {"enable_gqa": True}}
    )


SDPA = Kernel(
    "sdpa",
    NATIVE,
    (
        IS_CAUSAL,
        Parameter(
            "attn_mask",
            ("mask", "bias", "padding", "bias-with-mask", "window", "causal"),
            AttentionCall.mask_or_bias,
        ),
        SCALE,
        Parameter("enable_gqa", ("grouped-heads",), enable_gqa_argument),
        Parameter("dropout_p", ("dropout",), AttentionCall.rate),
    ),
    Declared(
        numerics="fused",
        features=ATTENTION_FEATURES | {"no-heads"},
        refusals={
            "softcap": "scaled_dot_product_attention has no softcap",
            "native-window": "scaled_dot_product_attention has no window",
        },
        elections=ADDED
        | LEAKING_GRADIENTS
        | INTERSECTED
        | ZEROS
        | {
            "fully-masked-row-gradient": "nothing",
            "minus-inf-row-gradient": "nothing",
            "lowest-row": LOWEST_IN_FLOAT32,
            "no-keys": "zeros",
            "nan-in-query": NAN_QUERY,
            "integer-mask": "raises",
            "subnormal-output": SUBNORMAL,
            "score-overflow": "finite",
        },
        rounding=DeclaredRounding(exp_error=FAST_EXP, gradient_blocks=GRADIENT_BLOCKS),
        dropout="elements",
        merges_mask_into_bias=True,
    ),
    source=f"function = {NATIVE}",
    passed_as={"mask": "attn_mask", "bias": "attn_mask"},
    axis_order="bhld",
    # torch documents an error for the flag beside a mask or bias, and some of its kernels raise.
    flag_alone=True,
    without_flag=without_flag,
    neutral={"dropout_p": 0.0},
    paths=calls_with_neutral_arguments,
)
"""torch chooses the kernel."""


@contextmanager
def force_kernel(kernel: str, backend: Backend) -> Iterator[None]:
    """A context in which torch uses one kernel, a member of `SDPBackend` by its name, or raises."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    # torch warns why a kernel refuses, and then raises.
    with warnings.catch_warnings(action="ignore"), sdpa_kernel(getattr(SDPBackend, kernel)):
        if backend.device != "cuda":
            yield
            return
        # Kernels of GPUs have limits that differ between releases and cards; torch asks them itself.
        with kernel_missing("No available kernel"):
            yield


def sdpa_by_kernel(
    name: str, kernel: str, declared: Declared = SDPA.declared, **changes: Any
) -> Kernel:
    """Returns the row `SDPA` restricted to one kernel, and with `changes` of fields. `kernel` is a member
    of `SDPBackend`. A call raises if this kernel does not support its arguments."""
    function = f"sdpa_kernel(SDPBackend.{kernel})({NATIVE})"
    return SDPA.but(
        name=name,
        declared=declared,
        source=f"from torch.nn.attention import SDPBackend, sdpa_kernel\n\nfunction = {function}",
        within=partial(force_kernel, kernel),
        paths=calls_with_explicit_arguments,
        **changes,
    )


def flash_with_lse(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    enable_gqa: bool = False,
    **further: Any,
) -> Any:
    """Returns output and log-sum-exp of the CPU's flash operator, for arguments of `NATIVE`."""
    import torch

    if attn_mask is not None and attn_mask.dtype == torch.bool:
        # The operator takes only an additive mask; sdpa converts a boolean one.
        added = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = added.masked_fill(~attn_mask, -float("inf"))
    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return operator(query, key, value, attn_mask=attn_mask, **further)


def flash_function(impl: FrameworkFunction, inputs: Inputs) -> Callable[..., Any]:
    """Returns the row's function, or `flash_with_lse` if the case asks for the log-sum-exp."""
    return flash_with_lse if inputs.feature("lse") else function_of_row(impl, inputs)


def refusal_without_rows(case: Case) -> str | None:
    """Returns the reason to refuse a case without queries or keys (finding flash-operator-without-rows),
    or None."""
    if case.option("lse") and 0 in (case.sizes.Lq, case.sizes.Lk):
        return "without rows torch's flash operator divides by zero and ends the process"
    return None


MATH = sdpa_by_kernel(
    "sdpa-math",
    "MATH",
    SDPA.declared.but(numerics="exact", rounding=AS_CLASS).electing(
        {"causal-with-mask": "raises", "nan-in-query": "nan", "subnormal-output": "kept"}
    ),
)
"""Separate operations, in float32 for 16-bit dtypes."""

FLASH = sdpa_by_kernel(
    "sdpa-flash",
    "FLASH_ATTENTION",
    SDPA.declared.electing({"value-size": "raises"}).refusing(
        {
            "value-size": "the flash kernel requires values of the keys' size",
            "inner-stride": "the fused kernels require the last axis to have stride 1",
            "gradient-of-bias": "the flash kernel has no gradient of a mask or bias",
        }
    ),
    calls=flash_function,
    refusal=refusal_without_rows,
)

FLASH_ON_CPU = FLASH.but(
    declared=FLASH.declared.taking("lse")
    .electing({"lse-of-empty-row": "zero", "lse-gradient": "raises"})
    .but(dropout="")
    .refusing({"dropout": "the flash kernel of the CPU has no dropout"})
)

ON_CPU = (SDPA, *(row.but(postponed=frozenset({"variations"})) for row in (MATH, FLASH_ON_CPU)))
"""The rows on a CPU. SDPA uses the other two kernels, so their variations are tested at later levels."""

ON_CUDA = (
    SDPA,
    MATH,
    FLASH,
    sdpa_by_kernel("sdpa-efficient", "EFFICIENT_ATTENTION"),
    sdpa_by_kernel("sdpa-cudnn", "CUDNN_ATTENTION"),
)
