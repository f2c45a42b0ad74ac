"""All checks of the suite, from the modules `suite.test_*`."""

from __future__ import annotations

from functools import lru_cache

from suite.judge.check import CHECKS, Check
from suite.spec.modules import defined_in


@lru_cache(maxsize=1)
def all_checks() -> tuple[Check, ...]:
    """Every check, in the order of modules and of definition. Imports no framework."""
    return tuple(CHECKS[value] for value in defined_in("suite", "test_") if value in CHECKS)
