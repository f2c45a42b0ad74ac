"""CPU programs that XLA compiles with reduced optimisation, in a fifth of the time.

The traced program, and XLA's operations and conversions, are the same; only fusions may differ. LLVM does
not optimise, and an older emitter of XLA writes loops. The first two options are JAX's switch for smoke
tests (`jax_disable_most_optimizations`, jax#3208). A backend compiles all programs with the same options
(`Compilers.quick`). A wrong answer is judged again with full optimisation (`suite.judge.judge`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""Options of XLA. They compile a small forward pass in 22 ms instead of 90, with gradients in 30 ms
instead of 160; JAX's two options take 52 and 96 ms (jaxlib 0.10.2)."""


def known_options() -> dict[str, Any]:
    """The `OPTIONS` that this release of XLA accepts."""
    import jax

    def known(options: dict[str, Any]) -> bool:
        try:
            jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
        except jax.errors.JaxRuntimeError:
            return False
        return True

    if known(OPTIONS):
        return OPTIONS
    return {name: value for name, value in OPTIONS.items() if known({name: value})}


class JitProgram:
    """A function compiled by `jax.jit` with `options` of XLA.

    Within another trace a function with options is called directly: a program has only one set of
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
