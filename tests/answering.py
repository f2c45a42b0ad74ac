"""Plays the other runtime: answers vectors by an implementation of a backend, through the files alone in
which its answers end."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance.backends.masks import rank4
from attention_conformance.backends.protocol import ForwardOnly, Implementation
from attention_conformance.suite.judge.answer import parts, swap_heads_and_length
from attention_conformance.suite.judge.derivative import native_cotangent
from attention_conformance.suite.vectors.asked import StoredProblem, operands
from attention_conformance.suite.vectors.export import export
from attention_conformance.suite.vectors.index import RUNTIME, read_index
from attention_conformance.suite.vectors.judge import as_drawn_here
from attention_conformance.suite.vectors.options import Selection
from attention_conformance.suite.vectors.tensors import encoded, type_of, typed


def plain_vectors(folder: Path, *dtypes: str) -> Path:
    """Vectors of plain attention in some dtypes, in a new folder below this one."""
    export(Selection("smoke", operator=("sdpa",), dtype=dtypes), folder / "vectors")
    return folder / "vectors"


def file_of(folder: Path, case: str) -> Path:
    """The file of a case, or of the answer to it."""
    return folder / f"{case.replace('/', '__')}.safetensors"


def answer(
    vectors: Path, folder: Path, implementations: Iterable[Implementation], **runtime: Any
) -> Path:
    """A folder with the answers of implementations, one an operator, and with what `runtime` declares."""
    folder.mkdir()
    by_operator = {one.operator.name: one for one in implementations}
    for one in as_drawn_here(read_index(vectors), vectors):
        implementation = by_operator.get(one.case.operator.name)
        if implementation is None or implementation.unsupported(one.case) is not None:
            continue
        arrays = answered(one, implementation)
        if arrays:
            (folder / one.file).write_bytes(encoded(arrays))
    declare(folder, **runtime)
    return folder


def declare(folder: Path, **runtime: Any) -> None:
    """Write what is declared of the runtime, by default its name and version."""
    text = json.dumps({"name": "other", "version": "1.2", **runtime})
    (folder / RUNTIME).write_text(text, encoding="utf-8")


def answered(one: StoredProblem, implementation: Implementation) -> dict[str, np.ndarray]:
    """The tensors with which an implementation answers; none where it raises."""
    inputs, backend = one.inputs(), implementation.backend
    prepared = implementation.prepare(inputs)
    try:
        native = parts(prepared(), prepared)
    except Exception:
        return {}
    arrays = {
        name: typed(
            swap_heads_and_length(values, prepared).reshape(inputs.full_shape(name)),
            type_of(inputs.output_dtype(name)),
        )
        for name in one.outputs()
        for values in [backend.to_numpy(native[name])]
    }
    cotangent = one.cotangent()
    if cotangent is None or implementation.missing(["gradient"]) is not None:
        return arrays
    prepared = implementation.differentiable(inputs)
    array = backend.array(native_cotangent(cotangent, inputs, prepared), inputs.dtype)
    try:
        _, gradients = backend.vjp(prepared, one.gradients(), array)
    except ForwardOnly:
        return arrays
    for name, gradient in gradients.items():
        values = backend.to_numpy(gradient)
        if values.ndim == 4 and name != "bias":
            values = swap_heads_and_length(values, prepared)
        shape = operands(inputs)[name].shape
        # A layer of one head may leave out the axis of heads; a merged bias has more than its own.
        values = values.reshape(shape) if values.size == np.prod(shape) else rank4(values)
        arrays[f"grad.{name}"] = typed(values, type_of(inputs.dtype))
    return arrays
