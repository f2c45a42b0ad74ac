"""The modules of a package, and the functions and classes that they define."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any


def modules_of(package: str, prefix: str = "") -> list[ModuleType]:
    """Imports the modules of a package whose names begin with `prefix`. Returns them in the order of
    names."""
    path = importlib.import_module(package).__path__
    names = sorted(info.name for info in pkgutil.iter_modules(path))
    return [importlib.import_module(f"{package}.{n}") for n in names if n.startswith(prefix)]


def defined_in(package: str, prefix: str = "") -> Iterator[Any]:
    """Yields the functions and classes that the modules of a package define, module by module in the
    order of their definition. Imported ones are left out."""
    for module in modules_of(package, prefix):
        for value in vars(module).values():
            if getattr(value, "__module__", "") == module.__name__:
                yield value


def classes_in(package: str, *kinds: type) -> list[Any]:
    """Returns the subclasses of one of `kinds` that the modules of a package define."""
    return [v for v in defined_in(package) if isinstance(v, type) and issubclass(v, kinds)]
