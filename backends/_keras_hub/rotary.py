"""`keras_hub.layers.RotaryEmbedding`: halves of whole heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.rotary import (
    FEATURES,
    ROTARY,
    Rotation,
    scaling_parameters,
)

SCALED = {
    "ntk": "the layer's dynamic scaling uses neither the training length nor the sequence length",
    "llama3": "keras-hub has Llama 3.1's scaling inside the Llama 3 model, not in the layer",
    "yarn-mscale": "the layer has no mscale",
    "yarn-factor": "the layer has no attention_factor",
    "longrope-factor": "keras-hub has LongRoPE inside the Phi-3 model, not in the layer",
    "longrope": "keras-hub has LongRoPE inside the Phi-3 model, not in the layer",
}
"""Scaled variants that the layer lacks, with reasons."""


class HubRotary(Implementation):
    """The layer over (B, L, H, D), with the position of every token.

    Angles are float32, also in float64 calls; sine and cosine are cast to the layer's dtype. One layer
    serves all calls of a configuration.
    """

    name = "rotary"
    operator = ROTARY
    declared = Declared(
        numerics={"f64": "single", "f32": "eager", "bf16": "eager", "f16": "eager"},
        features=FEATURES,
        refusals={
            "interleaved": "the layer rotates components half a head apart",
            "partial-rotation": "the layer rotates whole heads",
        },
    )
    axis_order = "blhd"
    sequence_axis = 1

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.layers: dict[Any, Any] = {}

    def unsupported(self, case: AnyCase) -> str | None:
        reason = SCALED.get(case.option("scaling")) if isinstance(case, Case) else None
        return reason or super().unsupported(case)

    def layer(self, rotation: Rotation, dtype: str) -> Any:
        """The layer of a configuration."""
        import keras_hub

        scaling = scaling_parameters(rotation) or {"rope_type": "linear", "factor": 1.0}
        scaling["scaling_factor"] = scaling.pop("factor")
        if rotation.scaling != "yarn":
            scaling.pop("original_max_position_embeddings", None)
        return keras_hub.layers.RotaryEmbedding(
            rotation.base, sequence_axis=self.sequence_axis, dtype=dtype, **scaling
        )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        rotation = Rotation.of(inputs.case, inputs.sizes.D)
        key = (rotation, inputs.dtype.long_name)
        if key not in self.layers:
            self.layers[key] = self.layer(*key)
        arguments = {
            "inputs": self.backend.memory.operand(inputs.query, inputs, self.axis_order),
            **self.places(inputs),
        }
        return PreparedCall(
            self.layers[key], arguments, axis_order=self.axis_order, operands={"query": "inputs"}
        )

    def places(self, inputs: Inputs) -> dict[str, Any]:
        """The positions as arguments of the call."""
        position = inputs.arrays["position"].astype(np.int32)
        return {"positions": self.backend.array(position, None)}


class HubRotaryByStart(HubRotary):
    """The layer over (B, H, L, D), with the first position as start_index, as in decoding."""

    name = "rotary-start-index"
    declared = HubRotary.declared.refusing(
        {
            "positions": "the layer gets only the first position",
            "gathered-positions": "the layer gets only the first position",
        }
    )
    axis_order = "bhld"
    sequence_axis = 2

    def places(self, inputs: Inputs) -> dict[str, Any]:
        position = inputs.arrays["position"]
        first = int(position[0]) if position.size else 0
        if not np.array_equal(position, first + np.arange(position.size)):
            raise ValueError("expected consecutive positions")
        return {"start_index": first}
