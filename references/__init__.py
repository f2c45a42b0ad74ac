"""The references: every operator in float64 with how far rounding may move it, in NumPy alone.

`primitives` are what operators are composed of; `tape` leads derivatives through a composition."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from references.composition import Reference
    from suite.spec.operator import Operator


def of(operator: Operator) -> Reference:
    """The reference of an operator."""
    module = import_module(f"references.{operator.module}")
    return cast("Reference", module.reference)
