"""`mlx.core.fast.scaled_dot_product_attention`, which on the CPU consists of other MLX operations.

query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv); one mask, boolean, added to the scores,
or the word "causal", which is aligned bottom-right; a scale; a sink in every head.
"""

from __future__ import annotations

from typing import Any

from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.declared import (
    ATTENTION_FEATURES,
    LOWEST_FILL,
    UNFLUSHED,
    Declared,
)
from attention_conformance.backends.kernel import Kernel
from attention_conformance.backends.masks import EFFECTIVE_SCALE, AttentionCall
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal


def says_causal(inputs: Inputs) -> bool:
    """Whether the only mask is the one that "causal" means."""
    parts = inputs.mask.parts if inputs.mask is not None else ()
    if inputs.form == "dense" or len(parts) != 1 or inputs.bias is not None:
        return False
    square = inputs.sizes.Lq == inputs.sizes.Lk
    return isinstance(parts[0], Causal) and (parts[0].bottom_right or square)


def mask(call: AttentionCall) -> Any:
    """The word "causal", or the mask or bias as an array."""
    return "causal" if says_causal(call.inputs) else call.mask_or_bias()


FAST = Kernel(
    "fast-attention",
    "mlx.core.fast.scaled_dot_product_attention",
    (
        Parameter("mask", value=mask),
        Parameter("sinks", value=AttentionCall.sinks),
        EFFECTIVE_SCALE,
    ),
    Declared(
        # In 16 bits scaled queries are rounded before the product with keys.
        numerics={"f64": "single", "f32": "exact", "bf16": "working", "f16": "working"},
        features=ATTENTION_FEATURES | {"sinks"},
        refusals={
            "softcap": "the function has no softcap",
            "native-window": "the function has no window",
            "native-causal": "the causal mask is bottom-right and excludes other masks",
        },
        elections=LOWEST_FILL
        | UNFLUSHED
        | {"minus-inf-row-gradient": "nan", "integer-mask": "added"},
        merges_mask_into_bias=True,
    ),
    passed_as={"query": "q", "key": "k", "value": "v", "bias": "mask", "mask": "mask"},
    axis_order="bhld",
)
