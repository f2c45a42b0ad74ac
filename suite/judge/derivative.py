"""Derivatives: make gradients and tangents of a cell's call, and judge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_conformance.backends.protocol import Implementation, PreparedCall
from attention_conformance.suite.judge import elections
from attention_conformance.suite.judge.answer import (
    Answer,
    differentiable_arrays,
    read_array,
    swap_heads_and_length,
)
from attention_conformance.suite.judge.comparison import against_oracle
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.judge.tolerance import grade
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS

if TYPE_CHECKING:
    from attention_conformance.suite.judge.cell import Cell


def differentiable_call(cell: Cell, inputs: Inputs | None = None) -> tuple[PreparedCall, list[str]]:
    """Returns the cell's call in a differentiable form, and the names of all arrays by which it can be
    differentiated. `inputs` are by default those of the cell. Raises NotApplicable as `Cell.require`."""
    inputs = cell.inputs if inputs is None else inputs
    cell.require(inputs)
    prepared = cell.implementation.differentiable(inputs)
    return prepared, differentiable_names(cell.implementation, prepared, inputs)


def differentiable_names(
    implementation: Implementation, prepared: PreparedCall, inputs: Inputs
) -> list[str]:
    """Returns the names of all arrays by which a call of the implementation can be differentiated."""
    excluded = {"bias"} if implementation.missing(["gradient-of-bias"]) is not None else set()
    return [name for name in differentiable_arrays(prepared, inputs) if name not in excluded]


def vjp(
    cell: Cell,
    inputs: Inputs | None = None,
    wrt: Sequence[str] | None = None,
    cotangent: np.ndarray | None = None,
    arranged: str = "reversed",
    prepared: PreparedCall | None = None,
) -> tuple[Answer, dict[str, np.ndarray]]:
    """Differentiates the cell's call. Returns the answer, and the gradients by name, in float64.

    Gradients of query, key and value have the shape (B, H, L, D) or (B, L, width), all others the shape
    of the argument. `wrt`: the names of the arrays, by default all. `cotangent`: by default the cell's.
    `arranged`: the cotangent's layout in memory (`Engine.arranged`). `prepared`: the call, by default
    that of `inputs`. Type, device, dtype and shape are checked. Raises WrongAnswer, "raised" and
    "no-gradient" included."""
    inputs = cell.inputs if inputs is None else inputs
    backend = cell.implementation.backend
    if prepared is None:
        prepared, names = differentiable_call(cell, inputs)
        wrt = names if wrt is None else wrt
    wrt = differentiable_arrays(prepared, inputs) if wrt is None else wrt
    values = cell.cotangent if cotangent is None else cotangent
    native = backend.arranged(native_cotangent(values, inputs, prepared), inputs.dtype, arranged)
    native_output, gradients = cell.attempt(lambda: backend.vjp(prepared, wrt, native))
    answer = read_output(cell, native_output, inputs, prepared)
    return answer, read_gradients(cell, gradients, inputs, prepared, wrt)


def native_cotangent(values: np.ndarray, inputs: Inputs, prepared: PreparedCall) -> np.ndarray:
    """Returns a cotangent in the shape and the axis order of the call's output."""
    shaped = swap_heads_and_length(values, prepared)
    return shaped.reshape(inputs.output_shape("output")) if inputs.squeezed else shaped


def read_output(cell: Cell, native: Any, inputs: Inputs, prepared: PreparedCall) -> Answer:
    """Returns the answer with the array `output` alone, from the return value `native` of a VJP or JVP.
    Raises WrongAnswer as `Cell.read`."""
    return cell.read(native, inputs, replace(prepared, outputs=("output",)), ("output",))


def read_gradients(
    cell: Cell,
    native: Mapping[str, Any],
    inputs: Inputs,
    prepared: PreparedCall,
    wrt: Sequence[str],
) -> dict[str, np.ndarray]:
    """Check the type, device, dtype and shape of the framework's gradients `native`. Returns their values
    by name, in float64.

    Raises WrongAnswer; "no-gradient" if the gradient of an array in `wrt` is missing.
    """
    gradients = {}
    for name in wrt:
        if native.get(name) is None:
            raise WrongAnswer("no-gradient", f"the {name} got no gradient")
        shape = tuple(prepared.arguments[prepared.argument(name)].shape)
        label = f"the gradient of the {name}"
        dtype = inputs.case.dtype_of(name)
        values = read_array(cell.implementation.backend, label, native[name], shape, dtype)
        has_heads = name in OPERANDS and values.ndim == 4
        gradients[name] = swap_heads_and_length(values, prepared) if has_heads else values
    return gradients


def elected_gradient(cell: Cell, inputs: Inputs) -> str:
    """Returns the part of the call that the cotangent of a fully masked row reaches: "nothing", "values",
    "scores" or "nan". "nothing" without such rows.

    Raises NotApplicable for any other election, and if NaN would reach every parameter of a layer.
    """
    if not inputs.has_empty_rows:
        return "nothing"
    questions = elections.questions_of_rows(inputs, cell.implementation)
    gradient_questions = (elections.question_of_gradients(name, inputs) for name in questions)
    answer, *further_answers = dict.fromkeys(
        cell.elected_answer(question) for question in gradient_questions
    )
    if further_answers:
        raise NotApplicable(
            f"elects {answer} and {further_answers[0]} for cotangents of two kinds of rows"
        )
    rows = cell.elected_rows(inputs)
    if inputs.operator.is_layer and "nan" in (answer, rows):
        raise NotApplicable("elects NaN for rows without keys, which reaches every parameter")
    elections.backward_mode(answer, rows)
    return answer


