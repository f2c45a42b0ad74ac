"""Write a folder of vectors: inputs, expected values, bounds, digests.

- Expected values follow the first answer of every election question. They are float64; those of float64
  cases are computed in extended precision and rounded.
- A bound is the greatest allowed distance from the stored value, in float32 (of float64 cases float64).
  It is rounded up, so that no stored bound is smaller than the bound of the judge.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance import suite
from attention_conformance.references.rounding import Bounded
from attention_conformance.suite.judge.elections import question_of_gradients, questions_of_rows
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.judge.verdict import HarnessError
from attention_conformance.suite.records.files import new_folder
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.elections import ElectionCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import And, Mask, Or, Padding
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import NUMERICS
from attention_conformance.suite.vectors.asked import (
    ProbeRecorder,
    StoredProblem,
    operands,
    problems_of,
)
from attention_conformance.suite.vectors.index import (
    INDEX,
    JSON_SCHEMA,
    SCHEMA,
    Entry,
    Hidden,
    Index,
    Output,
    VectorsError,
    digest_of,
    json_schema,
    questions,
    text_of,
)
from attention_conformance.suite.vectors.options import Selection
from attention_conformance.suite.vectors.tensors import encoded, sha256, type_of, typed

Arrays = dict[str, np.ndarray]


def export(
    selection: Selection, folder: Path, told: Callable[[float, int], None] = lambda *_: None
) -> Index:
    """Write the vectors of a selection to a new or empty folder, the index last.

    `told(seconds, files)` is called after each file with its seconds and the number of all files. Raises
    FileExistsError if the folder is not empty, and VectorsError if the selection has no case, or if this
    machine cannot compute the expected values.
    """
    problems = problems_of(selection)
    if not problems:
        raise VectorsError("the level has no case of these operators and dtypes")
    new_folder(folder)
    entries = []
    for one in problems:
        start = time.perf_counter()
        arrays, outputs = contents(one)
        data = encoded(arrays)
        (folder / one.file).write_bytes(data)
        entries.append(entry(one, outputs, sha256(data)))
        told(time.perf_counter() - start, len(problems))
    cases = [one.case for one in problems]
    index = Index(
        schema=SCHEMA,
        suite=suite.__version__,
        level=selection.level,
        seed=selection.seed,
        operators=tuple(dict.fromkeys(selection.operator)),
        dtypes=tuple(dict.fromkeys(selection.dtype)),
        digest=digest_of((e.file, e.sha256) for e in entries),
        numerics=NUMERICS,
        questions=questions(
            dict.fromkeys(c.question.name for c in cases if isinstance(c, ElectionCase))
        ),
        cases=tuple(entries),
    )
    for name, value in ((JSON_SCHEMA, json_schema()), (INDEX, index)):
        (folder / name).write_text(text_of(value), encoding="utf-8")
    return index


def contents(one: StoredProblem) -> tuple[Arrays, dict[str, Output]]:
    """The tensors of a case's file, and the outputs that it asks for. Raises VectorsError."""
    inputs, arrays = one.inputs(), one.arrays()
    if isinstance(one.case, Case) and inputs.has_empty_rows:
        arrays["fully_masked_rows"] = typed(inputs.fully_masked_rows, "BOOL")
    shapes: dict[str, tuple[str, tuple[int, ...], str]] = {}
    for name in one.outputs():
        axes = inputs.operator.outputs(inputs.case)[name]
        shapes[name] = (axes, inputs.full_shape(name), type_of(inputs.output_dtype(name)))
    for name in one.gradients():
        shape = operands(inputs)[name].shape
        shapes[f"grad.{name}"] = (_axes(inputs, name), shape, type_of(inputs.dtype))
    bounds: dict[str, dict[str, str]] = {name: {} for name in shapes}
    if isinstance(one.case, Case):
        try:
            for name in shapes:
                more, bounds[name] = expected(one, inputs, name)
                arrays |= more
        except HarnessError as error:
            raise VectorsError(
                f"{one.id} has no expected values here: {error}; --dtype leaves float64 out"
            ) from error
    outputs = {name: Output(*shape, bounds[name]) for name, shape in shapes.items()}
    return arrays, outputs


