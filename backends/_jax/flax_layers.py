"""Rows of Flax's attention modules: `flax.nnx.MultiHeadAttention` in its two code paths, and
`flax.linen.MultiHeadDotProductAttention`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._jax.flax_modules import (
    EPSILON,
    by_parts,
    linen_module,
    nnx_module,
)
from attention_conformance.backends.declared import (
    INTERSECTED,
    LAYER_FEATURES,
    LOWEST_IN_FLOAT32,
    SINGLE_FUSED,
    Declared,
)
from attention_conformance.backends.layer import SEED, FrameworkLayer, Layer, output_and_weights
from attention_conformance.backends.masks import causal_alone, rank4, split_native
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD


def settings(impl: FrameworkLayer, inputs: Inputs) -> dict[str, Any]:
    """Returns constructor arguments of all modules. As in users' code, default values are not passed."""
    s, widths, dtypes = inputs.sizes, inputs.widths, impl.backend.numpy.dtype
    dtype = dtypes(inputs.dtype.long_name)
    values = {
        "qkv_features": (s.H * s.D, widths.query),
        "out_features": (widths.output, widths.query),
        "use_bias": ("query_bias" in inputs.parameters, True),
        "param_dtype": (dtype, dtypes("float32")),
        "dropout_rate": (inputs.rate, 0.0),
        "normalize_qk": ("query_gain" in inputs.parameters, False),
    }
    changed = {name: value for name, (value, default) in values.items() if value != default}
    return {"num_heads": s.H, "dtype": dtype, **changed}


def arguments(
    causal: bool, impl: FrameworkLayer, inputs: Inputs, form: str = "heads", flag: bool = True
) -> dict[str, Any]:
    """Returns the arguments for mask and bias. `causal`: the module has a causal flag; `flag`: it may be
    used.

    `form` of the mask: "heads" is (B, 1 or H, Lq, Lk), as from `make_attention_mask`; "broadcast" has
    axes of size 1.
    """
    values: dict[str, Any] = {}
    native = split_native(inputs, causal=causal and flag)
    if native.causal:
        values["is_causal"] = True
    dense = native.dense(inputs)
    if dense is not None:
        values["mask"] = impl.backend.array(_mask(dense, inputs, form), None)
    if inputs.bias is not None:
        bias = rank4(inputs.bias)
        values["bias"] = impl.backend.array(bias[0] if inputs.squeezed else bias, inputs.dtype)
    return values


def _mask(mask: np.ndarray, inputs: Inputs, form: str) -> np.ndarray:
    mask, s = rank4(mask), inputs.sizes
    if form != "broadcast":
        mask = np.broadcast_to(mask, (s.B, mask.shape[1], s.Lq, s.Lk))
    return mask[0] if inputs.squeezed else mask


def called(
    impl: FrameworkLayer,
    inputs: Inputs,
    arguments: dict[str, Any],
    *,
    native: bool = False,
    storage_dtype: str = "",
    **flags: Any,
) -> PreparedCall:
    """Returns the call through `jax.jit`.

    - `native`: the module calls `jax.nn.dot_product_attention`
    - `storage_dtype`: the dtype of the parameters, by default that of the inputs
    - `flags` go to `make`
    """
    array, dtype = impl.backend.array, DTYPES[storage_dtype] if storage_dtype else inputs.dtype
    parameters = {name: array(a, dtype) for name, a in inputs.parameters.items()}
    storage = {"param_dtype": dtype.long_name} if storage_dtype else {}
    constructor = settings(impl, inputs) | storage | flags
    module = impl.make(inputs, **constructor)

    def run(**arguments: Any) -> tuple[Any, Any]:
        tree = impl.row.parameters({name: arguments.pop(name) for name in parameters})
        bias, seed = arguments.pop("bias", None), arguments.pop(SEED)
        return output_and_weights(module(tree, bias, seed, arguments), inputs)

    arrays = {**arguments, **parameters, SEED: array(np.asarray(inputs.dropout_seed), None)}
    module_constants = (constructor, inputs.widths, inputs.sizes.Hkv)
    constants = (*module_constants, storage_dtype, inputs.returned, inputs.training)
    call = PreparedCall(run, arrays, LAYER_OUTPUTS, operands=impl.row.operands, constants=constants)
    if native:
        return impl.backend.jitted_native(impl, call, inputs.dtype)
    return impl.backend.jitted(impl, call)


Ways = dict[str, dict[str, Any]]
"""By name of a path: keyword arguments of `FrameworkLayer.call`."""


def nnx_ways(inputs: Inputs) -> Ways:
    """Returns ways to call the module of NNX that calls `jax.nn.dot_product_attention`."""
    ways: Ways = {"nnx.view, nnx.jit": {"view": True, "jit": True}}
    if decodes(inputs):
        # The cache masks the future; the causal flag would mask the past (finding nnx-decode-causal).
        ways["decode"] = {"decode": True, "changes": {"flag": False}}
        ways["decode, is_causal"] = {"decode": True}
    return ways


