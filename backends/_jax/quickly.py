"""Programs that XLA compiles for the CPU with few optimisations, in a fifth of the time.

Nearly all the time of judging JAX went into compiling programs that run once. What JAX traces is the
same, and XLA makes the same operations of it, with the same conversions; single operations may stand in a
fusion of their own or in none. LLVM then optimises nothing, and loops are written by an emitter of XLA's
that needs less time. JAX has a switch of its own for this, made for smoke tests
(`jax_disable_most_optimizations`, jax#3208): the first two options here. A backend compiles all programs
in one way (`Backend.quick`). A wrong answer of a quick backend is asked for again of another one, which
compiles with all optimisations (`Plan.judge`).
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
"""Options of XLA. With all of them a forward pass takes 22 ms instead of 90, with gradients 30 instead of
160; with JAX's own two 52 and 96 (a few rows of attention, jaxlib 0.10.2)."""


def known_options() -> dict[str, Any]:
    """Those of the options that this release of XLA takes."""
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
    """A function through `jax.jit`, compiled with `options` of XLA. A quick one is the function alone
    within what JAX traces itself, since a program has one set of options."""

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
