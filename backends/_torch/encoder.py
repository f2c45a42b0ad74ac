"""`torch.nn.TransformerEncoderLayer`, step by step and by its fast path, alone and in
`torch.nn.TransformerEncoder`. Also `torch.nn.TransformerDecoderLayer`, which equals an encoder layer if
one of its two attentions gives zeros."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attention_conformance.backends._torch.functional import module_state
from attention_conformance.backends._torch.masks import Masked, forced, load
from attention_conformance.backends._torch.norms import LAYER_NORM_ROUNDING
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.masks import causal_alone
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.textbook.layer import Numerics, Operations, Textbook
from attention_conformance.backends.textbook.multi_head import PackedHeads
from attention_conformance.backends.textbook.norms import layer_norm
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.encoder import ENCODER, FEATURES

Wrap = Callable[[Any, Inputs], Callable[..., Any]]
"""Wraps a layer in a callable with the same arguments."""


class Encoder(Masked):
    """The layer in eval() with parameters that require gradients: no fast path."""

    name = "nn-encoder"
    operator = ENCODER
    declared = Declared(
        features=FEATURES,
        refusals={
            "head-width": "torch.nn.MultiheadAttention splits embed_dim among the heads",
        },
        elections={"fully-masked-row": "zeros", "padded-sample": "zeros"},
        merges_mask_into_bias=True,
        rounding=LAYER_NORM_ROUNDING,
    )
    without_gradients = False

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.call(inputs)

    def call(
        self,
        inputs: Inputs,
        wrap: Wrap | None = None,
        *,
        batch_first: bool = True,
        train: bool = False,
        hint: bool = False,
        float_mask: bool = False,
    ) -> PreparedCall:
        """A call of the layer with flags; `wrap` wraps the layer."""
        import torch

        layer = self.build(inputs, batch_first).train(train)
        src = self.backend.array(
            inputs.arrays["query"][0 if inputs.squeezed else ...], inputs.dtype
        )
        turns = not batch_first and not inputs.squeezed
        arguments = {"query": src.transpose(0, 1).contiguous() if turns else src}
        arguments |= self.named(inputs, hint, float_mask)
        called = layer if wrap is None else wrap(layer, inputs)

        def run(query: Any, **masks: Any) -> tuple[Any, None]:
            with torch.set_grad_enabled(not self.without_gradients):
                output = called(query, **masks)
            return output.transpose(0, 1) if turns else output, None

        return PreparedCall(run, arguments, LAYER_OUTPUTS)

    def named(self, inputs: Inputs, hint: bool = False, float_mask: bool = False) -> dict[str, Any]:
        """The masks by the layer's argument names."""
        names = {"attn_mask": "src_mask", "key_padding_mask": "src_key_padding_mask"}
        masks = self.masks(inputs, hint, float_mask)
        return {names.get(name, name): mask for name, mask in masks.items()}

    def differentiable(self, inputs: Inputs) -> PreparedCall:
        import torch

        plain, layer = self.prepare(inputs), self.build(inputs).eval()
        own = {n: self.backend.array(a, inputs.dtype) for n, a in inputs.parameters.items()}

        def run(query: Any, **rest: Any) -> tuple[Any, None]:
            state = self.state({name: rest.pop(name) for name in own}, torch.cat)
            return torch.func.functional_call(layer, state, (query,), rest), None

        return PreparedCall(run, plain.arguments | own, LAYER_OUTPUTS)

    def build(self, inputs: Inputs, batch_first: bool = True, decoder: bool = False) -> Any:
        """A new layer with the inputs' parameters; with `decoder` a decoder layer, whose own parameters
        stay random."""
        import torch

        kind = torch.nn.TransformerDecoderLayer if decoder else torch.nn.TransformerEncoderLayer
        n = inputs.letters
        layer = kind(
            n["x"],
            n["h"],
            dim_feedforward=n["o"],
            dropout=0.0,
            activation=inputs.case.option("activation"),
            layer_norm_eps=inputs.epsilon,
            batch_first=batch_first,
            norm_first=bool(inputs.case.option("pre")),
            device=self.backend.device,
            dtype=getattr(torch, inputs.dtype.long_name),
        )
        if decoder:
            return layer
        state = self.state(inputs.parameters, np.concatenate)
        return load(layer, state, self.backend, inputs.dtype)

    def state(self, p: Mapping[str, Any], join: Callable[..., Any]) -> dict[str, Any]:
        """Canonical parameters (arrays of NumPy or torch) by the module's names; `join` concatenates."""
        state = {f"self_attn.{name}": array for name, array in module_state(p, join).items()}
        for name in ("norm1", "norm2"):
            state[f"{name}.weight"] = p[f"{name}_gain"]
            state[f"{name}.bias"] = p[f"{name}_offset"]
        for name in ("linear1", "linear2"):
            state[f"{name}.weight"] = p[f"{name}_kernel"].T
            state[f"{name}.bias"] = p[f"{name}_bias"]
        return state

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        masked = inputs.mask is not None or inputs.mask_array is not None
        calls = {
            "train()": self.call(inputs, train=True),
            "TransformerEncoder": self.call(inputs, self.stacked),
        }
        if not inputs.squeezed:
            calls["batch_first=False"] = self.call(inputs, batch_first=False)
        if masked:
            calls["float mask"] = self.call(inputs, float_mask=True)
        if causal_alone(inputs):
            calls["is_causal hint"] = self.call(inputs, hint=True)
        if inputs.case.option("pre"):
            calls["TransformerDecoderLayer"] = self.call(inputs, self.decoding)
            calls["TransformerDecoderLayer, memory"] = self.call(inputs, self.remembering)
        return calls

    def stacked(self, layer: Any, inputs: Inputs) -> Callable[..., Any]:
        """A `torch.nn.TransformerEncoder` of one layer.

        With nested tensors it answers zeros for padded tokens; the layer's own answers replace them.
        """
        import torch

        nested = not inputs.case.option("pre") and layer.self_attn.num_heads % 2 == 0
        encoder = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=nested).eval()

        def call(
            src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, **hint: Any
        ) -> Any:
            output = encoder(src, src_mask, src_key_padding_mask, **hint)
            if src_key_padding_mask is None:
                return output
            padded = src_key_padding_mask
            if padded.dtype != torch.bool:
                padded = padded != 0
            if not padded.any() or (output[padded] != 0).any():
                return output
            whole = layer.eval()(src, src_mask, src_key_padding_mask)
            return torch.where(padded[..., None], whole, output)

        return call

    def decoding(self, layer: Any, inputs: Inputs) -> Callable[..., Any]:
        """A `torch.nn.TransformerDecoderLayer` whose attention to the memory gives zeros."""
        decoder = self._decoder(inputs, "self_attn", "multihead_attn", ("norm1", "norm3"))

        def call(src: Any, src_mask: Any = None, src_key_padding_mask: Any = None) -> Any:
            return decoder(
                src, src[..., :2, :], src_mask, tgt_key_padding_mask=src_key_padding_mask
            )

        return call

    def remembering(self, layer: Any, inputs: Inputs) -> Callable[..., Any]:
        """A `torch.nn.TransformerDecoderLayer` whose self-attention gives zeros, and whose memory is the
        normalised tokens."""
        decoder = self._decoder(inputs, "multihead_attn", "self_attn", ("norm2", "norm3"))

        def call(src: Any, src_mask: Any = None, src_key_padding_mask: Any = None) -> Any:
            memory = layer.norm1(src)
            return decoder(
                src, memory, memory_mask=src_mask, memory_key_padding_mask=src_key_padding_mask
            )

        return call

    def _decoder(self, inputs: Inputs, attention: str, silent: str, norms: tuple[str, str]) -> Any:
        """A decoder layer with the parameters of an encoder layer.

        The attention called `attention` and the `norms` get the parameters; the attention called
        `silent` gives zeros.
        """
        layer = self.build(inputs, decoder=True).eval()
        renamed = {"self_attn": attention, "norm1": norms[0], "norm2": norms[1]}
        state: dict[str, np.ndarray] = {}
        for name, array in self.state(inputs.parameters, np.concatenate).items():
            first, rest = name.split(".", 1)
            state[f"{renamed.get(first, first)}.{rest}"] = array
        width = inputs.letters["x"]
        state[f"{silent}.out_proj.weight"] = np.zeros((width, width))
        state[f"{silent}.out_proj.bias"] = np.zeros(width)
        return load(layer, state, self.backend, inputs.dtype, whole=False)


class EncoderFast(Encoder):
    """The layer in eval() under no_grad: the fast path, `torch._transformer_encoder_layer_fwd`."""

    name = "nn-encoder-fast"
    declared = Encoder.declared.refusing(
        {
            "squeezed": "the fast path needs a batch axis",
            "odd-heads": "the fast path needs an even number of heads",
            "gradient": "the fast path has no gradients",
        }
    ).but(elections={"fully-masked-row": "nan", "padded-sample": "nan"})
    without_gradients = True

    def call(self, inputs: Inputs, wrap: Wrap | None = None, **flags: Any) -> PreparedCall:
        return forced(super().call(inputs, wrap, **flags), "_transformer_encoder_layer_fwd")

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        calls = {"TransformerEncoder": self.call(inputs, self.stacked)}
        if inputs.mask is not None or inputs.mask_array is not None:
            calls["float mask"] = self.call(inputs, float_mask=True)
        return calls


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
