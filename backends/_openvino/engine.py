"""OpenVINO on the CPU. Compiled models are cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import numpy as np

from attention_conformance.backends.arrays import RuntimeArrays, RuntimeThreads
from attention_conformance.backends.protocol import needed
from attention_conformance.suite.spec.cache import Cache

KEPT = 128
"""The number of compiled models, and of their requests, that are cached."""


class OpenvinoEngine(RuntimeThreads, RuntimeArrays):
    """OpenVINO's CPU plugin, set to compute float32 in float32. Subclasses list the implementations."""

    name = "openvino"
    modules = distributions = ("openvino",)

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        with needed():
            import openvino
            from openvino.utils.node_factory import NodeFactory
        self.openvino: Any = openvino
        self.nodes: Any = NodeFactory("opset13")
        self.core: Any = openvino.Core()
        self._models: Cache[Any] = Cache(KEPT)
        self._requests: Cache[Any] = Cache(KEPT)

    def type_of(self, dtype: np.dtype) -> Any:
        """Returns OpenVINO's type of a dtype, also of bfloat16."""
        Type = self.openvino.Type
        return Type.bf16 if dtype == self.bfloat16 else Type(dtype)

    def constant(self, number: float, dtype: np.dtype) -> Any:
        """Returns a node with one number."""
        return self.openvino.op.Constant(self.type_of(dtype), self.openvino.Shape([]), [number])

    def cached_request(self, key: Any, make_model: Callable[[], Any]) -> Any:
        """Returns the request of the model under a key, for the present number of threads; it is made on
        first use. Each thread has its own, because a request infers once at a time."""
        model = self.cached_model(key, make_model)
        return self._requests.get((key, self.thread_count, get_ident()), model.create_infer_request)

    def cached_model(self, key: Any, make_model: Callable[[], Any], **config: Any) -> Any:
        """Returns the compiled model under a key, for the present number of threads; it is made on first
        use."""
        return self._models.get(
            (key, self.thread_count), lambda: self.compiled_model(make_model(), **config)
        )

    def compiled_model(self, model: Any, **config: Any) -> Any:
        """Returns the model, compiled for the present number of threads."""
        config |= {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": self.thread_count,
        }
        return self.core.compile_model(model, "CPU", config)

    def run(self, request: Any, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the output of the request's model for its input arrays in order."""
        request.infer([self._tensor(array) for array in arrays])
        output = request.get_output_tensor(0)
        # OpenVINO returns bfloat16 bits as a float16 array.
        bits = np.array(output.data)
        return bits.view(self.bfloat16) if output.element_type == self.openvino.Type.bf16 else bits

    def _tensor(self, array: np.ndarray) -> Any:
        if array.dtype != self.bfloat16:
            return self.openvino.Tensor(array)
        words = np.ascontiguousarray(array).view(np.uint16)
        return self.openvino.Tensor(words, list(array.shape), self.openvino.Type.bf16)
