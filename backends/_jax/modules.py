"""Modules of Flax (NNX and Linen) and Haiku as layers."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends.binder import callable_with_signature


class Variable:
    """A parameter of a module. Arrays are assigned to it as to variables of other frameworks."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    def assign(self, values: Any) -> None:
        """Replace the array by `values`, an array or another Variable."""
        self.value = getattr(values, "value", values)


def zeros_like(argument: Any) -> Any:
    """Returns zeros of an array's shape and dtype. An argument without a dtype is returned unchanged."""
    return np.zeros(argument.shape, argument.dtype) if hasattr(argument, "dtype") else argument


class ModuleLayer:
    """A module as a layer: a callable with the module's own signature and a keyword `seed`.

    - `init(*arguments, **keywords)`: the module's parameters, a tree, and its state, for example counters
    - `apply(parameters, state, seed, *arguments, **keywords)`: the module's answer
    - `call`: the callable whose signature the layer has
    - `variables`: the parameters by path, in `dtype`; empty before the first call
    - `train`: the module's method that chooses training or evaluation, or None
    """

    train: Any = None

    def __init__(
        self, init: Callable[..., Any], apply: Callable[..., Any], call: Callable[..., Any], dtype: Any
    ) -> None:  # fmt: skip
        self.init, self.apply, self.dtype = init, apply, dtype
        self.variables, self.tree, self.state = dict[str, Variable](), None, None
        seed = inspect.Parameter("seed", inspect.Parameter.KEYWORD_ONLY, default=0)
        call_parameters = inspect.signature(call).parameters.values()
        order = sorted([*call_parameters, seed], key=lambda parameter: parameter.kind)
        self.__signature__ = inspect.Signature(order)

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        return tuple(self.variables.values())

    def make_parameters(self, *arguments: Any, **keywords: Any) -> None:
        """Make parameters and state for arguments of these shapes and dtypes."""
        import jax

        parameters, self.state = self.init(*arguments, **keywords)
        leaves, self.tree = jax.tree_util.tree_flatten_with_path(parameters)
        for path, value in leaves:
            # NNX adds an attribute to the path: the variable's value.
            names = (key for key in path if not isinstance(key, jax.tree_util.GetAttrKey))
            name = jax.tree_util.keystr((*names,), simple=True, separator=".")
            self.variables[name.replace("/", ".")] = Variable(value.astype(self.dtype))

    def __call__(self, *arguments: Any, seed: int = 0, **keywords: Any) -> Any:
        import jax

        if self.tree is None:
            # Within a trace of JAX: parameters must be arrays, not tracers.
            zero_arguments, zero_keywords = jax.tree.map(zeros_like, (arguments, keywords))
            with jax.ensure_compile_time_eval():
                self.make_parameters(*zero_arguments, **zero_keywords)
        parameters = jax.tree.unflatten(
            self.tree, [variable.value for variable in self.variables.values()]
        )
        return self.apply(parameters, self.state, seed, *arguments, **keywords)


def run_compiled(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Returns the function's answer. It is computed as one program, which compiles faster than single
    operations."""
    import jax

    return jax.jit(partial(function, *arguments, **keywords))()


def linen_layer(module: Any, dtype: Any) -> ModuleLayer:
    """Returns the layer of a Flax Linen module. The first call makes its parameters."""
    import jax

    def init(*arguments: Any, **keywords: Any) -> Any:
        keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
        variables = run_compiled(module.init, keys, *arguments, **keywords)
        return variables.pop("params", {}), variables

    def apply(parameters: Any, state: Any, seed: int, *arguments: Any, **keywords: Any) -> Any:
        rngs = {"dropout": jax.random.key(seed)}
        return module.apply({"params": parameters, **state}, *arguments, rngs=rngs, **keywords)

    return ModuleLayer(init, apply, module, dtype)


def nnx_layer(module: Any, dtype: Any, training: bool) -> ModuleLayer:
    """Returns the layer of a Flax NNX module. Each call is made on a copy, so that counters of random
    numbers do not advance."""
    from flax import nnx

    (module.train if training else module.eval)()
    graph, parameters_of_module, *state = nnx.split(module, nnx.Param, ...)

    def apply(parameters: Any, state: Any, seed: int, *arguments: Any, **keywords: Any) -> Any:
        copy = nnx.merge(graph, parameters, *state, copy=True)
        nnx.reseed(copy, default=seed, dropout=seed)
        return copy(*arguments, **keywords)

    layer = ModuleLayer(lambda: (parameters_of_module, state), apply, module, dtype)
    layer.train = module.train
    layer.make_parameters()
    return layer


def haiku_layer(make: Callable[[], Any], dtype: Any) -> ModuleLayer:
    """Returns the layer of a Haiku module. `make` makes the module in each call, inside of
    `haiku.transform`."""
    import haiku
    import jax

    calls: list[Any] = []
    haiku.transform(lambda: calls.append(callable_with_signature(make()))).init(None)
    transformed = haiku.transform_with_state(
        lambda *arguments, **keywords: make()(*arguments, **keywords)
    )

    def apply(parameters: Any, state: Any, seed: int, *arguments: Any, **keywords: Any) -> Any:
        return transformed.apply(parameters, state, jax.random.key(seed), *arguments, **keywords)[0]

    return ModuleLayer(
        partial(run_compiled, transformed.init, jax.random.key(0)), apply, calls[0], dtype
    )


def made_layer(make: Callable[[], Any], parameter_dtype: np.dtype, training: bool = False) -> Any:
    """Returns the new layer `make()`. A module of Flax or Haiku becomes a `ModuleLayer` with parameters
    of the dtype."""
    try:
        layer = make()
    except ValueError as error:
        if "hk.transform" not in str(error):
            raise
        return haiku_layer(make, parameter_dtype)
    linen, nnx = (sys.modules.get(f"flax.{name}") for name in ("linen", "nnx"))
    if hasattr(layer, "load_attention"):  # the layer sets its parameters itself
        return layer
    if nnx is not None and isinstance(layer, nnx.Module):
        return nnx_layer(layer, parameter_dtype, training)
    if linen is not None and isinstance(layer, linen.Module):
        return linen_layer(layer, parameter_dtype)
    return layer
