"""Positions in transformers: the ALiBi of Bloom, Falcon and MPT in textbook attention; and rotary
embeddings, where a module computes sine and cosine of positions, and a function rotates query and key."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from attention_conformance.backends._torch.attention import EAGER, operations
from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._transformers.attention import modeling
from attention_conformance.backends.declared import SINGLE_EAGER, SINGLE_FUSED, Declared
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.backends.textbook.attention import OwnAlibi
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.rotary import (
    FACTOR,
    FEATURES,
    ORIGINAL_LENGTH,
    ROTARY,
    Rotation,
    scaling_parameters,
)


def model_alibi(model: str, backend: TorchEngine, inputs: Inputs) -> Callable[[], Any]:
    """Returns a function that returns a model's bias (1, H, 1, Lk); the first key has number 0. Bloom's
    slopes are float32 and cast to the dtype. Falcon's slopes and products are bfloat16."""
    torch, source, s = backend.torch, modeling(model), inputs.sizes
    dtype = getattr(torch, inputs.dtype.long_name)

    def bias() -> Any:
        attention_mask = torch.ones((1, s.Lk), dtype=int, device=backend.device)
        return source.build_alibi_tensor(attention_mask, s.H, dtype).view(1, s.H, 1, s.Lk)

    return bias


def mpt_alibi(backend: TorchEngine, inputs: Inputs) -> Callable[[], Any]:
    """Returns a function that returns MPT's bias (1, H, 1, Lk), cast to the dtype. Slopes are float32;
    the last key has number 0."""
    source, s = modeling("mpt"), inputs.sizes
    dtype = getattr(backend.torch, inputs.dtype.long_name)

    def bias() -> Any:
        alibi = source.build_mpt_alibi_tensor(s.H, s.Lk, device=backend.device)
        return alibi.view(1, s.H, 1, s.Lk).to(dtype)

    return bias


def alibis(backend: TorchEngine) -> list[OwnAlibi]:
    """Returns textbook attention with the ALiBi of each model."""
    # Slopes are float32, also in float64 calls.
    declared = EAGER.but(numerics=SINGLE_EAGER)
    makers: dict[str, Callable[[TorchEngine, Inputs], Callable[[], Any]]] = {
        "bloom-alibi": partial(model_alibi, "bloom"),
        "falcon-alibi": partial(model_alibi, "falcon"),
        "mpt-alibi": mpt_alibi,
    }
    ops = operations(backend.torch)
    return [
        OwnAlibi(backend, name, ops, declared, partial(make, backend))
        for name, make in makers.items()
    ]


NO_HALVES = {"halves": "this model rotates neighbouring components"}
NO_INTERLEAVED = {"interleaved": "this model rotates components half a head apart"}
NO_PARTIAL = {"partial-rotation": "this model rotates whole heads"}


class ModelRotary(Implementation):
    """The rotary embedding of a model of transformers, named as its module ("llama"). All calls of a
    configuration share one module. `casts`: the module is cast to the query's dtype after its creation,
    as by `model.bfloat16()`.

    Sine and cosine are float32, also in float64 calls, and cast to the query's dtype.
    """

    operator = ROTARY
    declared = Declared(
        numerics=SINGLE_EAGER,
        features=FEATURES,
    )

    def __init__(
        self, backend: Backend, name: str, model: str, declared: Declared, casts: bool = False
    ) -> None:
        super().__init__(backend, name, declared)
        self.model, self.casts = model, casts
        self.modules: dict[Any, Any] = {}

    @property
    def source(self) -> Any:
        """The Python module with the model's code."""
        return modeling(self.model)

    def module(self, rotation: Rotation, sizes: Any, dtype: Any) -> Any:
        """Returns the model's rotary embedding."""
        class_name = self.model.capitalize()
        configuration = getattr(
            import_module(f"transformers.models.{self.model}.configuration_{self.model}"),
            f"{class_name}Config",
        )
        scaling = scaling_parameters(rotation) or {"rope_type": "default"}
        # The length of the training, except for variants with a field for it.
        has_original_length = rotation.variant in ("llama3", "yarn", "longrope")
        config = configuration(
            hidden_size=sizes.H * sizes.D, num_attention_heads=sizes.H, head_dim=sizes.D,
            max_position_embeddings=int(ORIGINAL_LENGTH * (FACTOR if has_original_length else 1)),
            rope_parameters={
                **scaling, "rope_theta": rotation.base,
                "partial_rotary_factor": rotation.size / sizes.D,
            },
        )  # fmt: skip
        embedding = getattr(self.source, f"{class_name}RotaryEmbedding")(config=config)
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
        if key not in self.modules:
            self.modules[key] = self.module(rotation, s, arguments["query"].dtype)
        module, rotate = self.modules[key], self.source.apply_rotary_pos_emb

        def call(query: Any, position: Any) -> Any:
            cosine, sine = module(query, position)
            rotated, _ = rotate(query, query, cosine, sine)
            return rotated

        return PreparedCall(call, arguments, constants=(rotation, s.H, s.D))


def rotaries(backend: Backend) -> list[ModelRotary]:
    """Returns the rotary embeddings of three models, and also Llama's, which most models copy, after a
    cast."""
    halves = ModelRotary.declared.refusing({**NO_INTERLEAVED, **NO_PARTIAL})
    neighbours = ModelRotary.declared.refusing(NO_HALVES)
    # Cohere's products are float32.
    cohere = neighbours.refusing(NO_PARTIAL).but(numerics=SINGLE_FUSED)
    return [
        ModelRotary(backend, "llama-rotary", "llama", halves),
        ModelRotary(backend, "llama-rotary-cast", "llama", halves, casts=True),
        ModelRotary(backend, "glm-rotary", "glm", neighbours),
        ModelRotary(backend, "cohere-rotary", "cohere", cohere),
    ]
