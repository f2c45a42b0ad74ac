"""The references: every operator in float64 NumPy, with bounds on rounding errors.

`primitives` are the parts of operators. `tape` computes VJPs and JVPs of their compositions.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from attention_conformance.references.composition import Reference
    from attention_conformance.suite.spec.operator import Operator


def find(operator: Operator) -> Reference:
    """Returns the reference of an operator: `reference` in the module `references.<operator.module>`."""
    module = import_module(f"attention_conformance.references.{operator.module}")
    return cast("Reference", module.reference)
