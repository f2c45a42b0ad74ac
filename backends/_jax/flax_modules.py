"""Flax's attention modules as functions. Each makes a module from parameters among its arguments, and
calls it. A bias is passed through `attention_fn`, as documented."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from attention_conformance.backends.layer import FrameworkLayer
from attention_conformance.suite.spec.inputs import Inputs

PARTS = {"query": "query", "key": "key", "value": "value", "out": "output"}
"""By Flax's names of projections: the canonical names. Kernels and biases have the canonical shapes."""

EPSILON = 1e-6
"""The default epsilon of Flax's layer norms. Attention modules cannot change it."""


def by_parts(parameters: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns Flax's tree of parameters, made of canonical parameters."""
    norms = {
        f"{part}_ln": {"scale": parameters[f"{part}_gain"]}
        for part in ("query", "key")
        if f"{part}_gain" in parameters
    }
    return norms | {
        flax_name: {
            leaf: parameters[f"{name}_{leaf}"]
            for leaf in ("kernel", "bias")
            if f"{name}_{leaf}" in parameters
        }
        for flax_name, name in PARTS.items()
    }


def bias_setting(function: Callable[..., Any], bias: Any) -> dict[str, Any]:
    """Returns the constructor's argument that adds a bias to the scores; {} without a bias."""
    return {} if bias is None else {"attention_fn": partial(function, bias=bias)}


def nnx_module(
    sows: bool,
    impl: FrameworkLayer,
    inputs: Inputs,
    *,
    view: bool = False,
    jit: bool = False,
    decode: bool = False,
    deterministic: bool | None = None,
    **settings: Any,
) -> Callable[..., Any]:
    """Returns a function of parameters, bias, seed and arguments that makes and calls the module.

    - `view`: `nnx.view` sets `deterministic` and `decode`; otherwise they are arguments
    - `jit`: the call goes through `nnx.jit`
    - `decode`: row by row, with a cache by `init_cache` or `nnx.view`
    """
    import jax
    from flax import nnx

    w, s = inputs.widths, inputs.sizes
    evaluates = not inputs.training if deterministic is None else deterministic
    # As in users' code: default values are not passed.
    sizes = {"in_features": w.query} | ({"in_kv_features": w.key} if w.key != w.query else {})
    sizes |= {"num_kv_heads": s.Hkv} if s.Hkv != s.H else {}
    sizes |= {} if view else {"decode": decode}
    switches: dict[str, bool] = {} if view else {"deterministic": evaluates}
    switches |= {"sow_weights": True} if sows else {}

    def construct(bias: Any) -> Any:
        bias_argument = bias_setting(nnx.dot_product_attention, bias)
        return nnx.MultiHeadAttention(
            **{**sizes, **settings, **bias_argument}, rngs=nnx.Rngs(0), keep_rngs=False
        )

    @cache
    def abstract() -> Any:
        """Returns the abstract module, made once: no initializer runs, and there are no random
        numbers."""
        return nnx.eval_shape(lambda: construct(None))

    def layer_in_mode(layer: Any, rows: Any) -> Any:
        """Returns the layer, with a cache if it decodes; with `view` also its mode is set."""
        cache = {"batch_size": rows.shape[0], "max_length": rows.shape[1]} if decode else {}
        if view:
            return nnx.view(layer, deterministic=evaluates, decode=decode, **cache)
        if decode:
            layer.init_cache(rows.shape, settings["dtype"])
        return layer

    def apply(causal: Mapping[str, bool], layer: Any, arrays: Mapping[str, Any], key: Any) -> Any:
        keywords = {**arrays, **causal, **switches, "rngs": nnx.Rngs(dropout=key)}
        if not sows:
            return layer(**keywords)
        output, sown = nnx.capture(layer, nnx.Intermediate)(**keywords)
        return output, sown["attention_weights"][0]

    def run(parameters: Any, bias: Any, seed: Any, arguments: dict[str, Any]) -> Any:
        layer = nnx.clone(abstract()) if bias is None else nnx.eval_shape(lambda: construct(bias))
        for part, arrays in parameters.items():
            for leaf, array in arrays.items():
                setattr(getattr(layer, part), leaf, nnx.Param(array))
        layer, key = layer_in_mode(layer, arguments["inputs_q"]), jax.random.key(seed)
        causal = {name: arguments.pop(name) for name in ("is_causal",) if name in arguments}
        function = partial(apply, causal)
        if not decode:
            return (nnx.jit(function) if jit else function)(layer, arguments, key)

        def step(row: Any) -> Any:
            answer = function(layer, {"inputs_q": row}, key)
            return answer[0] if sows else answer

        rows = arguments["inputs_q"]
        answers = [step(rows[:, n : n + 1]) for n in range(rows.shape[1])]
        return jax.numpy.concatenate(answers, axis=1)

    return run


def linen_module(
    impl: FrameworkLayer,
    inputs: Inputs,
    *,
    deterministic: bool | None = None,
    **settings: Any,
) -> Callable[..., Any]:
    """Returns a function of parameters, bias, seed and arguments that makes and calls the module."""
    import jax
    from flax import linen

    sows = inputs.returned != "none"
    attention = settings.get("attention_fn", linen.dot_product_attention)
    flags: dict[str, Any] = {
        "deterministic": not inputs.training if deterministic is None else deterministic
    }
    if sows:
        flags |= {"sow_weights": True, "mutable": ["intermediates"]}

    def run(parameters: Any, bias: Any, seed: Any, arguments: dict[str, Any]) -> Any:
        bias_argument, variables = bias_setting(attention, bias), {"params": parameters}
        layer = linen.MultiHeadDotProductAttention(**{**settings, **bias_argument})
        # As in users' code: rngs only in training.
        rngs = {"dropout": jax.random.key(seed)} if inputs.training else None
        answer = layer.apply(variables, rngs=rngs, **arguments, **flags)
        if not sows:
            return answer
        output, sown = answer
        return output, sown["intermediates"]["attention_weights"][0]

    return run
