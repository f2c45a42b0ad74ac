"""Flax's attention modules as functions: each makes a module from parameters among its arguments, and
calls it. A bias is passed through `attention_fn`, as documented."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from attention_conformance.backends.layer import FrameworkLayer
from attention_conformance.suite.spec.inputs import Inputs

PARTS = {"query": "query", "key": "key", "value": "value", "out": "output"}
"""Canonical names of projections by Flax's names. Kernels and biases have the canonical shapes."""

EPSILON = 1e-6
"""The default epsilon of Flax's layer norms; attention modules cannot set another."""


def by_parts(parameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Kernels and biases by Flax's names of projections, gains by its names of norms."""
    norms = {
        f"{part}_ln": {"scale": parameters[f"{part}_gain"]}
        for part in ("query", "key")
        if f"{part}_gain" in parameters
    }
    return norms | {
        ours: {
            what: parameters[f"{name}_{what}"]
            for what in ("kernel", "bias")
            if f"{name}_{what}" in parameters
        }
        for ours, name in PARTS.items()
    }


def biased(function: Callable[..., Any], bias: Any) -> dict[str, Any]:
    """The setting that adds a bias to the scores; empty without a bias."""
    return {} if bias is None else {"attention_fn": partial(function, bias=bias)}


def nnx_module(
    sows: bool,
    own: FrameworkLayer,
    inputs: Inputs,
    *,
    view: bool = False,
    jit: bool = False,
    decode: bool = False,
    deterministic: bool | None = None,
    **settings: Any,
) -> Callable[..., Any]:
    """A function of parameters, bias, seed and arguments that makes and calls the module.

    - `view`: `nnx.view` switches dropout instead of an argument
    - `jit`: through `nnx.jit`
    - `decode`: row by row, with a cache by `init_cache` or `nnx.view`
    """
    import jax
    from flax import nnx

    w, s = inputs.widths, inputs.sizes
    quiet = not inputs.training if deterministic is None else deterministic
    # As in users' code: default values are not passed.
    said = {"in_features": w.query} | ({"in_kv_features": w.key} if w.key != w.query else {})
    said |= {"num_kv_heads": s.Hkv} if s.Hkv != s.H else {}
    said |= {} if view else {"decode": decode}
    static = ({} if view else {"deterministic": quiet}) | ({"sow_weights": True} if sows else {})

    def construct(bias: Any) -> Any:
        added = biased(nnx.dot_product_attention, bias)
        return nnx.MultiHeadAttention(
            **{**said, **settings, **added}, rngs=nnx.Rngs(0), keep_rngs=False
        )

    @cache
    def abstract() -> Any:
        """The abstract module, made once: no initializer runs, and there are no random numbers."""
        return nnx.eval_shape(lambda: construct(None))

    def viewed(layer: Any, rows: Any) -> Any:
        """The layer in its mode, with a cache if it decodes."""
        cache = {"batch_size": rows.shape[0], "max_length": rows.shape[1]} if decode else {}
        if view:
            return nnx.view(layer, deterministic=quiet, decode=decode, **cache)
        if decode:
            layer.init_cache(rows.shape, settings["dtype"])
        return layer

    def called(causal: Mapping[str, bool], layer: Any, arrays: Mapping[str, Any], key: Any) -> Any:
        more = {**arrays, **causal, **static, "rngs": nnx.Rngs(dropout=key)}
        if not sows:
            return layer(**more)
        output, sown = nnx.capture(layer, nnx.Intermediate)(**more)
        return output, sown["attention_weights"][0]

    def run(parameters: Any, bias: Any, seed: Any, arguments: dict[str, Any]) -> Any:
        layer = nnx.clone(abstract()) if bias is None else nnx.eval_shape(lambda: construct(bias))
        for part, arrays in parameters.items():
            for what, array in arrays.items():
                setattr(getattr(layer, part), what, nnx.Param(array))
        layer, key = viewed(layer, arguments["inputs_q"]), jax.random.key(seed)
        causal = {name: arguments.pop(name) for name in ("is_causal",) if name in arguments}
        function = partial(called, causal)
        if not decode:
            return (nnx.jit(function) if jit else function)(layer, arguments, key)

        def step(row: Any) -> Any:
            answer = function(layer, {"inputs_q": row}, key)
            return answer[0] if sows else answer

        rows = arguments["inputs_q"]
        each = [step(rows[:, n : n + 1]) for n in range(rows.shape[1])]
        return jax.numpy.concatenate(each, axis=1)

    return run


def linen_module(
    own: FrameworkLayer,
    inputs: Inputs,
    *,
    deterministic: bool | None = None,
    **settings: Any,
) -> Callable[..., Any]:
    """A function of parameters, bias, seed and arguments that makes and calls the module."""
    import jax
    from flax import linen

    sows = inputs.returned != "none"
    attention = settings.get("attention_fn", linen.dot_product_attention)
    static: dict[str, Any] = {
        "deterministic": not inputs.training if deterministic is None else deterministic
    }
    if sows:
        static |= {"sow_weights": True, "mutable": ["intermediates"]}

    def run(parameters: Any, bias: Any, seed: Any, arguments: dict[str, Any]) -> Any:
        added, variables = biased(attention, bias), {"params": parameters}
        layer = linen.MultiHeadDotProductAttention(**{**settings, **added})
        # As in users' code: rngs only in training.
        rngs = {"dropout": jax.random.key(seed)} if inputs.training else None
        answer = layer.apply(variables, rngs=rngs, **arguments, **static)
        if not sows:
            return answer
        output, sown = answer
        return output, sown["intermediates"]["attention_weights"][0]

    return run