def _row_mode(cell: Cell, inputs: Inputs) -> str:
    """Returns the mode of fully masked rows in the reference's backward pass: "zeros", "uniform" or
    "scores"."""
    if not inputs.has_empty_rows:
        return "zeros"
    return elections.backward_mode(elected_gradient(cell, inputs), cell.elected_rows(inputs))


def judge_gradients(
    cell: Cell,
    gradients: Mapping[str, np.ndarray],
    inputs: Inputs | None = None,
    cotangent: np.ndarray | None = None,
    output: str = "output",
) -> None:
    """Compare the gradients of the output called `output` with the oracle, and record the figures in
    `cell.measured`. Raises WrongAnswer "value" or "non-finite".

    If NaN is elected for fully masked rows, the gradients that such NaN reaches are left out: those of
    the rows themselves, and the sums that contain their cotangents.
    """
    inputs = cell.inputs if inputs is None else inputs
    cotangent = cell.cotangent if cotangent is None else cotangent
    mode, nan_elected = _row_mode(cell, inputs), elected_gradient(cell, inputs) == "nan"

    oracle_inputs = inputs
    if "bias" in gradients and inputs.bias is not None:
        # A bias with which the mask is merged may have more axes.
        oracle_inputs = inputs.replace(bias=np.broadcast_to(inputs.bias, gradients["bias"].shape))

    def oracle(numerics: str) -> Oracle:
        rounding = replace(cell.rounding, numerics=numerics)
        return Oracle.vjp(oracle_inputs, cotangent, rounding, mode, output)

    def limit(name: str, numerics: str) -> np.ndarray:
        return oracle(numerics).bound(name)

    expected = oracle(cell.numerics).expected
    for name, values in gradients.items():
        want = expected[name]
        got = values.reshape(want.value.shape)
        judged = np.ones(got.shape, bool)
        if nan_elected:
            judged &= ~_touched_elements(oracle_inputs, name, got.shape)
        if name == "bias" and mode == "scores":
            judged &= ~_minus_inf_elements(cell, oracle_inputs)
        error, measured, deviation = against_oracle(
            got, want.value, want.error, judged, inputs.dtype, cell.numerics,
            f"gradient of the {name}, ",
        )  # fmt: skip
        measured.grade = grade(error, partial(limit, name))
        cell.measured.worst_of_operand(name, measured)
        if deviation is not None:
            raise deviation


def judge_tangent(cell: Cell, got: np.ndarray, tangents: Mapping[str, np.ndarray]) -> None:
    """Compare the JVP of the output with the reference. Fully masked rows that are elected to be NaN are
    left out; the tangents of other fully masked rows follow the elected gradient."""
    inputs = cell.inputs
    want = Oracle.jvp(inputs, tangents, cell.rounding, _row_mode(cell, inputs)).expected["output"]
    judged = np.ones(got.shape, bool)
    if elected_gradient(cell, inputs) == "nan":
        axes = inputs.operator.outputs(inputs.case)["output"]
        judged &= ~inputs.rows_along(inputs.fully_masked_rows, axes)
    _, measured, deviation = against_oracle(
        got, want.value, want.error, judged, inputs.dtype, cell.numerics, "tangent, "
    )
    cell.measured.worst_of(measured)
    if deviation is not None:
        raise deviation


def jvp(cell: Cell, tangents: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the JVP of the output for `tangents` by name, in float64 and the output's full shape."""
    inputs, backend = cell.inputs, cell.implementation.backend
    prepared, _ = differentiable_call(cell, inputs)
    native = {
        name: backend.array(np.ascontiguousarray(_as_argument(name, x, prepared)), inputs.dtype)
        for name, x in tangents.items()
    }
    out = cell.attempt(lambda: backend.jvp(prepared, native))
    return read_output(cell, out, inputs, prepared).values


def _as_argument(name: str, values: np.ndarray, prepared: PreparedCall) -> np.ndarray:
    """Returns an array of the case in the axis order and shape of the call's argument called `name`."""
    shape = tuple(prepared.arguments[prepared.argument(name)].shape)
    return (swap_heads_and_length(values, prepared) if values.ndim == 4 else values).reshape(shape)


def _minus_inf_elements(cell: Cell, inputs: Inputs) -> np.ndarray:
    """Returns a boolean array in the shape of the bias: True for elements that are -inf in fully masked
    rows. Their derivatives are not judged. If the adapter merges the mask into the bias, masked elements
    count as -inf."""
    assert inputs.bias is not None
    merges_mask = cell.implementation.declared.merges_mask_into_bias
    hidden = np.broadcast_to(np.isneginf(inputs.bias), inputs.attends.shape)
    hidden = ~inputs.attends if merges_mask else hidden
    sizes = dict(zip(inputs.axes("bias"), inputs.bias.shape, strict=True))
    shared_axes = tuple(n for n, letter in enumerate("bhqk") if sizes.get(letter, 1) == 1)
    infinite = np.asarray(hidden.all(shared_axes, keepdims=True))
    fully_masked = np.asarray(inputs.fully_masked_rows[..., None].any(shared_axes, keepdims=True))
    return (infinite & fully_masked).reshape(inputs.bias.shape)


def _touched_elements(inputs: Inputs, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns a boolean array of this shape: True for the elements of an array's gradient to which a
    fully masked row contributes."""
    sizes, axes = inputs.letters, inputs.axes(name)
    letters = "".join("." if n == 1 != sizes[x] else x for x, n in zip(axes, shape, strict=True))
    return np.broadcast_to(inputs.rows_along(inputs.fully_masked_rows, letters), shape)
