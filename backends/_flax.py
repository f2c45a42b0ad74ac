"""Flax's layers: `flax.nnx.MultiHeadAttention` in its two code paths, and Flax Linen's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from backends.base import Backend, Implementation, Prepared, rank4
from backends.layers import Layer, LayerMasks, full, operands
from suite.spec.catalogue import AnyCase
from suite.spec.layers import EPSILON, LayerCase, LayerInputs

PARTS = {"query": "query", "key": "key", "value": "value", "out": "output"}
"""Flax's names of the projections, whose kernels and biases have the canonical shapes."""


def layers(backend: Backend) -> list[Implementation]:
    """Every Flax layer judged."""
    return [kind(backend) for kind in (Nnx, NnxWeights, Linen, LinenLayerNorm, LinenBatchNorm)]


class FlaxLayer(Layer):
    """What the layers share: projections and masks of the same shapes, a bias through `attention_fn`."""

    lacks: Mapping[str, str] = {
        "average": "Flax sows the weights of every head",
        "value-size": "Flax has one qkv_features",
    }
    elections = {
        "fully-masked-row": "uniform",
        "padded-sample": "uniform",
        "minus-inf-row": "nan",
        "fully-masked-row-gradient": "values",
        "mask-polarity": "attends",
        "nan-in-masked-key": "blocked",
        "nan-in-masked-value": "leaks",
    }
    causal_flag = False

    def prepare(self, inputs: LayerInputs) -> Prepared:
        return self.call(inputs)

    def call(self, inputs: LayerInputs, **flags: Any) -> Prepared:
        """The call by any of the layer's flags."""
        raise NotImplementedError

    def settings(self, inputs: LayerInputs, rate: float | None) -> dict[str, Any]:
        """The constructor's arguments that both modules have."""
        import jax

        s, dtype = inputs.sizes, jax.numpy.dtype(inputs.dtype.long_name)
        return {
            "num_heads": s.H,
            "qkv_features": s.H * s.D,
            "out_features": inputs.widths.output,
            "use_bias": "query_bias" in inputs.parameters,
            "dtype": dtype,
            "param_dtype": dtype,
            "dropout_rate": inputs.rate if rate is None else rate,
        }

    def parameters(self, inputs: LayerInputs) -> dict[str, dict[str, Any]]:
        """Kernel and bias by Flax's names."""
        return {
            ours: {
                what: self.backend.array(inputs.parameters[f"{name}_{what}"], inputs.dtype)
                for what in ("kernel", "bias")
                if f"{name}_{what}" in inputs.parameters
            }
            for ours, name in PARTS.items()
        }

    def canonical(self, inputs: LayerInputs) -> dict[str, Any]:
        """The canonical parameters, whose shapes are Flax's own."""
        return {n: self.backend.array(a, inputs.dtype) for n, a in inputs.parameters.items()}

    def given(
        self, inputs: LayerInputs, masks: str = "heads", flag: bool = True, inputs_given: int = 3
    ) -> dict[str, Any]:
        """Inputs and mask. `masks`: "heads" (B, 1 or H, Lq, Lk), what `make_attention_mask` gives; "full"
        (B, H, Lq, Lk); "broadcast", as it comes; "float32"; "helpers", made by Flax. `flag`: whether the
        causal flag may be used."""
        arrays = operands(self.backend, inputs)
        made = {f"inputs_{name[0]}": arrays[name] for name in list(arrays)[:inputs_given]}
        split = LayerMasks.of(inputs, causal=self.causal_flag and flag, lengths=False)
        if split.causal:
            made["is_causal"] = True
        if masks == "helpers":
            made["mask"] = self.helped(inputs)
        elif split.rest is not None:
            rest = rank4(split.rest)
            if masks == "full":
                rest = full(rest, inputs)
            elif masks != "broadcast":
                s = inputs.sizes
                rest = np.broadcast_to(rest, (s.B, rest.shape[1], s.Lq, s.Lk))
            rest = rest.astype(np.float32) if masks == "float32" else rest
            made["mask"] = self.backend.array(rest[0] if inputs.single else rest, None)
        return made

    def helped(self, inputs: LayerInputs) -> Any:
        """The mask as Flax's own functions make it."""
        import flax.linen as linen

        s = inputs.sizes
        split = LayerMasks.of(inputs)
        lead = () if inputs.single else (s.B,)
        ones = self.backend.array(np.ones((*lead, s.Lq), np.float32), None)
        causal = linen.make_causal_mask(ones) if split.causal else None
        padding = None
        if split.valid is not None:
            valid = split.valid[0] if inputs.single else split.valid
            padding = linen.make_attention_mask(ones, self.backend.array(valid, None))
        return linen.combine_masks(causal, padding)

    def mask_paths(self, inputs: LayerInputs) -> dict[str, dict[str, Any]]:
        """Ways of handing over the same mask."""
        flags: dict[str, dict[str, Any]] = {}
        if inputs.dense_mask is None:
            return flags
        split = LayerMasks.of(inputs)
        if split.causal and self.causal_flag and inputs.mask_array is None:
            flags["causal as a mask"] = {"flag": False}
        if LayerMasks.of(inputs, causal=self.causal_flag, lengths=False).rest is not None:
            flags["mask as it broadcasts"] = {"masks": "broadcast"}
            flags["mask written out"] = {"masks": "full"}
            flags["mask in float32"] = {"masks": "float32"}
        if split.rest is None and (inputs.sizes.Lq == inputs.sizes.Lk or not split.causal):
            flags["make_attention_mask, make_causal_mask"] = {"masks": "helpers", "flag": False}
        return flags

    def input_paths(self, inputs: LayerInputs) -> dict[str, dict[str, Any]]:
        """Ways of handing over one tensor as query, key and value."""
        if not inputs.own:
            return {}
        return {"inputs_q alone": {"inputs_given": 1}, "no inputs_v": {"inputs_given": 2}}

    def paths(self, inputs: LayerInputs) -> Mapping[str, Prepared]:
        flags = self.mask_paths(inputs) | self.input_paths(inputs) | self.flag_paths(inputs)
        return {name: self.call(inputs, **given) for name, given in flags.items()}

    def flag_paths(self, inputs: LayerInputs) -> dict[str, dict[str, Any]]:
        """The layer's other flags."""
        raise NotImplementedError

    def biased(self, inputs: LayerInputs, function: Callable[..., Any]) -> dict[str, Any]:
        """`attention_fn` with the bias, the documented way to one."""
        import functools

        if inputs.bias is None:
            return {}
        bias = rank4(inputs.bias)
        made = self.backend.array(bias[0] if inputs.single else bias, inputs.dtype)
        return {"attention_fn": functools.partial(function, bias=made)}


