"""Parts of a backend in the parent, whose calls the child makes: memory, compilers, profiler.

`asks` lists the methods that are the child's. Other methods are written out: their answers are facts that
the child said before it imported the user's file, or are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from attention_conformance.backends.compilers import Compilers
from attention_conformance.backends.memory import Memory
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.profiler import Profiler
from attention_conformance.backends.protocol import Backend
from attention_conformance.suite.run.isolation.link import Link, Place

Part = TypeVar("Part", bound=type)


class Asking:
    """A part of the child's host: `place` says which one."""

    link: Link
    place: tuple[str, ...]

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a method of the part in the child."""
        return self.link.ask(Place((*self.place, name)), *arguments)

    def ask_plainly(self, kind: Any, name: str, *arguments: Any) -> Any:
        """`ask` for plain data of a type. Raises msgspec.ValidationError for other answers."""
        return msgspec.convert(self.ask(name, *arguments), kind)


def asks(*names: str) -> Callable[[Part], Part]:
    """Let the child answer the methods of these names."""

    def asked(name: str) -> Callable[..., Any]:
        return lambda part, *arguments: part.ask(name, *arguments)

    def add(part: Part) -> Part:
        for name in names:
            setattr(part, name, asked(name))
        return part

    return add


@asks("overwrite", "transpose", "view", "alias", "within", "operand")
class RemoteMemory(Asking, Memory):
    """Memory of the child's arrays."""

    place = ("backend", "memory")

    def __init__(self, backend: Backend, link: Link) -> None:
        super().__init__(backend)
        self.link, self.has_strides = link, link.home.has_strides


@asks("compiled", "recomputed", "gradient")
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
            return self.ask_plainly(tuple[str, ...], "of", Place(implementation.place))
        return tuple(n for n in super().of(implementation) if n in self.link.home.lacking)

    def lacking(self, implementation: Any, compiler: str) -> dict[str, str]:
        if implementation.declared.is_user_code:
            return self.link.home.lacking[compiler]
        place = Place(implementation.place)
        return self.ask_plainly(dict[str, str], "lacking", place, compiler)

    def raised_inside(self, error: BaseException) -> BaseException:
        return getattr(error, "inside", None) or error


@asks("threads", "at_once", "step", "compilations")
class RemoteProfiler(Asking, Profiler):
    """Threads and kernels of the child's calls."""

    place = ("backend", "profiler")

    def __init__(self, backend: Backend, link: Link) -> None:
        super().__init__(backend)
        self.link, self.has_threads = link, link.home.has_threads

    def kernels(self, prepared: PreparedCall) -> str:
        return self.ask_plainly(str, "kernels", prepared)

    def peak_bytes(self, call: Any, prepared: PreparedCall) -> int | None:
        return self.ask_plainly(int | None, "peak_bytes", call, prepared)
