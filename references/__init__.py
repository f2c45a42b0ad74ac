"""The references: every operator in float64 with how far rounding may move it, and independent second
opinions (`loops`, `online`), in NumPy alone."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from references.outputs import Reference
    from suite.spec.operator import Operator


def of(operator: Operator) -> Reference:
    """The reference of an operator: a module with `forward`, `vjp` and `jvp`."""
    return cast("Reference", import_module(f"references.{operator.module}"))
