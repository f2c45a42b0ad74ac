"""Textbook Transformer encoder layer: packed heads, step-by-step norms, relu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backends.declared import ENCODER_FEATURES, Declared
from backends.textbook.layer import Numerics, Operations, Textbook
from backends.textbook.multi_head import PackedHeads
from backends.textbook.norms import layer_norm
from suite.spec.inputs import Inputs
from suite.spec.operators.encoder import ENCODER


class TextbookEncoder(PackedHeads):
    """Attention and feed-forward network with residuals, and norms after or before (`pre`)."""

    name = "textbook-encoder"
    operator = ENCODER
    declared = Textbook.declared.but(features=ENCODER_FEATURES).refusing(
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
