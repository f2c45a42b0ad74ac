"""`keras_hub.layers.CachedMultiHeadAttention` that decodes: chunks join a cache at an index.

Projections are the identity, which repeats grouped heads, or its negative, so that the layer is attention
over its operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.backends._keras.engine import WithKeras
from attention_conformance.backends._keras.multi_head import PLAIN_NUMERICS
from attention_conformance.backends.caching import Projected, Turn, rolled_back
from attention_conformance.backends.declared import Declared
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.cached import FEATURES
from attention_conformance.suite.spec.operators.scripts import capacity, unwritten


@dataclass(frozen=True)
class Filled:
    """The layer, the identities of its projections, its cache (B, 2, C, H, D), and the number of
    tokens."""

    layer: Any
    identities: list[np.ndarray]
    cache: Any
    count: int = 0


class CachedDecode(Projected):
    """The layer with a cache. All masks are one array over the slots.

    A reset and a rollback move the index back; samples are taken from the cache along its first axis.
    """

    backend: WithKeras

    name = "cached-mha-decode"
    declared = Declared(
        numerics=PLAIN_NUMERICS["tensorflow"],
        features=FEATURES,
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

    def init(self, inputs: Inputs, key: Any) -> Filled:
        import keras_hub

        s, ops = inputs.sizes, self.backend.keras.ops
        layer = keras_hub.layers.CachedMultiHeadAttention(
            s.H, s.D, use_bias=False, dtype=key.dtype.name
        )
        width, kv_width = s.H * s.D, s.Hkv * s.D
        layer.build((s.B, None, width), (s.B, None, kv_width))
        same = np.eye(width).reshape(width, s.H, s.D)
        grouped = np.repeat(np.eye(kv_width).reshape(kv_width, s.Hkv, s.D), s.group, 1)
        empty = unwritten(inputs.case, s.B, 2, capacity(inputs.case), s.H, s.D)
        cache = ops.convert_to_tensor(empty, key.dtype)
        return Filled(layer, [same, grouped, grouped, same.reshape(s.H, s.D, width)], cache)

    def project(self, state: Filled, signs: Sequence[int]) -> Filled:
        state.layer.set_weights(
            [sign * weights for sign, weights in zip(signs, state.identities, strict=True)]
        )
        return state

    def layer_step(
        self, state: Filled, query: Any, key: Any, value: Any, turn: Turn
    ) -> tuple[Any, Filled]:
        ops, mask = self.backend.keras.ops, turn.mask(state.cache.shape[2])
        B, L, H, D = query.shape
        q, k, v = (ops.reshape(x, (B, L, -1)) for x in (query, key, value))
        rows, cache = state.layer(
            q, v, k, attention_mask=ops.convert_to_tensor(mask), cache=state.cache,
            cache_update_index=state.count,
        )  # fmt: skip
        return ops.reshape(rows, (B, L, H, D)), replace(state, cache=cache, count=state.count + L)

    def crop(self, state: Filled, count: int, *samples: Any) -> Filled:
        return replace(state, count=rolled_back(state.count, count))

    def reset(self, state: Filled, *samples: Any) -> Filled:
        return replace(state, count=0)

    def reorder(self, state: Filled, samples: Any) -> Filled:
        return replace(state, cache=self.backend.keras.ops.take(state.cache, samples, 0))

    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        return self.backend.keras.ops.concatenate(list(arrays), axis)
