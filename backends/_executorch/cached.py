"""Attention with a cache by ExecuTorch's operators sdpa_with_kv_cache, custom_sdpa and update_cache.

The caller has the positions: a rollback and a reset move the position back, as ExecuTorch's runner does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pkgutil import resolve_name
from typing import Any

import numpy as np

from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends.caching import Scripted, StepContext, rolled_back
from attention_conformance.backends.declared import Declared
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.elections import ElectionCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.malformed import MalformedCase
from attention_conformance.suite.spec.operators.cached import FEATURES
from attention_conformance.suite.spec.operators.scripts import actions, capacity, unwritten_slots
from attention_conformance.suite.spec.operators.steps import Chunk

NO_FEATURES = {
    **dict.fromkeys(("softcap", "sinks", "alibi-slopes"), "the operators have none of it"),
    **dict.fromkeys(("bias", "bias-with-mask"), "a mask has no heads"),
    **dict.fromkeys(("left-padding", "documents"), "a mask has no samples"),
    **dict.fromkeys(("rotary", "halves", "interleaved"), "the operators rotate nothing"),
    "value-size": "the caches of keys and values have one size",
    "keep": "a cache keeps its first tokens, and no others",
}


def object_of_llama_example(name: str) -> Any:
    """Returns an object of ExecuTorch's llama example, named as "module:Class"."""
    return resolve_name(f"executorch.examples.models.llama.source_transformation.{name}")


@dataclass(frozen=True)
class CacheState:
    """A cache, and the number of its tokens."""

    cache: Any
    count: int = 0


class FusedCache(Scripted):
    """`sdpa_with_kv_cache`: one operator writes keys and values (B, C, Hkv, D), and attends causally."""

    backend: TorchEngine

    name = "sdpa-with-kv-cache"
    declared = Declared(
        numerics="fused",
        dtypes=("f32", "bf16", "f16"),
        features=FEATURES,
        refusals={
            **NO_FEATURES,
            **dict.fromkeys(("window", "ring", "window-rollback"), "the operator has no window"),
            "tree": "the operator is causal",
            "subsets": "the samples of a cache have one length",
        },
    )
    axis_order = "blhd"

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, MalformedCase) and case.name != "rollback-beyond-length":
            # Finding executorch-unchecked.
            return "operands of wrong shapes are read beyond their ends, or end the process"
        return super().unsupported(case)

    def init(self, inputs: Inputs, key: Any) -> Any:
        s = inputs.sizes
        empty = unwritten_slots(inputs.case, s.B, capacity(inputs.case), s.Hkv, s.D)
        return CacheState([self.backend.array(empty, inputs.dtype) for _ in range(2)])

    def step(
        self, state: CacheState, query: Any, key: Any, value: Any, context: StepContext
    ) -> tuple[Any, Any]:
        rows = self.backend.torch.ops.llama.sdpa_with_kv_cache(
            query, key, value, *state.cache, state.count, key.shape[1], None, 0.0, True,
            context.inputs.scale,
        )  # fmt: skip
        return rows, replace(state, count=state.count + key.shape[1])

    def crop(self, state: CacheState, count: int, *samples: Any) -> CacheState:
        return replace(state, count=rolled_back(state.count, count))

    def reset(self, state: CacheState, *samples: Any) -> CacheState:
        return replace(state, count=0)

    def reorder(self, state: CacheState, samples: Any) -> CacheState:
        return replace(state, cache=[array[samples] for array in state.cache])

    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        return self.backend.torch.cat(list(arrays), axis)


