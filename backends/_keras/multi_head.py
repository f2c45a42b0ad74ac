"""Rows of `keras.layers.MultiHeadAttention` and `keras.layers.GroupQueryAttention`, in two code paths
each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._keras import models
from attention_conformance.backends._keras.layer import (
    DECLARED,
    assigned,
    called,
    differentiable,
    on_engine,
    options,
    paths,
    settings,
)
from attention_conformance.backends.declared import (
    INTERSECTED,
    LOWEST_IN_FLOAT32,
    SINGLE_FUSED,
    Declared,
    Election,
    Numerics,
)
from attention_conformance.backends.layer import FrameworkLayer, Layer
from attention_conformance.backends.masks import Native, full, split_native
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Window
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD

TENSORFLOW = {"f64": "eager", "f32": "eager", "bf16": "stepwise", "f16": "working"}
"""The numerics classes of textbook code on TensorFlow (`backends._tensorflow.engine`)."""

SCORES_NUMERICS: Mapping[str, Numerics] = {
    # The Python number 1 / sqrt(D) passes through float32.
    "tensorflow": TENSORFLOW | {"f64": "single"},
    "torch": "eager",
    "jax": "stepwise",
    # keras.ops casts float64 to float32; einsum sums in float16. The softmax sums in bfloat16, which only
    # few keys allow in this class (finding keras-numpy-bfloat16-softmax).
    "numpy": {"f64": "single", "f32": "eager", "bf16": "stepwise", "f16": "working"},
}
"""Numerics classes of layers that return scores, by engine."""


SHARED = DECLARED.refusing(
    {
        "squeezed": "takes a batch",
        "average": "Keras returns the scores of every head",
    }
).electing(
    INTERSECTED
    | {
        "mask-polarity": "attends",
        "nan-in-masked-key": "blocked",
        "nan-in-masked-value": "leaks",
    }
)

PLAIN: Mapping[str, Election] = {
    "fully-masked-row": "uniform",
    "padded-sample": "uniform",
    "fully-masked-row-gradient": "values",
}
"""Elections of layers that call `keras.ops.dot_product_attention`."""

SCORES: Mapping[str, Election] = {
    # The softmax sets masked weights to zero.
    "fully-masked-row": "zeros",
    "padded-sample": "zeros",
    "fully-masked-row-gradient": "nothing",
    "returned-weights": "before-dropout",
}
"""Elections of layers that return scores."""


SCORES_ELECTIONS: Mapping[str, Mapping[str, Election]] = {
    # In float64 the output's bias is rounded to float32, which matches no answer.
    "numpy": dict.fromkeys(
        ("fully-masked-row", "padded-sample"), dict.fromkeys(("f32", "bf16", "f16"), "zeros")
    )
}
"""Elections of single engines that differ, for layers that return scores."""

MHA = SHARED.refusing(
    {"grouped-heads": "keras.layers.MultiHeadAttention has as many key/value heads as query heads"}
)
GQA = SHARED.refusing(
    {
        "value-size": "keras.layers.GroupQueryAttention has one head_dim",
        "output-width": "keras.layers.GroupQueryAttention projects back to the query's width",
    }
)

PLAIN_NUMERICS: Mapping[str, Numerics] = {
    "tensorflow": TENSORFLOW | {"f64": "single"},
    # keras.ops.dot_product_attention casts float64 to float32.
    "torch": SINGLE_FUSED,
    "jax": SINGLE_FUSED,
    # The softmax is float32 in every dtype; einsum sums in float16.
    "numpy": {"f64": "single", "f32": "fused", "bf16": "fused", "f16": "working"},
}
"""Numerics classes of layers that call `keras.ops.dot_product_attention`, by engine."""

PLAIN_ELECTIONS: Mapping[str, Mapping[str, Election]] = {
    # The mask becomes a bias of -0.7 max. In float16 (-45853) the bias does not absorb float32 scores.
    "torch": {
        "fully-masked-row": LOWEST_IN_FLOAT32,
        "padded-sample": LOWEST_IN_FLOAT32,
        "fully-masked-row-gradient": dict.fromkeys(("f64", "f32", "bf16"), "scores"),
        "nan-in-masked-key": "leaks",
    },
}
"""Elections of single engines that differ, for layers that call `keras.ops.dot_product_attention`."""


def build_layer(
    impl: FrameworkLayer, inputs: Inputs, make: Callable[..., Any], **flags: Any
) -> Any:
    """Returns the layer that `make` makes, built, with the inputs' parameters. As in users' code, default
    values are not passed, and the key's shape defaults to the value's shape."""
    biases = {} if "query_bias" in inputs.parameters else {"use_bias": False}
    layer = make(**{**settings(inputs), **biases, "kernel_initializer": "zeros", **flags})
    query, value, key = (x.shape for x in (inputs.query, inputs.value, inputs.key))
    layer.build(query, value, *([key] if key != value else []))
    if hasattr(layer, "_gate_dense"):
        models.set_gate(layer._gate_dense)
    return assigned(impl, inputs, layer)


def mha(impl: FrameworkLayer, inputs: Inputs, **flags: Any) -> Any:
    """Returns a `keras.layers.MultiHeadAttention`."""
    import keras

    s, widths = inputs.sizes, inputs.widths
    sizes: dict[str, Any] = {"num_heads": s.H, "key_dim": s.D}
    if s.Dv != s.D:
        sizes["value_dim"] = s.Dv
    if widths.output != widths.query:
        sizes["output_shape"] = widths.output
    return build_layer(impl, inputs, keras.layers.MultiHeadAttention, **(sizes | flags))


def gqa(impl: FrameworkLayer, inputs: Inputs, **flags: Any) -> Any:
    """Returns a `keras.layers.GroupQueryAttention`."""
    import keras

    s = inputs.sizes
    sizes = {"head_dim": s.D, "num_query_heads": s.H, "num_key_value_heads": s.Hkv}
    return build_layer(impl, inputs, keras.layers.GroupQueryAttention, **(sizes | flags))


def variables(layer: Any) -> dict[str, Any]:
    """Returns the variables of the projections by canonical names. Keras has the canonical shapes."""
    names = [(n, what) for n in ("query", "key", "value", "output") for what in ("kernel", "bias")]
    return {f"{n}_{what}": getattr(getattr(layer, f"_{n}_dense"), what) for n, what in names}


def masks(impl: FrameworkLayer, inputs: Inputs) -> dict[str, Any]:
    """Returns `value_mask` (B, Lk), and `attention_mask` (B, Lq, Lk), or (B, H, Lq, Lk) if heads differ.
    A causal mask is a flag, and not included."""
    native = split_native(inputs, causal=True, lengths=True)
    remaining_mask = _remaining_mask(native, inputs)
    arrays = {"value_mask": native.valid(inputs), "attention_mask": remaining_mask}
    return {n: impl.backend.array(mask, None) for n, mask in arrays.items() if mask is not None}


def _remaining_mask(native: Native, inputs: Inputs) -> np.ndarray | None:
    """Returns the mask without the parts that are flags, (B, Lq, Lk), or (B, H, Lq, Lk) if heads differ;
    None if nothing remains."""
    dense = native.dense(inputs)
    if dense is None:
        return None
    heads_differ = dense.ndim == 4 and dense.shape[1] != 1
    return np.ascontiguousarray(full(dense, inputs, heads_differ))


def arguments(
    scores: bool,
    impl: FrameworkLayer,
    inputs: Inputs,
    replacement: Mapping[str, Any] | None = None,
    training: bool | None = None,
) -> dict[str, Any]:
    """Returns the masks and the options of a call. `replacement`: used in place of the masks."""
    masks_of_call = masks(impl, inputs) if replacement is None else replacement
    return {**masks_of_call, **options(inputs, scores, training)}


def mask_paths(impl: FrameworkLayer, inputs: Inputs) -> dict[str, PreparedCall]:
    """Returns calls with other forms of the same mask."""
    by_name = masks(impl, inputs)
    calls: dict[str, PreparedCall] = {}
    if "value_mask" in by_name:
        renamed = {("key_mask" if n == "value_mask" else n): m for n, m in by_name.items()}
        calls["key_mask"] = impl.call(inputs, {"replacement": renamed})
    if split_native(inputs, causal=True).causal or "value_mask" in by_name:
        calls["dense mask"] = impl.call(inputs.with_dense())
    return calls


def flag_paths(
    variants: Mapping[str, Any], impl: FrameworkLayer, inputs: Inputs
) -> dict[str, PreparedCall]:
    """Returns calls of layers with constructor arguments: each of `variants`, a gate, and a window."""
    calls = {
        f"{name}={value}": impl.call(inputs, **{name: value}) for name, value in variants.items()
    }
    if not inputs.self_attention:
        calls["use_gate"] = impl.call(inputs, way=models.divided_by_gate, use_gate=True)
    mask = inputs.mask
    reach = mask.left if isinstance(mask, Window) and mask.left == mask.right else None
    if reach is not None and inputs.form != "dense":
        no_masks: dict[str, Any] = {"replacement": {}}
        calls["sliding_window"] = impl.call(inputs, no_masks, sliding_window=reach + 1)
    return calls


def all_paths(
    scores: bool, variants: Mapping[str, Any], impl: FrameworkLayer, inputs: Inputs
) -> dict[str, PreparedCall]:
    """Returns the calls of `paths`, `mask_paths` and `flag_paths`."""
    groups = (
        paths(impl, inputs, scores),
        mask_paths(impl, inputs),
        flag_paths(variants, impl, inputs),
    )
    return {name: call for calls in groups for name, call in calls.items()}


WRONG: tuple[Mapping[str, Any], ...] = (
    {"sliding_window": 0}, {"sliding_window": 1.0}, {"flash_attention": True, "dropout": 0.5},
)  # fmt: skip
"""Arguments of the constructor that both layers must refuse."""

WRONG_MHA: tuple[Mapping[str, Any], ...] = (
    *WRONG,
    *({name: value} for name in ("num_heads", "key_dim") for value in (0, 1.0)),
    *({name: 1.0} for name in ("value_dim", "output_shape", "attention_axes")),
    {"value_dim": 0},
)
WRONG_GQA = (*WRONG, {"num_query_heads": 4, "num_key_value_heads": 3})


FLASH = {"flash_attention": False}
"""flash_attention=True raises on every engine on a CPU."""


def multi_head(engine: str) -> Iterator[Layer]:
    """Yields the rows on an engine. Each layer has two: without scores it calls
    keras.ops.dot_product_attention, with scores einsum, softmax, einsum."""

    def row(name: str, make: Any, declared: Declared, scores: bool, variants: Any) -> Layer:
        numerics = SCORES_NUMERICS if scores else PLAIN_NUMERICS
        elections = SCORES_ELECTIONS if scores else PLAIN_ELECTIONS
        return Layer(
            name, MULTI_HEAD, make, called, variables,
            on_engine(engine, declared.electing(SCORES if scores else PLAIN), numerics, elections),
            differentiable=differentiable,
            arguments=partial(arguments, scores),
            paths=partial(all_paths, scores, variants),
            wrong=WRONG_GQA if make is gqa else WRONG_MHA,
        )  # fmt: skip

    for name, make, declared, variants in (
        ("keras-mha", mha, MHA, FLASH | {"attention_axes": 1}),
        ("keras-gqa", gqa, GQA, FLASH),
    ):
        reason = f"return_attention_scores=True takes another path: {name}-scores"
        yield row(name, make, declared.refusing({"weights": reason}), False, variants)
        yield row(f"{name}-scores", make, declared, True, variants)
