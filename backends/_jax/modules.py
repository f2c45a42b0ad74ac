"""Modules of Flax (NNX and Linen) and Haiku as layers, and JAX's memory, which makes them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends.binder import ends_in
from attention_conformance.backends.memory import ShapesAlone
from attention_conformance.suite.spec.dtypes import DType


class Variable:
    """A parameter of a module, to which arrays are assigned as to variables of other frameworks."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    def assign(self, values: Any) -> None:
        """Replace the array, also by that of another parameter."""
        self.value = getattr(values, "value", values)


def zeros(value: Any) -> Any:
    """Zeros in place of an array; the value, if it is none."""
    return np.zeros(value.shape, value.dtype) if hasattr(value, "dtype") else value


class Applied:
    """A module as a layer: a callable with the module's own signature and a keyword `seed`.

    - `init(*arguments, **keywords)`: the parameters of the module, a tree, and what `apply` needs besides
    - `apply(parameters, rest, seed, *arguments, **keywords)`: the module's answer
    - `variables`: the parameters by path, in `dtype`; there are none before the first call
    - `train`: the module's switch between training and evaluation, or None
    """

    train: Any = None

    def __init__(
        self, init: Callable[..., Any], apply: Callable[..., Any], call: Callable[..., Any], dtype: Any
    ) -> None:  # fmt: skip
        self.init, self.apply, self.dtype = init, apply, dtype
        self.variables, self.tree, self.rest = dict[str, Variable](), None, None
        seed = inspect.Parameter("seed", inspect.Parameter.KEYWORD_ONLY, default=0)
        own = inspect.signature(call).parameters.values()
        order = sorted([*own, seed], key=lambda parameter: parameter.kind)
        self.__signature__ = inspect.Signature(order)

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        return tuple(self.variables.values())

    def make(self, *arguments: Any, **keywords: Any) -> None:
        """Make the parameters, for arguments like these."""
        import jax

        parameters, self.rest = self.init(*arguments, **keywords)
        leaves, self.tree = jax.tree_util.tree_flatten_with_path(parameters)
        for path, value in leaves:
            # An attribute is that of a variable of NNX, its value.
            names = (key for key in path if not isinstance(key, jax.tree_util.GetAttrKey))
            name = jax.tree_util.keystr((*names,), simple=True, separator=".")
            self.variables[name.replace("/", ".")] = Variable(value.astype(self.dtype))

    def __call__(self, *arguments: Any, seed: int = 0, **keywords: Any) -> Any:
        import jax

        if self.tree is None:
            # In a program that is traced, parameters must not be a part of the trace.
            given, named = jax.tree.map(zeros, (arguments, keywords))
            with jax.ensure_compile_time_eval():
                self.make(*given, **named)
        parameters = jax.tree.unflatten(
            self.tree, [variable.value for variable in self.variables.values()]
        )
        return self.apply(parameters, self.rest, seed, *arguments, **keywords)


def compiled(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """What a function returns, as one program: that takes less time than each of its operations."""
    import jax

    return jax.jit(partial(function, *arguments, **keywords))()


def of_linen(module: Any, dtype: Any) -> Applied:
    """A module of Flax Linen, whose parameters are made by its first call."""
    import jax

    def init(*arguments: Any, **keywords: Any) -> Any:
        keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
        variables = compiled(module.init, keys, *arguments, **keywords)
        return variables.pop("params", {}), variables

    def apply(parameters: Any, rest: Any, seed: int, *arguments: Any, **keywords: Any) -> Any:
        rngs = {"dropout": jax.random.key(seed)}
        return module.apply({"params": parameters, **rest}, *arguments, rngs=rngs, **keywords)

    return Applied(init, apply, module, dtype)


def of_nnx(module: Any, dtype: Any, training: bool) -> Applied:
    """A module of Flax NNX. Each call is one of a copy, so that its counters of random numbers stand."""
    from flax import nnx

    (module.train if training else module.eval)()
    graph, own, *rest = nnx.split(module, nnx.Param, ...)

    def apply(parameters: Any, rest: Any, seed: int, *arguments: Any, **keywords: Any) -> Any:
        copy = nnx.merge(graph, parameters, *rest, copy=True)
        nnx.reseed(copy, default=seed, dropout=seed)
        return copy(*arguments, **keywords)

    applied = Applied(lambda: (own, rest), apply, module, dtype)
    applied.train = module.train
    applied.make()
    return applied


def of_haiku(make: Callable[[], Any], dtype: Any) -> Applied:
    """A module of Haiku, which is made in each call, inside of a transform."""
    import haiku
    import jax

    seen: list[Any] = []
    haiku.transform(lambda: seen.append(ends_in(make()))).init(None)
    pure = haiku.transform_with_state(lambda *given, **named: make()(*given, **named))

    def apply(parameters: Any, rest: Any, seed: int, *arguments: Any, **keywords: Any) -> Any:
        return pure.apply(parameters, rest, jax.random.key(seed), *arguments, **keywords)[0]

    return Applied(partial(compiled, pure.init, jax.random.key(0)), apply, seen[0], dtype)


class JaxMemory(ShapesAlone):
    """Arrays without strides, and modules of Flax and Haiku."""

    backend: Any

    def variables(self, layer: Any) -> dict[str, tuple[Any, str]]:
        if not isinstance(layer, Applied):
            return super().variables(layer)
        inputs_first = ("kernel", ".w")
        return {
            path: (variable, "io" if path.endswith(inputs_first) else "")
            for path, variable in layer.variables.items()
        }

    def made(self, make: Callable[[], Any], dtype: DType, training: bool = False) -> Any:
        number = np.dtype(self.backend.numpy.dtype(dtype.long_name))
        try:
            layer = make()
        except ValueError as error:
            if "hk.transform" not in str(error):
                raise
            return of_haiku(make, number)
        linen, nnx = (sys.modules.get(f"flax.{name}") for name in ("linen", "nnx"))
        if hasattr(layer, "load_attention"):
            return layer
        if nnx is not None and isinstance(layer, nnx.Module):
            return of_nnx(layer, number, training)
        if linen is not None and isinstance(layer, linen.Module):
            return of_linen(layer, number)
        return layer
