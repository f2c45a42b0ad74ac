"""All checks of the suite, from the modules `suite/test_*.py`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from attention_conformance.suite.judge.check import CHECKS, Check
from attention_conformance.suite.spec.modules import defined_in


@lru_cache(maxsize=1)
def all_checks() -> Mapping[str, Check]:
    """Returns every check by name, in the order of modules and of definition. Imports no framework."""
    checks = (
        CHECKS[value]
        for value in defined_in("attention_conformance.suite", "test_")
        if value in CHECKS
    )
    return MappingProxyType({check.name: check for check in checks})
