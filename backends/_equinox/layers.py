"""`equinox.nn.MultiheadAttention` and `equinox.nn.LayerNorm`, mapped over samples, through `jax.jit`.

The call builds the module from parameters among its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends.declared import LAYER_FEATURES, Declared
from attention_conformance.backends.masks import full, rank4
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.multi_head import MULTI_HEAD
from attention_conformance.suite.spec.operators.norms import LAYER_NORM

PARTS = ("query", "key", "value", "output")
"""The projections; their modules are called `query_proj` and so on."""

SEED = "dropout_seed"
"""The argument with the seed of dropout."""

NO_BIAS = "equinox has no bias of the scores"


class EquinoxMultiHead(Implementation):
    """`equinox.nn.MultiheadAttention`, which scales queries and computes the softmax in float32."""

    backend: JaxEngine

    name = "multi-head"
    operator = MULTI_HEAD
    declared = Declared(
        numerics="eager",
        features=LAYER_FEATURES,
        refusals={
            **dict.fromkeys(("bias", "bias-with-mask"), NO_BIAS),
            **dict.fromkeys(("weights", "average"), "equinox returns no weights"),
            "grouped-heads": "equinox has as many key/value heads as query heads",
            "native-causal": "equinox has no causal flag",
        },
        elections={
            "fully-masked-row": "uniform",
            "padded-sample": "uniform",
            "fully-masked-row-gradient": "values",
            "mask-polarity": "attends",
            "nan-in-masked-key": "blocked",
            "nan-in-masked-value": "leaks",
        },
        dropout="elements",
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.backend.jitted(self, self.call(inputs))

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        ways: dict[str, dict[str, Any]] = {"operation by operation": {}}
        if inputs.dense_mask is not None:
            ways["mask of every head"] = {"every_head": True}
        if not inputs.rate:
            ways["inference in the call"] = {"in_call": True}
        calls = {name: self.call(inputs, **way) for name, way in ways.items()}
        return {
            name: self.backend.jitted(self, call) if ways[name] else call
            for name, call in calls.items()
        }

    def call(self, inputs: Inputs, every_head: bool = False, in_call: bool = False) -> PreparedCall:
        """The call, operation by operation.

        `every_head`: the mask has an axis of all heads. `in_call`: the module has dropout, and an
        argument of the call switches it off.
        """
        import equinox

        backend, jax, s, w = self.backend, self.backend.jax, inputs.sizes, inputs.widths
        arguments = sequences(backend, inputs)
        operands = ["query", "key", "value"]
        mask = inputs.dense_mask
        if mask is not None:
            apart = every_head or rank4(mask).shape[1] != 1
            whole = np.ascontiguousarray(full(mask, inputs, apart))
            arguments["mask"] = backend.array(whole[0] if inputs.squeezed else whole, None)
            operands.append("mask")
        parameters = {n: backend.array(a, inputs.dtype) for n, a in inputs.parameters.items()}
        arguments |= parameters
        arguments[SEED] = backend.array(np.asarray(inputs.dropout_seed), None)
        biases = dict.fromkeys((f"use_{n}_bias" for n in PARTS), "query_bias" in parameters)
        settings: dict[str, Any] = {
            "num_heads": s.H, "query_size": w.query, "key_size": w.key, "value_size": w.value,
            "output_size": w.output, "qk_size": s.D, "vo_size": s.Dv, **biases,
            "dropout_p": 0.5 if in_call else inputs.rate,
            "inference": not (in_call or inputs.training),
        }  # fmt: skip
        inference = True if in_call else None

        def module(own: Mapping[str, Any]) -> Any:
            kind = equinox.nn.MultiheadAttention
            # An abstract module: no initializer runs.
            bare = equinox.filter_eval_shape(kind, **settings, key=jax.random.key(0))
            arrays = {name: _matrix(name, array) for name, array in own.items()}

            def leaves(layer: Any) -> list[Any]:
                parts = (name.rsplit("_", 1) for name in arrays)
                return [
                    getattr(getattr(layer, f"{part}_proj"), "bias" if what == "bias" else "weight")
                    for part, what in parts
                ]

            return equinox.tree_at(leaves, bare, list(arrays.values()))

        def run(**arguments: Any) -> tuple[Any, None]:
            layer = module({name: arguments[name] for name in parameters})
            key = jax.random.key(arguments[SEED])

            def one(key: Any, query: Any, keys: Any, value: Any, mask: Any = None) -> Any:
                return layer(query, keys, value, mask, key=key, inference=inference)

            arrays = [arguments[name] for name in operands]
            if inputs.squeezed:
                return one(key, *arrays), None
            return jax.vmap(one)(jax.random.split(key, arrays[0].shape[0]), *arrays), None

        constants = (settings, inference, len(operands), inputs.squeezed)
        return PreparedCall(run, arguments, LAYER_OUTPUTS, constants=constants)


def _matrix(name: str, array: Any) -> Any:
    """A canonical kernel or bias in the shape of `equinox.nn.Linear`: (out, in) or (out,)."""
    if name.endswith("_bias"):
        return array.reshape(-1)
    if name == "output_kernel":  # (H, Dv, E)
        return array.reshape(-1, array.shape[-1]).T
    return array.reshape(array.shape[0], -1).T


class EquinoxLayerNorm(Implementation):
    """`equinox.nn.LayerNorm` of each token."""

    backend: JaxEngine

    name = "layer-norm"
    operator = LAYER_NORM
    declared = Declared(numerics="exact", features=LAYER_FEATURES)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        import equinox

        backend, jax = self.backend, self.backend.jax
        affine = "gain" in inputs.parameters
        settings: dict[str, Any] = {"eps": inputs.epsilon, "use_weight": affine, "use_bias": affine}

        def call(query: Any, **own: Any) -> tuple[Any, None]:
            layer = equinox.nn.LayerNorm(query.shape[-1], **settings)
            if own:
                parts = [own["gain"], own["offset"]]
                layer = equinox.tree_at(lambda norm: [norm.weight, norm.bias], layer, parts)
            turned = layer
            for _ in query.shape[:-1]:
                turned = jax.vmap(turned)
            return turned(query), None

        parameters = {n: backend.array(a, inputs.dtype) for n, a in inputs.parameters.items()}
        arguments = {"query": sequences(backend, inputs)["query"], **parameters}
        prepared = PreparedCall(call, arguments, LAYER_OUTPUTS, constants=(settings,))
        return backend.jitted(self, prepared)
