"""Promise: gradients depend on one forward pass and the cotangent, whatever other passes there are, of
the same shape or of another one.

One array as query, key and value receives the sum of the three gradients. Gradients of gradients are
right, or raise an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import ENDS, PreparedCall
from attention_conformance.suite.judge.answer import swap_heads_and_length
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.comparison import against_oracle
from attention_conformance.suite.judge.derivative import (
    differentiable_call,
    judge_gradients,
    native_cotangent,
    read_gradients,
    vjp,
)
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.judge.verdict import WrongAnswer
from attention_conformance.suite.spec.catalogue import (
    Ask,
    cases_of,
    plain_patterns,
    with_plain_cases,
)
from attention_conformance.suite.spec.inputs import draw_tangents
from attention_conformance.suite.spec.vocabulary import OPERANDS
from attention_conformance.suite.test_gradients import ATTENTION
from attention_conformance.suite.test_stateless import as_stale, with_other_values

GROUPED = "packed/none/gqa2/{dt}/b3h4q24k24d8/seg5.7.12/causal"
"""Gradients of keys and values are sums over heads, which kernels may keep in a workspace."""

CASES = with_plain_cases(
    Ask(*ATTENTION, GROUPED, *plain_patterns("layer-norm"), dtypes="growing"),
    Ask(*plain_patterns("packed"), dtypes="growing", since="standard"),
    dtypes="growing",
    keep=lambda case: bool(case.operator.asks.gradients),
)


@check(CASES, ("gradient",))
def test_gradient_passes(cell: Cell) -> None:
    """Two forward passes, then five backward passes: of the first, of the second, twice more of the
    first, the second time with another cotangent, and of the first after its output was changed in place.

    The last one may raise. Operands are results of other operations if the framework tells leaves from
    results.
    """
    backend = cell.implementation.backend
    inputs, changed = cell.inputs, with_other_values(cell.inputs)
    if inputs.operator.option("scale") and cell.implementation.missing(["scale"]) is None:
        changed = changed.replace(scale=2.5)
    (first, names), (second, _) = (
        differentiable_call(cell, problem) for problem in (inputs, changed)
    )
    if not cell.implementation.declared.takes_parameters:
        names = [name for name in names if name in OPERANDS]
    cotangents = cell.cotangent, -2.0 * np.flip(cell.cotangent, 0)

    def in_framework(cotangent: np.ndarray) -> Any:
        """Returns the cotangent as an array of the framework."""
        values = native_cotangent(cotangent, inputs, first)
        return backend.arranged(values, cell.dtype, "contiguous")

    def gradients_of_passes() -> list[Any]:
        """Returns the gradients of each backward pass, in the order of `expectations`. A fifth pass
        follows after the outputs were overwritten; it is left out if arrays are immutable, or if the
        framework refuses it."""
        (output, pullback), (other_output, other_pullback) = (
            backend.pullback(call, names) for call in (first, second)
        )
        order = ((pullback, 0), (other_pullback, 0), (pullback, 0), (pullback, 1))
        gradients = [backward(in_framework(cotangents[n])) for backward, n in order]
        if backend.overwrite(output, other_output):
            try:
                gradients.append(pullback(in_framework(cotangents[1])))
            except ENDS:
                raise
            except Exception:
                pass  # the framework sees the change
        return gradients

    expectations = (
        ("after a second forward pass", inputs, first, 0),
        ("of the second forward pass", changed, second, 0),
        ("by a second backward pass", inputs, first, 0),
        ("by a backward pass with another cotangent", inputs, first, 1),
        ("after the output was changed in place", inputs, first, 1),
    )
    for (what, problem, call, n), gradients in zip(
        expectations, cell.attempt(gradients_of_passes), strict=False
    ):
        arrays = read_gradients(cell, gradients, problem, call, names)
        with as_stale(what):
            judge_gradients(cell, arrays, problem, cotangents[n])
    expect_after_one_sample(cell, names, cotangents[1])
    if inputs.operator.is_default and inputs.mask is None and not cell.dtype.is_half:
        expect_second_derivative(cell, first, in_framework(cotangents[0]))


def expect_after_one_sample(cell: Cell, names: Sequence[str], cotangent: np.ndarray) -> None:
    """Judge gradients of one sample, then of all samples: a kernel's workspace of another shape must have
    no influence. Raises WrongAnswer.

    Does nothing for frameworks without strides: their arrays are immutable, so kernels have no workspace.
    """
    implementation, sample = cell.implementation, cell.inputs.select("b", [0])
    if not implementation.backend.has_strides or implementation.refuses(sample) is not None:
        return
    sample_cotangent = np.resize(cotangent, sample.full_shape("output"))
    for what, problem, values in (
        ("of one sample alone", sample, sample_cotangent),
        ("after a pass of one sample", cell.inputs, cotangent),
    ):
        with as_stale(what):
            judge_gradients(cell, vjp(cell, problem, names, values)[1], problem, values)


STEP = 2.0**-17
"""The step of central differences in float64: truncation and rounding errors are about 2^-36."""


def expect_second_derivative(cell: Cell, prepared: PreparedCall, cotangent: Any) -> None:
    """Compare the gradients of the query's gradient, for a cotangent drawn for it, with central
    differences of the reference. Raises WrongAnswer.

    An error that the framework raises is accepted. There is no derived bound: half of the digits must
    agree.
    """
    backend, inputs = cell.implementation.backend, cell.inputs
    tangent = draw_tangents(inputs.case, ("query",), cell.seed)["query"]

    call = backend.gradient_call(prepared, "query", cotangent)
    native_tangent = swap_heads_and_length(tangent, prepared)
    try:
        _, native = backend.vjp(
            call, OPERANDS, backend.arranged(native_tangent, cell.dtype, "contiguous")
        )
    except ENDS:
        raise
    except BaseException:
        return
    try:
        got = read_gradients(cell, native, inputs, prepared, OPERANDS)
    except WrongAnswer as error:
        message = f"gradients of the query's gradient: {error.message}; without them it shall raise"
        raise WrongAnswer(error.kind, message) from error
    problems = (inputs.replace(query=inputs.query + step * tangent) for step in (STEP, -STEP))
    ahead, behind = (Oracle.vjp(problem, cell.cotangent, cell.rounding) for problem in problems)
    for name in OPERANDS:
        want = (ahead.expected[name].value - behind.expected[name].value) / (2 * STEP)
        limit = np.full(want.shape, cell.dtype.unit_roundoff**0.5 * np.abs(want).max(initial=0.0))
        _, _, deviation = against_oracle(
            got[name].reshape(want.shape), want, limit, np.ones(want.shape, bool), cell.dtype,
            cell.numerics, f"gradient by the {name} of the query's gradient, ",
        )  # fmt: skip
        if deviation is not None:
            raise deviation


@check(
    cases_of(
        Ask("sdpa/none/mha/{dt}/b2h3q7k7d8", dtypes="growing"),
        Ask("sdpa/causal/mha/{dt}/b2h3q7k7d8", dtypes="growing", since="standard"),
    ),
    ("gradient",),
)
def test_gradient_of_one_array(cell: Cell) -> None:
    """One array as query, key and value: its gradient is the sum of the three."""
    inputs = cell.inputs.replace(key=cell.inputs.query, value=cell.inputs.query)
    prepared, _ = differentiable_call(cell, inputs)
    names = [prepared.argument(name) for name in OPERANDS]
    one_array = dict.fromkeys(names, prepared.arguments[names[0]])
    prepared = replace(prepared, arguments=prepared.arguments | one_array)
    answer, gradients = vjp(cell, inputs, ("query",), prepared=prepared)
    cell.judge(answer, inputs)
    expected = Oracle.vjp(inputs, cell.cotangent, cell.rounding).expected
    zeros = np.zeros(cell.inputs.query.shape)
    want = sum((expected[name].value for name in OPERANDS), zeros)
    error = sum((expected[name].error for name in OPERANDS), zeros)
    # Each of the two additions rounds at most the sum of absolute values.
    size = sum((np.abs(expected[name].value) for name in OPERANDS), error)
    u = cell.dtype.unit_roundoff
    limit = error + 2.0 * u * (1.0 + u) * size
    _, measured, deviation = against_oracle(
        gradients["query"], want, limit, np.ones(want.shape, bool), cell.dtype, cell.numerics,
        "gradient of the one array, ",
    )  # fmt: skip
    cell.measured.worst_of(measured)
    if deviation is not None:
        raise deviation
