"""ONNX's reference evaluator: the standard's operators in NumPy."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

from backends._onnx.attention import (
    Attention,
    Attention24,
    Attention25,
    CachedAttention,
    PackedAttention,
)
from backends._onnx.engine import FORWARD, OnnxEngine
from backends._onnx.norms import OnnxBatchNorm, OnnxLayerNorm
from backends._onnx.rotary import OnnxRotary, OnnxRotaryByIds
from backends._onnx.textbook import Eager, layers
from backends.protocol import Implementation, Limits

KEPT = 128
"""Evaluators that are kept."""


NUMERICS = {"f64": "stepwise", "f32": "stepwise", "bf16": "working", "f16": "stepwise"}
"""NumPy's operations one by one; sums of bfloat16, but for those of products, are in bfloat16."""

OF_ATTENTION: dict[str, Any] = {
    "numerics": NUMERICS,
    # Queries and keys are multiplied by the root of the scale.
    "limits": Limits(scales=(0.0, np.inf)),
}

OF_ROTARY: dict[str, Any] = {"numerics": "eager", "dtypes": ("f32", "bf16", "f16")}

KINDS: dict[type[Implementation], dict[str, Any]] = {
    Eager: {
        "numerics": NUMERICS,
        "elections": Eager.declared.elections
        | {"lse-of-empty-row": "nan", "integer-mask": "cast-to-bool", "score-overflow": "nan"},
    },
    Attention: OF_ATTENTION,
    Attention24: OF_ATTENTION,
    PackedAttention: OF_ATTENTION,
    CachedAttention: OF_ATTENTION,
    Attention25: OF_ATTENTION,
    OnnxLayerNorm: {"numerics": "stepwise"},
    OnnxBatchNorm: {"numerics": "stepwise"},
    OnnxRotary: OF_ROTARY,
    OnnxRotaryByIds: OF_ROTARY,
}
"""What is implemented besides textbook layers, and what it declares here."""


class OnnxReferenceBackend(OnnxEngine):
    """`onnx.reference.ReferenceEvaluator`."""

    name = "onnx-reference"

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self._evaluators: OrderedDict[bytes, Any] = OrderedDict()

    @property
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("onnx", "numpy")}

    def implementations(self) -> list[Implementation]:
        every = [
            kind(self, declared=kind.declared.but(**declared).refusing(FORWARD))
            for kind, declared in KINDS.items()
        ]
        for layer in layers(self, NUMERICS):
            layer.declared = layer.declared.refusing(FORWARD)
            every.append(layer)
        return every

    def run(self, model: bytes, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        if model not in self._evaluators:
            from onnx.reference import ReferenceEvaluator

            self._evaluators[model] = ReferenceEvaluator(model)
            while len(self._evaluators) > KEPT:
                self._evaluators.popitem(last=False)
        self._evaluators.move_to_end(model)
        # NumPy warns of what is an answer here: NaN, and numbers beyond the largest.
        with np.errstate(all="ignore"):
            return list(self._evaluators[model].run(None, dict(arrays)))
