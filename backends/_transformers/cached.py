"""Caches of transformers, and packing by positions, with the masks of `masking_utils` and the attention
functions of its models.

A step with a cache does what a model's forward pass does: the mask is made for the cache before the step,
then the cache takes the new keys and values and returns the keys and values for attention. In packing,
one sample has positions that begin at 0 for each sequence; `create_causal_mask` finds the sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import numpy as np

from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._torch.flex import Flex, uncompiled
from attention_conformance.backends._transformers.attention import function_named, modeling
from attention_conformance.backends.caching import Scripted, StepContext
from attention_conformance.backends.declared import SINGLE_EAGER, Declared, DeclaredRounding
from attention_conformance.backends.memory import operand_arrays
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators import cached, packed
from attention_conformance.suite.spec.operators.rotary import BASE
from attention_conformance.suite.spec.operators.scripts import capacity, rotation

NO_FEATURES = dict.fromkeys(
    ("softcap", "sinks", "alibi-slopes"), "these attention functions have none of it"
)


class DynamicSdpa(Scripted):
    """`DynamicCache`, which grows, and slides if the configuration has a window; the function is
    "sdpa"."""

    backend: TorchEngine

    name = "dynamic-cache-sdpa"
    declared = Declared(
        numerics="eager",
        features=cached.FEATURES,
        refusals={
            **NO_FEATURES,
            "subsets": "the samples of a cache have one length",
            "interleaved": "Mistral rotates components half a head apart",
            "documents": "masking_utils finds documents in positions only without a cache",
            **dict.fromkeys(
                ("bias", "bias-with-mask"), "masks of masking_utils are made of booleans"
            ),
            "keep": "a cache keeps its first tokens, and no others",
            "window-rollback": "a full window goes back only if DynamicCache records the past",
        },
        elections={"nan-in-freed-slot": "blocked", "beyond-capacity": "grows"},
    )
    attention_name = "sdpa"
    """The name of the attention function in configurations."""

    @property
    def function(self) -> Any:
        return function_named(self.attention_name)

    def refusal(self, case: Case) -> str | None:
        if "rotary" in case.needs and case.dtype.name == "f64":
            return "sine and cosine are float32, also in float64 calls"
        return None

    def init(self, inputs: Inputs, key: Any) -> Any:
        """Returns the state: the cache, the configuration, and a layer."""
        from transformers import MistralConfig

        s, left, rotary = inputs.sizes, inputs.case.option("left"), rotation(inputs.case)
        # Caches and masks read no head size; a configuration refuses odd ones.
        config = MistralConfig(
            num_hidden_layers=1, num_attention_heads=s.H, num_key_value_heads=s.Hkv,
            head_dim=s.D if rotary else 2, sliding_window=None if left is None else left + 1,
            rope_parameters={"rope_type": "default", "rope_theta": rotary.base if rotary else BASE},
        )  # fmt: skip
        config._attn_implementation = self.attention_name
        layer = self.backend.torch.nn.Module().eval()
        layer.num_key_value_groups, layer.is_causal = s.group, True
        return self.cache(config, inputs), config, layer

    def cache(self, config: Any, inputs: Inputs) -> Any:
        """Returns an empty cache."""
        from transformers import DynamicCache

        return DynamicCache(config=config)

    def step(
        self, state: Any, query: Any, key: Any, value: Any, context: StepContext
    ) -> tuple[Any, Any]:
        from transformers import masking_utils

        cache, config, layer = state
        torch, padding_mask = self.backend.torch, None
        if context.inputs.case.option("padding") is not None:
            first_token = torch.tensor(context.padding, device=query.device)[:, None]
            padding_mask = torch.arange(context.total, device=query.device) >= first_token
        has_window = config.sliding_window is not None
        make_mask = (
            masking_utils.create_sliding_window_causal_mask
            if has_window
            else masking_utils.create_causal_mask
        )
        if rotation(context.inputs.case) is not None:
            query, key = self.rotated(query, key, state, context)
        # Of the embeddings only shape, dtype and device are read.
        embeddings = query.new_zeros(query.shape[0], query.shape[2], 1)
        with self.mask_context():
            mask = make_mask(config, embeddings, padding_mask, cache)
        key, value = cache.update(key, value, 0)
        if context.chunk.tree is not None:
            mask = self.tree_mask(context, key)
        rows, _ = self.function(
            layer, query, key, value, mask, scaling=context.inputs.effective_scale, dropout=0.0,
            **self.function_options(context, key),
        )  # fmt: skip
        return rows.transpose(1, 2), state

    def mask_context(self) -> AbstractContextManager[Any]:
        """The context in which a mask is made."""
        return nullcontext()

    def function_options(self, context: StepContext, key: Any) -> dict[str, Any]:
        """Returns further arguments of the attention function. `key`: the keys that the cache returns."""
        return {}

    def rotated(self, query: Any, key: Any, state: Any, context: StepContext) -> tuple[Any, Any]:
        """Returns query and key, rotated as in Mistral's model: the first position is the length of the
        cache."""
        torch, source, (cache, config, _) = self.backend.torch, modeling("mistral"), state
        length, tree = cache.get_seq_length(), context.chunk.tree
        new_positions = length + torch.arange(query.shape[2], device=query.device)
        positions = (
            new_positions[None]
            if tree is None
            else self.backend.array(context.token_positions, None)
        )
        embedding = source.MistralRotaryEmbedding(config=config).to(query.device)
        cosine, sine = embedding(query, positions)
        rotated: tuple[Any, Any] = source.apply_rotary_pos_emb(query, key, cosine, sine)
        return rotated

    def tree_mask(self, context: StepContext, key: Any) -> Any:
        """Returns the mask (B, 1, rows, keys) of a tree, 0 or -inf, for the keys `key` that the cache
        returns.

        The masks of masking_utils are causal. A mask of rank 4 passes through them unchanged.
        """
        columns = max(key.shape[2], context.total)
        hidden = ~context.mask(columns)[:, None, :, columns - key.shape[2] :]
        return key.new_zeros(hidden.shape).masked_fill(self.backend.array(hidden, None), -np.inf)

    def crop(self, state: Any, count: int, *samples: Any) -> Any:
        if count:  # a negative number is taken off the length, and 0 is the new length
            state[0].crop(-count)
        return state

    def reset(self, state: Any, *samples: Any) -> Any:
        state[0].reset()
        return state

    def reorder(self, state: Any, samples: Any) -> Any:
        state[0].reorder_cache(samples)
        return state

    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        return self.backend.torch.cat(list(arrays), axis)


class DynamicEager(DynamicSdpa):
    """`DynamicCache` with Llama's eager function."""

    name = "dynamic-cache-eager"
    declared = DynamicSdpa.declared.but(numerics=SINGLE_EAGER)
    attention_name = "eager"


