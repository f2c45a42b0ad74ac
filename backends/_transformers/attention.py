"""Attention functions of transformers, which models call through `ALL_ATTENTION_FUNCTIONS`.

A function takes projected queries, keys and values, and the module of its layer. Masks are those of
`transformers.masking_utils`: boolean for sdpa; for the eager functions 0 and the lowest number of the
dtype, which are added to scores. A bias is added to the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from attention_conformance.backends._torch.attention import SUBNORMAL, Sdpa
from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._transformers.models import modeling
from attention_conformance.backends.declared import ATTENTION_FEATURES, LOWEST_IN_FLOAT32, Declared
from attention_conformance.backends.masks import Native, causal_alone, dense_of, rank4, split_native
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal

NO_FLAG = {
    "native-causal": "the function has no causal flag",
    "native-window": "the function has no window",
}
UNIFORM = {"f64": "nan", "f32": "uniform", "bf16": "uniform", "f16": "uniform"}
EMPTY = "the function's reshape of the output raises without elements"
NO_SOFTCAP = {"softcap": "this model has no softcap"}
NO_SINKS = {"sinks": "this model has no sinks"}


class ModelAttention(Implementation):
    """The `eager_attention_forward` of one model."""

    backend: TorchEngine

    declared = Declared(
        # The softmax is float32 in every dtype, also in float64.
        numerics={"f64": "single", "f32": "eager", "bf16": "eager", "f16": "eager"},
        features=ATTENTION_FEATURES | {"sinks"},
        refusals=NO_FLAG,
        elections={
            # In the float32 softmax the lowest number of float64 is -inf.
            "fully-masked-row": UNIFORM,
            "fully-masked-row-gradient": dict.fromkeys(UNIFORM, "scores") | {"f64": "nan"},
            "minus-inf-row-gradient": "nan",
            "minus-inf-row": "nan",
            "lowest-row": UNIFORM,
            "no-keys": "zeros",
            "nan-in-masked-key-gradient": "leaks",
            "nan-in-masked-value-gradient": "leaks",
            "nan-in-masked-key": "leaks",
            "nan-in-masked-value": "leaks",
            "nan-in-attended-value": "reaches-them",
            "nan-in-query": "nan",
            "value-size": "accepted",
            "integer-mask": "added",
            "subnormal-output": SUBNORMAL,
            "score-overflow": "nan",
        },
    )
    model = ""
    """The model's name in transformers, as "llama"."""

    @property
    def function(self) -> Callable[..., Any]:
        """The attention function."""
        return modeling(self.model).eager_attention_forward

    def module(self, inputs: Inputs) -> Any:
        """The attributes of a layer that the function reads."""
        layer = self.backend.torch.nn.Module()
        layer.num_key_value_groups = inputs.sizes.group
        return layer.eval()

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend = self.backend
        query, key, value = backend.memory.operands(inputs, "bhld")
        arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
        arguments |= self.masks(inputs, split_native(inputs, causal=self.flagged(inputs)))
        sinks = self.sinks(inputs)
        if sinks is not None:
            arguments["sinks"] = backend.array(sinks, inputs.dtype)
        settings = self.settings(inputs)
        layer, function = self.module(inputs), self.function

        def call(query: Any, key: Any, value: Any, sinks: Any = None, **rest: Any) -> Any:
            layer.sinks = sinks
            out, _ = function(layer, query, key, value, **rest, **settings)
            return out.transpose(1, 2)  # from (B, Lq, H, Dv)

        constants = tuple(settings.items())
        operands = {"query": "query", "key": "key", "value": "value", "sinks": "sinks"}
        if inputs.bias is not None:
            operands["bias"] = self.bias_name
        elif "attention_mask" in arguments:
            operands["mask"] = "attention_mask"
        return PreparedCall(call, arguments, operands=operands, constants=constants)

    bias_name = "attention_mask"
    """The parameter that a bias is passed to."""

    def sinks(self, inputs: Inputs) -> np.ndarray | None:
        """The layer's sinks (H,)."""
        return inputs.feature("sinks")

    def flagged(self, inputs: Inputs) -> bool:
        """Whether a causal mask is passed as a flag."""
        return False

    def settings(self, inputs: Inputs) -> dict[str, Any]:
        """Arguments other than arrays."""
        return {"scaling": inputs.effective_scale}

    def masks(self, inputs: Inputs, native: Native) -> dict[str, Any]:
        """Mask and bias as one additive argument."""
        torch, backend = self.backend.torch, self.backend
        mask = dense_of(inputs, native.rest)
        added = None
        if inputs.bias is not None:
            added = backend.array(rank4(inputs.bias), inputs.dtype)
        if mask is not None and mask.dtype.kind != "b":
            added = backend.array(rank4(mask), None)  # a mask of another dtype, passed unchanged
        elif mask is not None:
            dtype = getattr(torch, inputs.dtype.long_name)
            lowest = torch.tensor(torch.finfo(dtype).min, dtype=dtype, device=backend.device)
            shown = torch.zeros((), dtype=dtype, device=backend.device) if added is None else added
            added = torch.where(
                backend.array(np.ascontiguousarray(rank4(mask)), None), shown, lowest
            )
        return {"attention_mask": added}


