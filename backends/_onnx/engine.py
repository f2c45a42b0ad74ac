"""ONNX as an engine: calls become models with NumPy arrays as inputs, for all runtimes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends._onnx.graph import OPSET, RecordedModel
from attention_conformance.backends.arrays import RuntimeArrays
from attention_conformance.backends.kernel import FrameworkFunction, Kernel
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Declared, Implementation, needed

KEPT = 128
"""The number of loaded models that are cached."""


class OnnxEngine(RuntimeArrays):
    """Models and NumPy arrays. Subclasses have the runtime and list the implementations."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        with needed():
            import onnx
        self.onnx: Any = onnx

    @abstractmethod
    def run(self, model: bytes, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Returns the outputs of a model for these inputs. The loaded model is cached for other calls.

        Raises the runtime's errors.
        """

    def recorded(self, prepared: PreparedCall, opset: int = OPSET) -> PreparedCall:
        """Returns the call as a model.

        For arrays of new shapes the function is called with symbols (`backends._onnx.graph`). Then the
        recorded model is run.
        """
        function, models = prepared.function, dict[Any, RecordedModel]()

        def call(**arguments: Any) -> Any:
            arrays = {n: a for n, a in arguments.items() if isinstance(a, np.ndarray)}
            key = tuple((n, a.shape, a.dtype) for n, a in arrays.items())
            if key not in models:
                models[key] = RecordedModel(function, arguments, opset)
            return models[key].answer(self.run(models[key].model, arrays))

        return replace(prepared, function=call)


def implementations_with(
    backend: OnnxEngine,
    declared: Mapping[Kernel | type[Implementation], Declared],
    layers: Sequence[Implementation],
) -> list[Implementation]:
    """Returns implementations of the rows and classes in `declared`, with its declarations, and
    `layers`."""
    implementations = [
        FrameworkFunction(backend, kind.but(declared=declaration))
        if isinstance(kind, Kernel)
        else kind(backend, declared=declaration)
        for kind, declaration in declared.items()
    ]
    return [*implementations, *layers]
