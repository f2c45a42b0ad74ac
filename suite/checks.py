"""All checks of the suite, gathered from the modules `suite.test_*`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

import suite
from suite.judge.cell import Check


@lru_cache(maxsize=1)
def all_checks() -> tuple[Check, ...]:
    """Every check, in the order of modules and of definition. No framework is imported."""
    found = []
    for info in sorted(pkgutil.iter_modules(suite.__path__), key=lambda info: info.name):
        if info.name.startswith("test_"):
            module = importlib.import_module(f"suite.{info.name}")
            found += [value.check for value in vars(module).values() if hasattr(value, "check")]
    return tuple(found)