class DynamicFlex(DynamicSdpa):
    """`DynamicCache` with `flex_attention_forward` and its block masks. Nothing is compiled, which would
    take seconds for every shape."""

    name = "dynamic-cache-flex"
    declared = DynamicSdpa.declared.taking("softcap", "bias", "bias-with-mask").refusing(
        {"negative-views": Flex.declared.refusals["negative-views"]}
    )
    attention_name = "flex_attention"

    @property
    def function(self) -> Any:
        """`flex_attention_forward`. From now on this process calls `flex_attention` uncompiled."""
        module = import_module("transformers.integrations.flex_attention")
        singleton = module.WrappedFlexAttention(training=False)
        singleton._compiled_flex_attention = uncompiled(module.flex_attention)
        return module.flex_attention_forward

    def mask_context(self) -> AbstractContextManager[Any]:
        stance: AbstractContextManager[Any] = self.backend.torch.compiler.set_stance("force_eager")
        return stance

    def function_options(self, context: StepContext, key: Any) -> dict[str, Any]:
        inputs, samples = context.inputs, list(context.chunk.sample_ids)
        if inputs.bias is None:
            return {"softcap": inputs.case.option("softcap")}
        positions = context.contents.positions[samples, -key.shape[2] :]
        bias = self.backend.array(context.chunk.biases(inputs.bias, positions), inputs.dtype)
        return {"softcap": inputs.case.option("softcap"), "position_bias": bias}


class DynamicRecording(DynamicSdpa):
    """`DynamicCache` that records the past, as for assisted generation: every rollback is possible."""

    name = "dynamic-cache-recording"
    declared = DynamicSdpa.declared.taking("window-rollback")

    def cache(self, config: Any, inputs: Inputs) -> Any:
        cache = super().cache(config, inputs)
        cache.activate_past_recording()
        return cache