class CustomRing(FusedCache):
    """`CustomRingKVCache`, with twice as many slots as the window has keys, and `custom_sdpa` with the
    cache's own mask. A cache has one position for all samples, so every sample has a cache.

    A ring refuses chunks of more tokens than it has slots. Earlier tokens are written in chunks of one
    window.
    """

    name = "custom-ring-kv-cache"
    declared = FusedCache.declared.taking("window", "ring", "window-rollback", "subsets").electing(
        {"nan-in-freed-slot": "leaks"}
    )

    def init(self, inputs: Inputs, key: Any) -> Any:
        s, cache_class = inputs.sizes, object_of_llama_example("custom_kv_cache:CustomRingKVCache")
        window = inputs.case.option("left") + 1
        return tuple(CacheState(cache_class(1, window, s.Hkv, s.D, key.dtype)) for _ in range(s.B))

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, ElectionCase) and case.question.name == "beyond-capacity":
            # Finding executorch-beyond-capacity.
            return "custom_sdpa ends the process beyond the capacity"
        if not isinstance(case, Case) or case.option("left") is None:
            return "a ring has a window"
        slots = 2 * (case.option("left") + 1)
        chunks = (
            action for action in actions(case) if isinstance(action, Chunk) and action.has_queries
        )
        if any(chunk.count > slots for chunk in chunks):
            return "a chunk has at most as many tokens as the ring has slots"
        return super().unsupported(case)

    def fill(self, state: Any, query: Any, key: Any, value: Any, context: StepContext) -> Any:
        size = context.inputs.case.option("left") + 1
        for first in range(0, key.shape[1], size):
            q, k, v = (array[:, first : first + size] for array in (query, key, value))
            state = self.step(state, q, k, v, context)[1]
        return state

    def step(
        self, state: Any, query: Any, key: Any, value: Any, context: StepContext
    ) -> tuple[Any, Any]:
        states, answers = list(state), []
        for n, sample in enumerate(context.chunk.sample_ids):
            q, k, v = (array[n : n + 1] for array in (query, key, value))
            rows, states[sample] = self.sample_step(states[sample], q, k, v, context.inputs.scale)
            answers.append(rows)
        return self.concat(answers, 0), tuple(states)

    def sample_step(
        self, state: CacheState, query: Any, key: Any, value: Any, scale: float | None
    ) -> tuple[Any, CacheState]:
        """Write the cache, make the mask and attend, as a layer of the llama model does. Returns the rows
        and the state of the sample."""
        torch, cache, first = self.backend.torch, state.cache, state.count
        positions = torch.arange(first, first + key.shape[1])
        updated = cache.update(positions, key.transpose(1, 2), value.transpose(1, 2))
        key, value = (array.transpose(1, 2) for array in updated)
        mask = self.mask(cache, positions)
        rows = torch.ops.llama.custom_sdpa(query, key, value, 0, mask, 0.0, False, scale)
        return rows, CacheState(cache, first + len(positions))

    def mask(self, cache: Any, positions: Any) -> Any:
        """Returns the mask (rows, slots), 0 or -inf, of the newest tokens, which are at these positions
        (rows,)."""
        return cache.create_causal_mask_for_ring_buffer(int(positions[0]), len(positions))

    def crop(self, state: Any, count: int, *samples: Any) -> Any:
        return self.change_each(state, samples, partial(super().crop, count=count))

    def reset(self, state: Any, *samples: Any) -> Any:
        return self.change_each(state, samples, super().reset)

    def reorder(self, state: Any, samples: Any) -> Any:
        return tuple(deepcopy(state[n]) for n in samples.tolist())

    @staticmethod
    def change_each(state: Any, samples: tuple[Any, ...], change: Callable[..., Any]) -> Any:
        """Returns the caches of all samples, after `change` of those of the samples `samples[0]`, or of
        all samples if `samples` is empty."""
        chosen = samples[0].tolist() if samples else range(len(state))
        return tuple(change(x) if n in chosen else x for n, x in enumerate(state))


class SinkRing(CustomRing):
    """`KVCacheWithAttentionSink`, whose first token keeps its slot. The mask of the cache lets every row
    attend it; here it is masked outside of the window, as all tokens are."""

    name = "attention-sink-kv-cache"

    def init(self, inputs: Inputs, key: Any) -> Any:
        s, make = inputs.sizes, object_of_llama_example("attention_sink:KVCacheWithAttentionSink")
        window = inputs.case.option("left") + 1
        make_cache = partial(make, s.Hkv, s.D, False, None, window, sink_size=1, dtype=key.dtype)
        return tuple(CacheState(make_cache()) for _ in range(s.B))

    def mask(self, cache: Any, positions: Any) -> Any:
        age = positions[:, None] - cache.cache_positions_manager.cache_positions
        mask = super().mask(cache, positions)
        return mask.masked_fill(age >= cache.window_size, -np.inf)
