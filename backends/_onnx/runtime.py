"""ONNX Runtime on the CPU: models are sessions, which are kept."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from backends._onnx.contrib import CachedGroupQuery, GroupQuery, MultiHead
from backends._onnx.engine import FORWARD, OnnxEngine
from backends._onnx.norms import OnnxBatchNorm, OnnxLayerNorm
from backends._onnx.rotary import OnnxRotary, OnnxRotaryByIds
from backends._onnx.textbook import Eager, layers
from backends.protocol import BackendUnavailable, Implementation, Limits
from backends.threads import threads_asked

KEPT = 128
"""Sessions that are kept; each holds its own threads beside the caller's."""


DTYPES = ("f64", "f32", "f16")
"""What most operators take: bfloat16 has kernels for few."""

SCALES = Limits(scales=(0.0, np.inf))
"""By its definition Attention multiplies queries and keys by the root of the scale."""

OF_ATTENTION = {
    # Float64 has no kernel: there the operator is its definition, with a scale in float32.
    "numerics": {"f64": "single", "f32": "exact", "f16": "eager"},
    "dtypes": DTYPES,
    "limits": dict.fromkeys(("f32", "f16"), Limits(scales=(2.0**-126, np.inf))) | {"f64": SCALES},
}

KINDS: dict[type[Implementation], dict[str, Any]] = {
    Eager: {
        # What is stored between operators hangs on the optimiser: float16 has few kernels.
        "numerics": {"f64": "exact", "f32": "exact", "f16": "eager"},
        "dtypes": DTYPES,
        "elections": Eager.declared.elections
        | {"lse-of-empty-row": "minus-inf", "integer-mask": "raises", "score-overflow": "finite"},
    },
    Attention: OF_ATTENTION,
    Attention24: OF_ATTENTION,
    PackedAttention: OF_ATTENTION,
    CachedAttention: OF_ATTENTION,
    # No version has a kernel for windows: the operator is its definition, in every dtype.
    Attention25: OF_ATTENTION | {"limits": SCALES},
    MultiHead: {},
    GroupQuery: {},
    CachedGroupQuery: {},
    OnnxLayerNorm: {"numerics": "exact"},
    OnnxBatchNorm: {"numerics": "exact", "dtypes": DTYPES},
    OnnxRotary: {"numerics": "fused", "dtypes": ("f32", "f16")},
    OnnxRotaryByIds: {"numerics": "fused", "dtypes": ("f32", "f16")},
}
"""What is implemented besides textbook layers, and what it declares here."""


class OnnxRuntimeBackend(OnnxEngine):
    """ONNX Runtime's provider for the CPU, with the optimisations that it makes by itself."""

    name = "onnxruntime"
    has_threads = True

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        try:
            import onnxruntime
        except Exception as error:
            raise BackendUnavailable(f"{type(error).__name__}: {error}") from error
        self.onnxruntime: Any = onnxruntime
        self.thread_count = threads_asked()
        self._sessions: OrderedDict[tuple[bytes, int], Any] = OrderedDict()

    @property
    def versions(self) -> dict[str, str]:
        return {name: version(name) for name in ("onnxruntime", "onnx")}

    def implementations(self) -> list[Implementation]:
        every = [
            kind(self, declared=kind.declared.but(**declared).refusing(FORWARD))
            for kind, declared in KINDS.items()
        ]
        for layer in layers(self, "exact"):
            layer.declared = layer.declared.refusing(FORWARD)
            if layer.name != "textbook-rotary":  # its arithmetic is in float32 throughout
                layer.declared = layer.declared.but(dtypes=DTYPES)
            every.append(layer)
        return every

    @contextmanager
    def threads(self, count: int) -> Iterator[None]:
        before, self.thread_count = self.thread_count, count
        try:
            yield
        finally:
            self.thread_count = before

    def session(self, model: bytes) -> Any:
        """The session of a model with as many threads as calls have now. Raises what loading it raises."""
        key = (model, self.thread_count)
        if key not in self._sessions:
            options = self.onnxruntime.SessionOptions()
            options.intra_op_num_threads = self.thread_count
            options.inter_op_num_threads = 1
            # What goes wrong is raised; without this it is written to the terminal as well.
            options.log_severity_level = 4
            self._sessions[key] = self.onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
            while len(self._sessions) > KEPT:
                self._sessions.popitem(last=False)
        self._sessions.move_to_end(key)
        return self._sessions[key]

    def run(self, model: bytes, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        session = self.session(model)
        if all(array.dtype != self.bfloat16 for array in arrays.values()):
            return list(session.run(None, dict(arrays)))
        kept = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        values = {name: self._value(array) for name, array in kept.items()}
        return [self._array(value) for value in session.run_with_ort_values(None, values)]

    def _value(self, array: np.ndarray) -> Any:
        """The runtime's own value, on the memory of an array: it knows no NumPy dtype for bfloat16."""
        OrtValue = self.onnxruntime.OrtValue
        if array.dtype != self.bfloat16:
            return OrtValue.ortvalue_from_numpy(array)
        kind = self.onnx.TensorProto.BFLOAT16
        return OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), kind)

    def _array(self, value: Any) -> np.ndarray:
        """A copy of the runtime's own value as an array."""
        if value.element_type() != self.onnx.TensorProto.BFLOAT16:
            return np.array(value.numpy())
        shape = tuple(value.shape())
        words = ctypes.string_at(value.data_ptr(), 2 * int(np.prod(shape)))
        return np.frombuffer(words, self.bfloat16).reshape(shape).copy()
