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
from attention_conformance.backends.kernel import FrameworkFunction, Kernel, as_named
from attention_conformance.backends.layer import SEED
from attention_conformance.backends.masks import IS_CAUSAL, AttentionCall, dense_of, full
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.inputs import Inputs


def mask(call: AttentionCall) -> Any:
    """The mask; beside the causal flag in full sizes (finding nnx-causal-broadcast)."""
    hidden = dense_of(call.inputs, call.native.rest)
    if call.native.causal and hidden is not None and hidden.ndim <= 4:
        return call.backend.array(full(hidden, call.inputs), None)
    return call.mask()


def seed(call: AttentionCall) -> Any:
    """The seed of dropout as an array."""
    inputs = call.inputs
    return call.backend.array(np.asarray(inputs.dropout_seed), None) if inputs.rate else None


def calling(own: FrameworkFunction, inputs: Inputs, **more: Any) -> Callable[..., Any]:
    """The function, which takes the seed of dropout as an array."""
    function, key = as_named(own, inputs), own.backend.jax.random.key

    def call(**arguments: Any) -> Any:
        if SEED in arguments:
            arguments["dropout_rng"] = key(arguments.pop(SEED))
        return function(**arguments, **more)

    return call


def with_module(own: FrameworkFunction, inputs: Inputs) -> Callable[..., Any]:
    """The function, given a module to sow its weights into. Given neither a module nor dropout, it would
    call `jax.nn.dot_product_attention`, another implementation."""
    from flax import nnx

    return lambda **arguments: calling(own, inputs, module=nnx.Module())(**arguments)


def paths(own: FrameworkFunction, inputs: Inputs, plain: PreparedCall) -> dict[str, PreparedCall]:
    """Beside the causal flag a call with the mask as it broadcasts."""
    call = AttentionCall(own.backend, inputs, own.kernel.native(inputs))
    if not call.native.causal:
        return {}
    given = call.mask()
    return plain.written_out({"mask as it broadcasts": {} if given is None else {"mask": given}})


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
    calls=calling,
    through=lambda own, inputs, call: own.backend.jitted(own, call),
    paths=paths,
    wrong=({"precision": "exact"},),
    # Layers call these functions in the other dtypes.
    later=frozenset(ALL_BUT_FLOAT32),
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
