"""ONNX's reference evaluator: the standard's operators in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

from attention_conformance.backends._onnx.attention import ATTENTION_25, BY_DEFINITION
from attention_conformance.backends._onnx.cached import PastAttention, ScatterAttention
from attention_conformance.backends._onnx.engine import KEPT, OnnxEngine, declared_here
from attention_conformance.backends._onnx.norms import OnnxBatchNorm, OnnxLayerNorm
from attention_conformance.backends._onnx.rotary import OnnxRotary, OnnxRotaryByIds
from attention_conformance.backends._onnx.textbook import Eager, layers
from attention_conformance.backends.kernel import Kernel
from attention_conformance.backends.protocol import Declared, Implementation, Limits
from attention_conformance.suite.spec.cache import Cache

NUMERICS = {"f64": "stepwise", "f32": "stepwise", "bf16": "working", "f16": "stepwise"}
"""Single NumPy operations. bfloat16 sums are in bfloat16, except in products."""

DECLARED: dict[Kernel | type[Implementation], Declared] = {
    Eager: Eager.declared.but(numerics=NUMERICS).electing(
        {"lse-of-empty-row": "nan", "integer-mask": "cast-to-bool", "score-overflow": "nan"}
    ),
    **{
        # Queries and keys are multiplied by the root of the scale, and rounded, before their product.
        kind: kind.declared.but(
            numerics=NUMERICS | {"f16": "working"}, limits=Limits(scales=(0.0, np.inf))
        )
        for kind in (*BY_DEFINITION, ATTENTION_25, PastAttention, ScatterAttention)
    },
    OnnxLayerNorm: OnnxLayerNorm.declared.but(numerics="stepwise"),
    OnnxBatchNorm: OnnxBatchNorm.declared.but(numerics="stepwise"),
    **{
        kind: kind.declared.but(numerics="eager", dtypes=("f32", "bf16", "f16"))
        for kind in (OnnxRotary, OnnxRotaryByIds)
    },
}
"""Implementations besides textbook layers, with their declarations."""


class OnnxReferenceBackend(OnnxEngine):
    """`onnx.reference.ReferenceEvaluator`."""

    name = "onnx-reference"
    modules = ("onnx",)

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self._evaluators: Cache[Any] = Cache(KEPT)

    @property
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("onnx", "numpy")}

    def implementations(self) -> list[Implementation]:
        return declared_here(self, DECLARED, layers(self, "stepwise"))

    def run(self, model: bytes, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        from onnx.reference import ReferenceEvaluator

        evaluator = self._evaluators.get(model, lambda: ReferenceEvaluator(model))
        # NaN and infinity are answers, not reasons for warnings.
        with np.errstate(all="ignore"):
            return list(evaluator.run(None, dict(arrays)))
