"""Textbook layers and operators, written once in operations that all frameworks have (`Operations`)."""

from __future__ import annotations

from attention_conformance.backends.declared import Numerics
from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.backends.textbook.operations import Operations, TextbookOperator
from attention_conformance.suite.spec.modules import classes_in


def textbooks(backend: Backend, ops: Operations, numerics: Numerics) -> list[Implementation]:
    """Returns the textbook implementations of a framework: one for each class of this package with a
    name. `numerics` is the numerics class of the framework's operations."""
    kinds = classes_in(__name__, TextbookOperator)
    return [kind(backend, ops, numerics) for kind in kinds if "name" in vars(kind)]