class Nnx(FlaxLayer):
    """No dropout, no weights: `jax.nn.dot_product_attention` inside."""

    name = "flax-nnx"
    # Softmax runs in float32 whatever the dtype.
    numerics: str | Mapping[str, str] = {
        "f64": "single",
        "f32": "fused",
        "bf16": "fused",
        "f16": "fused",
    }
    lacks: Mapping[str, str] = dict(FlaxLayer.lacks) | {
        "weights": "asked for weights it takes another path: flax-nnx-weights",
        "dropout": "with dropout it takes another path: flax-nnx-weights",
    }
    elections = FlaxLayer.elections | {
        "causal-alignment": "top-left",
        "causal-with-mask": "intersect",
    }
    causal_flag = True
    sows = False

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, LayerCase) and case.widths.key != case.widths.value:
            return "flax.nnx.MultiHeadAttention has one in_kv_features for keys and values"
        return super().unsupported(case)

    def call(
        self,
        inputs: LayerInputs,
        *,
        deterministic: bool | None = None,
        rate: float | None = None,
        view: str = "",
        decode_in_call: bool = False,
        sow: bool | None = None,
        jit: bool = False,
        **given: Any,
    ) -> Prepared:
        """The call by any of the layer's flags; None leaves what this implementation stands for.

        `view`: "eval", "train" or "constructor", which say instead of the call whether dropout is on.
        """
        import jax
        from flax import nnx

        training = inputs.training if deterministic is None else not deterministic
        layer = self.build(inputs, rate, not decode_in_call, training if view else None)
        if view in ("eval", "train"):
            getattr(layer, view)()
        arguments = self.given(inputs, **given)
        if not view:
            arguments["deterministic"] = not training
        if decode_in_call:
            arguments["decode"] = False
        arguments["sow_weights"] = sows = self.sows if sow is None else sow
        static = {n: arguments.pop(n) for n in list(arguments) if n not in _ARRAYS}
        key = jax.random.key(inputs.dropout_seed)

        def called(module: Any, arrays: dict[str, Any], dropout_key: Any) -> tuple[Any, Any]:
            rngs = nnx.Rngs(dropout=dropout_key)
            if not sows:
                return module(**arrays, **static, rngs=rngs), None
            output, sown = nnx.capture(module, nnx.Intermediate)(**arrays, **static, rngs=rngs)
            return output, sown["attention_weights"][0]

        function = nnx.jit(called) if jit else called

        def run(**arrays: Any) -> tuple[Any, Any]:
            output, weights = function(layer, arrays, key)
            return output, weights if inputs.returned != "none" else None

        run.layer = layer  # type: ignore[attr-defined]
        run.called = lambda module, arrays: called(module, arrays, key)  # type: ignore[attr-defined]
        return Prepared(run, arguments, operands=OPERANDS)

    def differentiable(self, inputs: LayerInputs) -> Prepared:
        from flax import nnx

        made, own = self.prepare(inputs), self.canonical(inputs)
        parts = nnx.split(made.function.layer)  # type: ignore[attr-defined]

        def run(**given: Any) -> tuple[Any, Any]:
            handed = {name: given.pop(name) for name in own}
            module = nnx.merge(*parts, copy=True)
            for ours, name in PARTS.items():
                for what in ("kernel", "bias"):
                    if f"{name}_{what}" in handed:
                        getattr(getattr(module, ours), what).value = handed[f"{name}_{what}"]
            return made.function.called(module, given)  # type: ignore[attr-defined]

        return Prepared(run, made.arguments | own, operands=OPERANDS)

    def build(
        self, inputs: LayerInputs, rate: float | None, decode: bool, training: bool | None
    ) -> Any:
        """A fresh layer with the inputs' parameters."""
        from flax import nnx

        w = inputs.widths
        settings = self.settings(inputs, rate) | self.biased(inputs, nnx.dot_product_attention)
        if decode:
            settings["decode"] = False
        if training is not None:
            settings["deterministic"] = not training

        def construct() -> Any:
            return nnx.MultiHeadAttention(
                in_features=w.query,
                in_kv_features=w.key,
                num_kv_heads=inputs.sizes.Hkv,
                rngs=nnx.Rngs(0),
                keep_rngs=False,
                **settings,
            )

        # In the abstract: no initializer is compiled.
        layer = nnx.eval_shape(construct)
        for part, arrays in self.parameters(inputs).items():
            for what, array in arrays.items():
                setattr(getattr(layer, part), what, nnx.Param(array))
        return layer

    def flag_paths(self, inputs: LayerInputs) -> dict[str, dict[str, Any]]:
        return {
            "constructor's deterministic": {"view": "constructor"},
            "decode in the call": {"decode_in_call": True},
            "nnx.jit": {"jit": True},
        }


