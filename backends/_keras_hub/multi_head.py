"""Rows of `keras_hub.layers.CachedMultiHeadAttention` without a cache, with a cache that calls fill, and
with a full cache. All masks are one array, since the layer has no causal flag and no mask of values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from attention_conformance.backends._keras.layer import called, differentiable, on_engine
from attention_conformance.backends._keras.multi_head import (
    MHA,
    PLAIN,
    PLAIN_NUMERICS,
    WRONG_MHA,
    arguments,
    every_path,
    projecting,
    variables,
)
from attention_conformance.backends.layer import FrameworkLayer, Layer
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD
from attention_conformance.suite.spec.vocabulary import OPERANDS


def cached_mha(own: FrameworkLayer, inputs: Inputs, **flags: Any) -> Any:
    """A `keras_hub.layers.CachedMultiHeadAttention`."""
    import keras_hub

    s, kind = inputs.sizes, keras_hub.layers.CachedMultiHeadAttention
    sizes = {
        "num_heads": s.H, "key_dim": s.D, "value_dim": s.Dv, "output_shape": inputs.widths.output,
    }  # fmt: skip
    return projecting(own, inputs, kind, **(sizes | flags))


def dense(inputs: Inputs) -> Inputs:
    """The inputs with the mask as one array."""
    return inputs if inputs.dense_mask is None else inputs.with_dense()


def dense_arguments(own: FrameworkLayer, inputs: Inputs, **given: Any) -> dict[str, Any]:
    """The mask, and the options of a call."""
    return arguments(False, own, dense(inputs), **given)


def paths(own: FrameworkLayer, inputs: Inputs) -> dict[str, PreparedCall]:
    """The paths of `keras.layers.MultiHeadAttention`."""
    variants = {"flash_attention": False, "attention_axes": 1}
    return every_path(False, variants, own, dense(inputs))


def without_models(own: FrameworkLayer, inputs: Inputs) -> dict[str, PreparedCall]:
    """`paths` without a functional model, in which the size of the cache is unknown."""
    return {name: call for name, call in paths(own, inputs).items() if name != "function"}


def filled(layer: Any, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Any, Any]:
    """The output (B, Lq, E) of the last of two calls, and the cache (B, 2, Lk, H, D). Each call fills the
    cache with its part of keys and values."""
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


def updated(layer: Any, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call the layer with a cache that two calls fill."""
    return filled(layer, arrays, options)[0]


def static(layer: Any, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call the layer with a full cache and only a query, as in cross-attention to an encoder's output."""
    _, cache = filled(layer, arrays, options)
    rest = {n: a for n, a in arrays.items() if n not in OPERANDS} | {**options}
    return layer(arrays["query"], arrays["query"], cache=cache, **rest)[0]


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
    called=partial(called, apply=updated),
    declared=CACHED_PLAIN.declared.refusing(
        {
            "value-size": "the cache holds keys and values of one size",
            "gradient": "keras.ops.slice_update, which fills the cache, has no gradient on TensorFlow",
        }
    ),
    paths=without_models,
)

CACHED_STATIC = CACHED_UPDATED.but(name="cached-mha-static", called=partial(called, apply=static))
