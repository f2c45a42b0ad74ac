"""Honest variants as rows: a right kernel, and what differs."""

from __future__ import annotations

import inspect
from typing import Any

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.deviations.deviation import changed_kernel


def variant(name: str, right: type | tuple[type, ...], **changes: Any) -> type[Implementation]:
    """A kernel that differs from the class `right`, or from several classes. Functions among the changes
    are steps, which take the right kernel first; the rest are class attributes."""
    steps = {name: change for name, change in changes.items() if inspect.isfunction(change)}
    facts = {name: changes[name] for name in changes if name not in steps}
    return changed_kernel(name, right, facts, **steps)