OPERANDS = {"query": "inputs_q", "key": "inputs_k", "value": "inputs_v"}
"""What the modules call their inputs."""

_ARRAYS = ("inputs_q", "inputs_k", "inputs_v", "mask")


class NnxWeights(Nnx):
    """sow_weights=True, or dropout: products and a softmax of its own."""

    name = "flax-nnx-weights"
    # jax.nn.softmax called eagerly stores every step of it in the operands' dtype.
    numerics = "stepwise"
    dropout = "shared"
    lacks = FlaxLayer.lacks
    elections = Nnx.elections | {"returned-weights": "before-dropout"}
    sows = True

    def flag_paths(self, inputs: LayerInputs) -> dict[str, dict[str, Any]]:
        flags: dict[str, dict[str, Any]] = {"nnx.jit": {"jit": True}}
        if inputs.training:
            return flags | {
                "train()": {"view": "train"},
                "constructor's deterministic": {"view": "constructor"},
            }
        flags |= {
            "dropout, deterministic": {"rate": 0.5, "deterministic": True},
            "dropout, eval()": {"rate": 0.5, "view": "eval"},
            "no dropout, train()": {"rate": 0.0, "view": "train"},
            "no dropout, not deterministic": {"rate": 0.0, "deterministic": False},
        }
        if inputs.returned == "none":
            flags["dropout, deterministic, no weights"] = {"rate": 0.5, "sow": False}
        return flags


