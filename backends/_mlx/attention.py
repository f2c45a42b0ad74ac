"""`mlx.core.fast.scaled_dot_product_attention`.

query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv); one mask, boolean, added to the scores,
or the word "causal", which is aligned bottom-right; a scale; a sink in every head.
"""

from __future__ import annotations

from typing import Any

from attention_conformance.backends._mlx.engine import MlxEngine
from attention_conformance.backends.declared import ATTENTION_FEATURES, LOWEST_FILL, Declared
from attention_conformance.backends.masks import dense_of, feature_arrays, merged_bias
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal


def says_causal(inputs: Inputs) -> bool:
    """Whether the only mask is the one that "causal" means."""
    parts = inputs.mask.parts if inputs.mask is not None else ()
    if inputs.form == "dense" or len(parts) != 1 or inputs.bias is not None:
        return False
    square = inputs.sizes.Lq == inputs.sizes.Lk
    return isinstance(parts[0], Causal) and (parts[0].bottom_right or square)


class Fast(Implementation):
    """The fused function, which on the CPU consists of other MLX operations."""

    backend: MlxEngine

    name = "fast-attention"
    declared = Declared(
        # In 16 bits scaled queries are rounded before the product with keys.
        numerics={"f64": "single", "f32": "exact", "bf16": "working", "f16": "working"},
        features=ATTENTION_FEATURES | {"sinks"},
        refusals={
            "softcap": "the function has no softcap",
            "native-window": "the function has no window",
            "native-causal": "the causal mask is bottom-right and excludes other masks",
        },
        elections=LOWEST_FILL
        | {
            "minus-inf-row-gradient": "nan",
            "integer-mask": "added",
            "subnormal-output": "kept",
            "score-overflow": "finite",
        },
        merges_mask_into_bias=True,
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend, biased = self.backend, inputs.bias is not None
        query, key, value = backend.memory.operands(inputs, "bhld")
        arguments: dict[str, Any] = {"q": query, "k": key, "v": value}
        parts = inputs.mask.parts if inputs.mask is not None else ()
        hidden = merged_bias(inputs, parts) if biased else dense_of(inputs, parts)
        if says_causal(inputs):
            arguments["mask"] = "causal"
        elif hidden is not None:
            arguments["mask"] = backend.array(hidden, inputs.dtype if biased else None)
        arguments |= feature_arrays(backend, inputs)
        operands = {"query": "q", "key": "k", "value": "v", "sinks": "sinks"}
        operands["bias" if biased else "mask"] = "mask"
        function = backend.mlx.fast.scaled_dot_product_attention
        return PreparedCall(
            function, arguments | {"scale": inputs.effective_scale}, operands=operands
        )
