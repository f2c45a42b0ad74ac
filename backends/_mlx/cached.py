"""Caches of mlx-lm, with its masks and its attention function.

A step does what a model's forward pass does: the cache makes the mask for the new tokens, takes their
keys and values, and returns the keys and values for attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attention_conformance.backends._mlx.attention import FAST
from attention_conformance.backends._mlx.engine import MlxEngine
from attention_conformance.backends.caching import Scripted, StepContext
from attention_conformance.backends.declared import Declared, DeclaredRounding
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.masks import feature_array
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.cached import FEATURES
from attention_conformance.suite.spec.operators.scripts import most_tokens, paddings, rotation

CACHES = {
    "lm-kv-cache": "KVCache",
    "lm-rotating-cache": "RotatingKVCache",
    "lm-batch-cache": "BatchKVCache",
    "lm-batch-rotating-cache": "BatchRotatingKVCache",
}
"""By implementation: the cache's class."""

CODE_GROUP = 64
"""The number of components that share a scale in a `QuantizedKVCache`: 32, 64 or 128."""


class LmCache(Scripted):
    """A cache of mlx-lm's class `kind`. Without a window it is the class without "Rotating". Only caches
    of a batch have left padding, and reorder samples."""

    backend: MlxEngine

    declared = Declared(
        numerics=FAST.declared.numerics,
        features=FEATURES,
        refusals={
            **dict.fromkeys(("softcap", "alibi-slopes"), "the attention function has none of it"),
            **dict.fromkeys(("bias", "bias-with-mask"), "the masks of caches are made of booleans"),
            **dict.fromkeys(("tree", "keep", "documents"), "the masks of caches are causal"),
            "subsets": "the samples of a cache have one length",
        },
        elections={"beyond-capacity": "grows"},
    )

    def __init__(self, backend: MlxEngine, name: str, kind: str) -> None:
        self.kind, self.is_rotating = kind, "Rotating" in kind
        refusals: dict[str, str] = {}
        if "Batch" not in kind:
            refusals |= dict.fromkeys(("reorder", "left-padding"), f"{kind} knows no samples")
        if self.is_rotating:
            reason = f"a full {kind} cannot be trimmed"
            refusals |= {"window-rollback": reason, "reset": reason}
        super().__init__(backend, name, self.declared.refusing(refusals))

    def unsupported(self, case: AnyCase) -> str | None:
        if case.id.startswith("bad/cached/history-beyond-batch"):  # finding cache-filter-unchecked
            return "MLX reads memory behind the array, which holds something else at every call"
        return super().unsupported(case)

    def refusal(self, case: Case) -> str | None:
        if {"left-padding", "reset"} <= {*case.needs}:
            return "a cache takes left padding when it is made, and trimming keeps it"
        return None

    def init(self, inputs: Inputs, key: Any) -> Any:
        from mlx_lm.models import cache

        windowed = inputs.case.option("left") is not None
        class_name = self.kind if windowed else self.kind.replace("Rotating", "")
        return getattr(cache, class_name)(*self.settings(inputs))

    def settings(self, inputs: Inputs) -> list[Any]:
        """Returns the arguments of the cache's class."""
        left = inputs.case.option("left")
        size = [left + 1] if self.is_rotating and left is not None else []
        return size + ([paddings(inputs.case)[:, 0].tolist()] if "Batch" in self.kind else [])

    def step(
        self, state: Any, query: Any, key: Any, value: Any, context: StepContext
    ) -> tuple[Any, Any]:
        import mlx.core as mx
        from mlx_lm.models.base import scaled_dot_product_attention

        inputs, rotary = context.inputs, rotation(context.inputs.case)
        if rotary is not None:
            query, key = (
                mx.fast.rope(
                    x, rotary.size, traditional=rotary.interleaved, base=rotary.base, scale=1.0,
                    offset=state.offset,
                )
                for x in (query, key)
            )  # fmt: skip
        mask = self.mask(state, query.transpose(0, 2, 1, 3), context)
        key, value = state.update_and_fetch(key, value)
        rows = scaled_dot_product_attention(
            query, key, value, state, inputs.effective_scale, mask,
            sinks=feature_array(self.backend, inputs, "sinks"),
        )  # fmt: skip
        return rows, state

    def mask(self, state: Any, tokens: Any, context: StepContext) -> Any:
        """Returns the mask that the cache makes for new tokens (B, rows, H, D): an array, "causal" or
        None."""
        from mlx_lm.models.base import create_attention_mask

        left = context.inputs.case.option("left")
        window = None if self.is_rotating or left is None else left + 1
        return create_attention_mask(tokens, state, window_size=window)

    def crop(self, state: Any, count: int, *samples: Any) -> Any:
        from mlx_lm.models.cache import trim_prompt_cache

        if trim_prompt_cache([state], count) != count:
            raise NotImplementedError("the cache cannot be trimmed")
        return state

    def reset(self, state: Any, *samples: Any) -> Any:
        """Trim all tokens, as mlx-lm's server does."""
        return self.crop(state, state.size() or state.offset)

    def reorder(self, state: Any, samples: Any) -> Any:
        state.filter(samples)
        return state

    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        return self.backend.mlx.concatenate(list(arrays), axis=axis)


class LmQuantized(LmCache):
    """`QuantizedKVCache` of 8 bits. 64 components share a scale, so a token of a head of 64 components is
    one group. Scales have the dtype of the keys; the bound assumes float32 scales."""

    declared = LmCache.declared.but(
        dtypes=("f32",),
        limits=Limits(head_sizes=(CODE_GROUP,)),
        rounding=DeclaredRounding(codes=dict.fromkeys(DTYPES, "int8")),
    ).refusing({"sinks": "attention over codes has no sinks"})

    def unsupported(self, case: AnyCase) -> str | None:
        if not isinstance(case, Case):  # its heads are smaller
            return "a group of codes has 64 components"
        return super().unsupported(case)

    def settings(self, inputs: Inputs) -> list[Any]:
        return [CODE_GROUP]


class LmChunked(LmCache):
    """`ChunkedKVCache`, whose front is cut to the window before every step, as in Llama 4. The masks of
    Llama 4 are of whole blocks, so the suite's masks are passed."""

    declared = LmCache.declared.refusing(
        dict.fromkeys(("window-rollback", "reset"), "its front may have been cut off")
    )

    def settings(self, inputs: Inputs) -> list[Any]:
        left = inputs.case.option("left")
        return [most_tokens(inputs.case) if left is None else left + 1]

    def mask(self, state: Any, tokens: Any, context: StepContext) -> Any:
        state.maybe_trim_front()
        mask = context.mask(context.total)[:, None, :, state.start_position :]
        return self.backend.array(mask, None)


def caches(backend: MlxEngine) -> list[Implementation]:
    """Returns an implementation for each cache."""
    return [
        *(LmCache(backend, *names) for names in CACHES.items()),
        LmQuantized(backend, "lm-quantized-cache", "QuantizedKVCache"),
        LmChunked(backend, "lm-chunked-cache", "ChunkedKVCache"),
    ]
