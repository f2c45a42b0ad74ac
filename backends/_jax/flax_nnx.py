"""`flax.nnx.MultiHeadAttention` in its two code paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from backends._jax.flax_layers import FlaxLayer, biased, by_parts, decodes, one_by_one
from backends.declared import LOWEST_IN_FLOAT32
from suite.spec.case import Case
from suite.spec.catalogue import AnyCase
from suite.spec.inputs import Inputs


class Nnx(FlaxLayer):
    """No dropout, no weights: `jax.nn.dot_product_attention` inside."""

    name = "flax-nnx"
    declared = (
        FlaxLayer.declared.refusing(
            {
                "weights": "asked for weights it takes another path: flax-nnx-weights",
                "dropout": "with dropout it takes another path: flax-nnx-weights",
            }
        )
        .electing(
            {
                "causal-alignment": "top-left",
                "causal-with-mask": "intersect",
                # jax.nn.dot_product_attention inside, whose softmax is in float32.
                "lowest-row": LOWEST_IN_FLOAT32 | {"f64": "nan"},
            }
        )
        # Softmax runs in float32 whatever the dtype.
        .but(numerics={"f64": "single", "f32": "fused", "bf16": "fused", "f16": "fused"})
    )
    causal_flag = calls_native = True
    sows = False

    def unsupported(self, case: AnyCase) -> str | None:
        widths = case.widths if isinstance(case, Case) else None
        if widths is not None and widths.key != widths.value:
            return "flax.nnx.MultiHeadAttention has one in_kv_features for keys and values"
        return super().unsupported(case)

    def settings(self, inputs: Inputs) -> dict[str, Any]:
        w = inputs.widths
        return super().settings(inputs) | {
            "in_features": w.query,
            "in_kv_features": w.key,
            "num_kv_heads": inputs.sizes.Hkv,
        }

    def module(
        self, settings: dict[str, Any], inputs: Inputs
    ) -> Callable[[Mapping[str, Any], Any, Any, dict[str, Any]], tuple[Any, Any]]:
        """Flags: `deterministic`, of the call; `view`: "eval", "train" or "constructor", which say
        instead of the call whether dropout is on; `decode_in_call`; `sow`; `jit`, for `nnx.jit`;
        `decodes`: row by row, from a cache."""
        import jax
        from flax import nnx

        own = dict(settings)
        row_by_row = own.pop("decodes", False)
        view, decode_in_call = own.pop("view", ""), own.pop("decode_in_call", False)
        deterministic = own.pop("deterministic", not inputs.training)
        sows, jit = own.pop("sow", self.sows), own.pop("jit", False)
        static: dict[str, Any] = {"sow_weights": sows}
        if decode_in_call:
            static["decode"] = row_by_row
        else:
            own["decode"] = row_by_row
        if view:
            own["deterministic"] = deterministic
        else:
            static["deterministic"] = deterministic
        wanted = inputs.returned != "none"

        def construct(bias: Any) -> Any:
            added = biased(nnx.dot_product_attention, bias)
            return nnx.MultiHeadAttention(**own, **added, rngs=nnx.Rngs(0), keep_rngs=False)

        def run(
            parameters: Mapping[str, Any], bias: Any, seed: Any, arguments: dict[str, Any]
        ) -> tuple[Any, Any]:
            # In the abstract: no initializer is computed.
            layer = nnx.eval_shape(lambda: construct(bias))
            for part, arrays in by_parts(parameters).items():
                for what, array in arrays.items():
                    setattr(getattr(layer, part), what, nnx.Param(array))
            if view in ("eval", "train"):
                getattr(layer, view)()
            causal = {n: arguments.pop(n) for n in ("is_causal",) if n in arguments}

            def called(layer: Any, arrays: dict[str, Any], key: Any) -> tuple[Any, Any]:
                rngs = nnx.Rngs(dropout=key)
                if not sows:
                    return layer(**arrays, **causal, **static, rngs=rngs), None
                captured = nnx.capture(layer, nnx.Intermediate)
                output, sown = captured(**arrays, **causal, **static, rngs=rngs)
                return output, sown["attention_weights"][0]

            if row_by_row:
                layer.init_cache(arguments["inputs_q"].shape, own["dtype"])

                def step(row: Any) -> Any:
                    return called(layer, {"inputs_q": row}, jax.random.key(seed))[0]

                return one_by_one(step, arguments), None
            function = nnx.jit(called) if jit else called
            output, weights = function(layer, arguments, jax.random.key(seed))
            return output, weights if wanted else None

        return run

    def flag_paths(self, inputs: Inputs) -> dict[str, dict[str, Any]]:
        flags: dict[str, dict[str, Any]] = {
            "constructor's deterministic": {"view": "constructor"},
            "decode in the call": {"decode_in_call": True},
            "nnx.jit": {"jit": True},
        }
        if decodes(inputs):
            # A row has no future: the cache hides it, and a flag would hide the past.
            flags["decode"] = {"decodes": True, "flag": False}
        return flags


class NnxWeights(Nnx):
    """sow_weights=True, or dropout: products and a softmax of its own."""

    name = "flax-nnx-weights"
    declared = FlaxLayer.declared.electing(
        {
            "causal-alignment": "top-left",
            "causal-with-mask": "intersect",
            "returned-weights": "before-dropout",
        }
    ).but(numerics="stepwise", dropout="shared")
    calls_native = False
    sows = True

    def flag_paths(self, inputs: Inputs) -> dict[str, dict[str, Any]]:
        flags: dict[str, dict[str, Any]] = {"nnx.jit": {"jit": True}}
        if inputs.training:
            return flags | {
                "train()": {"view": "train"},
                "constructor's deterministic": {"view": "constructor"},
            }
        flags |= {
            "dropout, deterministic": {"dropout_rate": 0.5, "deterministic": True},
            "dropout, eval()": {"dropout_rate": 0.5, "view": "eval"},
            "no dropout, train()": {"dropout_rate": 0.0, "view": "train"},
            "no dropout, not deterministic": {"dropout_rate": 0.0, "deterministic": False},
        }
        if inputs.returned == "none":
            flags["dropout, deterministic, no weights"] = {"dropout_rate": 0.5, "sow": False}
        return flags
