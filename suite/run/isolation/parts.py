"""Parts of a backend in the parent, whose calls the child makes: memory, compilers, profiler.

`delegated` lists the methods whose calls the child makes. The other methods return facts that the child
sent before it imported the user's file, or check the type of the answer.
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
from attention_conformance.suite.run.isolation.link import HostPath, Link

Part = TypeVar("Part", bound=type)


class ChildPart:
    """The parent's side of an object of the child, which is found at `path` from the child's host."""

    link: Link
    path: tuple[str, ...]

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a method of the object in the child."""
        return self.link.ask(HostPath((*self.path, name)), *arguments)

    def ask_typed(self, kind: Any, name: str, *arguments: Any) -> Any:
        """Call a method that answers plain data of type `kind`. Raises msgspec.ValidationError."""
        return msgspec.convert(self.ask(name, *arguments), kind)


def delegated(*names: str) -> Callable[[Part], Part]:
    """A class decorator: adds methods of these names, whose calls the child makes."""

    def method_of(name: str) -> Callable[..., Any]:
        return lambda part, *arguments: part.ask(name, *arguments)

    def add_methods(part: Part) -> Part:
        for name in names:
            setattr(part, name, method_of(name))
        return part

    return add_methods


@delegated("overwrite", "transpose", "view", "alias", "within", "operand")
class RemoteMemory(ChildPart, Memory):
    """`Memory`, whose operations on arrays are made in the child."""

    path = ("backend", "memory")

    def __init__(self, backend: Backend, link: Link) -> None:
        super().__init__(backend)
        self.link, self.has_strides = link, link.description.has_strides


@delegated("compiled", "recomputed", "gradient")
class RemoteCompilers(ChildPart, Compilers):
    """Compilers of the child. Facts about a user's function in them are those that the child sent before
    it imported the function."""

    path = ("backend", "compilers")

    def __init__(self, backend: Backend, link: Link) -> None:
        description = link.description
        super().__init__(backend, *description.compilers)
        self.link, self.compiles_shapes = link, description.compiles_shapes
        self.runs_models, self.ambient = description.runs_models, description.ambient

    def of(self, implementation: Any) -> tuple[str, ...]:
        if not implementation.declared.is_user_code:
            return self.ask_typed(tuple[str, ...], "of", HostPath(implementation.path))
        return tuple(n for n in super().of(implementation) if n in self.link.description.lacking)

    def lacking(self, implementation: Any, compiler: str) -> dict[str, str]:
        if implementation.declared.is_user_code:
            return self.link.description.lacking[compiler]
        path = HostPath(implementation.path)
        return self.ask_typed(dict[str, str], "lacking", path, compiler)

    def raised_inside(self, error: BaseException) -> BaseException:
        return getattr(error, "inside", None) or error


@delegated("threads", "at_once", "step", "compilations")
class RemoteProfiler(ChildPart, Profiler):
    """`Profiler`, which observes threads and kernels of the child's calls."""

    path = ("backend", "profiler")

    def __init__(self, backend: Backend, link: Link) -> None:
        super().__init__(backend)
        self.link, self.has_threads = link, link.description.has_threads

    def kernels(self, prepared: PreparedCall) -> str:
        return self.ask_typed(str, "kernels", prepared)

    def peak_bytes(self, call: Any, prepared: PreparedCall) -> int | None:
        return self.ask_typed(int | None, "peak_bytes", call, prepared)
