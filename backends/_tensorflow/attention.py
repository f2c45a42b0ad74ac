"""Textbook attention in TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends._tensorflow.engine import FLUSHED, NUMERICS, TensorflowEngine
from attention_conformance.backends._tensorflow.operations import operations
from attention_conformance.backends.textbook.attention import TextbookAttention


class Eager(TextbookAttention):
    """Textbook attention: matmul, softmax, matmul; masked scores are the dtype's lowest number."""

    backend: TensorflowEngine

    spelled = staticmethod(operations)
    declared = TextbookAttention.declared.but(numerics=NUMERICS).electing(
        {"subnormal-output": FLUSHED}
    )

    @property
    def framework(self) -> tuple[Any, ...]:
        return np, self.backend.tf
