"""`keras.layers.Attention` and `keras.layers.AdditiveAttention`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._keras import models
from attention_conformance.backends._keras.layer import KerasLayer, Numerics, without_dropout
from attention_conformance.backends._keras.multi_head import TENSORFLOW
from attention_conformance.backends.declared import Election
from attention_conformance.backends.masks import LayerMasks
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.additive import ADDITIVE
from attention_conformance.suite.spec.operators.concat import CONCAT
from attention_conformance.suite.spec.operators.dot import DOT

UNMASKED = {"f64": "unmasked", "f32": "uniform", "bf16": "uniform", "f16": "uniform"}
"""Keras subtracts 1e9 from masked scores, 65504 in float16. This does not absorb float64 scores."""

PAIRS = "the layer has a mask of keys and a causal flag, and no mask of pairs"


class SingleHead(KerasLayer):
    """`keras.layers.Attention` and its subclass: one head, no projections, a mask of
    keys, a causal flag."""

    declared = KerasLayer.declared.refusing(
        {"squeezed": "the layer needs an axis of queries", "mask": PAIRS, "window": PAIRS}
    ).electing(
        {
            "padded-sample": UNMASKED,
            # A constant is subtracted from masked scores, so gradients flow to them.
            "padded-sample-gradient": dict.fromkeys(("f32", "bf16"), "scores"),
            "returned-weights": "after-dropout",
        }
    )
    says_scores = True
    numerics: Mapping[str, Numerics] = {
        "tensorflow": TENSORFLOW,
        # keras.ops.matmul computes float64 in float32.
        "torch": {"f64": "single", "f32": "eager", "bf16": "eager", "f16": "eager"},
        "jax": "stepwise",
        # keras.ops casts float64 to float32.
        "numpy": {"f64": "single", "f32": "eager", "bf16": "stepwise", "f16": "stepwise"},
    }
    elections: Mapping[str, Mapping[str, Election]] = {
        "numpy": {"padded-sample": "uniform"},
        # Keras compares a torch dtype with "float16", so it subtracts 1e9 also there, which gives -inf.
        "torch": {"padded-sample": UNMASKED | {"f16": "nan"}},
    }
    names: Mapping[str, str] = {"scale": "scale", "concat_weight": "concat_score_weight"}
    """Canonical parameters and their names in Keras."""

    def build(self, layer: Any, inputs: Inputs) -> None:
        layer.build([x.shape for x in operands(inputs)])

    def variables(self, layer: Any) -> dict[str, Any]:
        variables = {ours: getattr(layer, theirs, None) for ours, theirs in self.names.items()}
        return {name: variable for name, variable in variables.items() if variable is not None}

    def masks(self, inputs: Inputs) -> dict[str, Any]:
        split = LayerMasks.of(inputs)
        if split.rest is not None:
            raise ValueError(PAIRS)
        return {} if split.valid is None else {"value_mask": self.backend.array(split.valid, None)}

    def apply(self, layer: Any, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
        names = [name for name in ("query", "value", "key") if name in arrays]
        masks = [arrays.get(name) for name in ("query_mask", "value_mask")]
        mask = masks if any(one is not None for one in masks) else None
        return layer([arrays[name] for name in names], mask=mask, **options)

    def ways(self, inputs: Inputs) -> dict[str, dict[str, Any]]:
        ways = super().ways(inputs) | without_dropout(inputs)
        if inputs.returned == "none":
            ways["return_attention_scores"] = {"scores": True}
            ways["function, return_attention_scores"] = {"scores": True, "through": "function"}
        seen = self.backend.array(models.shown_rows(inputs), None)
        masks = {**self.masks(inputs), "query_mask": seen}
        return ways | {"query_mask": {"masks": masks, "through": "hidden"}}

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        calls = dict(super().paths(inputs))
        if not inputs.self_attention and inputs.key.shape == inputs.value.shape:
            problem = inputs.replace(key=inputs.value)
            for name, through in (("two inputs", ""), ("function, two inputs", "function")):
                call = self.call(problem, without=("key",), through=through)
                calls[name] = replace(call, problem=problem)
        return calls

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        layer = self.layer(inputs)
        query, value, key = (self.backend.array(x, inputs.dtype) for x in operands(inputs))
        mask = self.backend.array(np.ones(inputs.value.shape[:2], bool), None)
        both = [query, value]
        return {
            "an input that is no list": lambda: layer(query),
            "one input": lambda: layer([query]),
            "four inputs": lambda: layer([query, value, key, key]),
            "a mask that is no list": lambda: layer(both, mask=mask),
            "one mask": lambda: layer(both, mask=[mask]),
            "four masks": lambda: layer(both, mask=[None, mask, mask, mask]),
        }


def operands(inputs: Inputs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Query, value and key, in the order of Keras' list."""
    return inputs.query, inputs.value, inputs.key


TANH: Mapping[str, Numerics] = {
    **SingleHead.numerics,
    # keras.ops.tanh computes float64 in float32.
    "jax": {"f64": "single", "f32": "stepwise", "bf16": "stepwise", "f16": "stepwise"},
}
"""Numerics classes of layers with tanh scores."""


class Additive(SingleHead):
    """`keras.layers.AdditiveAttention`, which adds queries and keys without projections."""

    name = "keras-additive"
    operator = ADDITIVE
    declared = SingleHead.declared.refusing({"projection": "the layer has no projections"})
    numerics = TANH
    elections = {**SingleHead.elections, "jax": {"padded-sample": "uniform"}}
    names = {"score_vector": "scale"}

    def bare(self, inputs: Inputs, **flags: Any) -> Any:
        import keras

        # use_scale=True is the default, and is not passed.
        unscaled = {} if "score_vector" in inputs.parameters else {"use_scale": False}
        return keras.layers.AdditiveAttention(**unscaled, **flags)


class Dot(SingleHead):
    """`keras.layers.Attention` with its default score, the dot product."""

    name = "keras-attention"
    operator = DOT
    # Scores are stored and overflow; inf - inf is NaN.
    declared = SingleHead.declared.electing({"large-scores": "nan"})
    elections: Mapping[str, Mapping[str, Election]] = {
        "torch": {"padded-sample": {**UNMASKED, "f64": "uniform", "f16": "nan"}},
        "numpy": {"padded-sample": "uniform"},
    }
    score_mode = "dot"

    def bare(self, inputs: Inputs, **flags: Any) -> Any:
        import keras

        return keras.layers.Attention("scale" in inputs.parameters, self.score_mode, **flags)

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        import keras

        more = {"score_mode=sum": partial(keras.layers.Attention, score_mode="sum")}
        return {**super().refused(inputs), **more}


class Concat(Dot):
    """`keras.layers.Attention` with score_mode="concat"."""

    name = "keras-attention-concat"
    operator = CONCAT
    numerics = TANH
    elections = SingleHead.elections
    score_mode = "concat"
