"""The files of vectors and answers: safetensors, `index.json` and `runtime.json`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import ml_dtypes
import msgspec
import numpy as np
import safetensors
from safetensors import numpy as of_numpy

from attention_conformance.suite.records.files import require_regular_file
from attention_conformance.suite.spec.dtypes import CODES, DTYPES, DType
from attention_conformance.suite.vectors.options import Selection

INDEX, RUNTIME, SUFFIX = "index.json", "runtime.json", ".safetensors"

FORMATS: dict[str, DType] = {
    "F64": DTYPES["f64"], "F32": DTYPES["f32"], "BF16": DTYPES["bf16"], "F16": DTYPES["f16"],
    "F8_E4M3": CODES["e4m3"], "F8_E5M2": CODES["e5m2"], "I8": CODES["int8"],
}  # fmt: skip
"""Dtypes of cases and formats of codes by safetensors types."""

TYPES: dict[str, type] = {
    "F64": np.float64, "F32": np.float32, "BF16": ml_dtypes.bfloat16, "F16": np.float16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2, "I8": np.int8,
    "I64": np.int64, "BOOL": np.bool_,
}  # fmt: skip
"""NumPy types by safetensors types."""


class VectorsError(Exception):
    """Vectors or answers cannot be used; the message names the file and what to do."""


class Entry(msgspec.Struct, frozen=True):
    """The fields of a case in `index.json` that the judge reads."""

    case: str
    file: str
    sha256: str
    inputs_sha256: str


class Index(msgspec.Struct, frozen=True):
    """The fields of `index.json` that the judge reads."""

    suite: str
    selection: Selection
    digest: str
    cases: tuple[Entry, ...]


class Runtime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`runtime.json`: the runtime's name, version and declarations."""

    name: str
    version: str
    vectors: str = ""
    numerics: str | dict[str, str] = {}
    elections: dict[str, str | dict[str, str]] = {}
    unsupported: dict[str, str] = {}
    merges_mask_into_bias: bool = False


T = TypeVar("T", bound=msgspec.Struct)


def read(path: Path, kind: type[T], advice: str) -> T:
    """Returns the content of a JSON file as the struct `kind`. Raises VectorsError, whose message ends
    with `advice`."""
    try:
        return msgspec.json.decode(require_regular_file(path).read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise VectorsError(f"{path} cannot be read: {error}; {advice}") from error


def read_index(folder: Path) -> Index:
    """Returns the index of a folder of vectors. Raises VectorsError if a file was changed, and
    OSError."""
    path, anew = folder / INDEX, "make the vectors anew"
    index = read(path, Index, anew)
    for entry in index.cases:
        file = folder / Path(entry.file).name
        if (
            file.name != entry.file
            or sha256(require_regular_file(file).read_bytes()) != entry.sha256
        ):
            raise VectorsError(f"{file} differs from its name or digest in {path}; {anew}")
    if digest_of((entry.file, entry.sha256) for entry in index.cases) != index.digest:
        raise VectorsError(f"{path} was changed; {anew}")
    return index


def sha256(data: bytes) -> str:
    """Returns the SHA-256 of a file's bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_of(files: Iterable[tuple[str, str]]) -> str:
    """Returns one digest for several files, given as pairs (name, SHA-256). It is the SHA-256 of the
    output of `sha256sum` for these files, sorted by name."""
    return sha256("".join(f"{digest}  {name}\n" for name, digest in sorted(files)).encode())


def type_of(fmt: DType) -> str:
    """Returns the safetensors type of a dtype of a case, or of a format of codes."""
    return next(name for name, known in FORMATS.items() if known is fmt)


def typed(values: np.ndarray, name: str) -> np.ndarray:
    """Returns values rounded to nearest in the safetensors type `name`, as a C-contiguous array."""
    return np.array(values, TYPES[name], order="C")


def encoded(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Returns the bytes of a safetensors file; equal arrays have equal bytes."""
    return of_numpy.save(dict(arrays))


def decoded(data: bytes) -> dict[str, tuple[str, np.ndarray]]:
    """Returns the tensors of a safetensors file by name, each as type and values. Values of a type
    outside `TYPES` are raw bytes. Raises VectorsError."""
    tensors: dict[str, tuple[str, np.ndarray]] = {}
    try:
        for name, one in safetensors.deserialize(data):
            values: np.ndarray = np.frombuffer(one["data"], TYPES.get(one["dtype"], np.uint8))
            shape = one["shape"] if one["dtype"] in TYPES else values.shape
            tensors[name] = one["dtype"], values.reshape(shape)
    except safetensors.SafetensorError as error:
        raise VectorsError(str(error)) from error
    return tensors
