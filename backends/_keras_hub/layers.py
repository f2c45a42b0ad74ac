"""keras-hub's layers: rows of `CachedMultiHeadAttention` without a cache, and with a cache that calls
fill; the same layer in decoding, where chunks join a cache at an index; and `RotaryEmbedding`, halves of
whole heads.

All masks are one array, since the layer has no causal flag and no mask of values. In decoding,
projections are the identity, which repeats grouped heads, or its negative. So the layer is attention over
its operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._keras.engine import WithKeras
from attention_conformance.backends._keras.layer import called, differentiable, on_engine
from attention_conformance.backends._keras.multi_head import (
    MHA,
    PLAIN,
    PLAIN_NUMERICS,
    WRONG_MHA,
    all_paths,
    arguments,
    build_layer,
    variables,
)
from attention_conformance.backends.caching import Projected, StepContext, rolled_back
from attention_conformance.backends.declared import SINGLE_EAGER, Declared
from attention_conformance.backends.layer import FrameworkLayer, Layer
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators import cached, rotary
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD
from attention_conformance.suite.spec.operators.rotary import Rotation, scaling_parameters
from attention_conformance.suite.spec.operators.scripts import capacity, unwritten_slots
from attention_conformance.suite.spec.vocabulary import OPERANDS


def cached_mha(impl: FrameworkLayer, inputs: Inputs, **flags: Any) -> Any:
    """Returns a `keras_hub.layers.CachedMultiHeadAttention`."""
    import keras_hub

    s, kind = inputs.sizes, keras_hub.layers.CachedMultiHeadAttention
    sizes = {
        "num_heads": s.H, "key_dim": s.D, "value_dim": s.Dv, "output_shape": inputs.widths.output,
    }  # fmt: skip
    return build_layer(impl, inputs, kind, **(sizes | flags))


def with_dense_mask(inputs: Inputs) -> Inputs:
    """Returns the inputs with the mask as one array."""
    return inputs if inputs.dense_mask is None else inputs.with_dense()


def dense_arguments(impl: FrameworkLayer, inputs: Inputs, **changes: Any) -> dict[str, Any]:
    """Returns the mask as one array, and the options of a call."""
    return arguments(False, impl, with_dense_mask(inputs), **changes)


def paths(impl: FrameworkLayer, inputs: Inputs) -> dict[str, PreparedCall]:
    """Returns the paths of `keras.layers.MultiHeadAttention`."""
    variants = {"flash_attention": False, "attention_axes": 1}
    return all_paths(False, variants, impl, with_dense_mask(inputs))


def paths_without_model(impl: FrameworkLayer, inputs: Inputs) -> dict[str, PreparedCall]:
    """Returns `paths` without a functional model, in which the size of the cache is unknown."""
    return {name: call for name, call in paths(impl, inputs).items() if name != "function"}


def with_filled_cache(layer: Any, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call the layer with a cache (B, 2, Lk, H, D) that two calls fill, each with one half of keys and
    values. Returns the output of the second call."""
    import keras

    query, value = arrays["query"], arrays["value"]
    key = arrays.get("key", value)
    keywords = {n: a for n, a in arrays.items() if n not in OPERANDS} | {**options}
    batch, length = value.shape[:2]
    shape = (batch, 2, length, layer.num_heads, layer.key_dim)
    cache, half = keras.ops.zeros(shape, query.dtype), length // 2
    if half:
        _, cache = layer(
            query, value[:, :half], key[:, :half], cache=cache, cache_update_index=0, **keywords
        )
    return layer(
        query, value[:, half:], key[:, half:], cache=cache, cache_update_index=half, **keywords
    )[0]


CACHED_PLAIN = Layer(
    "cached-mha-plain",
    MULTI_HEAD,
    cached_mha,
    called,
    variables,
    on_engine(
        "tensorflow",
        MHA.refusing(
            {
                "weights": "judged without scores",
                "native-causal": "the layer has no causal flag",
            }
        ).but(
            elections={
                **PLAIN, "mask-polarity": "attends", "nan-in-masked-key": "blocked",
                "nan-in-masked-value": "leaks",
            }
        ),
        PLAIN_NUMERICS,
        {},
    ),
    differentiable=differentiable,
    arguments=dense_arguments,
    paths=paths,
    wrong=WRONG_MHA,
)  # fmt: skip
"""The layer without a cache, equal to `keras.layers.MultiHeadAttention`."""

CACHED_UPDATED = CACHED_PLAIN.but(
    name="cached-mha-updated",
    called=partial(called, apply=with_filled_cache),
    declared=CACHED_PLAIN.declared.refusing(
        {
            "value-size": "the cache holds keys and values of one size",
            "gradient": "keras.ops.slice_update, which fills the cache, has no gradient on TensorFlow",
        }
    ),
    paths=paths_without_model,
)


