"""Programs of JAX: calls through `jax.jit`.

JAX compiles a program for every function, shape and dtype. So calls share functions, one for each static
configuration of an implementation (`JaxCompilers.jitted`). Output, gradients and tangents are one program
each.

On a CPU programs may be compiled with reduced optimisation (`OPTIONS`), in a fifth of the time. The
traced program, and XLA's operations and conversions, are the same; only fusions may differ. LLVM does not
optimise, and an older emitter of XLA writes loops. The first two options are JAX's switch for smoke tests
(`jax_disable_most_optimizations`, jax#3208). A backend compiles all programs with the same options
(`Engine.quick`). A wrong answer is judged again with full optimisation (`suite.judge.judge`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from attention_conformance.backends.prepared import Gradients, PreparedCall, Pullback

OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""Options of XLA. They compile a small forward pass in 22 ms instead of 90, with gradients in 30 ms
instead of 160; JAX's two options take 52 and 96 ms (jaxlib 0.10.2)."""


def known_options() -> dict[str, Any]:
    """Returns those of `OPTIONS` that this release of XLA accepts."""
    import jax

    def is_accepted(options: dict[str, Any]) -> bool:
        try:
            jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
        except jax.errors.JaxRuntimeError:
            return False
        return True

    if is_accepted(OPTIONS):
        return OPTIONS
    return {name: value for name, value in OPTIONS.items() if is_accepted({name: value})}


class JitProgram:
    """A function compiled by `jax.jit` with `options` of XLA.

    Within another trace a function with options is called directly, because a program has only one set of
    options.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Mapping[str, Any],
        static_argnames: tuple[str, ...] = (),
    ) -> None:
        self.function, self._options, self._static = function, options, static_argnames

    @cached_property
    def program(self) -> Any:
        import jax

        options = dict(self._options) or None
        return jax.jit(self.function, static_argnames=self._static, compiler_options=options)

    def __call__(self, *arrays: Any, **static: Any) -> Any:
        import jax

        if self._options and any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(arrays)):
            return self.function(*arrays, **static)
        return self.program(*arrays, **static)


@dataclass(frozen=True)
class Static:
    """The parts of a call without its arrays, on which its program depends.

    - `aliases`: arguments that are the same array as an earlier argument, with that argument's name
    - `values`: the arguments that are no arrays
    - `output_index`: the output's index in the returned tuple; None if the return value is the output

    Equality compares `text`, since 1 == True and 0.0 == -0.0.
    """

    aliases: Mapping[str, str] = field(compare=False)
    values: Mapping[str, Any] = field(compare=False)
    output_index: int | None = None
    text: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", repr((self.aliases, sorted(self.values.items(), key=str))))

    def arguments(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments of the call for these arrays."""
        return {**arrays, **{n: arrays[first] for n, first in self.aliases.items()}, **self.values}

    def first(self, name: str) -> str:
        """Returns the name of the first argument with the same array."""
        return self.aliases.get(name, name)


def split_arguments(
    arguments: Mapping[str, Any], output_index: int | None = None
) -> tuple[dict[str, Any], Static]:
    """Returns a call's arrays, each under its first name, and the rest of its arguments as `Static`."""
    import jax

    arrays: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    names: dict[int, str] = {}
    for name, array in arguments.items():
        if isinstance(array, jax.Array):
            first = names.setdefault(id(array), name)
            if first == name:
                arrays[name] = array
            else:
                aliases[name] = first
    values = {n: a for n, a in arguments.items() if n not in arrays and n not in aliases}
    return arrays, Static(aliases, values, output_index)


