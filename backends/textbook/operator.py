"""Textbook code of operators that are no layers: their operations, and attention written out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.backends.textbook.layer import Numerics, Operations
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import NUMERICS


class TextbookOperator(Implementation):
    """An operator in operations that all frameworks have.

    The class of a framework's textbook attention (`numerics`) is declared, and at least `eager`: the
    scale is rounded to the dtype, which narrower classes do not allow.
    """

    textbook = True
    own_class = False
    """True if the numerics class of `declared` holds in every framework."""

    def __init__(self, backend: Backend, ops: Operations, numerics: Numerics = "eager") -> None:
        declared = self.declared
        if not self.own_class:
            classes = numerics if isinstance(numerics, Mapping) else dict.fromkeys(DTYPES, numerics)
            least = {name: max(one, "eager", key=NUMERICS.index) for name, one in classes.items()}
            declared = declared.but(numerics=least)
        super().__init__(backend, declared=declared)
        self.ops = ops

    def weighted(self, query: Any, key: Any, value: Any, hidden: Any, inputs: Inputs) -> Any:
        """Plain attention of operands (..., L, D); `hidden` pairs have no weight."""
        ops, n, softcap = self.ops, len(key.shape), inputs.case.option("softcap")
        scale = ops.number(inputs.effective_scale, query)
        scores = (query @ ops.transpose(key, (*range(n - 2), n - 1, n - 2))) * scale
        if softcap is not None:
            scores = ops.tanh(scores / ops.number(softcap, query)) * ops.number(softcap, query)
        if hidden is not None:
            scores = ops.fill(scores, hidden, -np.inf)
        return ops.softmax(scores) @ value