@dataclass(frozen=True)
class DecodeState:
    """The layer, the weights of identity projections, its cache (B, 2, C, H, D), and the number of cached
    tokens."""

    layer: Any
    identity_weights: list[np.ndarray]
    cache: Any
    count: int = 0


class CachedDecode(Projected):
    """The layer with a cache. All masks are one array over the slots.

    A reset and a rollback move the index back. A reorder gathers the samples of the cache.
    """

    backend: WithKeras

    name = "cached-mha-decode"
    declared = Declared(
        numerics=PLAIN_NUMERICS["tensorflow"],
        features=cached.FEATURES,
        refusals={
            **dict.fromkeys(("softcap", "sinks", "alibi-slopes"), "the layer has none of it"),
            "scale": "the layer divides by the root of the head size",
            "value-size": "the cache holds keys and values of one size",
            "subsets": "the cache has one index for all samples",
            **dict.fromkeys(("bias", "bias-with-mask"), "the layer has no bias"),
            "ring": "the layer writes no ring",
            **dict.fromkeys(("rotary", "halves", "interleaved"), "the layer rotates nothing"),
            "keep": "the cache keeps its first tokens, and no others",
        },
        elections={"nan-in-freed-slot": "leaks", "beyond-capacity": "raises"},
    )
    axis_order = "blhd"

    def init(self, inputs: Inputs, key: Any) -> DecodeState:
        import keras_hub

        s, ops = inputs.sizes, self.backend.keras.ops
        layer = keras_hub.layers.CachedMultiHeadAttention(
            s.H, s.D, use_bias=False, dtype=key.dtype.name
        )
        width, kv_width = s.H * s.D, s.Hkv * s.D
        layer.build((s.B, None, width), (s.B, None, kv_width))
        identity = np.eye(width).reshape(width, s.H, s.D)
        repeated = np.repeat(np.eye(kv_width).reshape(kv_width, s.Hkv, s.D), s.group, 1)
        empty = unwritten_slots(inputs.case, s.B, 2, capacity(inputs.case), s.H, s.D)
        cache = ops.convert_to_tensor(empty, key.dtype)
        weights = [identity, *[repeated] * 2, identity.reshape(s.H, s.D, width)]
        return DecodeState(layer, weights, cache)

    def project(self, state: DecodeState, signs: Sequence[int]) -> DecodeState:
        state.layer.set_weights(
            [sign * weights for sign, weights in zip(signs, state.identity_weights, strict=True)]
        )
        return state

    def layer_step(
        self, state: DecodeState, query: Any, key: Any, value: Any, context: StepContext
    ) -> tuple[Any, DecodeState]:
        ops, mask = self.backend.keras.ops, context.mask(state.cache.shape[2])
        B, L, H, D = query.shape
        q, k, v = (ops.reshape(x, (B, L, -1)) for x in (query, key, value))
        rows, cache = state.layer(
            q, v, k, attention_mask=ops.convert_to_tensor(mask), cache=state.cache,
            cache_update_index=state.count,
        )  # fmt: skip
        return ops.reshape(rows, (B, L, H, D)), replace(state, cache=cache, count=state.count + L)

    def crop(self, state: DecodeState, count: int, *samples: Any) -> DecodeState:
        return replace(state, count=rolled_back(state.count, count))

    def reset(self, state: DecodeState, *samples: Any) -> DecodeState:
        return replace(state, count=0)

    def reorder(self, state: DecodeState, samples: Any) -> DecodeState:
        return replace(state, cache=self.backend.keras.ops.take(state.cache, samples, 0))

    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        return self.backend.keras.ops.concatenate(list(arrays), axis)


LACKING_SCALINGS = {
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

    Angles are float32, also in float64 calls. Sine and cosine are cast to the layer's dtype. All calls of
    a configuration share one layer.
    """

    name = "rotary"
    operator = rotary.ROTARY
    declared = Declared(
        numerics=SINGLE_EAGER,
        features=rotary.FEATURES,
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

    def refusal(self, case: Case) -> str | None:
        return LACKING_SCALINGS.get(case.option("scaling"))

    def layer(self, rotation: Rotation, dtype: str) -> Any:
        """Returns the layer of a configuration."""
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
            "inputs": self.backend.operand(inputs.query, inputs, self.axis_order),
            **self.position_arguments(inputs),
        }
        return PreparedCall(
            self.layers[key], arguments, axis_order=self.axis_order, operands={"query": "inputs"}
        )

    def position_arguments(self, inputs: Inputs) -> dict[str, Any]:
        """Returns the positions as arguments of the call."""
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

    def position_arguments(self, inputs: Inputs) -> dict[str, Any]:
        position = inputs.arrays["position"]
        first = int(position[0]) if position.size else 0
        if not np.array_equal(position, first + np.arange(position.size)):
            raise ValueError("expected consecutive positions")
        return {"start_index": first}
