"""Scaled dot-product attention in PyTorch: textbook code, and `scaled_dot_product_attention`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._torch.operations import operations
from attention_conformance.backends.binder import Binder, Parameter, arguments
from attention_conformance.backends.declared import (
    ATTENTION_FEATURES,
    LOWEST_IN_FLOAT32,
    Declared,
    DeclaredRounding,
)
from attention_conformance.backends.masks import (
    IS_CAUSAL,
    SCALE,
    AttentionCall,
    Native,
    dense_of,
    fewer_axes,
    merged_bias,
    split_native,
)
from attention_conformance.backends.prepared import PreparedCall, kernel_missing
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.textbook.attention import TextbookAttention
from attention_conformance.backends.user.function import NativeSignature
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal
from attention_conformance.suite.spec.vocabulary import OPERANDS

NATIVE = "torch.nn.functional.scaled_dot_product_attention"

FAST_EXP = {"bf16": 1.08e-4, "f16": 1.08e-4}
"""Relative error of the exponential in the CPU's flash kernel for 16-bit dtypes (`fexp_u20`: Malossi et
al. 2015, degree 3). The error of its polynomial for 2^f, 0 <= f < 1, is at most 1.071e-4."""

GRADIENT_BLOCKS = {"bf16": (32, 512), "f16": (32, 512)}
"""Block sizes in queries and keys of the backward pass of the CPU's flash kernel. Gradients of blocks are
summed in the case's dtype (`cpu_flash_attention_backward`: products with beta = 1)."""

# Not declared for bfloat16: oneDNN's products flush subnormals only on CPUs with AVX512_BF16 or AMX.
SUBNORMAL = {"f64": "kept", "f32": "kept", "f16": "kept"}

# Finding nan-query-hidden: NaN is lost if keys fill no vector of the CPU; in float64 only on some CPUs.
NAN_QUERY = {"f32": "zeros", "bf16": "zeros", "f16": "zeros"}


class Eager(TextbookAttention):
    """Textbook attention: matmul, softmax, matmul; masked scores are -inf."""

    backend: TorchEngine

    spelled = staticmethod(operations)
    declared = TextbookAttention.declared.electing(
        {
            "fully-masked-row": "nan",
            "fully-masked-row-gradient": "nan",
            "minus-inf-row-gradient": "nan",
            "lse-of-empty-row": "minus-inf",
            "subnormal-output": SUBNORMAL,
        }
    )

    @property
    def framework(self) -> tuple[Any, ...]:
        return (self.backend.torch,)


TWIN = "the variant for rewrites by pattern"


class EagerPermuted(Eager):
    """`Eager` with keys as (Lk, H, B, D), which one call permutes to (B, H, D, Lk).

    Only compilers are asked: a rewrite of the pattern `key.transpose` must not match this permutation,
    also if all sizes are equal.
    """

    name = "eager-permuted"
    declared = Eager.declared.refusing(
        {
            "grouped-heads": f"{TWIN} has no grouped heads",
            "gradient": f"{TWIN} has no gradients",
            **{f.word: f"{TWIN} has no {f.word}" for f in FEATURES.values() if f.axes or f.outputs},
        }
    )

    def __init__(self, backend: TorchEngine) -> None:
        super().__init__(backend)
        self.ops = replace(self.ops, transpose=lambda key, axes: key.permute(2, 1, 3, 0))

    def prepare(self, inputs: Inputs) -> PreparedCall:
        plain = super().prepare(inputs)
        key = plain.arguments["key"].permute(2, 1, 0, 3).contiguous()
        return replace(plain, arguments=plain.arguments | {"key": key})


def flags(
    inputs: Inputs, causal: bool = True, window: bool = False, beside: bool = False
) -> Native:
    """The mask split into flags and the rest; `causal` and `window` say which flags exist.

    torch documents an error for the flag beside a mask or bias, and some of its kernels raise. The flag
    is used only alone, or if the case or `beside` asks for both.
    """
    alone = inputs.mask is not None and len(inputs.mask.parts) == 1 and inputs.bias is None
    flagged = causal and (alone or beside or inputs.form == "flag-and-mask")
    return split_native(inputs, causal=flagged, window=window)