class LlamaEager(ModelAttention):
    """Llama's function, which most models copy."""

    name = "llama-eager"
    declared = ModelAttention.declared.refusing({**NO_SOFTCAP, **NO_SINKS})
    model = "llama"


class Gemma2Eager(ModelAttention):
    """Gemma 2's function, with a softcap."""

    name = "gemma2-eager"
    declared = ModelAttention.declared.refusing(NO_SINKS)
    model = "gemma2"

    def settings(self, inputs: Inputs) -> dict[str, Any]:
        return super().settings(inputs) | {"softcap": inputs.feature("softcap")}


class GptOssEager(ModelAttention):
    """gpt-oss' function, with sinks and a softmax in the dtype of the scores."""

    name = "gpt-oss-eager"
    declared = (
        ModelAttention.declared.refusing(NO_SOFTCAP)
        .but(numerics="stepwise")
        .electing(
            {
                "fully-masked-row": "uniform",
                "lowest-row": "uniform",
                "fully-masked-row-gradient": "scores",
            }
        )
    )
    model = "gpt_oss"

    def sinks(self, inputs: Inputs) -> np.ndarray | None:
        # Every layer of this model has sinks; a sink of -inf changes nothing.
        sinks = inputs.feature("sinks")
        return np.full(inputs.sizes.H, -np.inf) if sinks is None else sinks


class SdpaForward(ModelAttention):
    """`sdpa_attention_forward`, which models call with attn_implementation="sdpa"."""

    name = "sdpa-forward"
    declared = (
        Sdpa.declared.refusing(
            {
                "bias-with-mask": "beside a position bias the mask becomes the lowest number: fully "
                "masked rows have another answer than under the mask alone",
                "empty-batch": EMPTY,
                "empty-queries": EMPTY,
            }
        )
        .electing({"causal-with-mask": "causal-ignored", "lowest-row": LOWEST_IN_FLOAT32})
        .but(merges_mask_into_bias=False)
    )
    bias_name = "position_bias"

    def unsupported(self, case: AnyCase) -> str | None:
        if (
            isinstance(case, Case)
            and isinstance(case.mask, Causal)
            and not case.mask.bottom_right
            and case.form == "native"
            and case.sizes.Lq == 1 < case.sizes.Lk
        ):
            return (
                "the function takes a single causal query for decoding, and lets it see every key"
            )
        return super().unsupported(case)

    @property
    def function(self) -> Callable[..., Any]:
        return import_module("transformers.integrations.sdpa_attention").sdpa_attention_forward

    def flagged(self, inputs: Inputs) -> bool:
        return causal_alone(inputs)

    def settings(self, inputs: Inputs) -> dict[str, Any]:
        return {
            "scaling": inputs.scale,
            "is_causal": self.flagged(inputs) and inputs.form == "native",
        }

    def prepare(self, inputs: Inputs) -> PreparedCall:
        prepared = super().prepare(inputs)
        rate = inputs.rate if inputs.training else 0.0
        return replace(
            prepared,
            function=self.backend.seeded(prepared.function, inputs),
            arguments=prepared.arguments | {"dropout": rate},
            dropping=lambda rate: {"dropout": rate},
        )

    def masks(self, inputs: Inputs, native: Native) -> dict[str, Any]:
        backend, mask = self.backend, dense_of(inputs, native.rest)
        arguments: dict[str, Any] = {"attention_mask": None}
        if mask is not None:
            arguments["attention_mask"] = backend.array(rank4(mask), None)
        if inputs.bias is not None:
            arguments["position_bias"] = backend.array(rank4(inputs.bias), inputs.dtype)
        return arguments
