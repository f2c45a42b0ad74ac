"""Programs that XLA compiles for the CPU with few optimisations, in a fifth of the time.

JAX traces the same program, and XLA makes the same operations and conversions; only fusions may differ.
LLVM optimises nothing, and an older emitter of XLA writes loops. The first two options are JAX's own
switch for smoke tests (`jax_disable_most_optimizations`, jax#3208). A backend compiles all programs in
one way (`Compilers.quick`). After a wrong answer a backend with all optimisations is asked again
(`Plan.judge`).
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
"""Options of XLA. With all options compilation of a small forward pass takes 22 ms instead of 90, with
gradients 30 instead of 160; with JAX's own two options 52 and 96 (jaxlib 0.10.2)."""


def known_options() -> dict[str, Any]:
    """The options that this release of XLA knows."""
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
    """A function through `jax.jit`, compiled with `options` of XLA.

    Within another trace a function with options is called without `jax.jit`, since a program has one set
    of options.
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
