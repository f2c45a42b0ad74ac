"""The runtimes: ONNX Runtime on the CPU, and the standard's reference evaluator."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.backends._onnx.attention import ATTENTION_25, BY_DEFINITION
from attention_conformance.backends._onnx.cached import (
    PastAttention,
    PastGroupQuery,
    ScatterAttention,
)
from attention_conformance.backends._onnx.contrib import (
    GROUP_QUERY,
    GROUP_QUERY_CACHED,
    MULTI_HEAD,
)
from attention_conformance.backends._onnx.engine import KEPT, OnnxEngine, implementations_with
from attention_conformance.backends._onnx.nodes import (
    OnnxBatchNorm,
    OnnxLayerNorm,
    OnnxRotary,
    OnnxRotaryByIds,
)
from attention_conformance.backends._onnx.textbook import Eager, layers
from attention_conformance.backends.arrays import RuntimeThreads
from attention_conformance.backends.kernel import Kernel
from attention_conformance.backends.protocol import Declared, Implementation, Limits, needed
from attention_conformance.backends.textbook.rotary import TextbookRotary
from attention_conformance.suite.spec.cache import Cache

DTYPES = ("f64", "f32", "f16")
"""The dtypes of most operators. Few operators have bfloat16 kernels."""

NONNEGATIVE = Limits(scales=(0.0, np.inf))
"""Limits of Attention's definition, which multiplies queries and keys by the root of the scale."""

POSITIVE = Limits(scales=(2.0**-126, np.inf))
"""Limits of the kernels, which also refuse the scale 0."""

ATTENTION: dict[str, Any] = {
    # Without a float64 kernel the operator's definition is run, with a float32 scale.
    "numerics": {"f64": "single", "f32": "exact", "f16": "eager"},
    "dtypes": DTYPES,
}

ON_RUNTIME: dict[Kernel | type[Implementation], Declared] = {
    # Few operators have float16 kernels, so the optimiser decides which results are stored in float16.
    Eager: Eager.declared.but(
        numerics={"f64": "exact", "f32": "exact", "f16": "eager"}, dtypes=DTYPES
    ).electing(
        {"lse-of-empty-row": "minus-inf", "integer-mask": "raises", "score-overflow": "finite"}
    ),
    **{
        kind: kind.declared.but(
            limits={"f64": NONNEGATIVE, "f32": POSITIVE, "f16": POSITIVE},
            **ATTENTION,
        )
        for kind in (*BY_DEFINITION, PastAttention, ScatterAttention)
    },
    # Opset 25 has no kernel in any dtype.
    ATTENTION_25: ATTENTION_25.declared.but(limits=NONNEGATIVE, **ATTENTION),
    **{
        kind: kind.declared
        for kind in (MULTI_HEAD, GROUP_QUERY, GROUP_QUERY_CACHED, PastGroupQuery)
    },
    OnnxLayerNorm: OnnxLayerNorm.declared.but(numerics="exact"),
    OnnxBatchNorm: OnnxBatchNorm.declared.but(numerics="exact", dtypes=DTYPES),
    **{
        kind: kind.declared.but(numerics="fused", dtypes=("f32", "f16"))
        for kind in (OnnxRotary, OnnxRotaryByIds)
    },
}
"""Rows and classes of implementations, without textbook layers, with their declarations."""