class Linen(FlaxLayer):
    """`flax.linen.MultiHeadDotProductAttention`."""

    name = "flax-linen"
    numerics = "stepwise"
    dropout = "shared"
    lacks = dict(FlaxLayer.lacks) | {
        "grouped-heads": "Flax Linen has as many key/value heads as query heads",
        "native-causal": "Flax Linen has no causal flag",
    }
    elections = FlaxLayer.elections | {"returned-weights": "before-dropout"}

    def differentiable(self, inputs: LayerInputs) -> Prepared:
        made, own = self.prepare(inputs), self.canonical(inputs)

        def run(**given: Any) -> tuple[Any, Any]:
            handed = {name: given.pop(name) for name in own}
            params = {
                ours: {w: handed[f"{n}_{w}"] for w in ("kernel", "bias") if f"{n}_{w}" in handed}
                for ours, n in PARTS.items()
            }
            return made.function.applied({"params": params}, given)  # type: ignore[attr-defined]

        return Prepared(run, made.arguments | own, operands=OPERANDS)

    def call(
        self,
        inputs: LayerInputs,
        *,
        deterministic: bool | None = None,
        rate: float | None = None,
        constructor: bool = False,
        sow: bool = False,
        alias: bool = False,
        jax_nn: bool = False,
        wide_softmax: bool = False,
        jit: bool = False,
        **given: Any,
    ) -> Prepared:
        """The call by any of the layer's flags; None leaves the plain way.

        `constructor`: deterministic is said there; `alias`: MultiHeadAttention; `jax_nn`: attention_fn is
        jax.nn's; `wide_softmax`: force_fp32_for_softmax.
        """
        import flax.linen as linen
        import jax

        kind: Any = linen.MultiHeadAttention if alias else linen.MultiHeadDotProductAttention
        attention = jax.nn.dot_product_attention if jax_nn else linen.dot_product_attention
        settings = self.settings(inputs, rate) | self.biased(inputs, attention)
        if jax_nn:
            settings.setdefault("attention_fn", attention)
        if wide_softmax:
            settings["force_fp32_for_softmax"] = True
        static: dict[str, Any] = {
            "deterministic": not inputs.training if deterministic is None else deterministic
        }
        if constructor:
            settings["deterministic"] = static.pop("deterministic")
        key = jax.random.key(inputs.dropout_seed)
        sows = sow or inputs.returned != "none"
        if sows:
            static |= {"sow_weights": True, "mutable": ["intermediates"]}
        layer = kind(**settings)

        def called(variables: Any, arrays: dict[str, Any]) -> tuple[Any, Any]:
            made: Any = layer.apply(variables, rngs={"dropout": key}, **arrays, **static)
            if not sows:
                return made, None
            return made[0], made[1]["intermediates"]["attention_weights"][0]

        function = jax.jit(called) if jit else called
        variables = {"params": self.parameters(inputs)}

        def run(**arrays: Any) -> tuple[Any, Any]:
            output, weights = function(variables, arrays)
            return output, weights if inputs.returned != "none" else None

        run.applied = function  # type: ignore[attr-defined]
        return Prepared(run, self.given(inputs, **given), operands=OPERANDS)

    def flag_paths(self, inputs: LayerInputs) -> dict[str, dict[str, Any]]:
        flags: dict[str, dict[str, Any]] = {
            "jax.jit": {"jit": True},
            "constructor's deterministic": {"constructor": True},
        }
        if inputs.returned == "none":
            flags["sow_weights"] = {"sow": True}
            if inputs.dtype.name != "f64":
                flags["force_fp32_for_softmax"] = {"wide_softmax": True}
        if not inputs.training:
            flags |= {
                "MultiHeadAttention": {"alias": True},
                "dropout, deterministic": {"rate": 0.5, "deterministic": True},
                "no dropout, not deterministic": {"rate": 0.0, "deterministic": False},
            }
            # jax.nn's softmax is in float32 whatever the dtype.
            if inputs.returned == "none" and inputs.dtype.name != "f64":
                flags["attention_fn=jax.nn.dot_product_attention"] = {"jax_nn": True}
        return flags


