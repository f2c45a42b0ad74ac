"""Rows of `keras.layers.Attention` and `keras.layers.AdditiveAttention`: one head, no projections, a mask
of keys, a causal flag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._keras import models
from attention_conformance.backends._keras.layer import (
    DECLARED,
    assigned,
    call_with_problem,
    called,
    differentiable,
    on_engine,
    options,
    paths,
    settings,
)
from attention_conformance.backends._keras.multi_head import TENSORFLOW
from attention_conformance.backends.declared import SINGLE_EAGER, Election, Numerics
from attention_conformance.backends.layer import FrameworkLayer, Layer
from attention_conformance.backends.masks import split_native
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.one_head import ADDITIVE, CONCAT, DOT

UNMASKED = {"f64": "unmasked", "f32": "uniform", "bf16": "uniform", "f16": "uniform"}
"""Keras subtracts 1e9 from masked scores, 65504 in float16. This does not absorb float64 scores."""

PAIRS = "the layer has a mask of keys and a causal flag, and no mask of pairs"

SINGLE = DECLARED.refusing(
    {"squeezed": "the layer needs an axis of queries", "mask": PAIRS, "window": PAIRS}
).electing(
    {
        "padded-sample": UNMASKED,
        # A constant is subtracted from masked scores, so gradients flow to them.
        "padded-sample-gradient": dict.fromkeys(("f32", "bf16"), "scores"),
        "returned-weights": "after-dropout",
    }
)

NUMERICS: Mapping[str, Numerics] = {
    "tensorflow": TENSORFLOW,
    # keras.ops.matmul computes float64 in float32.
    "torch": SINGLE_EAGER,
    "jax": "stepwise",
    # keras.ops casts float64 to float32.
    "numpy": {"f64": "single", "f32": "eager", "bf16": "stepwise", "f16": "stepwise"},
}

TANH: Mapping[str, Numerics] = {
    **NUMERICS,
    # keras.ops.tanh computes float64 in float32.
    "jax": {"f64": "single", "f32": "stepwise", "bf16": "stepwise", "f16": "stepwise"},
}
"""Numerics classes of layers with tanh scores."""

ELECTIONS: Mapping[str, Mapping[str, Election]] = {
    "numpy": {"padded-sample": "uniform"},
    # Keras compares a torch dtype with "float16", so it subtracts 1e9 also there, which gives -inf.
    "torch": {"padded-sample": UNMASKED | {"f16": "nan"}},
}

DOT_ELECTIONS: Mapping[str, Mapping[str, Election]] = {
    **ELECTIONS,
    "torch": {"padded-sample": UNMASKED | {"f64": "uniform", "f16": "nan"}},
}


def build_layer(impl: FrameworkLayer, inputs: Inputs, layer: Any) -> Any:
    """Returns the layer, built, with the inputs' parameters."""
    layer.build([x.shape for x in operands(inputs)])
    return assigned(impl, inputs, layer)


def additive(impl: FrameworkLayer, inputs: Inputs, **flags: Any) -> Any:
    """Returns a `keras.layers.AdditiveAttention`, which adds queries and keys without projections."""
    import keras

    # use_scale=True is the default, and is not passed.
    unscaled = {} if "score_vector" in inputs.parameters else {"use_scale": False}
    layer = keras.layers.AdditiveAttention(**{**settings(inputs), **unscaled, **flags})
    return build_layer(impl, inputs, layer)


def attention(mode: str, impl: FrameworkLayer, inputs: Inputs, **flags: Any) -> Any:
    """Returns a `keras.layers.Attention` with a score mode."""
    import keras

    scaled = "scale" in inputs.parameters
    layer = keras.layers.Attention(scaled, **{"score_mode": mode, **settings(inputs), **flags})
    return build_layer(impl, inputs, layer)


def variables(layer: Any) -> dict[str, Any]:
    """Returns the variables by canonical names. The scale of AdditiveAttention is a vector."""
    scale, weight = (getattr(layer, n, None) for n in ("scale", "concat_score_weight"))
    return {"scale": scale, "score_vector": scale, "concat_weight": weight}


def arguments(
    impl: FrameworkLayer,
    inputs: Inputs,
    training: bool | None = None,
    scores: bool | None = None,
    query_mask: np.ndarray | None = None,
) -> dict[str, Any]:
    """Returns the mask of keys, the mask `query_mask` of queries, and the options of a call. Raises
    ValueError for a mask that differs between queries."""
    native = split_native(inputs, causal=True, lengths=True)
    if native.dense(inputs) is not None:
        raise ValueError(PAIRS)
    masks = {"value_mask": native.valid(inputs), "query_mask": query_mask}
    arrays = {n: impl.backend.array(mask, None) for n, mask in masks.items() if mask is not None}
    return arrays | options(
        inputs, inputs.returned != "none" if scores is None else scores, training
    )


def with_list_arguments(layer: Any, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call the layer with lists of arrays and masks. Returns its answer."""
    names = [name for name in ("query", "value", "key") if name in arrays]
    masks = [arrays.get(name) for name in ("query_mask", "value_mask")]
    mask = masks if any(array is not None for array in masks) else None
    return layer([arrays[name] for name in names], mask=mask, **options)


def every_path(impl: FrameworkLayer, inputs: Inputs) -> dict[str, PreparedCall]:
    """Returns the calls of `paths`, and calls that return scores, with a mask of queries, and with only
    query and value."""
    calls = paths(impl, inputs, tests_inference=True)
    if inputs.returned == "none":
        calls["return_attention_scores"] = impl.call(inputs, {"scores": True})
    query_mask = {"query_mask": models.alternating_query_mask(inputs)}
    calls["query_mask"] = impl.call(inputs, query_mask, way=models.with_query_mask)
    if not inputs.self_attention and inputs.key.shape == inputs.value.shape:
        calls["two inputs"] = call_with_problem(
            impl, inputs.replace(key=inputs.value), without=("key",)
        )
    return calls


def operands(inputs: Inputs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns query, value and key, in the order of Keras' list."""
    return inputs.query, inputs.value, inputs.key


def single_head(engine: str) -> Iterator[Layer]:
    """Yields the rows on an engine."""
    uniform: Mapping[str, Election] = {"padded-sample": "uniform"}
    additive_row = Layer(
        "keras-additive", ADDITIVE, additive, partial(called, apply=with_list_arguments), variables,
        on_engine(
            engine, SINGLE.refusing({"projection": "the layer has no projections"}), TANH,
            {**ELECTIONS, "jax": uniform},
        ),
        differentiable=differentiable, arguments=arguments, paths=every_path,
    )  # fmt: skip
    yield additive_row
    # Scores are stored and overflow; inf - inf is NaN.
    overflowing = SINGLE.electing({"large-scores": "nan"})
    for name, operator, mode, numerics, elections in (
        ("keras-attention", DOT, "dot", NUMERICS, DOT_ELECTIONS),
        ("keras-attention-concat", CONCAT, "concat", TANH, ELECTIONS),
    ):
        declared = on_engine(engine, overflowing, numerics, elections)
        make = partial(attention, mode)
        yield additive_row.but(
            name=name,
            operator=operator,
            make=make,
            declared=declared,
            wrong=({"score_mode": "sum"},),
        )
