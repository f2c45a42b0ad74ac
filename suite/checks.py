"""All checks of the suite, from the modules `suite.test_*`."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

import suite
from suite.judge.check import CHECKS, Check


@lru_cache(maxsize=1)
def all_checks() -> tuple[Check, ...]:
    """Every check, in the order of modules and of definition. Imports no framework."""
    names = sorted(info.name for info in pkgutil.iter_modules(suite.__path__))
    modules = [importlib.import_module(f"suite.{n}") for n in names if n.startswith("test_")]
    return tuple(
        CHECKS[value]
        for module in modules
        for value in vars(module).values()
        if getattr(value, "__module__", "") == module.__name__ and value in CHECKS
    )