def flags_of_function(inputs: Inputs, binder: Binder[AttentionCall]) -> Native:
    """The mask split for a user function, which is given the flag beside a mask or bias, too.

    The flag stands alone for a scale of 0 or below: torch's own kernel gives NaN behind the flag then
    (finding flash-causal-scale).
    """
    beside = inputs.scale is None or inputs.scale > 0
    serves = binder.serves
    return flags(inputs, serves("native-causal"), serves("native-window"), beside)


def without_flag(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments with the causal flag merged into `attn_mask`; None unless both are passed."""
    mask = arguments.get("attn_mask")
    if mask is None or not arguments.get("is_causal"):
        return None
    lengths = arguments["query"].shape[-2], arguments["key"].shape[-2]
    past = mask.new_ones(lengths).bool().tril()
    merged = mask & past if mask.dtype == past.dtype else mask.masked_fill(~past, float("-inf"))
    return {n: x for n, x in arguments.items() if n != "is_causal"} | {"attn_mask": merged}


def attn_mask(call: AttentionCall) -> Any:
    """The mask without the parts that are flags: boolean, or -inf in the bias if there is a bias."""
    inputs, rest = call.inputs, call.native.rest
    biased = inputs.bias is not None
    hidden = merged_bias(inputs, rest) if biased else dense_of(inputs, rest)
    return None if hidden is None else call.backend.array(hidden, inputs.dtype if biased else None)


def passed_as(inputs: Inputs) -> dict[str, str]:
    """The parameter that the mask or the bias is passed to."""
    return {"mask" if inputs.bias is None else "bias": "attn_mask"}


def grouped(call: AttentionCall) -> Any:
    """True if queries and keys have different numbers of heads, else None."""
    return call.inputs.query.shape[1] != call.inputs.key.shape[1] or None


def rate(call: AttentionCall) -> Any:
    """The rate of dropout in training, None if nothing is dropped."""
    return call.inputs.rate or None if call.inputs.training else None


SIGNATURE = NativeSignature(
    NATIVE,
    (
        IS_CAUSAL,
        Parameter(
            "attn_mask",
            ("mask", "bias", "padding", "bias-with-mask", "window", "causal"),
            attn_mask,
        ),
        SCALE,
        Parameter("enable_gqa", ("grouped-heads",), grouped),
        Parameter("dropout_p", ("dropout",), rate),
    ),
    neutral={"dropout_p": 0.0},
    divide=flags_of_function,
    without_flag=without_flag,
    passed_as=passed_as,
    axis_order="bhld",
    merges_mask_into_bias=True,
)


def native_arguments(backend: TorchEngine, inputs: Inputs) -> dict[str, Any]:
    """The arguments of `scaled_dot_product_attention`."""
    operands = dict(zip(OPERANDS, backend.memory.operands(inputs, "bhld"), strict=True))
    call = AttentionCall(backend, inputs, flags(inputs))
    return operands | arguments(SIGNATURE.parameters, call)


class Sdpa(Implementation):
    """`scaled_dot_product_attention` with torch's choice of the kernel."""

    backend: TorchEngine

    name = "sdpa"
    declared = Declared(
        numerics="fused",
        features=ATTENTION_FEATURES | {"no-heads"},
        refusals={
            "softcap": "scaled_dot_product_attention has no softcap",
            "native-window": "scaled_dot_product_attention has no window",
        },
        elections={
            "fully-masked-row": "zeros",
            "fully-masked-row-gradient": "nothing",
            "minus-inf-row-gradient": "nothing",
            "minus-inf-row": "zeros",
            "lowest-row": LOWEST_IN_FLOAT32,
            "no-keys": "zeros",
            "nan-in-masked-key-gradient": "leaks",
            "nan-in-masked-value-gradient": "leaks",
            "causal-alignment": "top-left",
            "causal-with-mask": "intersect",
            "nan-in-masked-key": "leaks",
            "nan-in-masked-value": "leaks",
            "nan-in-attended-value": "reaches-them",
            "nan-in-query": NAN_QUERY,
            "value-size": "accepted",
            "integer-mask": "raises",
            "subnormal-output": SUBNORMAL,
            "score-overflow": "finite",
        },
        rounding=DeclaredRounding(exp_error=FAST_EXP, gradient_blocks=GRADIENT_BLOCKS),
        dropout="elements",
        merges_mask_into_bias=True,
    )
    kernel: str | None = None

    def prepare(self, inputs: Inputs) -> PreparedCall:
        arguments = native_arguments(self.backend, inputs)
        function = self.backend.torch.nn.functional.scaled_dot_product_attention
        return PreparedCall(
            self.backend.seeded(function, inputs),
            arguments,
            operands=passed_as(inputs),
            within=self.forced,
            source=self.source,
            constants=(),
        )

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        plain = self.prepare(inputs)
        # A call with dropout_p keeps its rate.
        neutral = {n: x for n, x in SIGNATURE.neutral.items() if n not in plain.arguments}
        ways = SIGNATURE.ways(neutral, inputs.default_scale)
        if self.kernel is None:
            # One axis raises: the finding sdpa-mask-of-one-axis.
            ways["enable_gqa=True"] = {"enable_gqa": True}
            ways |= self.causal_biases(inputs) | fewer_axes(plain.arguments, "attn_mask", 2)
        return plain.written_out(ways)

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        from torch.nn.attention import bias

        if self.kernel is not None:
            return {}
        plain = self.prepare(inputs)
        function, key = partial(plain.function, **plain.arguments), plain.arguments["key"]
        causal = bias.causal_upper_left(inputs.sizes.Lq, inputs.sizes.Lk)
        return {
            "is_causal beside a causal bias": lambda: function(attn_mask=causal, is_causal=True),
            "causal_upper_left of one axis": lambda: bias.causal_upper_left(3),
            "causal_lower_right of one axis": lambda: bias.causal_lower_right(3),
            "key of another size": lambda: function(key=key[..., 1:]),
        }

    def causal_biases(self, inputs: Inputs) -> dict[str, dict[str, Any]]:
        """The causal mask as an object of torch.nn.attention.bias, if there is no other mask or bias."""
        from torch.nn.attention import bias

        mask = inputs.mask
        if not isinstance(mask, Causal) or inputs.bias is not None or inputs.form == "dense":
            return {}
        name = "causal_lower_right" if mask.bottom_right else "causal_upper_left"
        causal_bias = getattr(bias, name)(inputs.sizes.Lq, inputs.sizes.Lk)
        return {name: {"attn_mask": causal_bias, "is_causal": False}}

    @property
    def source(self) -> str:
        """The function as source text (see `PreparedCall`)."""
        if self.kernel is None:
            return f"function = {NATIVE}"
        kernel = f"sdpa_kernel(SDPBackend.{self.kernel})"
        return f"from torch.nn.attention import SDPBackend, sdpa_kernel\n\nfunction = {kernel}({NATIVE})"

    def forced(self) -> AbstractContextManager[Any]:
        """The context that forces the kernel; empty if torch chooses."""
        if self.kernel is None:
            return nullcontext()
        from torch.nn.attention import SDPBackend, sdpa_kernel

        forced = ExitStack()
        # torch warns why a kernel refuses, and then raises.
        forced.enter_context(warnings.catch_warnings(action="ignore"))
        forced.enter_context(sdpa_kernel(getattr(SDPBackend, self.kernel)))
        if self.backend.device == "cuda":
            # Kernels of GPUs have limits that differ between releases and cards; torch asks them itself.
            forced.enter_context(kernel_missing("No available kernel"))
        return forced
