"""Flax's attention functions: `dot_product_attention` of `flax.nnx` and of `flax.linen`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._jax.engine import FLUSHED, JaxEngine
from attention_conformance.backends._jax.flax_layers import SEED
from attention_conformance.backends.declared import (
    ATTENTION_FEATURES,
    INTERSECTED,
    LOWEST_FILL,
    Declared,
)
from attention_conformance.backends.implementation import ALL_BUT_FLOAT32, Implementation
from attention_conformance.backends.masks import dense_of, flagged_arguments, full, split_native
from attention_conformance.backends.prepared import PreparedCall, variations
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS


class FlaxFunction(Implementation):
    """Flax's own products, softmax and dropout; a fully masked row is the mean of all values."""

    backend: JaxEngine

    declared = Declared(
        numerics="stepwise",
        features=ATTENTION_FEATURES | {"no-heads"},
        refusals={
            "scale": "Flax divides by the root of the head size",
            "softcap": "Flax's functions have no softcap",
            "native-window": "Flax's functions have no window",
        },
        elections=LOWEST_FILL
        | {
            "integer-mask": "cast-to-bool",
            "subnormal-output": FLUSHED,
            "score-overflow": "finite",  # queries are divided before the product
        },
        dropout="elements",
    )
    causal_flag = False
    drops: Mapping[str, Any] = {}
    """Arguments of dropout besides its rate."""

    @abstractmethod
    def function(self) -> Callable[..., Any]:
        """Flax's function; arrays are (B, L, H, D)."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.call(inputs)

    @property
    def later(self) -> frozenset[str]:
        """All dtypes except float32, since layers call these functions in the other dtypes."""
        return frozenset(ALL_BUT_FLOAT32)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        if split_native(inputs, causal=self.causal_flag).causal:
            return {"mask as it broadcasts": self.call(inputs, written_out=False)}
        # Every path is a program to compile, and these paths do not depend on a mask.
        if inputs.dense_mask is not None:
            return {}
        return {name: self.call(inputs, **more) for name, more in self.settings().items()}

    def settings(self) -> dict[str, dict[str, Any]]:
        """Settings that must not change the answer, by name."""
        return {"precision": {"precision": "highest"}}

    def call(self, inputs: Inputs, written_out: bool = True, **settings: Any) -> PreparedCall:
        """A call with `settings` of the function.

        With `written_out` a mask beside the causal flag has full sizes (finding nnx-causal-broadcast).
        """
        native = split_native(inputs, causal=self.causal_flag)
        arguments = flagged_arguments(self.backend, inputs, native)
        mask = dense_of(inputs, native.rest)
        if native.causal and written_out and mask is not None and mask.ndim <= 4:
            arguments["mask"] = self.backend.array(full(mask, inputs), None)
        function, jax = self.function(), self.backend.jax
        options: dict[str, Any] = dict(settings)
        if inputs.rate:
            options |= {"dropout_rate": inputs.rate, **self.drops}
            if not inputs.training:  # the default is False
                options["deterministic"] = True
            arguments[SEED] = self.backend.array(np.asarray(inputs.dropout_seed), None)

        def call(**arguments: Any) -> Any:
            seed = arguments.pop(SEED, None)
            key = {} if seed is None else {"dropout_rng": jax.random.key(seed)}
            return function(**arguments, **options, **key)

        constants = tuple(options.items())
        plain = PreparedCall(call, arguments, axis_order="blhd", constants=constants)
        return self.backend.jitted(self, plain)

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        arguments = flagged_arguments(self.backend, inputs, split_native(inputs))
        # NumPy arrays: slicing them compiles nothing.
        own = {name: np.asarray(array) for name, array in arguments.items()}
        query, key, value = (own[name] for name in OPERANDS)
        twice = {"key": key.repeat(2, 0), "value": value.repeat(2, 0)}
        changes: dict[str, dict[str, Any]] = {
            "key of rank 3": {"key": key[0]},
            "more values than keys": {"key": key[:, 1:]},
            "keys of more samples": twice,
            "values of fewer heads": {"value": value[:, :, :2]},
            "queries of another size": {"query": query[..., 1:]},
        }
        # eval_shape computes nothing.
        shape_of, function = self.backend.jax.eval_shape, self.function()
        calls = variations(partial(shape_of, function), own, changes)
        settings = {
            name: partial(shape_of, partial(function, **more), **own)
            for name, more in self.bad_settings().items()
        }
        return calls | settings

    def bad_settings(self) -> dict[str, dict[str, Any]]:
        """Meaningless settings, by a description of the mistake."""
        return {}


class NnxFunction(FlaxFunction):
    """`flax.nnx.dot_product_attention` with a module that it sows weights into.

    Without module and dropout it calls `jax.nn.dot_product_attention`, another implementation.
    """

    name = "flax-nnx-function"
    declared = FlaxFunction.declared.electing(INTERSECTED)
    causal_flag = True
    drops = {"broadcast_dropout": False}

    def function(self) -> Callable[..., Any]:
        from flax import nnx

        return lambda **arguments: nnx.dot_product_attention(**arguments, module=nnx.Module())


class LinenFunction(FlaxFunction):
    """`flax.linen.dot_product_attention`."""

    name = "flax-linen-function"
    declared = FlaxFunction.declared.refusing(
        {
            "native-causal": "flax.linen.dot_product_attention has no causal flag",
            "grouped-heads": "flax.linen.dot_product_attention has as many key heads as query heads",
        }
    ).but(dropout="shared")

    def function(self) -> Callable[..., Any]:
        import flax.linen as linen

        return linen.dot_product_attention

    def settings(self) -> dict[str, dict[str, Any]]:
        from jax.numpy import einsum

        both = {f"{name}_einsum": einsum for name in ("qk_attn_weights", "attn_weights_value")}
        return super().settings() | {"einsums": both}

    def bad_settings(self) -> dict[str, dict[str, Any]]:
        both = self.settings()["einsums"]
        (one, einsum), (other, _) = both.items()
        return {
            "one einsum of two": {one: einsum},
            "the other einsum of two": {other: einsum},
            "a precision beside einsums": {**both, "precision": "highest"},
            "a dot_general beside einsums": {
                **both, "einsum_dot_general": self.backend.jax.lax.dot_general
            },
        }  # fmt: skip
