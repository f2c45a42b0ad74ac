"""Caches of mlx-lm, with its masks and its attention function.

A step does what a model's forward pass does: the cache makes the mask for the new tokens, takes their
keys and values, and returns those that attention gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from backends._mlx.attention import Fast
from backends._mlx.engine import MlxEngine
from backends.caching import Scripted, Turn
from backends.declared import Declared
from backends.masks import feature_array
from backends.protocol import Implementation
from suite.spec.inputs import Inputs
from suite.spec.operators.cached import FEATURES


class LmCache(Scripted):
    """`KVCache`, which grows; a window is a mask."""

    backend: MlxEngine

    name = "lm-kv-cache"
    declared = Declared(
        numerics=Fast.declared.numerics,
        features=FEATURES,
        refusals={
            **dict.fromkeys(("softcap", "alibi-slopes"), "the attention function has none of it"),
            **dict.fromkeys(("bias", "bias-with-mask"), "the masks of caches are made of booleans"),
            **dict.fromkeys(("tree", "keep"), "the masks of caches are causal"),
            "subsets": "the samples of a cache have one length",
            "reorder": "KVCache does not choose samples",
            "left-padding": "KVCache has no padding",
        },
        elections={"beyond-capacity": "grows"},
    )

    def init(self, inputs: Inputs, key: Any) -> Any:
        return self.cache(inputs)

    def cache(self, inputs: Inputs) -> Any:
        """An empty cache."""
        from mlx_lm.models.cache import KVCache

        return KVCache()

    def window(self, inputs: Inputs) -> int | None:
        """The number of keys that the mask shows to a row."""
        left = inputs.case.option("left")
        return None if left is None else left + 1

    def step(self, state: Any, query: Any, key: Any, value: Any, turn: Turn) -> tuple[Any, Any]:
        from mlx_lm.models.base import create_attention_mask, scaled_dot_product_attention

        inputs = turn.inputs
        tokens = query.transpose(0, 2, 1, 3)
        mask = create_attention_mask(tokens, state, window_size=self.window(inputs))
        key, value = state.update_and_fetch(key, value)
        rows = scaled_dot_product_attention(
            query, key, value, state, inputs.effective_scale, mask,
            sinks=feature_array(self.backend, inputs, "sinks"),
        )  # fmt: skip
        return rows, state

    def crop(self, state: Any, count: int, *samples: Any) -> Any:
        from mlx_lm.models.cache import trim_prompt_cache

        if trim_prompt_cache([state], count) != count:
            raise NotImplementedError("the cache cannot be trimmed")
        return state

    def reset(self, state: Any, *samples: Any) -> Any:
        """As mlx-lm's server does: all tokens are trimmed."""
        return self.crop(state, state.size())

    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        return self.backend.mlx.concatenate(list(arrays), axis=axis)


class LmRotating(LmCache):
    """`RotatingKVCache` where there is a window."""

    name = "lm-rotating-cache"
    declared = LmCache.declared.refusing(
        dict.fromkeys(("window-rollback", "reset"), "a full RotatingKVCache cannot be trimmed")
    )

    def cache(self, inputs: Inputs) -> Any:
        from mlx_lm.models.cache import RotatingKVCache

        window = super().window(inputs)
        return super().cache(inputs) if window is None else RotatingKVCache(max_size=window)

    def window(self, inputs: Inputs) -> None:
        """The cache has it."""


class LmBatch(LmCache):
    """`BatchKVCache`, whose samples have left padding and may be chosen."""

    name = "lm-batch-cache"
    declared = LmCache.declared.taking("left-padding", "reorder")

    def cache(self, inputs: Inputs) -> Any:
        from mlx_lm.models.cache import BatchKVCache

        return BatchKVCache(self.padding(inputs))

    def padding(self, inputs: Inputs) -> list[int]:
        """The left padding (B,) of samples."""
        return [*(inputs.case.option("padding") or [0] * inputs.sizes.B)]

    def reorder(self, state: Any, samples: Any) -> Any:
        state.filter(samples)
        return state


class LmBatchRotating(LmBatch):
    """`BatchRotatingKVCache` where there is a window."""

    name = "lm-batch-rotating-cache"
    declared = LmBatch.declared.refusing(
        dict.fromkeys(("window-rollback", "reset"), "a full BatchRotatingKVCache cannot be trimmed")
    )

    def cache(self, inputs: Inputs) -> Any:
        from mlx_lm.models.cache import BatchRotatingKVCache

        window = super().window(inputs)
        if window is None:
            return super().cache(inputs)
        return BatchRotatingKVCache(window, self.padding(inputs))

    def window(self, inputs: Inputs) -> None:
        """The cache has it."""


def caches(backend: MlxEngine) -> list[Implementation]:
    """The caches, if mlx-lm is installed."""
    kinds = (LmCache, LmRotating, LmBatch, LmBatchRotating)
    return [kind(backend) for kind in kinds] if find_spec("mlx_lm") else []
