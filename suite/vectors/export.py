"""Write a folder of vectors: inputs, expected values in float64, bounds, digests. No stored bound is
smaller than the bound of the judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance import suite
from attention_conformance.references.rounding import Bounded
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.judge.verdict import HarnessError
from attention_conformance.suite.records.files import new_folder, remove_on_error
from attention_conformance.suite.spec.vocabulary import NUMERICS
from attention_conformance.suite.vectors.asked import StoredCase, stored_cases
from attention_conformance.suite.vectors.files import (
    INDEX,
    VectorsError,
    digest_of,
    encoded,
    sha256,
    type_of,
    typed,
)
from attention_conformance.suite.vectors.options import Selection


def export(selection: Selection, folder: Path) -> str:
    """Write vectors to a new or empty folder, the index last. Returns a line for people. Raises
    FileExistsError, and VectorsError if the selection has no case, or if this machine cannot judge
    float64."""
    problems, entries, size = stored_cases(selection), [], 0
    if not problems:
        raise VectorsError("the level has no case of these operators and dtypes")
    with remove_on_error(new_folder(folder)):
        for problem in problems:
            data = encoded(contents(problem))
            (folder / problem.file).write_bytes(data)
            entries.append(entry(problem, sha256(data)))
            size += len(data)
        digest = digest_of((e["file"], e["sha256"]) for e in entries)
        index = {
            "schema": 2, "suite": suite.__version__, "selection": vars(selection),
            "digest": digest, "numerics": NUMERICS, "cases": entries,
        }  # fmt: skip
        (folder / INDEX).write_text(
            json.dumps(index, indent=1, default=str) + "\n", encoding="utf-8"
        )
    return f"{len(entries)} cases, {size / 1e6:.1f} MB, in {folder}; digest {digest[:12]}"


def contents(problem: StoredCase) -> dict[str, np.ndarray]:
    """Returns the tensors of a case's file by name: inputs, expected values and bounds. Raises
    VectorsError."""
    inputs, arrays = problem.inputs(), problem.arrays()
    if inputs.has_empty_rows:
        arrays["fully_masked_rows"] = typed(inputs.fully_masked_rows, "BOOL")
    last_bounds: dict[str, np.ndarray] = {}  # a class with an equal bound has no tensor of its own
    for numerics in NUMERICS:
        try:
            bounded = expected_values(problem, Rounding(numerics))
        except HarnessError as error:
            raise VectorsError(
                f"{problem.case.id} has no expected values here: {error}; --dtype leaves float64 out"
            ) from error
        for name, output in problem.answers().items():
            value = np.asarray(bounded[name].value, np.float64)
            bound = rounded_up(bounded[name], value, "F64" if inputs.dtype.name == "f64" else "F32")
            arrays[f"expected.{name}"] = typed(value.reshape(output.shape), "F64")
            if not np.array_equal(bound, last_bounds.get(name, np.nan)):
                arrays[f"bound.{name}.{numerics}"] = bound.reshape(output.shape)
            last_bounds[name] = bound
    return arrays


def expected_values(problem: StoredCase, rounding: Rounding) -> dict[str, Bounded]:
    """Returns the expected outputs and gradients with their bounds, by the names of
    `StoredProblem.answers`."""
    inputs, cotangent = problem.inputs(), problem.cotangent()
    outputs = Oracle.forward(inputs, rounding).expected
    gradients = {} if cotangent is None else Oracle.vjp(inputs, cotangent, rounding).expected
    return {**outputs, **{f"grad.{name}": value for name, value in gradients.items()}}


@np.errstate(over="ignore", invalid="ignore")
def rounded_up(bounded: Bounded, value: np.ndarray, tensor_type: str) -> np.ndarray:
    """Returns the bounds around `value`, the expected values as stored, rounded up to the type
    `tensor_type`. The rounding of the stored values is added to the bounds."""
    rounding = np.where(bounded.value == value, 0.0, np.abs(bounded.value - value))
    error = bounded.error + rounding
    error = np.where(np.isnan(error), np.inf, error)  # the bound of very long sums is infinite
    bound = typed(error, tensor_type)
    return np.where(bound < error, np.nextafter(bound, bound.dtype.type(np.inf)), bound)


def entry(problem: StoredCase, digest: str) -> dict[str, Any]:
    """Returns the index entry of a case's file with this digest. `docs/data/vector-files.md` describes
    its fields."""
    case, arrays = problem.case, problem.arrays()
    widths = {} if case.widths is None else vars(case.widths)
    return {
        "case": case.id,
        "file": problem.file,
        "sha256": digest,
        "inputs_sha256": sha256(encoded(arrays)),
        "operator": case.operator.name,
        "dtype": type_of(case.dtype),
        "sizes": vars(case.sizes) | {f"{name}_width": width for name, width in widths.items()},
        "options": {option.name: case.option(option.name) for option in case.operator.options},
        "needs": case.needs,
        "inputs": {name: problem.axes(name) for name in arrays},
        "answers": {name: output._asdict() for name, output in problem.answers().items()},
        "checks": problem.checks,
    }
