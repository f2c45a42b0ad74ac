"""`torch.nn.TransformerEncoderLayer`, step by step and by its fast path, alone and in
`torch.nn.TransformerEncoder`. Also `torch.nn.TransformerDecoderLayer`, which equals an encoder layer if
one of its two attentions gives zeros."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._torch.modules import (
    called,
    differentiable,
    fast,
    lengths_first,
    loaded,
    masks,
    module_state,
    settings,
)
from attention_conformance.backends._torch.norms import LAYER_NORM_ROUNDING
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.layer import FrameworkLayer, Layer
from attention_conformance.backends.masks import causal_alone
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.textbook.layer import Numerics, Operations, Textbook
from attention_conformance.backends.textbook.multi_head import PackedHeads
from attention_conformance.backends.textbook.norms import layer_norm
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.encoder import ENCODER, FEATURES


def unloaded(own: FrameworkLayer, inputs: Inputs, decoder: bool = False, **flags: Any) -> Any:
    """A new encoder layer, or decoder layer, with random parameters."""
    import torch

    kind = torch.nn.TransformerDecoderLayer if decoder else torch.nn.TransformerEncoderLayer
    n, option = inputs.letters, inputs.case.option
    own_settings: dict[str, Any] = {
        "dim_feedforward": n["o"], "dropout": 0.0, "activation": option("activation"),
        "layer_norm_eps": inputs.epsilon, "batch_first": True, "norm_first": bool(option("pre")),
        **settings(own, inputs),
    }  # fmt: skip
    return kind(n["x"], n["h"], **(own_settings | flags))


def encoder(own: FrameworkLayer, inputs: Inputs, **flags: Any) -> Any:
    """An encoder layer with the inputs' parameters."""
    layer = unloaded(own, inputs, **flags)
    return loaded(own, inputs, layer, state(inputs.parameters, np.concatenate))


def state(p: Mapping[str, Any], join: Callable[..., Any]) -> dict[str, Any]:
    """Canonical parameters (arrays of NumPy or torch) by the module's names; `join` concatenates."""
    state = {f"self_attn.{name}": array for name, array in module_state(p, join).items()}
    for n in ("1", "2"):
        state[f"norm{n}.weight"], state[f"norm{n}.bias"] = p[f"norm{n}_gain"], p[f"norm{n}_offset"]
        state[f"linear{n}.weight"] = p[f"linear{n}_kernel"].T
        state[f"linear{n}.bias"] = p[f"linear{n}_bias"]
    return state


def named(own: FrameworkLayer, inputs: Inputs, **given: Any) -> dict[str, Any]:
    """The masks by the layer's argument names."""
    names = {"attn_mask": "src_mask", "key_padding_mask": "src_key_padding_mask"}
    return {names.get(name, name): mask for name, mask in masks(own, inputs, **given).items()}


def paths(own: FrameworkLayer, inputs: Inputs) -> dict[str, PreparedCall]:
    """Calls in training mode, with other forms of masks, and of other classes."""
    calls = fast_paths(own, inputs) | {"train()": own.call(inputs, train=True)}
    if not inputs.squeezed:
        calls["batch_first=False"] = lengths_first(own, inputs)
    if causal_alone(inputs):
        calls["is_causal hint"] = own.call(inputs, {"hint": True})
    if inputs.case.option("pre"):
        calls["TransformerDecoderLayer"] = own.call(inputs, wrap=decoding)
        calls["TransformerDecoderLayer, memory"] = own.call(inputs, wrap=remembering)
    return calls


def fast_paths(own: FrameworkLayer, inputs: Inputs) -> dict[str, PreparedCall]:
    """Calls with a float mask, and of a `torch.nn.TransformerEncoder`."""
    calls = {"TransformerEncoder": own.call(inputs, wrap=stacked)}
    if inputs.mask is not None or inputs.mask_array is not None:
        calls["float mask"] = own.call(inputs, {"float_mask": True})
    return calls


