"""The attention layer of DeepSeek-V3 in transformers, made from a configuration.

The layer projects hidden states to queries, latents and rotary keys, rotates, and normalises latents.
Here all these steps are exact: the hidden states are these arrays side by side, the projections select
them, the rotation is by angles of 0, and norm and output projection are identities. So only the layer's
computation from latents to an output is tested. The first Lk - Lq tokens lie in a `DynamicCache`, which
stores latents.
"""

from __future__ import annotations

from typing import Any

from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._transformers.attention import (
    EAGER,
    EMPTY,
    additive_mask,
    modeling,
)
from attention_conformance.backends.declared import Declared, DeclaredRounding
from attention_conformance.backends.masks import AttentionCall, split_native
from attention_conformance.backends.memory import all_arrays
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.latent import FEATURES, LATENT


class DeepseekV3(Implementation):
    """`DeepseekV3Attention`, eager: keys and values are formed, and the softmax is float32."""

    backend: TorchEngine
    operator = LATENT
    name = "deepseek-v3-eager"
    declared = Declared(
        numerics=EAGER.numerics,
        features=FEATURES,
        refusals={
            "lse": "the layer returns no log-sum-exp",
            "empty-batch": EMPTY,
            "empty-queries": EMPTY,
        },
        rounding=DeclaredRounding(absorbs=dict.fromkeys(DTYPES, False)),
    )

    def refusal(self, case: Case) -> str | None:
        more_queries = case.sizes.Lq > case.sizes.Lk
        return "every query has a token of its own, which is attended" if more_queries else None

    def layer(self, inputs: Inputs) -> Any:
        """Returns the layer, with projections that select."""
        torch, s, letters = self.backend.torch, inputs.sizes, inputs.letters
        module, R, E = modeling("deepseek_v3"), letters["r"], letters["e"]
        queries = s.H * (s.D + E)
        width = queries + s.H * -(-(R + E) // s.H)  # a multiple of the heads
        config = module.DeepseekV3Config(
            hidden_size=width, num_attention_heads=s.H, num_key_value_heads=s.H, q_lora_rank=None,
            kv_lora_rank=R, qk_nope_head_dim=s.D, qk_rope_head_dim=E, v_head_dim=s.Dv,
            attention_bias=False, rope_interleave=E % 2 == 0,
        )  # fmt: skip
        config._attn_implementation = "eager"
        with torch.device(self.backend.device):
            layer = module.DeepseekV3Attention(config, 0)
        layer.kv_a_layernorm = layer.o_proj = torch.nn.Identity()
        identity = torch.eye(width)
        with torch.no_grad():
            layer.q_proj.weight.copy_(identity[:queries])
            layer.kv_a_proj_with_mqa.weight.copy_(identity[queries : queries + R + E])
        if inputs.scale is not None:
            layer.scaling = inputs.scale
        return layer.to(getattr(torch, inputs.dtype.long_name)).eval()

    def prepare(self, inputs: Inputs) -> PreparedCall:
        from transformers import DynamicCache

        torch, s = self.backend.torch, inputs.sizes
        mask = additive_mask(AttentionCall(self.backend, inputs, split_native(inputs)))
        arguments = all_arrays(self.backend, inputs) | {"attention_mask": mask}
        layer, past = self.layer(inputs), s.Lk - s.Lq
        zeros = arguments["query"].new_zeros(s.B, s.Lq, inputs.letters["e"])
        rotation = zeros + 1, zeros  # cosine and sine of the angle 0

        def call(
            query: Any, query_rope: Any, latent: Any, key_rope: Any, w_uk: Any, w_uv: Any,
            attention_mask: Any,
        ) -> Any:  # fmt: skip
            cache = DynamicCache()
            if past:
                rope = self.cached_rope(key_rope[:, None, :past])
                cache.update(latent[:, None, :past], rope, 0)
            heads = torch.cat([query, query_rope], -1).transpose(1, 2).flatten(2)
            hidden = torch.cat([heads, latent[:, past:], key_rope[:, past:]], -1)
            hidden = torch.nn.functional.pad(hidden, (0, layer.hidden_size - hidden.shape[-1]))
            kernel = torch.cat([w_uk, w_uv], -1).flatten(1).mT
            options = {
                "past_key_values": cache, "position_embeddings": rotation,
                "attention_mask": attention_mask,
            }  # fmt: skip
            weights = {"kv_b_proj.weight": kernel}
            out, _ = torch.func.functional_call(layer, weights, (hidden,), options)
            return out.view(s.B, s.Lq, s.H, s.Dv).transpose(1, 2)

        operands = {} if mask is None else {"mask": "attention_mask"}
        constants = (self.name, inputs.sizes, inputs.letters["r"], inputs.scale)
        return PreparedCall(call, arguments, operands=operands, constants=constants)

    def cached_rope(self, rope: Any) -> Any:
        """Returns rotary keys as a cache stores them: the first components of all pairs, then the second
        ones."""
        if rope.shape[-1] % 2:
            return rope
        return self.backend.torch.cat([rope[..., ::2], rope[..., 1::2]], -1)
