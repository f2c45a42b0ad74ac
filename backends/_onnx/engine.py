"""ONNX as an engine: models that are made of calls, and NumPy arrays that they are given; whoever runs
them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from backends._onnx.graph import OPSET, Recorded
from backends.prepared import PreparedCall
from backends.protocol import Backend, BackendUnavailable, Declared, Implementation
from suite.spec.dtypes import DType

KEPT = 128
"""Models made ready that are kept."""


class OnnxEngine(Backend):
    """NumPy arrays as what runs a model is given them; bfloat16 is that of ml_dtypes. Subclasses say what
    runs a model, and what is implemented."""

    has_strides = True

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        try:
            import ml_dtypes
            import onnx
        except Exception as error:
            raise BackendUnavailable(f"{type(error).__name__}: {error}") from error
        self.onnx: Any = onnx
        self.bfloat16 = np.dtype(ml_dtypes.bfloat16)

    @abstractmethod
    def run(self, model: bytes, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs of a model for these inputs; what is made ready for it is kept for other calls.

        Raises what the runtime raises as it loads the model, or as it runs it.
        """

    def recorded(self, prepared: PreparedCall, opset: int = OPSET) -> PreparedCall:
        """The call as a model: its function is called with symbols (`backends._onnx.graph`) when it meets
        arrays of new shapes, and what was recorded is run."""
        build, models = prepared.function, dict[Any, Recorded]()

        def call(**arguments: Any) -> Any:
            arrays = {n: a for n, a in arguments.items() if isinstance(a, np.ndarray)}
            key = tuple((n, a.shape, a.dtype) for n, a in arrays.items())
            if key not in models:
                models[key] = Recorded(build, arguments, opset)
            return models[key].answer(self.run(models[key].model, arrays))

        return replace(prepared, function=call)

    def kind(self, long_name: str) -> np.dtype:
        """NumPy's dtype of a format: "bfloat16"."""
        return self.bfloat16 if long_name == "bfloat16" else np.dtype(long_name)

    def array(self, values: np.ndarray, dtype: DType | None) -> np.ndarray:
        return np.array(values, None if dtype is None else self.kind(dtype.long_name), order="C")

    def to_numpy(self, array: np.ndarray) -> np.ndarray:
        return array if array.dtype.kind in "biu" else array.astype(np.float64)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, np.ndarray)

    def dtype_name(self, array: np.ndarray) -> str:
        return array.dtype.name

    def device_name(self, array: np.ndarray) -> str:
        return "cpu"

    def overwrite(self, array: np.ndarray, values: np.ndarray) -> bool:
        array[...] = values
        return True

    def expand(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(array, shape)

    def restrided(self, array: np.ndarray) -> np.ndarray:
        steps = zip(array.shape, array.strides, strict=True)
        strides = [7 * array.itemsize if n == 1 else step for n, step in steps]
        return np.lib.stride_tricks.as_strided(array, array.shape, strides)


def declared_here(
    backend: OnnxEngine,
    declared: Mapping[type[Implementation], Declared],
    layers: Sequence[Implementation],
) -> list[Implementation]:
    """Implementations of these kinds with what they say of themselves on this backend, and textbook
    layers; none of them has a gradient."""
    every = [*(kind(backend, declared=says) for kind, says in declared.items()), *layers]
    for implementation in every:
        implementation.declared = implementation.declared.refusing(
            {"gradient": "models are run, and not differentiated"}
        )
    return every
