"""`flax.linen.MultiHeadDotProductAttention`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from attention_conformance.backends._jax.flax_layers import (
    NOTHING,
    FlaxLayer,
    biased,
    by_parts,
    decodes,
    one_by_one,
)
from attention_conformance.suite.spec.inputs import Inputs


class Linen(FlaxLayer):
    """The layer with Linen's own products and softmax, with and without weights."""

    name = "flax-linen"
    declared = (
        FlaxLayer.declared.refusing(
            {
                "grouped-heads": "Flax Linen has as many key/value heads as query heads",
                "native-causal": "Flax Linen has no causal flag",
            }
        )
        .electing({"returned-weights": "before-dropout"})
        .but(numerics="stepwise", dropout="shared")
    )

    def module(
        self, settings: dict[str, Any], inputs: Inputs
    ) -> Callable[[Mapping[str, Any], Any, Any, dict[str, Any]], tuple[Any, Any]]:
        """See `FlaxLayer.module`. Flags:

        - `deterministic`, `sow`: as in Flax; `constructor`: the constructor gets `deterministic`
        - `einsums`: JAX's own einsums are passed; `jax_nn`: attention_fn is jax.nn's
        - `alias`: the class MultiHeadAttention; `one_memory`: keys and values are inputs_kv
        - `wide_softmax`: force_fp32_for_softmax
        - `rows_at_once`: rows per call of a decoding layer
        """
        import flax.linen as linen
        import jax

        own = dict(settings)
        rows_at_once = own.pop("rows_at_once", 0)
        wanted = inputs.returned != "none"
        sows = own.pop("sow", False) or wanted
        one_memory = own.pop("one_memory", False)
        kind: Any = linen.MultiHeadDotProductAttention
        if own.pop("alias", False):
            kind = linen.MultiHeadAttention
        jax_nn = own.pop("jax_nn", False)
        attention = jax.nn.dot_product_attention if jax_nn else linen.dot_product_attention
        if jax_nn:
            own["attention_fn"] = attention
        if own.pop("wide_softmax", False):
            own["force_fp32_for_softmax"] = True
        if own.pop("einsums", False):
            for product in ("qk_attn_weights", "attn_weights_value"):
                own[f"{product}_einsum_cls"] = lambda: jax.numpy.einsum
        deterministic = own.pop("deterministic", not inputs.training)
        drops = not deterministic and own.get("dropout_rate", 0.0) > 0
        static = {"deterministic": deterministic}
        if own.pop("constructor", False):
            own["deterministic"] = static.pop("deterministic")
        if sows:
            static |= {"sow_weights": True, "mutable": ["intermediates"]}

        def run(
            parameters: Mapping[str, Any], bias: Any, seed: Any, arguments: dict[str, Any]
        ) -> tuple[Any, Any]:
            layer = kind(**{**own, **biased(attention, bias)})
            # As in users' code: rngs only in training or with dropout.
            rngs = {"dropout": jax.random.key(seed)} if inputs.training or drops else None
            variables = {"params": by_parts(parameters)}
            if one_memory:
                arguments["inputs_kv"] = arguments.pop("inputs_k")
                del arguments["inputs_v"]
            if rows_at_once:
                return decoded(layer, variables, arguments), None
            answer = layer.apply(variables, rngs=rngs, **arguments, **static)
            if not sows:
                return answer, None
            output, sown = answer
            weights = sown["intermediates"]["attention_weights"][0]
            return output, weights if wanted else None

        def decoded(layer: Any, variables: dict[str, Any], arguments: dict[str, Any]) -> Any:
            layer = layer.clone(decode=True)
            cache = layer.init(jax.random.key(0), arguments["inputs_q"])["cache"]

            def step(row: Any) -> Any:
                nonlocal cache
                answer, changed = layer.apply({**variables, "cache": cache}, row, mutable=["cache"])
                cache = changed["cache"]
                return answer

            return one_by_one(step, arguments, rows_at_once)

        return run

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        import flax.linen as linen

        jax, width = self.backend.jax, inputs.widths.query
        tokens = jax.ShapeDtypeStruct((1, 3, width), "float32")

        def called(query: Any, **settings: Any) -> Any:
            layer = linen.MultiHeadDotProductAttention(inputs.sizes.H, dropout_rate=0.5)
            return layer.init_with_output(jax.random.key(0), query, **settings)

        def both(query: Any) -> Any:
            return called(query, inputs_k=query, inputs_kv=query, deterministic=True)

        # eval_shape computes nothing.
        return {
            **super().refused(inputs),
            "inputs_kv beside inputs_k": partial(jax.eval_shape, both, tokens),
            "dropout that nobody says is on or off": partial(jax.eval_shape, called, tokens),
        }

    def alias(self, inputs: Inputs) -> dict[str, dict[str, Any]]:
        """The class under its other name, with keys and values as inputs_kv."""
        if inputs.self_attention:
            return {"MultiHeadAttention, inputs_kv": {"alias": True, "one_memory": True}}
        return {"MultiHeadAttention": {"alias": True}}

    def flag_paths(self, inputs: Inputs) -> dict[str, dict[str, Any]]:
        flags: dict[str, dict[str, Any]] = {
            "constructor's deterministic, einsums": {"constructor": True, "einsums": True}
        }
        if inputs.returned == "none":
            flags["sow_weights"] = {"sow": True}
            if inputs.dtype.name != "f64":
                flags["force_fp32_for_softmax"] = {"wide_softmax": True}
        if decodes(inputs):
            flags["decode"] = {"rows_at_once": 1}
        if not inputs.training:
            flags |= {
                **self.alias(inputs),
                "dropout, deterministic": {"dropout_rate": 0.5, "deterministic": True},
                "no dropout, not deterministic": {"dropout_rate": 0.0, "deterministic": False},
                "dropout that drops nothing": {
                    "dropout_rate": NOTHING,
                    "deterministic": False,
                    "broadcast_dropout": False,
                },
            }
            # jax.nn's softmax is float32 in every dtype.
            if inputs.returned == "none" and inputs.dtype.name != "f64":
                flags["attention_fn=jax.nn.dot_product_attention"] = {"jax_nn": True}
        return flags
