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
from attention_conformance.suite.judge.answer import outputs_by_name, swap_heads_and_length
from attention_conformance.suite.judge.derivative import native_cotangent
from attention_conformance.suite.vectors.asked import StoredCase, stored_cases
from attention_conformance.suite.vectors.export import export
from attention_conformance.suite.vectors.files import RUNTIME, encoded, read_index, typed
from attention_conformance.suite.vectors.options import Selection

ROWS = {"fully-masked-row": "zeros", "minus-inf-row": "zeros"} | dict.fromkeys(
    ("fully-masked-row-gradient", "minus-inf-row-gradient"), "nothing"
)
"""What most runtimes elect."""


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
    for one in stored_cases(read_index(vectors).selection):
        implementation = by_operator.get(one.case.operator.name)
        if implementation is None or implementation.unsupported(one.case) is not None:
            continue
        arrays = answered(one, implementation)
        if arrays:
            (folder / one.file).write_bytes(encoded(arrays))
    declare(folder, **runtime)
    return folder


def declare(folder: Path, **runtime: Any) -> None:
    """Write what is declared of the runtime, by default name, version, and rows of zeros."""
    text = json.dumps({"name": "other", "version": "1.2", "elections": ROWS, **runtime})
    (folder / RUNTIME).write_text(text, encoding="utf-8")


def answered(one: StoredCase, implementation: Implementation) -> dict[str, np.ndarray]:
    """The tensors with which an implementation answers; none where it raises."""
    inputs, backend, asked = one.inputs(), implementation.backend, one.answers()
    prepared = implementation.prepare(inputs)
    try:
        native = outputs_by_name(prepared(), prepared)
    except Exception:
        return {}
    arrays = {
        name: swap_heads_and_length(backend.to_numpy(native[name]), prepared)
        for name in asked
        if not name.startswith("grad.")
    } | _gradients(one, implementation)
    # A layer of one head may leave out the axis of heads.
    return {n: typed(x.reshape(asked[n].shape), asked[n].type) for n, x in arrays.items()}


def _gradients(one: StoredCase, implementation: Implementation) -> dict[str, np.ndarray]:
    inputs, backend, cotangent = one.inputs(), implementation.backend, one.cotangent()
    if cotangent is None or implementation.missing(["gradient"]) is not None:
        return {}
    prepared = implementation.differentiable(inputs)
    array = backend.array(native_cotangent(cotangent, inputs, prepared), inputs.dtype)
    names = [name[5:] for name in one.answers() if name.startswith("grad.")]
    try:
        _, gradients = backend.vjp(prepared, names, array)
    except ForwardOnly:
        return {}
    arrays = {}
    for name, gradient in gradients.items():
        values = backend.to_numpy(gradient)
        turned = values.ndim == 4 and name != "bias"
        values = swap_heads_and_length(values, prepared) if turned else values
        want = one.answers()[f"grad.{name}"].shape
        if values.size != np.prod(want):  # a merged bias has more axes than its own
            own = tuple(n for n, size in enumerate(want) if size == 1)
            values = rank4(values).sum(own, keepdims=True)
        arrays[f"grad.{name}"] = values
    return arrays
