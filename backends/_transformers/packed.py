"""Packing by positions in transformers' models: one sample, whose positions begin at 0 for each sequence.
`masking_utils.create_causal_mask` finds the sequences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._transformers.attention import chosen_function
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import FEATURES, PACKED


def ones(query: Any) -> Any:
    """The mask (1, Lq) of a sample without padding."""
    return query.new_ones(1, len(query))


def empty_cache() -> Any:
    """The cache that a model makes by default."""
    from transformers import DynamicCache

    return DynamicCache()


ONE_LENGTH = "packing by positions needs as many keys as queries in a sequence"


class PackedByPositions(Implementation):
    """Packing by positions, with the attention function "sdpa" of configurations."""

    backend: TorchEngine

    name = "packed-sdpa"
    operator = PACKED
    declared = Declared(
        numerics="eager",
        features=FEATURES,
        refusals={"cross-lengths": ONE_LENGTH, "causal-bottom-right": ONE_LENGTH},
        elections={"nan-in-other-segment": "others"},
    )
    chosen = "sdpa"
    """The name of the attention function in configurations."""

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, Case) and case.option("alignment") == "all":
            return "models that pack by positions are causal"
        return super().unsupported(case)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.call(inputs)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        return {
            "a mask of ones": self.call(inputs, lambda query: {"attention_mask": ones(query)}),
            "an empty cache": self.call(inputs, lambda query: {"past_key_values": empty_cache()}),
        }

    def call(
        self, inputs: Inputs, more: Callable[[Any], dict[str, Any]] = lambda query: {}
    ) -> PreparedCall:
        """The call; `more(query)` are further arguments of create_causal_mask."""
        from transformers import LlamaConfig
        from transformers.masking_utils import create_causal_mask

        torch, backend, s = self.backend.torch, self.backend, inputs.sizes
        arguments = sequences(backend, inputs)
        lengths = inputs.arrays["query_lengths"].astype(int)
        places = np.concatenate([np.arange(n) for n in lengths])
        arguments["position"] = backend.array(places[None], None)
        config = LlamaConfig(num_attention_heads=s.H, num_key_value_heads=s.Hkv)
        config._attn_implementation = self.chosen
        layer = torch.nn.Module().eval()
        layer.num_key_value_groups = s.group
        function, scale = chosen_function(self.chosen), inputs.effective_scale

        def call(query: Any, key: Any, value: Any, position: Any) -> Any:
            embeddings = query.new_zeros(1, len(query), 1)
            given = {"attention_mask": None, "past_key_values": None, **more(query)}
            mask = create_causal_mask(config, embeddings, position_ids=position, **given)
            operands = (x.transpose(0, 1)[None] for x in (query, key, value))
            output, _ = function(layer, *operands, mask, scaling=scale, dropout=0.0)
            return output[0]

        return PreparedCall(call, arguments)


class PackedEager(PackedByPositions):
    """Packing by positions, with Llama's eager attention function."""

    name = "packed-eager"
    declared = PackedByPositions.declared.but(
        # The softmax is float32 in every dtype, also in float64.
        numerics={"f64": "single", "f32": "eager", "bf16": "eager", "f16": "eager"}
    )
    chosen = "eager"
