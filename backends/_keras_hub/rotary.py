"""`keras_hub.layers.RotaryEmbedding`: halves of whole heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from backends.declared import ROTARY_FEATURES, Declared
from backends.prepared import PreparedCall
from backends.protocol import Backend, Implementation
from suite.spec.case import Case
from suite.spec.catalogue import AnyCase
from suite.spec.inputs import Inputs
from suite.spec.operators.rotary import ROTARY, Rotation, scaling_parameters

SCALED = {
    "ntk": "its dynamic scaling knows neither the length of the training nor that of the sequence",
    "llama3": "keras-hub scales frequencies like Llama 3.1 inside of that model",
    "longrope": "keras-hub scales frequencies like LongRoPE inside of the Phi-3 models",
}
"""Scaled variants that the layer cannot be asked, with the reason."""


class HubRotary(Implementation):
    """The layer over (B, L, H, D), with the positions of every token. Angles are made in float32, in
    float64 calls, too; sine and cosine are cast to the layer's dtype.

    One layer serves all calls of a configuration, as in a model that is served.
    """

    name = "rotary"
    operator = ROTARY
    declared = Declared(
        numerics={"f64": "single", "f32": "eager", "bf16": "eager", "f16": "eager"},
        features=ROTARY_FEATURES,
        refusals={
            "interleaved": "the layer turns components half a head apart",
            "partial-rotation": "the layer turns whole heads",
        },
    )
    axis_order = "blhd"
    sequence_axis = 1

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.kept: dict[Any, Any] = {}

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
        if key not in self.kept:
            self.kept[key] = self.layer(*key)
        arguments = {
            "inputs": self.backend.operand(inputs.query, inputs, self.axis_order),
            **self.places(inputs),
        }
        return PreparedCall(
            self.kept[key], arguments, axis_order=self.axis_order, operands={"query": "inputs"}
        )

    def places(self, inputs: Inputs) -> dict[str, Any]:
        """Where tokens stand, as arguments of the call."""
        position = inputs.arrays["position"].astype(np.int32)
        return {"positions": self.backend.array(position, None)}


class HubRotaryByStart(HubRotary):
    """The layer over (B, H, L, D), told where the sequence begins, as in decoding."""

    name = "rotary-start-index"
    declared = HubRotary.declared.refusing(
        {
            "positions": "the layer is told where a sequence begins",
            "gathered-positions": "a sequence that is told where it begins has no gaps",
        }
    )
    axis_order = "bhld"
    sequence_axis = 2

    def places(self, inputs: Inputs) -> dict[str, Any]:
        position = inputs.arrays["position"]
        first = int(position[0]) if position.size else 0
        if not np.array_equal(position, first + np.arange(position.size)):
            raise ValueError("positions stand one after the other here")
        return {"start_index": first}