def expected(one: StoredProblem, inputs: Inputs, name: str) -> tuple[Arrays, dict[str, str]]:
    """The tensors of an expected value and its bounds, and the bounds' names by numerics class."""
    shape = (
        operands(inputs)[name[5:]].shape if name.startswith("grad.") else inputs.full_shape(name)
    )
    arrays: Arrays = {}
    named: dict[str, str] = {}
    for numerics in NUMERICS:
        want = _of_class(one, inputs, name, numerics)
        value = np.asarray(want.value, np.float64)
        if not named:
            arrays[f"expected.{name}"] = typed(value.reshape(shape), "F64")
        bound = raised(want, value, "F64" if inputs.dtype.name == "f64" else "F32").reshape(shape)
        same = (n for n in arrays if n.startswith("bound.") and np.array_equal(arrays[n], bound))
        named[numerics] = next(same, f"bound.{name}.{numerics}")
        arrays.setdefault(named[numerics], bound)
    return arrays, named


def _of_class(one: StoredProblem, inputs: Inputs, name: str, numerics: str) -> Bounded:
    rounding = Rounding(numerics)
    cotangent = one.cotangent()
    if not name.startswith("grad."):
        return Oracle.forward(inputs, rounding).expected[name]
    assert cotangent is not None, "gradients have a cotangent"
    return Oracle.vjp(inputs, cotangent, rounding).expected[name[5:]]


@np.errstate(over="ignore", invalid="ignore")
def raised(want: Bounded, value: np.ndarray, name: str) -> np.ndarray:
    """The bound around the stored expected `value`, rounded up to the type `name`."""
    off = np.where(want.value == value, 0.0, np.abs(want.value - value))
    exact = want.error + off
    exact = np.where(np.isnan(exact), np.inf, exact)  # the bound of very long sums is infinite
    bound = typed(exact, name)
    return np.where(bound < exact, np.nextafter(bound, bound.dtype.type(np.inf)), bound)


def entry(one: StoredProblem, outputs: dict[str, Output], digest: str) -> Entry:
    """The entry of a file in the index."""
    inputs, case = one.inputs(), one.case
    letters = {name: _axes(inputs, name) for name in one.arrays()}
    mask = inputs.mask
    hidden = None
    if isinstance(case, Case) and mask is not None:
        parts = tuple(in_words(part, inputs.sizes, inputs.seed) for part in mask.parts)
        hidden = Hidden(case.mask_token, case.form, parts)
    facts = {option.name: inputs.case.option(option.name) for option in case.operator.options}
    widths = inputs.case.widths
    return Entry(
        case=one.id,
        kind="election" if isinstance(case, ElectionCase) else "case",
        file=one.file,
        sha256=digest,
        inputs_sha256=one.digest(),
        operator=case.operator.name,
        dtype=type_of(case.dtype),
        sizes=vars(inputs.sizes)
        | ({} if widths is None else {f"{n}_width": w for n, w in vars(widths).items()}),
        options=facts,
        needs=case.needs,
        mask=hidden,
        flag=one.flag,
        inputs=letters,
        answers=outputs,
        elections=elective(one),
        checks=one.checks,
    )


def elective(one: StoredProblem) -> tuple[str, ...]:
    """The election questions that decide the output of the case's fully masked rows, and their
    gradients."""
    inputs = one.inputs()
    if isinstance(one.case, ElectionCase) or not inputs.has_empty_rows:
        return ()
    names = questions_of_rows(inputs, ProbeRecorder(inputs.operator))
    of_gradients = (question_of_gradients(name, inputs) for name in names)
    return tuple(dict.fromkeys([*names, *(of_gradients if one.differentiated else ())]))


def _axes(inputs: Inputs, name: str) -> str:
    if name in ("mask", "bias"):
        return "bhqk"
    if name == "cotangent":
        return inputs.operator.outputs(inputs.case)["output"]
    return inputs.axes(name) if name in inputs.arrays else ""


def in_words(mask: Mask, sizes: Sizes, seed: int) -> dict[str, Any]:
    """A mask as plain data: kind, parameters, and the lengths of a padding for these sizes."""
    if isinstance(mask, And | Or):
        several = [in_words(one, sizes, seed) for one in mask.masks]
        return {"kind": type(mask).__name__.lower(), "masks": several}
    assert dataclasses.is_dataclass(mask)
    words = {"kind": type(mask).__name__.lower(), **dataclasses.asdict(mask)}
    if isinstance(mask, Padding):
        words["lengths"] = mask.lengths(sizes, seed).tolist()
    return words