class OnnxRuntimeBackend(RuntimeThreads, OnnxEngine):
    """ONNX Runtime's CPU provider with its default optimisations."""

    name = "onnxruntime"
    modules = distributions = ("onnxruntime", "onnx")

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        with needed():
            import onnxruntime
        self.onnxruntime: Any = onnxruntime
        self._sessions: Cache[Any] = Cache(KEPT)

    def implementations(self) -> list[Implementation]:
        textbook = layers(self, "exact")
        for layer in textbook:
            if not isinstance(layer, TextbookRotary):  # which computes in float32
                layer.declared = layer.declared.but(dtypes=DTYPES)
        return implementations_with(self, ON_RUNTIME, textbook)

    def session(self, model: bytes) -> Any:
        """Returns the session of a model for the present number of threads."""

        def session() -> Any:
            options = self.onnxruntime.SessionOptions()
            options.intra_op_num_threads = self.thread_count
            options.inter_op_num_threads = 1
            # Errors are raised; this keeps ONNX Runtime from also printing them.
            options.log_severity_level = 4
            providers = ["CPUExecutionProvider"]
            return self.onnxruntime.InferenceSession(model, options, providers=providers)

        return self._sessions.get((model, self.thread_count), session)

    def run(self, model: bytes, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        session = self.session(model)
        output_types = [output.type for output in session.get_outputs()]
        if not any(self._is_foreign(array.dtype) for array in arrays.values()) and not any(
            type_name.startswith("tensor(float8") for type_name in output_types
        ):
            return list(session.run(None, dict(arrays)))
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        values = {name: self._value(array) for name, array in contiguous.items()}
        return [self._array(value) for value in session.run_with_ort_values(None, values)]

    def _value(self, array: np.ndarray) -> Any:
        """Returns the runtime's value that shares the memory of an array, also of ml_dtypes."""
        OrtValue = self.onnxruntime.OrtValue
        if not self._is_foreign(array.dtype):
            return OrtValue.ortvalue_from_numpy(array)
        element_type = self.onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        bits = array.view(f"u{array.itemsize}")
        return OrtValue.ortvalue_from_numpy_with_onnx_type(bits, element_type)

    @staticmethod
    def _is_foreign(dtype: np.dtype) -> bool:
        """True for types of ml_dtypes: bfloat16 and 8-bit floating-point numbers."""
        return dtype.type.__module__ == "ml_dtypes"

    def _array(self, value: Any) -> np.ndarray:
        """Returns the runtime's value, copied to a NumPy array."""
        dtype = self.onnx.helper.tensor_dtype_to_np_dtype(value.element_type())
        if not self._is_foreign(dtype):
            return np.array(value.numpy())
        shape = tuple(value.shape())
        words = ctypes.string_at(value.data_ptr(), dtype.itemsize * int(np.prod(shape)))
        return np.frombuffer(words, dtype).reshape(shape).copy()


NUMERICS = {"f64": "stepwise", "f32": "stepwise", "bf16": "working", "f16": "stepwise"}
"""Single NumPy operations. bfloat16 sums are in bfloat16, except in products."""

ON_REFERENCE: dict[Kernel | type[Implementation], Declared] = {
    Eager: Eager.declared.but(numerics=NUMERICS).electing(
        {"lse-of-empty-row": "nan", "integer-mask": "cast-to-bool", "score-overflow": "nan"}
    ),
    **{
        # Queries and keys are multiplied by the root of the scale, and rounded, before their product.
        kind: kind.declared.but(numerics=NUMERICS | {"f16": "working"}, limits=NONNEGATIVE)
        for kind in (*BY_DEFINITION, ATTENTION_25, PastAttention, ScatterAttention)
    },
    OnnxLayerNorm: OnnxLayerNorm.declared.but(numerics="stepwise"),
    OnnxBatchNorm: OnnxBatchNorm.declared.but(numerics="stepwise"),
    **{
        kind: kind.declared.but(numerics="eager", dtypes=("f32", "bf16", "f16"))
        for kind in (OnnxRotary, OnnxRotaryByIds)
    },
}
"""Rows and classes of implementations, without textbook layers, with their declarations."""


class OnnxReferenceBackend(OnnxEngine):
    """`onnx.reference.ReferenceEvaluator`."""

    name = "onnx-reference"
    modules = ("onnx",)
    distributions = ("onnx", "numpy")

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self._evaluators: Cache[Any] = Cache(KEPT)

    def implementations(self) -> list[Implementation]:
        return implementations_with(self, ON_REFERENCE, layers(self, "stepwise"))

    def run(self, model: bytes, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        from onnx.reference import ReferenceEvaluator

        evaluator = self._evaluators.get(model, lambda: ReferenceEvaluator(model))
        # NaN and infinity are answers, not reasons for warnings.
        with np.errstate(all="ignore"):
            return list(evaluator.run(None, dict(arrays)))
