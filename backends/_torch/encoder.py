"""`torch.nn.TransformerEncoderLayer`, step by step and by its fast path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._torch.modules import (
    called,
    differentiable,
    fast,
    masks,
    module_state,
    settings,
    with_state,
)
from attention_conformance.backends._torch.norms import LAYER_NORM_ROUNDING
from attention_conformance.backends.declared import Declared, Numerics
from attention_conformance.backends.layer import FrameworkLayer, Layer
from attention_conformance.backends.masks import causal_alone
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.textbook.layers import PackedHeads, Textbook, layer_norm
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.encoder import ENCODER, FEATURES


def encoder(impl: FrameworkLayer, inputs: Inputs, **flags: Any) -> Any:
    """Returns an encoder layer with the inputs' parameters."""
    import torch

    n, option = inputs.letters, inputs.case.option
    arguments: dict[str, Any] = {
        "dim_feedforward": n["o"], "dropout": 0.0, "activation": option("activation"),
        "layer_norm_eps": inputs.epsilon, "batch_first": True, "norm_first": bool(option("pre")),
        **settings(impl, inputs),
    }  # fmt: skip
    layer = torch.nn.TransformerEncoderLayer(n["x"], n["h"], **(arguments | flags))
    return with_state(impl, inputs, layer, state(inputs.parameters, np.concatenate))


def state(p: Mapping[str, Any], join: Callable[..., Any]) -> dict[str, Any]:
    """Returns canonical parameters (arrays of NumPy or torch) by the module's names. `join` concatenates
    arrays."""
    state = {f"self_attn.{name}": array for name, array in module_state(p, join).items()}
    for n in ("1", "2"):
        state[f"norm{n}.weight"], state[f"norm{n}.bias"] = p[f"norm{n}_gain"], p[f"norm{n}_offset"]
        state[f"linear{n}.weight"] = p[f"linear{n}_kernel"].T
        state[f"linear{n}.bias"] = p[f"linear{n}_bias"]
    return state


def named_masks(impl: FrameworkLayer, inputs: Inputs, **options: Any) -> dict[str, Any]:
    """Returns the mask arguments of `modules.masks` by this layer's names. `options` go to
    `modules.masks`."""
    names = {"attn_mask": "src_mask", "key_padding_mask": "src_key_padding_mask"}
    return {names.get(name, name): mask for name, mask in masks(impl, inputs, **options).items()}


def paths(impl: FrameworkLayer, inputs: Inputs) -> dict[str, PreparedCall]:
    """Returns calls in training mode, and with other forms of masks."""
    calls = float_mask_path(impl, inputs) | {"train()": impl.call(inputs, train=True)}
    if causal_alone(inputs):
        calls["is_causal hint"] = impl.call(inputs, {"hint": True})
    return calls


def float_mask_path(impl: FrameworkLayer, inputs: Inputs) -> dict[str, PreparedCall]:
    """Returns the call with a float mask, as a path; {} without a mask."""
    if inputs.mask is None and inputs.mask_array is None:
        return {}
    return {"float mask": impl.call(inputs, {"float_mask": True})}


NN_ENCODER = Layer(
    "nn-encoder",
    ENCODER,
    encoder,
    called,
    state,
    Declared(
        features=FEATURES,
        refusals={"head-width": "torch.nn.MultiheadAttention splits embed_dim among the heads"},
        elections={"fully-masked-row": "zeros", "padded-sample": "zeros"},
        merges_mask_into_bias=True,
        rounding=LAYER_NORM_ROUNDING,
    ),
    differentiable=differentiable,
    operands={"query": "src"},
    arguments=named_masks,
    paths=paths,
)
"""The layer in eval() with parameters that require gradients: no fast path."""

ENCODER_FAST = NN_ENCODER.but(
    name="nn-encoder-fast",
    called=partial(fast, "_transformer_encoder_layer_fwd"),
    declared=NN_ENCODER.declared.refusing(
        {
            "squeezed": "the fast path needs a batch axis",
            "odd-heads": "the fast path needs an even number of heads",
            "gradient": "the fast path has no gradients",
        }
    ).but(elections={"fully-masked-row": "nan", "padded-sample": "nan"}),
    paths=float_mask_path,
)
"""The layer in eval() under no_grad: the fast path, `torch._transformer_encoder_layer_fwd`."""


class TextbookEncoder(PackedHeads):
    """Textbook code: attention and a network, each with a residual, and norms after them, or before them
    with `pre`."""

    name = "textbook-encoder"
    operator = ENCODER
    declared = Textbook.declared.but(features=FEATURES).refusing(
        {"gelu": "textbook code has no error function"}
    )

    def declaration(self, numerics: Numerics) -> Declared:
        return super().declaration(numerics).but(numerics="stepwise")

    def layer(
        self, query: Any, key: Any, value: Any, arrays: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, None]:
        multi_head = super().layer

        def norm(x: Any, name: str) -> Any:
            parameters = {"gain": arrays[f"{name}_gain"], "offset": arrays[f"{name}_offset"]}
            return layer_norm(self, x, parameters, inputs)

        def self_attention(x: Any) -> Any:
            return multi_head(x, x, x, arrays, inputs)[0]

        def network(y: Any) -> Any:
            hidden = y @ arrays["linear1_kernel"] + arrays["linear1_bias"]
            active = self.ops.clip(hidden, 0.0, float("inf"))
            return active @ arrays["linear2_kernel"] + arrays["linear2_bias"]

        if inputs.case.option("pre"):
            y = query + self_attention(norm(query, "norm1"))
            return y + network(norm(y, "norm2")), None
        y = norm(query + self_attention(query), "norm1")
        return norm(y + network(y), "norm2"), None
