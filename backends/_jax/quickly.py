"""Programs that XLA compiles for the CPU with few optimisations, in a fifth of the time.

Nearly all the time of judging JAX went into compiling programs that run once. What JAX traces is the
same, and XLA makes the same operations of it, with the same conversions; single operations may stand in a
fusion of their own or in none. LLVM then optimises nothing, and loops are written by an emitter of XLA's
that needs less time. JAX has a switch of its own for this, made for smoke tests
(`jax_disable_most_optimizations`, jax#3208): the first two options here. Which cells are compiled so is
the judge's decision (`Cell.quick`), and a wrong answer is asked for again with all optimisations
(`Plan.judge`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import Any

from backends.prepared import set_to

OPTIONS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
"""Options of XLA. With all of them a forward pass takes 22 ms instead of 90, with gradients 30 instead of
160; with JAX's own two 52 and 96 (a few rows of attention, jaxlib 0.10.2)."""


class Quickly:
    """Whether programs are compiled quickly now, and how."""

    def __init__(self) -> None:
        self.on = False

    def switched(self, on: bool) -> AbstractContextManager[None]:
        """A context in which programs are compiled quickly, or in which they are not."""
        return set_to(on, partial(getattr, self, "on"), partial(setattr, self, "on"))

    @cached_property
    def options(self) -> dict[str, Any]:
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
    """A function through `jax.jit`, compiled with all optimisations (`full`), or quickly (`quick`) where
    `quickly` says so. Within what JAX traces itself it is `full`, since a program has one set of options.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        quickly: Quickly,
        static_argnames: tuple[str, ...] = (),
    ) -> None:
        self.function, self.quickly, self.static = function, quickly, static_argnames

    @cached_property
    def full(self) -> Any:
        import jax

        return jax.jit(self.function, static_argnames=self.static)

    @cached_property
    def quick(self) -> Any:
        import jax

        options = self.quickly.options
        return jax.jit(self.function, static_argnames=self.static, compiler_options=options)

    def __call__(self, *arrays: Any, **static: Any) -> Any:
        import jax

        if self.quickly.on and not any(
            isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(arrays)
        ):
            return self.quick(*arrays, **static)
        return self.full(*arrays, **static)
