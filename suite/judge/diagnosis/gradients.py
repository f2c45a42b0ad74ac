"""The symptoms of gradients: an operand, a factor, places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from attention_conformance.suite.judge.answer import swap_heads_and_length
from attention_conformance.suite.judge.derivative import differentiable_names, native_cotangent
from attention_conformance.suite.judge.diagnosis.evidence import WIDER
from attention_conformance.suite.judge.diagnosis.instrument import Instrument, Symptom
from attention_conformance.suite.judge.diagnosis.words import few_places
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs, draw_cotangent
from attention_conformance.suite.spec.vocabulary import OPERANDS

PLACES = {"b": "sample", "h": "head", "g": "head", "q": "query", "k": "key"}
"""Names of axes by their letters; other axes are components."""

Arrays = Mapping[str, np.ndarray | None]


def gradient_symptoms(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """Yields the symptoms of the gradients of a small case; none if the output is wrong, too. The
    cotangent is 0 in fully masked rows."""
    inputs = tool.draw(case, 1.0)
    if tool.implementation.missing(["gradient"]) is not None:
        return
    is_plain, fully_masked = inputs.operator.is_default, inputs.fully_masked_rows
    output = tool.output(inputs)
    if not is_right(output, tool.oracle(inputs)) or output is None:
        return
    cotangent = draw_cotangent(case)
    if fully_masked.any():
        if not is_plain or not np.isfinite(output[fully_masked]).all():
            return  # NaN of these rows reaches all gradients
        cotangent = cotangent * ~fully_masked[..., None]
    got = read_gradients(tool, inputs, cotangent)
    if got is None:
        return
    right = Oracle.vjp(inputs, cotangent, tool.rounding(inputs)).expected
    want = {n: np.asarray(right[n].value, float) for n in got}
    bound = {n: right[n].error + 16 * tool.unit * np.abs(want[n]).max() for n in got}
    # A missing gradient is right if the right one is 0.
    filled = {n: 0 * want[n] if g is None else g for n, g in got.items()}
    wrong = [n for n, g in filled.items() if not (np.abs(g - want[n]) <= bound[n]).all()]
    if not wrong:
        return
    missing = [n for n in wrong if got[n] is None]
    if missing:
        hint = "a backward pass that returns None, `detach()`"
        yield Symptom(f"{_gradient_subject(missing)} is missing.", "gradient", hint)
        return
    values = {n: g for n, g in got.items() if g is not None}
    second = read_gradients(tool, inputs, cotangent) or {}
    if any(
        a is not None and not np.array_equal(a, values[n], equal_nan=True)
        for n, a in second.items()
    ):
        hint = "a buffer of gradients that is not cleared"
        yield Symptom(f"{_gradient_subject(wrong)} differs in a second pass.", "gradient", hint)
        return
    limit = {n: WIDER * bound[n] for n in bound}
    yield from _symptoms_by_operand(inputs, {n: values[n] for n in wrong}, want, limit)


def is_right(got: np.ndarray | None, oracle: Oracle | None) -> bool:
    """True if every element of an output is within the oracle's bound. Of plain attention fully masked
    rows are not compared. False if one of both is None."""
    if got is None or oracle is None:
        return False
    right = oracle.expected["output"]
    good = np.abs(got - right.value) <= right.error
    if oracle.inputs.operator.is_default:
        good |= oracle.inputs.fully_masked_rows[..., None]
    return bool(good.all())


def read_gradients(tool: Instrument, inputs: Inputs, cotangent: np.ndarray) -> Arrays | None:
    """Returns the gradients by name in float64, in the shapes of the case's arrays. A missing gradient is
    None. Returns None if the call fails, or a gradient has a wrong size."""

    def gradients() -> Arrays | None:
        prepared = tool.prepare(inputs, differentiable=True)
        if prepared is None:
            return None
        backend = tool.implementation.backend
        names = differentiable_names(tool.implementation, prepared, inputs)
        values = np.ascontiguousarray(native_cotangent(cotangent, inputs, prepared))
        _, native = backend.vjp(prepared, names, backend.array(values, inputs.dtype))
        arrays: dict[str, np.ndarray | None] = {}
        for name in names:
            if native.get(name) is None:
                arrays[name] = None
                continue
            array = backend.to_numpy(native[name])
            array = swap_heads_and_length(array, prepared) if name in OPERANDS else array
            if array.size != inputs.arrays[name].size:
                return None
            arrays[name] = array.reshape(inputs.arrays[name].shape)
        return arrays

    arrays: Arrays | None = tool.attempt(gradients)
    return arrays


def _symptoms_by_operand(
    inputs: Inputs,
    got: Mapping[str, np.ndarray],
    want: Mapping[str, np.ndarray],
    limit: Mapping[str, np.ndarray],
) -> Iterator[Symptom]:
    """Yields a symptom for each gradient in `got`, all of which are wrong: not finite, zero, a factor, or
    wrong places. All mappings are by name."""
    s = inputs.effective_scale
    hints = {
        1 / s: "the scale is left out", s: "the scale stands twice", -1.0:
            "a sign", float(inputs.sizes.group): "the heads of a group",
        1 / inputs.sizes.group: "the heads of a group", 1 / inputs.sizes.B: "a mean over samples",
    }  # fmt: skip
    for name, values in got.items():
        right = want[name]
        if not np.isfinite(values).all():
            text = f"{_gradient_subject([name])} is not finite, though the output is."
            yield Symptom(text, "gradient", "`0 * inf`, `log(0)`, `where` behind a NaN")
            continue
        if (np.abs(values) <= limit[name]).all():
            hint = "a missing path through the graph, `detach()`"
            yield Symptom(f"{_gradient_subject([name])} is zero.", "gradient", hint)
            continue
        factor = float((values * right).sum() / (right * right).sum())
        exact = limit[name].max() < 0.02 * np.abs(right).max()
        if exact and (np.abs(values - factor * right) <= max(1, abs(factor)) * limit[name]).all():
            hint = next(
                (text for x, text in hints.items() if abs(factor - x) <= 1e-4 * abs(x)),
                "a factor",
            )
            text = f"{_gradient_subject([name])} is {factor:.4g} times the right one."
            yield Symptom(text, "gradient", hint, key=f"factor of {name}")
            continue
        wrong = np.abs(values - right) > limit[name]
        letters = inputs.axes(name)[-wrong.ndim :] if wrong.ndim else ""
        parts = [f"{PLACES.get(letters[axis], 'component')} {at}" for axis, at in few_places(wrong)]
        where = f" in {', '.join(parts)} alone" if parts else ""
        size = np.abs(values - right).max() / np.abs(right).max()
        times = f"{size:.2g} times its largest element"
        text = f"{_gradient_subject([name])} is wrong{where}, by up to {times}."
        yield Symptom(text, "gradient", key=f"places of {name}")


def _gradient_subject(names: list[str]) -> str:
    return f"The gradient of the {' and the '.join(names)}".replace("_", " ")
