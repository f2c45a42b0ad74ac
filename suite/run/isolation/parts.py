"""Objects of the child as the parent sees them. `delegated` lists the methods whose calls the child
makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

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
