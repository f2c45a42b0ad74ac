"""Safetensors files: what the suite writes and reads of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import safetensors
from safetensors import numpy as of_numpy

from suite.spec.dtypes import DTYPES, DType

TYPES: dict[str, type] = {
    "F64": np.float64,
    "F32": np.float32,
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "I64": np.int64,
    "BOOL": np.bool_,
}
"""The types of safetensors that vectors are made of, and NumPy's."""

SUFFIX = ".safetensors"
"""How the name of a file of tensors ends."""

FORMATS = {"F64": "f64", "F32": "f32", "BF16": "bf16", "F16": "f16"}
"""The floating-point types among them, with the short names of their dtypes."""


class NoTensors(Exception):
    """A file is no safetensors file, or is cut off; the message says what the library found."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file: its type as safetensors calls it, its shape, and its values, which are None
    where the type is none of `TYPES`."""

    type: str
    shape: tuple[int, ...]
    values: np.ndarray | None

    @property
    def dtype(self) -> DType | None:
        """The floating-point format; None for any other type."""
        return DTYPES[FORMATS[self.type]] if self.type in FORMATS else None


def type_of(fmt: DType) -> str:
    """What safetensors calls a floating-point format."""
    return next(name for name, short in FORMATS.items() if short == fmt.name)


def typed(values: np.ndarray, name: str) -> np.ndarray:
    """Values as an array of the type that safetensors calls `name`, C-contiguous. Rounds to nearest where
    the type does not hold them."""
    return np.array(values, TYPES[name], order="C")


def encoded(arrays: Mapping[str, np.ndarray]) -> bytes:
    """A safetensors file of arrays of `TYPES`: the same bytes for the same arrays."""
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
