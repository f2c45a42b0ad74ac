"""A kernel that is emptied: its file calls it, and it computes nothing (`--kernel`)."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable
from functools import reduce, wraps
from types import FunctionType
from typing import Any

from backends.registry import UsageError


def empty(function: Any, name: str) -> None:
    """Empty the kernel that the module of `function` calls `name`, a path of attributes. Raises
    UsageError if there is none."""
    home = sys.modules.get(getattr(inspect.unwrap(function), "__module__", ""))
    *path, last = name.split(".")
    try:
        place = reduce(getattr, path, home)
        kernel = getattr(place, last)
    except AttributeError as error:
        raise UsageError(f"--kernel: the function's file has no {name!r}") from error
    setattr(place, last, emptied(kernel))


def emptied(kernel: Any) -> Any:
    """A kernel in place of another one, with zeros in place of its results.

    - The results of a call become zeros. If there are none, the arguments do: the kernel wrote there.
    - A launch, `kernel[grid](...)`, does nothing.
    """

    def call(*arguments: Any, **keywords: Any) -> Any:
        output = kernel(*arguments, **keywords)
        if output is None:
            for array in (*arguments, *keywords.values()):
                with contextlib.suppress(Exception):
                    array[...] = array[...] * 0
        return _zeros(output)

    return wraps(kernel)(call) if isinstance(kernel, FunctionType) else Emptied(kernel, call)


class Emptied:
    """A callable object that is emptied; what else it has is that of the kernel."""

    def __init__(self, kernel: Any, call: Callable[..., Any]) -> None:
        self._kernel, self._call = kernel, call

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._call(*arguments, **keywords)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **keywords: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)


def _zeros(output: Any) -> Any:
    if isinstance(output, tuple | list):
        return type(output)(map(_zeros, output))
    if isinstance(output, dict):
        return {name: _zeros(one) for name, one in output.items()}
    return output * 0 if hasattr(output, "shape") else output
