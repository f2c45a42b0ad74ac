"""The symptoms of operators other than plain attention: a scale, segments, codes, factors and places."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attention_conformance.suite.judge.diagnosis import gradients
from attention_conformance.suite.judge.diagnosis.evidence import WIDER, explains
from attention_conformance.suite.judge.diagnosis.instrument import Instrument, Symptom
from attention_conformance.suite.judge.diagnosis.outcome import Comparison, with_limits
from attention_conformance.suite.judge.diagnosis.words import few_places
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs

PLACES = "places"
"""The beginning of the keys of symptoms that name wrong places, and no cause."""

ONLY_THE = "Of what is returned only the"
"""The beginning of a sentence about a wrong output, if other outputs are right."""


def operator_symptoms(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """Yields the symptoms of an operator other than plain attention. Gradients are probed only if the
    outputs are right."""
    for name in dict.fromkeys(("f32", case.dtype.name)):
        probe = replace(case, dtype=DTYPES[name])
        if tool.implementation.unsupported(probe) is None:
            reading = OutputReading.read(tool, tool.draw(probe))
            if reading is not None and reading.is_wrong:
                yield from _output_symptoms(tool, reading)
                return
    probe = replace(case, dtype=DTYPES["f32"])
    yield from gradients.gradient_symptoms(
        tool, case if tool.implementation.unsupported(probe) else probe
    )


def other_output_symptoms(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """Yields the symptom of a wrong log-sum-exp or of other wrong outputs; none if the array `output` is
    wrong, too."""
    reading = OutputReading.read(tool, tool.draw(case, 1.0))
    if reading is None or not reading.is_wrong or "output" in reading.wrong_names:
        return
    name = reading.wrong_names[0]
    symptom = next(_simple_symptoms(reading, name), None)
    if symptom is None:
        got, want = reading.got[name], reading.expected[name][0]
        index = np.unravel_index(
            np.where(reading.wrong[name], np.abs(got - want), -1).argmax(), got.shape
        )
        text = f"It is wrong in several places: got {got[index]:.4g}, expected {want[index]:.4g}."
        symptom = Symptom(text, name, key=PLACES)
    unit = " (natural logarithms)" if name == "lse" else ""
    text = f"{ONLY_THE} {name} is wrong. {symptom.sentence[:-1]}{unit}."
    yield replace(symptom, sentence=text, family=name, key=f"{name}: {symptom.name}")


@dataclass(eq=False)
class OutputReading(Comparison):
    """The outputs of an implementation for inputs, with the `oracle` of the inputs."""

    oracle: Oracle

    @classmethod
    def read(cls, tool: Instrument, inputs: Inputs) -> OutputReading | None:
        """Calls the implementation, and returns its outputs with the expected ones. None if the call
        fails, or the reference has no answer."""
        got, oracle = tool.outputs(inputs), tool.oracle(inputs)
        if got is None or oracle is None:
            return None
        expected = {n: (x.value, x.error) for n, x in oracle.expected_given(got).items()}
        return cls(inputs, got, expected, oracle)

    @cached_property
    def wrong_names(self) -> list[str]:
        """The names of the outputs with wrong elements."""
        return [name for name, wrong in self.wrong.items() if wrong.any()]


def _output_symptoms(tool: Instrument, reading: OutputReading) -> Iterator[Symptom]:
    """Yields the symptoms of wrong outputs. The array `output` is skipped if it depends on another output
    that is wrong."""
    inputs, names = reading.inputs, reading.wrong_names
    if reading.oracle.given_outputs(reading.got).inputs is not inputs:
        names = [name for name in names if name != "output"] or names
    factor = _fitted_factor(tool, reading) if "output" in names else None
    if factor is not None:
        text = f"The scale is {factor:.4g} times the right one."
        yield Symptom(text, "scale", "a constant with few digits", key="scale")
        return
    if tool.is_late:
        return
    name = names[0]
    code_name = reading.oracle.rounding.declared.codes.get(inputs.dtype.name)
    judged = ~np.broadcast_to(reading.fully_masked_elements(name), reading.got[name].shape)
    if code_name is not None and np.isfinite(reading.got[name][judged]).all():
        want = reading.oracle.expected_given(reading.got)[name]
        ratio = (np.abs(reading.got[name] - want.value) / want.error)[judged].max()
        text = f"The {name} is off by up to {ratio:.2g} times what codes in {code_name} allow."
        hint = "codes that are clipped, wrap around or are coarser, or the scale of another token"
        yield Symptom(text, "quantized", hint, key=f"codes of {name}")
        return
    yield from _simple_symptoms(reading, name)


def _fitted_factor(tool: Instrument, reading: OutputReading) -> float | None:
    """Returns the factor by which the implementation's scale differs from the right one, fitted by
    Gauss-Newton steps. None if no factor explains the output, or the operator has no scale."""
    inputs, got, factor = reading.inputs, reading.got, 1.0
    if tool.is_late or inputs.operator.option("scale") is None or not inputs.effective_scale:
        return None

    def answer(factor: float) -> np.ndarray | None:
        oracle = tool.oracle(inputs.replace(scale=float(factor * inputs.effective_scale)))
        return None if oracle is None else oracle.expected_given(got)["output"].value.astype(float)

    for _ in range(4):
        base, at_step = answer(factor), answer(factor * (1 + 2.0**-10))
        if base is None or at_step is None:
            return None
        slope = (at_step - base) / (factor * 2.0**-10)
        factor += float(((got["output"] - base) * slope).sum() / max((slope * slope).sum(), 1e-300))
        if not 0.1 < factor < 10:
            return None
    fitted = answer(factor)
    with_largest = replace(
        reading, expected=with_limits(reading.oracle.expected_given(got), inputs)
    )
    return factor if fitted is not None and explains(with_largest, {"output": fitted}) else None


def _simple_symptoms(reading: OutputReading, name: str) -> Iterator[Symptom]:
    """Yields at most one symptom of the output called `name`: NaN or infinity, all zeros, a factor, a
    constant difference, the query added, or wrong places."""
    inputs, got = reading.inputs, reading.got[name]
    right = reading.oracle.expected_given(reading.got)[name]
    want, bound = np.asarray(right.value, float), right.error
    family = "layer" if inputs.operator.is_layer else inputs.operator.name
    compared = np.isfinite(want) & ~np.asarray(reading.fully_masked_elements(name))
    if not np.isfinite(got[compared]).all():
        hint = "scores or log-sum-exps whose maximum is not subtracted, rows or parts without keys"
        yield Symptom(f"NaN or infinity comes back in {name}.", family, hint)
        return
    if not got[compared].any() and want[compared].any():
        hint = "an overflow that is caught, or an early return"
        yield Symptom(f"The {name} is zero.", family, hint)
        return
    factor = float((got * want)[compared].sum() / max((want * want)[compared].sum(), 1e-300))
    limit = WIDER * max(1, abs(factor)) * bound
    largest_limit = WIDER * bound[compared].max(initial=0.0)
    is_factor = abs(factor - 1) * np.abs(want[compared]).max(initial=0.0) > largest_limit
    if is_factor and (np.abs(got - factor * want) <= limit)[compared].all():
        text = f"All of {name} is {factor:.4g} times the right one."
        is_base_2 = abs(factor - {"lse": math.log2(math.e)}.get(name, 0.0)) < 1e-3
        hint = "a logarithm to the base 2" if is_base_2 else "a factor behind everything else"
        yield Symptom(text, family, hint, key=f"factor of {name}")
        return
    step = float(np.median((got - want)[compared]))
    if abs(step) > largest_limit and (np.abs(got - want - step) <= limit)[compared].all():
        text = f"All of {name} is the right one {'plus' if step > 0 else 'minus'} {abs(step):.4g}."
        yield Symptom(text, family, "a constant that is added or forgotten", key=f"step of {name}")
        return
    query = inputs.arrays.get("query")
    has_shape = query is not None and query.shape == got.shape
    if has_shape and (np.abs(got - query - want) <= 2 * bound + 1e-6)[compared].all():
        hint = "a residual connection that the caller adds, too"
        yield Symptom("The query is added to the output.", family, hint)
        return
    letters = inputs.operator.outputs(inputs.case)[name]
    words = {"b": "sample", "h": "head", "q": "row", "k": "key"}
    if inputs.operator.takes_masks and not inputs.attends.all():
        del words["b"]  # samples differ by their masks
    places = few_places(reading.wrong[name] & np.isfinite(want))
    named_places = [f"{words[letters[a]]} {at}" for a, at in places if letters[a] in words]
    if named_places:
        text = f"{name.capitalize()} is wrong in {' and '.join(named_places)} alone."
        yield Symptom(text, family, key=f"{PLACES} of {name}")
