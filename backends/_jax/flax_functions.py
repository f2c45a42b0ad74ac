"""Flax's attention functions: `dot_product_attention` of `flax.nnx` and of `flax.linen`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_conformance.backends._jax.engine import FLUSHED
from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.declared import (
    ATTENTION_FEATURES,
    INTERSECTED,
    LOWEST_FILL,
    Declared,
)
from attention_conformance.backends.implementation import ALL_BUT_FLOAT32
from attention_conformance.backends.kernel import FrameworkFunction, Kernel, function_of_row
from attention_conformance.backends.layer import SEED
from attention_conformance.backends.masks import IS_CAUSAL, AttentionCall, full
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.inputs import Inputs


def mask(call: AttentionCall) -> Any:
    """Returns the mask. With the causal flag its axes have full sizes (finding nnx-causal-broadcast)."""
    array = call.native.dense(call.inputs)
    if call.native.causal and array is not None and array.ndim <= 4:
        return call.backend.array(full(array, call.inputs), None)
    return call.mask()


def seed(call: AttentionCall) -> Any:
    """Returns the seed of dropout as an array; None without dropout."""
    inputs = call.inputs
    return call.backend.array(np.asarray(inputs.dropout_seed), None) if inputs.rate else None


def with_seed(impl: FrameworkFunction, inputs: Inputs, **settings: Any) -> Callable[..., Any]:
    """Returns a callable that calls the function with `settings`, and with the seed of dropout as a
    random key."""
    function, random_key = function_of_row(impl, inputs), impl.backend.jax.random.key

    def call(**arguments: Any) -> Any:
        if SEED in arguments:
            arguments["dropout_rng"] = random_key(arguments.pop(SEED))
        return function(**arguments, **settings)

    return call


def with_module(impl: FrameworkFunction, inputs: Inputs) -> Callable[..., Any]:
    """Returns the function with a module into which it sows its weights. Without a module and dropout the
    function would call `jax.nn.dot_product_attention`, another implementation."""
    from flax import nnx

    return lambda **arguments: with_seed(impl, inputs, module=nnx.Module())(**arguments)


def paths(
    impl: FrameworkFunction, inputs: Inputs, plain_call: PreparedCall
) -> dict[str, PreparedCall]:
    """Returns a call whose mask has axes of size 1, which broadcast, if the causal flag is used; else
    {}."""
    call = AttentionCall(impl.backend, inputs, impl.row.native(inputs))
    if not call.native.causal:
        return {}
    mask = call.mask()
    return plain_call.with_additional_arguments(
        {"mask as it broadcasts": {} if mask is None else {"mask": mask}}
    )


LINEN = Kernel(
    "flax-linen-function",
    "flax.linen.dot_product_attention",
    (
        Parameter("mask", value=mask),
        Parameter("bias", value=AttentionCall.bias),
        Parameter("dropout_rate", value=lambda call: call.inputs.rate or None),
        # The default is False.
        Parameter(
            "deterministic",
            value=lambda call: (call.inputs.rate and not call.inputs.training) or None,
        ),
        Parameter(SEED, value=seed),
    ),
    Declared(
        numerics="stepwise",
        features=ATTENTION_FEATURES | {"no-heads"},
        refusals={
            "scale": "Flax divides by the root of the head size",
            "softcap": "Flax's functions have no softcap",
            "native-window": "Flax's functions have no window",
            "native-causal": "flax.linen.dot_product_attention has no causal flag",
            "grouped-heads": "flax.linen.dot_product_attention has as many key heads as query heads",
        },
        elections=LOWEST_FILL
        | {
            "integer-mask": "cast-to-bool",
            "subnormal-output": FLUSHED,
            "score-overflow": "finite",  # queries are divided before the product
        },
        dropout="shared",
    ),
    calls=with_seed,
    through=lambda impl, inputs, call: impl.backend.jitted(impl, call),
    paths=paths,
    wrong=({"precision": "exact"},),
    # Layers call these functions in the other dtypes.
    postponed=frozenset(ALL_BUT_FLOAT32),
)
"""Flax's own products, softmax and dropout; a fully masked row is the mean of all values."""

NNX = LINEN.but(
    name="flax-nnx-function",
    function="flax.nnx.dot_product_attention",
    parameters=(
        IS_CAUSAL,
        *LINEN.parameters,
        Parameter("broadcast_dropout", value=lambda call: False if call.inputs.rate else None),
    ),
    declared=LINEN.declared.taking("native-causal", "grouped-heads")
    .electing(INTERSECTED)
    .but(dropout="elements"),
    calls=with_module,
)
