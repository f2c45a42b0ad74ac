"""Honest variants as rows: a right kernel, and what differs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.deviations.deviation import changed_kernel
from attention_conformance.suite.spec.dtypes import round_to


def variant(name: str, right: type | tuple[type, ...], **changes: Any) -> type[Implementation]:
    """A kernel that differs from the class `right`, or from several classes. Functions among the changes
    are steps, which take the right kernel first; the rest are class attributes."""
    steps = {name: change for name, change in changes.items() if inspect.isfunction(change)}
    facts = {name: changes[name] for name in changes if name not in steps}
    return changed_kernel(name, right, facts, **steps)


def storing(*steps: str) -> dict[str, Callable[..., Any]]:
    """Steps whose answers are rounded to the dtype of the case. The call is their last argument."""

    def rounded(step: str) -> Callable[..., Any]:
        def change(right: Any, *given: Any) -> Any:
            x = getattr(right, step)(*given)
            return round_to(x, given[-1].fmt).astype(x.dtype)

        return change

    return {step: rounded(step) for step in steps}
