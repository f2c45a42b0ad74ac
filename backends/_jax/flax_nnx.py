"""`flax.nnx.MultiHeadAttention` in its two code paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from attention_conformance.backends._jax.flax_layers import (
    NOTHING,
    FlaxLayer,
    biased,
    by_parts,
    decodes,
    one_by_one,
)
from attention_conformance.backends.declared import LOWEST_IN_FLOAT32
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs


class Nnx(FlaxLayer):
    """The layer without dropout and weights; this path calls `jax.nn.dot_product_attention`."""

    name = "flax-nnx"
    declared = (
        FlaxLayer.declared.refusing(
            {
                "weights": "sow_weights=True takes another path: flax-nnx-weights",
                "dropout": "dropout takes another path: flax-nnx-weights",
            }
        )
        .electing(
            {
                "causal-alignment": "top-left",
                "causal-with-mask": "intersect",
                # The softmax of jax.nn.dot_product_attention is float32.
                "lowest-row": LOWEST_IN_FLOAT32 | {"f64": "nan"},
            }
        )
        # The softmax is float32 in every dtype.
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
        w, s = inputs.widths, inputs.sizes
        more = {"in_features": w.query}
        if w.key != w.query:
            more["in_kv_features"] = w.key
        if s.Hkv != s.H:
            more["num_kv_heads"] = s.Hkv
        return super().settings(inputs) | more

    def module(
        self, settings: dict[str, Any], inputs: Inputs
    ) -> Callable[[Mapping[str, Any], Any, Any, dict[str, Any]], tuple[Any, Any]]:
        """See `FlaxLayer.module`. Flags:

        - `deterministic`: an argument of the call
        - `view`: the way to switch dropout instead: "eval", "train", "nnx.view" or "constructor"
        - `sow`, `decode_in_call`: as in Flax; `jit`: through `nnx.jit`
        - `rows_at_once`: rows per call of a decoding layer, with a cache by `init_cache` or `nnx.view`
        - `own_rngs`: the call gets no rngs
        """
        import jax
        from flax import nnx

        own = dict(settings)
        rows_at_once = own.pop("rows_at_once", 0)
        decode = rows_at_once > 0
        view, decode_in_call = own.pop("view", ""), own.pop("decode_in_call", False)
        deterministic = own.pop("deterministic", not inputs.training)
        sows, jit = own.pop("sow", self.sows), own.pop("jit", False)
        own_rngs = own.pop("own_rngs", False)
        # As in users' code: default values are not passed.
        static: dict[str, Any] = {"sow_weights": True} if sows else {}
        if decode_in_call:
            static["decode"] = decode
        elif view != "nnx.view":
            own["decode"] = decode
        if view not in ("", "nnx.view"):
            own["deterministic"] = deterministic
        elif not view:
            static["deterministic"] = deterministic
        wanted = inputs.returned != "none"

        def construct(bias: Any) -> Any:
            added = biased(nnx.dot_product_attention, bias)
            kept: dict[str, Any] = {} if own_rngs else {"keep_rngs": False}
            return nnx.MultiHeadAttention(**own, **added, rngs=nnx.Rngs(0), **kept)

        @cache
        def abstract() -> Any:
            """The abstract module, made once: no initializer runs, and there are no random numbers."""
            return nnx.eval_shape(lambda: construct(None))

        def run(
            parameters: Mapping[str, Any], bias: Any, seed: Any, arguments: dict[str, Any]
        ) -> tuple[Any, Any]:
            if own_rngs and not deterministic:
                layer = construct(bias)
            elif bias is not None:
                layer = nnx.eval_shape(lambda: construct(bias))
            else:
                layer = nnx.clone(abstract())
            for part, arrays in by_parts(parameters).items():
                for what, array in arrays.items():
                    setattr(getattr(layer, part), what, nnx.Param(array))
            if view in ("eval", "train"):
                getattr(layer, view)()
            elif view:
                samples, length, _ = arguments["inputs_q"].shape
                cache = {"batch_size": samples, "max_length": length} if decode else {}
                seen = {"deterministic": deterministic, "decode": decode}
                layer = layer if view == "constructor" else nnx.view(layer, **seen, **cache)
            causal = {n: arguments.pop(n) for n in ("is_causal",) if n in arguments}

            def called(layer: Any, arrays: dict[str, Any], key: Any) -> tuple[Any, Any]:
                rngs = {} if own_rngs else {"rngs": nnx.Rngs(dropout=key)}
                if not sows:
                    return layer(**arrays, **causal, **static, **rngs), None
                captured = nnx.capture(layer, nnx.Intermediate)
                output, sown = captured(**arrays, **causal, **static, **rngs)
                return output, sown["attention_weights"][0]

            if decode:
                if view != "nnx.view":
                    layer.init_cache(arguments["inputs_q"].shape, own["dtype"])

                def step(row: Any) -> Any:
                    return called(layer, {"inputs_q": row}, jax.random.key(seed))[0]

                return one_by_one(step, arguments, rows_at_once), None
            function = nnx.jit(called) if jit else called
            output, weights = function(layer, arguments, jax.random.key(seed))
            return output, weights if wanted else None

        return run

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        from flax import nnx

        width, heads = inputs.widths.query, inputs.sizes.H

        def layer(*call: Any, **settings: Any) -> Any:
            own = {"num_heads": heads, "in_features": width, "decode": False, **settings}
            module = nnx.MultiHeadAttention(**own, rngs=nnx.Rngs(0))
            return module(*call) if call else module

        def abstract(*shape: int, **settings: Any) -> Callable[[], Any]:
            # Abstract arrays: nothing is computed.
            operands = [self.backend.jax.ShapeDtypeStruct(shape, "float32")] if shape else []
            return partial(nnx.eval_shape, partial(layer, **settings), *operands)

        dropped = {"dropout_rate": 0.5, "keep_rngs": False}
        return {
            **super().refused(inputs),
            "num_kv_heads that do not divide": abstract(num_kv_heads=heads - 1),
            "dropout without random numbers": abstract(1, 3, width, deterministic=False, **dropped),
            "dropout that nobody says is on or off": abstract(1, 3, width, **dropped),
            "decoding without a cache": abstract(1, 1, width, decode=True),
        }

    def flag_paths(self, inputs: Inputs) -> dict[str, dict[str, Any]]:
        flags: dict[str, dict[str, Any]] = {
            "constructor's deterministic, no rngs": {"view": "constructor", "own_rngs": True},
            "decode in the call": {"decode_in_call": True},
            "nnx.view, nnx.jit": {"view": "nnx.view", "jit": True},
        }
        if decodes(inputs):
            # The cache masks the future; the causal flag would mask the past (finding nnx-decode-causal).
            flags["decode"] = {"rows_at_once": 1, "flag": False}
            flags["decode, is_causal"] = {"rows_at_once": 1}
        return flags


class NnxWeights(Nnx):
    """The layer with sow_weights=True or dropout: Flax's own products and softmax."""

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
        if inputs.training:
            return {
                "nnx.jit": {"jit": True},
                "train()": {"view": "train"},
                "constructor's deterministic": {"view": "constructor"},
            }
        quiet = {"dropout_rate": 0.5, "view": "nnx.view", "jit": True}
        flags: dict[str, dict[str, Any]] = {"dropout, nnx.view, nnx.jit": quiet}
        if decodes(inputs):
            flags["nnx.view, decode"] = {"rows_at_once": 1, "flag": False, "view": "nnx.view"}
        flags |= {
            "dropout, deterministic": {"dropout_rate": 0.5, "deterministic": True},
            "dropout, eval()": {"dropout_rate": 0.5, "view": "eval"},
            "no dropout, train()": {"dropout_rate": 0.0, "view": "train"},
            "dropout that drops nothing, own rngs": {
                "dropout_rate": NOTHING,
                "deterministic": False,
                "own_rngs": True,
            },
        }
        if inputs.returned == "none":
            flags["dropout, deterministic, no weights"] = {"dropout_rate": 0.5, "sow": False}
        return flags
