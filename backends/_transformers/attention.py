"""Attention functions of transformers, which models call through `ALL_ATTENTION_FUNCTIONS`.

A function takes projected queries, keys and values, and the module of its layer. Masks have the form
of `transformers.masking_utils`: boolean for sdpa; for the eager functions 0 and the lowest number of the
dtype, which are added to scores. A bias is added to the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import resolve_name
from typing import Any, cast

import numpy as np

from attention_conformance.backends._torch.attention import SUBNORMAL
from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._torch.kernels import SDPA
from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.declared import (
    ADDED,
    ATTENTION_FEATURES,
    LEAKING_GRADIENTS,
    LOWEST_IN_FLOAT32,
    SINGLE_EAGER,
    Declared,
)
from attention_conformance.backends.kernel import FrameworkFunction, Kernel, function_of_row
from attention_conformance.backends.masks import (
    AttentionCall,
    Native,
    causal_alone,
    rank4,
    split_native,
)
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal


def modeling(model: str) -> Any:
    """Returns the module with the code of a model, named as in transformers ("llama")."""
    return import_module(f"transformers.models.{model}.modeling_{model}")


UNIFORM = {"f64": "nan", "f32": "uniform", "bf16": "uniform", "f16": "uniform"}
EMPTY = "the function's reshape of the output raises without elements"
NO_SOFTCAP = {"softcap": "this model has no softcap"}
NO_SINKS = {"sinks": "this model has no sinks"}

EAGER = Declared(
    numerics=SINGLE_EAGER,
    features=ATTENTION_FEATURES | {"sinks"},
    refusals={
        "native-causal": "the function has no causal flag",
        "native-window": "the function has no window",
    },
    elections=ADDED
    | LEAKING_GRADIENTS
    | {
        # In the float32 softmax the lowest number of float64 is -inf.
        "fully-masked-row": UNIFORM,
        "fully-masked-row-gradient": dict.fromkeys(UNIFORM, "scores") | {"f64": "nan"},
        "minus-inf-row-gradient": "nan",
        "minus-inf-row": "nan",
        "lowest-row": UNIFORM,
        "no-keys": "zeros",
        "integer-mask": "added",
        "subnormal-output": SUBNORMAL,
        "score-overflow": "nan",
    },
)
"""The declaration of the `eager_attention_forward` of models."""


def additive_mask(call: AttentionCall) -> Any:
    """Returns mask and bias as one array that is added to scores; None without both."""
    inputs, backend = call.inputs, cast(TorchEngine, call.backend)
    torch = backend.torch
    mask, bias = call.native.dense(inputs), call.bias()
    if mask is None:
        return bias
    if mask.dtype.kind != "b":
        return backend.array(rank4(mask), None)  # a mask of another dtype, passed unchanged
    dtype = getattr(torch, inputs.dtype.long_name)
    lowest, zero = (
        torch.tensor(number, dtype=dtype, device=backend.device)
        for number in (torch.finfo(dtype).min, 0.0)
    )
    visible = backend.array(np.ascontiguousarray(rank4(mask)), None)
    return torch.where(visible, zero if bias is None else bias, lowest)


def function_of_layer(impl: FrameworkFunction, inputs: Inputs) -> Callable[..., Any]:
    """Returns a callable that passes the function a module with the attributes that it reads of a
    layer."""
    function = function_of_row(impl, inputs)
    layer: Any = impl.backend.torch.nn.Module()
    layer.num_key_value_groups = inputs.sizes.group
    layer.eval()

    def call(
        query: Any, key: Any, value: Any, attention_mask: Any = None, sinks: Any = None, **flags: Any,
    ) -> Any:  # fmt: skip
        layer.sinks = sinks
        out, _ = function(layer, query, key, value, attention_mask, **flags)
        return out.transpose(1, 2)  # from (B, Lq, H, Dv)

    return call


def sinks(call: AttentionCall) -> Any:
    """Returns the sinks (H,). Every layer of gpt-oss has sinks; a sink of -inf changes nothing."""
    if call.inputs.feature("sinks") is not None:
        return call.sinks()
    return call.backend.array(np.full(call.inputs.sizes.H, -np.inf), call.inputs.dtype)


LLAMA = Kernel(
    "llama-eager",
    "transformers.models.llama.modeling_llama.eager_attention_forward",
    (
        Parameter("attention_mask", value=additive_mask),
        Parameter("scaling", value=lambda call: call.inputs.effective_scale),
    ),
    EAGER.refusing({**NO_SOFTCAP, **NO_SINKS}),
    calls=function_of_layer,
    passed_as={"mask": "attention_mask", "bias": "attention_mask"},
    axis_order="bhld",
)
"""Most models copy this function."""

GEMMA2 = LLAMA.but(
    name="gemma2-eager",
    function="transformers.models.gemma2.modeling_gemma2.eager_attention_forward",
    parameters=(
        *LLAMA.parameters,
        Parameter("softcap", value=lambda call: call.inputs.feature("softcap")),
    ),
    declared=EAGER.refusing(NO_SINKS),
)

GPT_OSS = LLAMA.but(
    name="gpt-oss-eager",
    function="transformers.models.gpt_oss.modeling_gpt_oss.eager_attention_forward",
    parameters=(*LLAMA.parameters, Parameter("sinks", value=sinks)),
    declared=EAGER.refusing(NO_SOFTCAP)
    .but(numerics="stepwise")
    .electing(
        {
            "fully-masked-row": "uniform",
            "lowest-row": "uniform",
            "fully-masked-row-gradient": "scores",
        }
    ),
)
"""With sinks and a softmax in the dtype of the scores."""


def single_causal_query(case: Case) -> str | None:
    """Returns the reason to refuse a case of a single causal query before several keys, or None."""
    top_left = (
        isinstance(case.mask, Causal) and not case.mask.bottom_right and case.form == "native"
    )
    if top_left and case.sizes.Lq == 1 < case.sizes.Lk:
        return "the function takes a single causal query for decoding, and lets it see every key"
    return None


def causal_only(inputs: Inputs) -> Native:
    """Returns the causal flag if the mask is only causal; otherwise the whole mask is an array."""
    return split_native(inputs, causal=causal_alone(inputs))


SDPA_FORWARD = Kernel(
    "sdpa-forward",
    "transformers.integrations.sdpa_attention.sdpa_attention_forward",
    (
        Parameter("attention_mask", value=AttentionCall.mask),
        Parameter("position_bias", value=AttentionCall.bias),
        Parameter("scaling", value=lambda call: call.inputs.scale),
        Parameter(
            "is_causal",
            value=lambda call: causal_alone(call.inputs) and call.inputs.form == "native",
        ),
        Parameter("dropout", ("dropout",), lambda call: call.rate() or 0.0),
    ),
    SDPA.declared.refusing(
        {
            "bias-with-mask": "beside a position bias the mask becomes the lowest number: fully "
            "masked rows have another answer than under the mask alone",
            "empty-batch": EMPTY,
            "empty-queries": EMPTY,
        }
    )
    .electing({"causal-with-mask": "causal-ignored", "lowest-row": LOWEST_IN_FLOAT32})
    .but(merges_mask_into_bias=False),
    calls=function_of_layer,
    passed_as={"mask": "attention_mask", "bias": "position_bias"},
    axis_order="bhld",
    divide=causal_only,
    refusal=single_causal_query,
)
"""Models call this function with attn_implementation="sdpa"."""


def function_named(name: str) -> Any:
    """Returns the attention function that a configuration names "sdpa", or "eager" (Llama's)."""
    row = {"sdpa": SDPA_FORWARD, "eager": LLAMA}[name]
    return resolve_name(str(row.function))
