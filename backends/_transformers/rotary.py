"""Rotary position embeddings of transformers: a module that makes sine and cosine of positions, and the
function that turns query and key by them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from backends._transformers.models import modeling
from backends.declared import ROTARY_FEATURES, Declared
from backends.prepared import PreparedCall
from backends.protocol import Backend, Implementation
from suite.spec.inputs import Inputs
from suite.spec.operators.rotary import (
    FACTOR,
    ORIGINAL_LENGTH,
    ROTARY,
    Rotation,
    scaling_parameters,
)

INTERLEAVES = {"halves": "this model turns neighbours"}
HALVES = {"interleaved": "this model turns components half a head apart"}
WHOLE = {"partial-rotation": "this model turns whole heads"}


class ModelRotary(Implementation):
    """The rotary embedding of one model. Sine and cosine are made in float32, in float64 calls, too, and
    cast to the query's dtype.

    One module serves all calls of a configuration, as in a model that is served.
    """

    operator = ROTARY
    declared = Declared(
        numerics={"f64": "single", "f32": "eager", "bf16": "eager", "f16": "eager"},
        features=ROTARY_FEATURES,
    )
    model = ""
    """What the model is called in transformers: "llama", of the class "Llama"."""
    casts = False
    """Whether the module is cast to the query's dtype after it was made, as `model.bfloat16()` does."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.kept: dict[Any, Any] = {}

    @property
    def home(self) -> Any:
        """The module of the model's code."""
        return modeling(self.model)

    def module(self, rotation: Rotation, sizes: Any, dtype: Any) -> Any:
        """The model's rotary embedding."""
        class_name = self.model.capitalize()
        configuration = getattr(
            import_module(f"transformers.models.{self.model}.configuration_{self.model}"),
            f"{class_name}Config",
        )
        scaling = scaling_parameters(rotation) or {"rope_type": "default"}
        # The length of the training, but for variants that say it themselves.
        grows = rotation.scaling in ("llama3", "yarn", "longrope")
        config = configuration(
            hidden_size=sizes.H * sizes.D, num_attention_heads=sizes.H, head_dim=sizes.D,
            max_position_embeddings=int(ORIGINAL_LENGTH * (FACTOR if grows else 1)),
            rope_parameters={
                **scaling, "rope_theta": rotation.base,
                "partial_rotary_factor": rotation.size / sizes.D,
            },
        )  # fmt: skip
        embedding = getattr(self.home, f"{class_name}RotaryEmbedding")(config=config)
        embedding = embedding.to(self.backend.device)
        return embedding.to(dtype) if self.casts else embedding

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend, s = self.backend, inputs.sizes
        rotation = Rotation.of(inputs.case, s.D)
        position = np.broadcast_to(inputs.arrays["position"], (s.B, s.Lq)).astype(np.int64)
        arguments = {
            "query": backend.operand(inputs.query, inputs, "bhld"),
            "position": backend.array(position, None),
        }
        key = (rotation, s.H, s.D, inputs.dtype.name if self.casts else "")
        if key not in self.kept:
            self.kept[key] = self.module(rotation, s, arguments["query"].dtype)
        module, turn = self.kept[key], self.home.apply_rotary_pos_emb

        def call(query: Any, position: Any) -> Any:
            cosine, sine = module(query, position)
            turned, _ = turn(query, query, cosine, sine)
            return turned

        return PreparedCall(call, arguments, constants=(rotation, s.H, s.D))


class LlamaRotary(ModelRotary):
    """`LlamaRotaryEmbedding`, which most models copy."""

    name = "llama-rotary"
    declared = ModelRotary.declared.refusing({**HALVES, **WHOLE})
    model = "llama"


class LlamaRotaryCast(LlamaRotary):
    """`LlamaRotaryEmbedding` after `.to(dtype)`, as `model.bfloat16()` has it."""

    name = "llama-rotary-cast"
    casts = True


class GlmRotary(ModelRotary):
    """`GlmRotaryEmbedding`: neighbours, of a part of the head or of all."""

    name = "glm-rotary"
    declared = ModelRotary.declared.refusing(INTERLEAVES)
    model = "glm"


class CohereRotary(ModelRotary):
    """`CohereRotaryEmbedding`: neighbours; products are in float32."""

    name = "cohere-rotary"
    declared = ModelRotary.declared.refusing({**INTERLEAVES, **WHOLE}).but(
        numerics={"f64": "single", "f32": "fused", "bf16": "fused", "f16": "fused"}
    )
    model = "cohere"