def weights_ways(inputs: Inputs) -> Ways:
    """Returns ways to call the module of NNX that sows weights."""
    decode = {"decode": True, "view": True, "changes": {"flag": False}}
    return linen_ways(inputs) | ({"nnx.view, decode": decode} if decodes(inputs) else {})


def linen_ways(inputs: Inputs) -> Ways:
    """Returns ways to call the module of Linen; {} in training."""
    if inputs.training:
        return {}
    return {"dropout, deterministic": {"dropout_rate": 0.5, "deterministic": True}}


def decodes(inputs: Inputs) -> bool:
    """True if decoding row by row gives the same answer: in self-attention with only a causal mask."""
    if inputs.squeezed or inputs.training or inputs.bias is not None:
        return False
    return causal_alone(inputs) and inputs.self_attention and inputs.returned == "none"


def paths(
    ways_of: Callable[[Inputs], Ways], causal: bool, impl: FrameworkLayer, inputs: Inputs
) -> dict[str, PreparedCall]:
    """Returns calls with other forms of the mask, with parameters in float32, and in the ways
    `ways_of(inputs)`. `causal`: the module has a causal flag."""
    ways = ways_of(inputs)
    if inputs.dense_mask is not None:
        if causal and split_native(inputs, causal=True).causal and inputs.mask_array is None:
            ways["causal as a mask"] = {"changes": {"flag": False}}
        if split_native(inputs, causal=causal).dense(inputs) is not None:
            ways["mask as it broadcasts"] = {"changes": {"form": "broadcast"}}
    if inputs.dtype.is_half:
        ways["parameters in float32"] = {"storage_dtype": "f32"}
    return {name: impl.call(inputs, **way) for name, way in ways.items()}


def unsupported_epsilon(case: Case) -> str | None:
    """Returns the reason if a case has another epsilon than the norms of queries and keys, or None."""
    if case.option("qk_norm") and case.option("epsilon") != EPSILON:
        return f"Flax's norms of queries and keys add {EPSILON:g} to a variance"
    return None


def unsupported_widths(case: Case) -> str | None:
    """Returns the reason if keys and values have different widths, or that of `unsupported_epsilon`, or
    None."""
    if case.widths is not None and case.widths.key != case.widths.value:
        return "flax.nnx.MultiHeadAttention has one in_kv_features for keys and values"
    return unsupported_epsilon(case)


DECLARED = Declared(
    features=LAYER_FEATURES,
    refusals={
        "average": "Flax sows the weights of every head",
        "value-size": "Flax has one qkv_features",
    },
    elections={
        "fully-masked-row": "uniform",
        "padded-sample": "uniform",
        "minus-inf-row": "nan",
        "lowest-row": "uniform",
        "fully-masked-row-gradient": "values",
        "mask-polarity": "attends",
        "nan-in-masked-key": "blocked",
        "nan-in-masked-value": "leaks",
    },
).taking("qk-norm")

LINEN = Layer(
    "flax-linen",
    MULTI_HEAD,
    linen_module,
    called,
    by_parts,
    DECLARED.refusing(
        {
            "grouped-heads": "Flax Linen has as many key/value heads as query heads",
            "native-causal": "Flax Linen has no causal flag",
        }
    )
    .electing({"returned-weights": "before-dropout"})
    .but(numerics="stepwise", dropout="shared"),
    operands={"query": "inputs_q", "key": "inputs_k", "value": "inputs_v"},
    arguments=partial(arguments, False),
    paths=partial(paths, linen_ways, False),
    wrong=({"num_heads": 5},),
    refusal=unsupported_epsilon,
)
"""The layer with Linen's own products and softmax, with and without weights."""


NNX_WEIGHTS = LINEN.but(
    name="flax-nnx-weights",
    make=partial(nnx_module, True),
    declared=DECLARED.electing(INTERSECTED | {"returned-weights": "before-dropout"}).but(
        numerics="stepwise", dropout="shared"
    ),
    arguments=partial(arguments, True),
    paths=partial(paths, weights_ways, True),
    wrong=({"num_heads": 5}, {"num_kv_heads": 3}),
    refusal=unsupported_widths,
)
"""The layer with sow_weights=True or dropout: Flax's own products and softmax."""

NNX = NNX_WEIGHTS.but(
    name="flax-nnx",
    make=partial(nnx_module, False),
    called=partial(called, native=True),
    declared=DECLARED.refusing(
        {
            "weights": "sow_weights=True takes another path: flax-nnx-weights",
            "dropout": "dropout takes another path: flax-nnx-weights",
        }
    )
    # The softmax of jax.nn.dot_product_attention is float32.
    .electing(INTERSECTED | {"lowest-row": LOWEST_IN_FLOAT32 | {"f64": "nan"}})
    .but(numerics=SINGLE_FUSED),
    paths=partial(paths, nnx_ways, True),
)
"""The layer without dropout and weights, which calls `jax.nn.dot_product_attention`."""
