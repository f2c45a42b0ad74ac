"""mlx-lm's attention layer of DeepSeek-V3, made from a configuration.

As in transformers' adapter, the hidden states are queries, latents and rotary keys side by side, and the
projections select them. Norm, rotation and output projection are identities. The first Lk - Lq tokens lie
in a `KVCache`, which stores latents. The layer absorbs the projections for one query, not for more.
"""

from __future__ import annotations

from typing import Any

from attention_conformance.backends._mlx.attention import FAST
from attention_conformance.backends._mlx.engine import MlxEngine
from attention_conformance.backends.declared import LOWEST_FILL, Declared
from attention_conformance.backends.implementation import Implementation
from attention_conformance.backends.masks import masked_arrays
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.latent import FEATURES, LATENT


class LmDeepseek(Implementation):
    """`DeepseekV3Attention`: the rotary scores are stored in the dtype, and added as a mask."""

    backend: MlxEngine

    name = "lm-deepseek-v3"
    operator = LATENT
    declared = Declared(
        numerics=FAST.declared.numerics,
        features=FEATURES,
        refusals={"lse": "the layer returns no log-sum-exp"},
        # Hidden pairs have the lowest number in place of the rotary score, beside the other score.
        elections=LOWEST_FILL,
    )

    def refusal(self, case: Case) -> str | None:
        more_queries = case.sizes.Lq > case.sizes.Lk
        return "every query has a token of its own, which is attended" if more_queries else None

    def layer(self, inputs: Inputs) -> Any:
        """Returns the layer, with projections that select."""
        from mlx.nn import Identity
        from mlx_lm.models.deepseek_v3 import DeepseekV3Attention, ModelArgs

        s, letters = inputs.sizes, inputs.letters
        R, E = letters["r"], letters["e"]
        queries = s.H * (s.D + E)
        layer = DeepseekV3Attention(
            ModelArgs(
                hidden_size=queries + R + E, num_attention_heads=s.H, q_lora_rank=None, kv_lora_rank=R,
                qk_nope_head_dim=s.D, qk_rope_head_dim=E, v_head_dim=s.Dv,
            )
        )  # fmt: skip
        dtype = getattr(self.backend.mlx, inputs.dtype.long_name)
        identity = self.backend.mlx.eye(queries + R + E, dtype=dtype)
        layer.q_proj.weight = identity[:queries]
        layer.kv_a_proj_with_mqa.weight = identity[queries:]
        layer.kv_a_layernorm = layer.o_proj = Identity()
        layer.rope = lambda x, offset: x
        layer.scale = inputs.effective_scale
        self.backend.mlx.eval(layer.q_proj.weight, layer.kv_a_proj_with_mqa.weight)
        return layer

    def prepare(self, inputs: Inputs) -> PreparedCall:
        from mlx_lm.models.cache import KVCache

        mlx, s, layer = self.backend.mlx, inputs.sizes, self.layer(inputs)
        past = s.Lk - s.Lq

        def call(
            query: Any, query_rope: Any, latent: Any, key_rope: Any, w_uk: Any, w_uv: Any,
            mask: Any = None,
        ) -> Any:  # fmt: skip
            cache = KVCache()
            if past:
                cache.update_and_fetch(latent[:, None, :past], key_rope[:, None, :past])
            heads = mlx.concatenate([query, query_rope], -1).transpose(0, 2, 1, 3)
            hidden = [heads.reshape(s.B, s.Lq, -1), latent[:, past:], key_rope[:, past:]]
            layer.embed_q.weight = w_uk.transpose(1, 0, 2)
            layer.unembed_out.weight = w_uv.transpose(1, 2, 0)
            rows = layer(mlx.concatenate(hidden, -1), mask, cache)
            return rows.reshape(s.B, s.Lq, s.H, s.Dv).transpose(0, 2, 1, 3)

        arguments = masked_arrays(self.backend, inputs)
        operands = {"mask": "mask"} if "mask" in arguments else {}
        return PreparedCall(call, arguments, operands=operands)
