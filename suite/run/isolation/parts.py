"""Parts of a backend in the parent, whose calls the child makes: memory, compilers, profiler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attention_conformance.backends.compilers import Compilers
from attention_conformance.backends.memory import Memory
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.profiler import Profiler, Step
from attention_conformance.backends.protocol import Backend
from attention_conformance.suite.run.isolation.link import Context, Link, Place
from attention_conformance.suite.run.isolation.wire import checked
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.inputs import Inputs


class Asking:
    """A part of the child's host: `place` says which one."""

    link: Link
    place: tuple[str, ...]

    def _place(self, name: str) -> Place:
        """A method of the part."""
        return Place((*self.place, name))

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Call a method of the part in the child."""
        return self.link.ask(self._place(name), *arguments)


class RemoteMemory(Asking, Memory):
    """Memory of the child's arrays."""

    place = ("backend", "memory")

    def __init__(self, backend: Backend, link: Link) -> None:
        super().__init__(backend)
        self.link, self.has_strides = link, link.home.has_strides

    def overwrite(self, array: Any, values: Any) -> bool:
        return bool(self._ask("overwrite", array, values))

    def transpose(self, array: Any, *axes: int) -> Any:
        return self._ask("transpose", array, *axes)

    def view(self, flat: Any, shape: Any, strides: Any, offset: int) -> Any:
        return self._ask("view", flat, shape, strides, offset)

    def alias(self, array: Any) -> Any:
        return self._ask("alias", array)

    def within(self, values: np.ndarray, dtype: DType | None, how: str) -> tuple[Any, Any]:
        array, whole = self._ask("within", values, dtype, how)
        return array, whole

    def operand(self, values: np.ndarray, inputs: Inputs, axis_order: str) -> Any:
        return self._ask("operand", values, inputs, axis_order)


class RemoteCompilers(Asking, Compilers):
    """Compilers of the child. Which of them a user's function goes through, and what it lacks in them, is
    what the child said before it imported the function."""

    place = ("backend", "compilers")

    def __init__(self, backend: Backend, link: Link) -> None:
        home = link.home
        super().__init__(backend, *home.compilers)
        self.link, self.compiles_shapes = link, home.compiles_shapes
        self.runs_models, self.ambient = home.runs_models, home.ambient

    def of(self, implementation: Any) -> tuple[str, ...]:
        if not implementation.declared.is_user_code:
            return checked(self._ask("of", Place(implementation.place)), tuple, "compilers")
        asked = self.link.home.lacking
        return tuple(name for name in super().of(implementation) if name in asked)

    def compiled(self, prepared: PreparedCall, compiler: str, batch: int) -> PreparedCall:
        return self._ask("compiled", prepared, compiler, batch)

    def recomputed(
        self, prepared: PreparedCall, rate: float, compiler: str
    ) -> dict[str, PreparedCall]:
        return self._ask("recomputed", prepared, rate, compiler)

    def gradient(self, prepared: PreparedCall, operand: str, cotangent: Any) -> PreparedCall:
        return self._ask("gradient", prepared, operand, cotangent)

    def lacking(self, implementation: Any, compiler: str) -> dict[str, str]:
        if implementation.declared.is_user_code:
            return self.link.home.lacking[compiler]
        said = self._ask("lacking", Place(implementation.place), compiler)
        return checked(said, dict, "what is lacking")

    def raised_inside(self, error: BaseException) -> BaseException:
        return getattr(error, "inside", None) or error


class RemoteProfiler(Asking, Profiler):
    """Threads and kernels of the child's calls."""

    place = ("backend", "profiler")

    def __init__(self, backend: Backend, link: Link) -> None:
        super().__init__(backend)
        self.link, self.has_threads = link, link.home.has_threads

    def threads(self, count: int) -> Any:
        return Context(self.link, self._place("threads"), count)

    def at_once(self, calls: Sequence[Sequence[PreparedCall]], rounds: int) -> list[list[Any]]:
        return self._ask("at_once", calls, rounds)

    def kernels(self, prepared: PreparedCall) -> str:
        return str(self._ask("kernels", prepared))

    def step(self, prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
        return self._ask("step", prepared, direction, [*wrt])

    def compilations(self, prepared: PreparedCall) -> int | None:
        return self._ask("compilations", prepared)

    def peak_bytes(self, call: Any, prepared: PreparedCall) -> int | None:
        said = self._ask("peak_bytes", call, prepared)
        return None if said is None else checked(said, int, "a number of bytes")
