"""Read and write safetensors files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import safetensors
from safetensors import numpy as of_numpy

from attention_conformance.suite.spec.dtypes import CODES, DTYPES, DType

TYPES: dict[str, type] = {
    "F64": np.float64,
    "F32": np.float32,
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "I8": np.int8,
    "I64": np.int64,
    "BOOL": np.bool_,
}
"""NumPy types by the safetensors types in vectors."""

SUFFIX = ".safetensors"
"""The suffix of file names."""

FORMATS: dict[str, DType] = {
    "F64": DTYPES["f64"], "F32": DTYPES["f32"], "BF16": DTYPES["bf16"], "F16": DTYPES["f16"],
    "F8_E4M3": CODES["e4m3"], "F8_E5M2": CODES["e5m2"], "I8": CODES["int8"],
}  # fmt: skip
"""Dtypes of cases and formats of codes by safetensors types."""


class NoTensors(Exception):
    """A file is not a complete safetensors file; the message has the library's reason."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file: safetensors type, shape and values; the values of a type outside `TYPES` are
    None."""

    type: str
    shape: tuple[int, ...]
    values: np.ndarray | None

    @property
    def dtype(self) -> DType | None:
        """The dtype of a case or format of codes; None for any other type."""
        return FORMATS.get(self.type)


def type_of(fmt: DType) -> str:
    """The safetensors type of a dtype of a case, or of a format of codes."""
    return next(name for name, known in FORMATS.items() if known is fmt)


def typed(values: np.ndarray, name: str) -> np.ndarray:
    """Values rounded to nearest in the safetensors type `name`, as a C-contiguous array."""
    return np.array(values, TYPES[name], order="C")


def encoded(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a safetensors file; equal arrays have equal bytes."""
    return of_numpy.save(dict(arrays))


def decoded(data: bytes) -> dict[str, Tensor]:
    """The tensors of a file by name. Raises NoTensors."""
    try:
        entries = safetensors.deserialize(data)
    except safetensors.SafetensorError as error:
        raise NoTensors(str(error)) from error
    tensors = {}
    for name, entry in entries:
        shape, kind = tuple(entry["shape"]), entry["dtype"]
        known = TYPES.get(kind)
        values = None if known is None else np.frombuffer(entry["data"], known).reshape(shape)
        tensors[name] = Tensor(kind, shape, values)
    return tensors


def sha256(data: bytes) -> str:
    """The digest of a file."""
    return hashlib.sha256(data).hexdigest()