def stacked(own: FrameworkLayer, inputs: Inputs, layer: Any) -> Callable[..., Any]:
    """A `torch.nn.TransformerEncoder` of one layer.

    With nested tensors it answers zeros for padded tokens; the layer's own answers replace them.
    """
    import torch

    nested = not inputs.case.option("pre") and layer.self_attn.num_heads % 2 == 0
    encoder = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=nested).eval()

    def call(src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, **hint: Any) -> Any:
        output, padded = encoder(src, src_mask, src_key_padding_mask, **hint), src_key_padding_mask
        if padded is None:
            return output
        hidden = padded if padded.dtype == torch.bool else padded != 0
        if not hidden.any() or (output[hidden] != 0).any():
            return output
        return torch.where(hidden[..., None], layer.eval()(src, src_mask, padded), output)

    return call


def decoding(own: FrameworkLayer, inputs: Inputs, layer: Any) -> Callable[..., Any]:
    """A `torch.nn.TransformerDecoderLayer` whose attention to the memory gives zeros."""
    decoder = _decoder(own, inputs, "self_attn", "multihead_attn", ("norm1", "norm3"))

    def call(src: Any, src_mask: Any = None, src_key_padding_mask: Any = None) -> Any:
        memory = src[..., :2, :]
        return decoder(src, memory, src_mask, tgt_key_padding_mask=src_key_padding_mask)

    return call


def remembering(own: FrameworkLayer, inputs: Inputs, layer: Any) -> Callable[..., Any]:
    """A `torch.nn.TransformerDecoderLayer` whose self-attention gives zeros, and whose memory is the
    normalised tokens."""
    decoder = _decoder(own, inputs, "multihead_attn", "self_attn", ("norm2", "norm3"))

    def call(src: Any, src_mask: Any = None, src_key_padding_mask: Any = None) -> Any:
        masks = {"memory_mask": src_mask, "memory_key_padding_mask": src_key_padding_mask}
        return decoder(src, layer.norm1(src), **masks)

    return call


def _decoder(
    own: FrameworkLayer, inputs: Inputs, attention: str, silent: str, norms: tuple[str, str]
) -> Any:
    """A decoder layer with the parameters of an encoder layer.

    The attention called `attention` and the `norms` get the parameters; the attention called `silent`
    gives zeros.
    """
    layer = unloaded(own, inputs, decoder=True).eval()
    renamed = {"self_attn": attention, "norm1": norms[0], "norm2": norms[1]}
    given: dict[str, np.ndarray] = {}
    for name, array in state(inputs.parameters, np.concatenate).items():
        first, rest = name.split(".", 1)
        given[f"{renamed.get(first, first)}.{rest}"] = array
    width = inputs.letters["x"]
    given[f"{silent}.out_proj.weight"] = np.zeros((width, width))
    given[f"{silent}.out_proj.bias"] = np.zeros(width)
    return loaded(own, inputs, layer, given, whole=False)


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
    arguments=named,
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
    paths=fast_paths,
)
"""The layer in eval() under no_grad: the fast path, `torch._transformer_encoder_layer_fwd`."""


class TextbookEncoder(PackedHeads):
    """Textbook code: attention and a network with residuals, and norms after or before (`pre`)."""

    name = "textbook-encoder"
    operator = ENCODER
    declared = Textbook.declared.but(features=FEATURES).refusing(
        {"gelu": "textbook code has no error function"}
    )

    def declaration(self, ops: Operations, numerics: Numerics) -> Declared:
        return super().declaration(ops, numerics).but(numerics="stepwise")

    def compute(
        self, query: Any, key: Any, value: Any, rest: Mapping[str, Any], inputs: Inputs
    ) -> tuple[Any, None]:
        attend = super().compute

        def norm(x: Any, name: str) -> Any:
            own = {"gain": rest[f"{name}_gain"], "offset": rest[f"{name}_offset"]}
            return layer_norm(self, x, own, inputs)

        def attended(x: Any) -> Any:
            return attend(x, x, x, rest, inputs)[0]

        def network(y: Any) -> Any:
            hidden = y @ rest["linear1_kernel"] + rest["linear1_bias"]
            active = self.ops.clip(hidden, 0.0, float("inf"))
            return active @ rest["linear2_kernel"] + rest["linear2_bias"]

        if inputs.case.option("pre"):
            y = query + attended(norm(query, "norm1"))
            return y + network(norm(y, "norm2")), None
        y = norm(query + attended(query), "norm1")
        return norm(y + network(y), "norm2"), None