class Jitted:
    """A function through `jax.jit`. Its arguments that are no arrays are static.

    `function` is the function itself; `options` are compiler options of XLA.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any] | None = None):
        self.function, self.options = function, options or {}
        self.forward = JitProgram(self._answer, self.options, ("static",))
        self._vjp = JitProgram(self._gradients, self.options, ("static", "wrt"))
        self._pullback = JitProgram(self._output_and_pull, self.options, ("static", "wrt"))
        self._pull = JitProgram(lambda pull, cotangent: pull(cotangent), self.options)
        self._jvp = JitProgram(self._tangent, self.options, ("static",))

    def __call__(self, **arguments: Any) -> Any:
        arrays, static = split_arguments(arguments)
        return self.forward(arrays, static=static)

    def ready(self, arguments: Mapping[str, Any]) -> Callable[[], Any]:
        """Returns a call whose arguments are already split, so that splitting is not timed."""
        arrays, static = split_arguments(arguments)
        forward = self.forward.program
        return lambda: forward(arrays, static=static)

    def compiled(self, arguments: Mapping[str, Any]) -> Any:
        """Returns XLA's program of a call; it is compiled if necessary."""
        arrays, static = split_arguments(arguments)
        return self.forward.program.lower(arrays, static=static).compile()

    def vjp(self, prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
        """Returns output and gradients of a call of this function, by one program (see `Backend.vjp`)."""
        arrays, static = split_arguments(prepared.arguments, _output_index(prepared))
        names = tuple(static.first(prepared.argument(name)) for name in wrt)
        output, gradients = self._vjp(arrays, cotangent, static=static, wrt=names)
        return output, dict(zip(wrt, gradients, strict=True)) if gradients else {}

    def pullback(self, prepared: PreparedCall, wrt: Sequence[str]) -> Pullback:
        """Returns output and pullback of a call of this function, each by a program (see
        `Backend.pullback`)."""
        arrays, static = split_arguments(prepared.arguments, _output_index(prepared))
        names = tuple(static.first(prepared.argument(name)) for name in wrt)
        output, pull = self._pullback(arrays, static=static, wrt=names)
        return output, lambda cotangent: dict(zip(wrt, self._pull(pull, cotangent), strict=True))

    def jvp(self, prepared: PreparedCall, tangents: Mapping[str, Any]) -> Any:
        """Returns the JVP of a call of this function, by one program (see `Backend.jvp`)."""
        arrays, static = split_arguments(prepared.arguments, _output_index(prepared))
        by_argument = {static.first(prepared.argument(n)): t for n, t in tangents.items()}
        return self._jvp(arrays, by_argument, static=static)

    def _answer(self, arrays: Mapping[str, Any], *, static: Static) -> Any:
        answer = self.function(**static.arguments(arrays))
        return answer if static.output_index is None else answer[static.output_index]

    def _gradients(
        self, arrays: Mapping[str, Any], cotangent: Any, *, static: Static, wrt: tuple[str, ...]
    ) -> tuple[Any, tuple[Any, ...]]:
        out, pull = self._output_and_pull(arrays, static=static, wrt=wrt)
        if out.dtype != cotangent.dtype:
            return out, ()  # wrong dtype of the answer: vjp would refuse the cotangent
        return out, pull(cotangent)

    def _output_and_pull(
        self, arrays: Mapping[str, Any], *, static: Static, wrt: tuple[str, ...]
    ) -> tuple[Any, Any]:
        import jax

        def output(*operands: Any) -> Any:
            return self._answer({**arrays, **dict(zip(wrt, operands, strict=True))}, static=static)

        return jax.vjp(output, *(arrays[name] for name in wrt))

    def _tangent(
        self, arrays: Mapping[str, Any], tangents: Mapping[str, Any], *, static: Static
    ) -> Any:
        import jax

        def output(operands: Mapping[str, Any]) -> Any:
            return self._answer({**arrays, **operands}, static=static)

        return jax.jvp(output, ({n: arrays[n] for n in tangents},), (dict(tangents),))[1]


def _output_index(prepared: PreparedCall) -> int | None:
    """Returns the index of the output in the returned tuple; None if it is the only returned array."""
    names = prepared.outputs
    return names.index("output") if len(names) > 1 else None


def by_operation(prepared: PreparedCall) -> PreparedCall:
    """Returns the same call, run operation by operation, without `jax.jit`."""
    function = prepared.function
    if not isinstance(function, Jitted):
        return prepared
    return replace(prepared, function=function.function, compiled=None, through="")