class QuantizedFp8(DynamicSdpa):
    """`QuantizedCache` of the backend fp8: e4m3, with one scale for all tokens."""

    name = "quantized-cache-fp8"
    declared = DynamicSdpa.declared.refusing(
        {
            **dict.fromkeys(("window", "ring"), "QuantizedCache has no windows"),
            "rollback": "crop cuts keys that are not quantized, of which there are none",
        }
    ).but(rounding=DeclaredRounding(codes=dict.fromkeys(DTYPES, "e4m3")))

    def cache(self, config: Any, inputs: Inputs) -> Any:
        from transformers import QuantizedCache

        return QuantizedCache(backend="fp8", config=config)


class StaticSdpa(DynamicSdpa):
    """`StaticCache`, which has all its slots from the start."""

    name = "static-cache-sdpa"
    declared = DynamicSdpa.declared.refusing(
        dict.fromkeys(("rollback", "window-rollback"), "StaticCache has no crop")
    ).electing({"beyond-capacity": "raises"})

    def cache(self, config: Any, inputs: Inputs) -> Any:
        from transformers import StaticCache

        return StaticCache(config=config, max_cache_len=capacity(inputs.case))

    def can_rewind(self, inputs: Inputs) -> bool:
        return inputs.case.option("left") is None

    def rewound(self, state: Any, count: int) -> Any:
        state[0].layers[0].cumulative_length.sub_(count)
        return state


def mask_of_ones(query: Any) -> Any:
    """Returns the mask (1, Lq) of a sample without padding."""
    return query.new_ones(1, len(query))


def empty_cache() -> Any:
    """Returns the cache that a model makes by default."""
    from transformers import DynamicCache

    return DynamicCache()


ONE_LENGTH = "packing by positions needs as many keys as queries in a sequence"


class PackedByPositions(Implementation):
    """Packing by positions, with the attention function "sdpa" of configurations."""

    backend: TorchEngine

    name = "packed-sdpa"
    operator = packed.PACKED
    declared = Declared(
        numerics="eager",
        features=packed.FEATURES,
        refusals={"cross-lengths": ONE_LENGTH, "causal-bottom-right": ONE_LENGTH},
        elections={"nan-in-other-segment": "others"},
    )
    attention_name = "sdpa"
    """The name of the attention function in configurations."""

    def refusal(self, case: Case) -> str | None:
        full_attention = case.option("alignment") == "all"
        return "models that pack by positions are causal" if full_attention else None

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        return {
            "a mask of ones": self.prepare(
                inputs, lambda query: {"attention_mask": mask_of_ones(query)}
            ),
            "an empty cache": self.prepare(
                inputs, lambda query: {"past_key_values": empty_cache()}
            ),
        }

    def prepare(
        self, inputs: Inputs, mask_options: Callable[[Any], dict[str, Any]] = lambda query: {}
    ) -> PreparedCall:
        """Returns the call. `mask_options(query)`: further arguments of create_causal_mask."""
        from transformers import LlamaConfig
        from transformers.masking_utils import create_causal_mask

        torch, backend, s = self.backend.torch, self.backend, inputs.sizes
        arguments = operand_arrays(backend, inputs)
        lengths = inputs.arrays["query_lengths"].astype(int)
        positions = np.concatenate([np.arange(n) for n in lengths])
        arguments["position"] = backend.array(positions[None], None)
        config = LlamaConfig(num_attention_heads=s.H, num_key_value_heads=s.Hkv)
        config._attn_implementation = self.attention_name
        layer = torch.nn.Module().eval()
        layer.num_key_value_groups = s.group
        function, scale = function_named(self.attention_name), inputs.effective_scale

        def call(query: Any, key: Any, value: Any, position: Any) -> Any:
            embeddings = query.new_zeros(1, len(query), 1)
            options = {"attention_mask": None, "past_key_values": None, **mask_options(query)}
            mask = create_causal_mask(config, embeddings, position_ids=position, **options)
            operands = (x.transpose(0, 1)[None] for x in (query, key, value))
            output, _ = function(layer, *operands, mask, scaling=scale, dropout=0.0)
            return output[0]

        return PreparedCall(call, arguments)


class PackedEager(PackedByPositions):
    """Packing by positions, with Llama's eager attention function."""

    name = "packed-eager"
    declared = PackedByPositions.declared.but(numerics=SINGLE_EAGER)
    attention_name = "eager"