class FlaxNorm(Layer):
    """A norm of Flax Linen, statistics and all as variables."""

    numerics: str | Mapping[str, str] = "exact"
    statistics = False

    def module(self, linen: Any, settings: Mapping[str, Any], training: bool) -> Any:
        """The module with the settings that both norms have."""
        raise NotImplementedError

    def prepare(self, inputs: LayerInputs) -> Prepared:
        import flax.linen as linen
        import jax

        p, backend, dtype = inputs.parameters, self.backend, inputs.dtype
        number = jax.numpy.dtype(dtype.long_name)
        settings = {
            "epsilon": EPSILON, "dtype": number, "param_dtype": number,
            "use_scale": "gain" in p, "use_bias": "gain" in p,
        }  # fmt: skip
        module = self.module(linen, settings, inputs.training)
        params = {n: backend.array(p[g], dtype) for n, g in NORM_NAMES.items() if g in p}
        constant: dict[str, Any] = {}
        if self.statistics:
            names = {"mean": "mean", "var": "variance"}
            constant["batch_stats"] = {n: backend.array(p[g], dtype) for n, g in names.items()}
        changed = ["batch_stats"] if inputs.training else False

        def applied(query: Any, params: Mapping[str, Any]) -> tuple[Any, None]:
            made = module.apply(constant | {"params": params}, query, mutable=changed)
            return (made[0] if inputs.training else made), None

        def call(query: Any) -> tuple[Any, None]:
            return applied(query, params)

        call.applied, call.params = applied, params  # type: ignore[attr-defined]
        return Prepared(call, {"query": operands(backend, inputs)["query"]})

    def differentiable(self, inputs: LayerInputs) -> Prepared:
        made: Any = self.prepare(inputs)
        own = {NORM_NAMES[n]: array for n, array in made.function.params.items()}

        def run(query: Any, **given: Any) -> tuple[Any, None]:
            handed = {n: given[g] for n, g in NORM_NAMES.items() if g in given}
            return made.function.applied(query, handed)

        return Prepared(run, made.arguments | own)


NORM_NAMES = {"scale": "gain", "bias": "offset"}
"""What Flax calls the canonical parameters of a norm."""


class LinenLayerNorm(FlaxNorm):
    """`flax.linen.LayerNorm` over the last axis."""

    name = "flax-layer-norm"
    operator = "layer-norm"

    def module(self, linen: Any, settings: Mapping[str, Any], training: bool) -> Any:
        return linen.LayerNorm(**settings)


class LinenBatchNorm(FlaxNorm):
    """`flax.linen.BatchNorm` over all axes but the last."""

    name = "flax-batch-norm"
    operator = "batch-norm"
    statistics = True
    # In evaluation parameters of 16 bits make every step one of 16 bits.
    numerics = {"f64": "exact", "f32": "exact", "bf16": "stepwise", "f16": "stepwise"}

    def module(self, linen: Any, settings: Mapping[str, Any], training: bool) -> Any:
        return linen.BatchNorm(use_running_average=not training, **settings)
