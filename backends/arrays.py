"""Backends whose arrays are NumPy arrays: NumPy itself, and runtimes that take NumPy arrays."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends.memory import Shape, view
from attention_conformance.backends.prepared import set_to
from attention_conformance.backends.protocol import Backend, needed
from attention_conformance.backends.threads import requested_threads
from attention_conformance.suite.spec.dtypes import DType


class NumpyArrays(Backend):
    """A backend whose arrays are NumPy arrays, with bfloat16 of ml_dtypes."""

    has_strides = True

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        with needed():
            import ml_dtypes
        self.bfloat16 = np.dtype(ml_dtypes.bfloat16)

    @property
    def refusals(self) -> dict[str, str]:
        return super().refusals | {"gradient": "NumPy's arrays have no automatic differentiation"}

    def kind(self, long_name: str) -> np.dtype:
        """Returns the NumPy dtype for a long dtype name such as "bfloat16"."""
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

    def view(self, flat: np.ndarray, shape: Shape, strides: Shape, offset: int) -> np.ndarray:
        return view(flat, shape, strides, offset)


class RuntimeThreads(Backend):
    """A mixin: calls of the backend run on `thread_count` threads. It must stand before the arrays' class
    among the base classes."""

    has_threads = True
    thread_count: int

    def threads(self, count: int) -> AbstractContextManager[None]:
        name = "thread_count"
        return set_to(count, partial(getattr, self, name), partial(setattr, self, name))


class RuntimeArrays(NumpyArrays):
    """A runtime with NumPy arrays that runs every call as a model. `thread_count` is the number of
    threads of a call; only runtimes with `RuntimeThreads` let it be chosen."""

    runs_models = True

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.thread_count = requested_threads()
