"""`mlx.core.fast`: attention, and the rotary embedding. On the CPU both consist of other MLX operations.

query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv); one mask, boolean, added to the scores,
or the word "causal", which is aligned bottom-right; a scale; a sink in every head.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends._mlx.engine import MlxEngine
from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.declared import (
    ATTENTION_FEATURES,
    LOWEST_FILL,
    SINGLE_EAGER,
    UNFLUSHED,
    Declared,
)
from attention_conformance.backends.kernel import Kernel
from attention_conformance.backends.masks import EFFECTIVE_SCALE, AttentionCall
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal
from attention_conformance.suite.spec.operators.rotary import FACTOR, FEATURES, ROTARY, Rotation


def is_bottom_right_causal(inputs: Inputs) -> bool:
    """True if the only mask is bottom-right causal. For this mask the function takes the word
    "causal"."""
    parts = inputs.mask.parts if inputs.mask is not None else ()
    if inputs.form == "dense" or len(parts) != 1 or inputs.bias is not None:
        return False
    square = inputs.sizes.Lq == inputs.sizes.Lk
    return isinstance(parts[0], Causal) and (parts[0].bottom_right or square)


def mask(call: AttentionCall) -> Any:
    """Returns the word "causal", or the mask or bias as an array; None without both."""
    return "causal" if is_bottom_right_causal(call.inputs) else call.mask_or_bias()


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


class FastRope(Implementation):
    """`rope`, which numbers rows consecutively from an offset, and scales positions linearly."""

    backend: MlxEngine

    name = "fast-rope"
    operator = ROTARY
    declared = Declared(
        numerics=SINGLE_EAGER,
        features=FEATURES,
        refusals={
            "positions": "MLX takes no positions",
            "gathered-positions": "MLX numbers rows consecutively from an offset",
        },
    )

    def refusal(self, case: Case) -> str | None:
        is_supported = case.option("scaling") in ("none", "linear")
        return None if is_supported else "of the scaled variants MLX has only linear"

    def prepare(self, inputs: Inputs) -> PreparedCall:
        rope, s = self.backend.mlx.fast.rope, inputs.sizes
        rotation, first = Rotation.of(inputs.case, s.D), inputs.case.option("offset")
        if not np.array_equal(inputs.arrays["position"], first + np.arange(s.Lq)):
            raise ValueError("MLX numbers rows consecutively")
        scale = 1 / FACTOR if rotation.scaling == "linear" else 1.0

        def call(query: Any) -> Any:
            return rope(
                query, rotation.size, traditional=rotation.interleaved, base=rotation.base,
                scale=scale, offset=first,
            )  # fmt: skip

        return PreparedCall(call, {"query": self.backend.operand(inputs.query, inputs, "bhld")})
