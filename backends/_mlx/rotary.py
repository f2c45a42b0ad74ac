"""`mlx.core.fast.rope`, which numbers rows consecutively from an offset."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends._mlx.engine import MlxEngine
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.rotary import FACTOR, FEATURES, ROTARY, Rotation


class FastRope(Implementation):
    """The fused function, with linear scaling of positions. On the CPU it consists
    of other operations."""

    backend: MlxEngine

    name = "fast-rope"
    operator = ROTARY
    declared = Declared(
        numerics={"f64": "single", "f32": "eager", "bf16": "eager", "f16": "eager"},
        features=FEATURES,
        refusals={
            "positions": "MLX takes no positions",
            "gathered-positions": "MLX numbers rows consecutively from an offset",
        },
    )

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, Case) and case.option("scaling") not in ("none", "linear"):
            return "of the scaled variants MLX has only linear"
        return super().unsupported(case)

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

        return PreparedCall(
            call, {"query": self.backend.memory.operand(inputs.query, inputs, "bhld")}
        )
