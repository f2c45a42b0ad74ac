"""`keras_hub.layers.CachedMultiHeadAttention` without a cache, with a cache that calls fill, and with a
full cache. All masks are one array, since the layer has no causal flag and no mask of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attention_conformance.backends._keras.multi_head import MHA, PLAIN, MultiHead
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS


class MultiHeadPlain(MultiHead):
    """The layer without a cache, equal to `keras.layers.MultiHeadAttention`."""

    name = "cached-mha-plain"
    declared = MHA.refusing(
        {
            "weights": "judged without scores",
            "native-causal": "the layer has no causal flag",
        }
    ).but(
        elections={
            **PLAIN, "mask-polarity": "attends", "nan-in-masked-key": "blocked",
            "nan-in-masked-value": "leaks",
        }
    )  # fmt: skip

    def bare(self, inputs: Inputs, **flags: Any) -> Any:
        import keras_hub

        s, projections = inputs.sizes, self.projections(inputs)
        return keras_hub.layers.CachedMultiHeadAttention(
            s.H, s.D, value_dim=s.Dv, output_shape=inputs.widths.output, **projections, **flags
        )

    def call(self, inputs: Inputs, **ways: Any) -> PreparedCall:
        return super().call(_dense(inputs), **ways)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        return super().paths(_dense(inputs))


class MultiHeadUpdated(MultiHeadPlain):
    """The layer with a cache that two calls fill, each with its part of keys and values.

    The output is that of the second call.
    """

    name = "cached-mha-updated"
    declared = MultiHeadPlain.declared.refusing(
        {
            "value-size": "the cache holds keys and values of one size",
            "gradient": "keras.ops.slice_update, which fills the cache, has no gradient on TensorFlow",
        }
    )

    def apply(self, layer: Any, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        return self.filled(layer, arrays, options)[0]

    def filled(
        self, layer: Any, arrays: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """The output (B, Lq, E) of the last call, and the cache (B, 2, Lk, H, D)."""
        import keras

        query, value = arrays["query"], arrays["value"]
        key = arrays.get("key", value)
        rest = {n: a for n, a in arrays.items() if n not in OPERANDS} | {**options}
        batch, length = value.shape[:2]
        shape = (batch, 2, length, layer.num_heads, layer.key_dim)
        cache, half = keras.ops.zeros(shape, query.dtype), length // 2
        if half:
            _, cache = layer(
                query, value[:, :half], key[:, :half], cache=cache, cache_update_index=0, **rest
            )
        return layer(
            query, value[:, half:], key[:, half:], cache=cache, cache_update_index=half, **rest
        )

    def ways(self, inputs: Inputs) -> dict[str, dict[str, Any]]:
        # In a functional model the size of the cache is unknown.
        ways = super().ways(inputs)
        return {name: way for name, way in ways.items() if way.get("through", "gate") == "gate"}


class MultiHeadStatic(MultiHeadUpdated):
    """The layer with a full cache and only a query, as in cross-attention to an encoder's output."""

    name = "cached-mha-static"

    def apply(self, layer: Any, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        _, cache = self.filled(layer, arrays, options)
        rest = {n: a for n, a in arrays.items() if n not in OPERANDS} | {**options}
        return layer(arrays["query"], arrays["query"], cache=cache, **rest)[0]


def _dense(inputs: Inputs) -> Inputs:
    """The inputs with the mask as one array."""
    return inputs if inputs.dense_mask is None else inputs.with_dense()
