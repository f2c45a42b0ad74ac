"""Operators that are not plain attention: which other problem an answer is right for.

An implementation that ignores a bias answers the problem with a bias of zeros. So the oracle of the other
problem tells what an implementation computes instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from attention_conformance.suite.judge.diagnosis import gradients
from attention_conformance.suite.judge.diagnosis.evidence import WIDER, explains
from attention_conformance.suite.judge.diagnosis.instrument import Instrument, Symptom
from attention_conformance.suite.judge.diagnosis.layers import (
    ProblemVariant,
    layer_problems,
    mask_problems,
)
from attention_conformance.suite.judge.diagnosis.outcome import Arrays, Comparison, with_limits
from attention_conformance.suite.judge.diagnosis.packed import boundaries
from attention_conformance.suite.judge.diagnosis.rotary import rotary_problems
from attention_conformance.suite.judge.diagnosis.words import few_places
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import PACKED

PLACES = "places"
"""Begins the names of findings that say where an output is wrong, and not how."""

ONLY_THE = "Of what is returned only the"
"""Begins a sentence about an output beside right ones."""


def ask(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """What is wrong with an operator that is not plain attention, in a case and in its gradients."""
    for name in dict.fromkeys(("f32", case.dtype.name)):
        typed = replace(case, dtype=DTYPES[name])
        if tool.implementation.unsupported(typed) is None:
            read = Read.of(tool, tool.draw(typed))
            if read is not None and read.is_wrong:
                yield from _outputs(tool, read)
                return
    typed = replace(case, dtype=DTYPES["f32"])
    yield from gradients.ask(tool, case if tool.implementation.unsupported(typed) else typed)


def ask_beside(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """What is wrong with what is returned beside a right output, such as the log-sum-exp."""
    read = Read.of(tool, tool.draw(case, 1.0))
    if read is None or not read.is_wrong or "output" in read.wrong_names:
        return
    name = read.wrong_names[0]
    found = next(_by_place(read, name), None)
    if found is None:
        got, want = read.got[name], read.expected[name][0]
        at = np.unravel_index(
            np.where(read.wrong[name], np.abs(got - want), -1).argmax(), got.shape
        )
        text = f"It is wrong in several places: got {got[at]:.4g}, expected {want[at]:.4g}."
        found = Symptom(text, name, key=PLACES)
    unit = " (natural logarithms)" if name == "lse" else ""
    text = f"{ONLY_THE} {name} is wrong. {found.sentence[:-1]}{unit}."
    yield replace(found, sentence=text, family=name, key=f"{name}: {found.name}")


@dataclass(eq=False)
class Read(Comparison):
    """The outputs of an implementation for inputs, beside the `oracle` of these."""

    oracle: Oracle

    @classmethod
    def of(cls, tool: Instrument, inputs: Inputs) -> Read | None:
        """The reading of an implementation, or None if there is none."""
        got, oracle = tool.outputs(inputs), tool.oracle(inputs)
        if got is None or oracle is None:
            return None
        return cls(inputs, got, with_limits(oracle.expected_given(got), inputs), oracle)

    @cached_property
    def wrong(self) -> Arrays:
        """A flag for every element beyond its own bound, without fully masked rows."""
        wrong = {}
        for name, want in self.oracle.expected_given(self.got).items():
            if name in self.got and self.got[name].shape == want.value.shape:
                got = self.got[name]
                near = (np.abs(got - want.value) <= want.error) | (got == want.value)
                wrong[name] = ~near & self.judged(name)
        return wrong

    @cached_property
    def wrong_names(self) -> list[str]:
        """The outputs that rounding does not explain."""
        return [name for name, wrong in self.wrong.items() if wrong.any()]

    def judged(self, name: str) -> np.ndarray:
        """The elements of an output that no election decides."""
        axes = self.inputs.operator.outputs(self.inputs.case)[name]
        rows = ~self.inputs.rows_along(self.inputs.fully_masked_rows, axes)
        return np.broadcast_to(rows, self.got[name].shape)

    def is_of(self, tool: Instrument, other: Inputs | Arrays, names: list[str]) -> bool:
        """True if the outputs called `names` are all those of another problem, or of another answer.
        False after the tool's time is over."""
        if tool.is_late:
            return False
        if isinstance(other, Inputs):
            oracle = tool.oracle(other)
            expected = {} if oracle is None else oracle.expected_given(self.got)
            other = {name: want.value for name, want in expected.items()}
        return {*names} <= {*other} and explains(self, {name: other[name] for name in names})


def _outputs(tool: Instrument, read: Read) -> Iterator[Symptom]:
    """What is wrong with the outputs; not with an output that belongs to others, if these are wrong,
    too."""
    inputs, wrong = read.inputs, read.wrong_names
    given = read.oracle.given(read.got).inputs
    if given is not inputs:
        wrong = [name for name in wrong if name != "output"] or wrong
    for row in _problems(inputs, given, wrong):
        if read.is_of(tool, row.result, wrong):
            first = ""
            if "output" not in read.wrong_names:
                verb = "is" if len(wrong) == 1 else "are"
                first = f"{ONLY_THE} {' and '.join(wrong)} {verb} wrong. "
            problem = partial(_problem, row.name) if "output" in wrong else None
            yield Symptom(first + row.sentence, row.family, row.hint, problem=problem, key=row.name)
            return
    scaled = _of_factor(tool, read) if "output" in wrong else None
    if scaled is not None and read.is_of(tool, scaled(inputs), wrong):
        factor = scaled(inputs).effective_scale / inputs.effective_scale
        text = f"The scale is {factor:.4g} times the right one."
        yield Symptom(text, "scale", "a constant with few digits", problem=scaled, key="scale")
        return
    if inputs.operator is PACKED:
        found = boundaries(tool, inputs)
        if found is not None:
            yield found
            return
    if tool.is_late:
        return
    name = wrong[0]
    code_name = read.oracle.rounding.declared.codes.get(inputs.dtype.name)
    judged = read.judged(name)
    if code_name is not None and np.isfinite(read.got[name][judged]).all():
        want = read.oracle.expected_given(read.got)[name]
        times = (np.abs(read.got[name] - want.value) / want.error)[judged].max()
        text = f"The {name} is off by up to {times:.2g} times what codes in {code_name} allow."
        hint = "codes that are clipped, wrap around or are coarser, or the scale of another token"
        yield Symptom(text, "quantized", hint, key=f"codes of {name}")
        return
    yield from _by_place(read, name)


def _problems(inputs: Inputs, given: Inputs, wrong: list[str]) -> Iterator[ProblemVariant]:
    """Other problems, also of the inputs `given` the other outputs of the answer, if these are right."""
    yield from _known(inputs)
    if given is not inputs and wrong == ["output"]:
        yield from _known(given)


def _known(inputs: Inputs) -> Iterator[ProblemVariant]:
    """The other problems that people make of an operator's inputs."""
    if inputs.operator.is_layer:
        yield from layer_problems(inputs)
    elif inputs.operator.name in PROBLEMS:
        yield from PROBLEMS[inputs.operator.name](inputs)


def _problem(name: str, inputs: Inputs) -> Inputs | Arrays | None:
    """The problem of the row with a name, for other inputs."""
    return next((row.result for row in _known(inputs) if row.name == name), None)


def _of_factor(tool: Instrument, read: Read) -> Callable[[Inputs], Inputs] | None:
    """The problem whose scale of the scores, times a factor, is nearest to the output; None if none is
    near, or the operator has no scale. The factor is found by Gauss-Newton steps."""
    inputs, got, factor = read.inputs, read.got, 1.0
    if tool.is_late or inputs.operator.option("scale") is None or not inputs.effective_scale:
        return None

    def scaled(factor: float, inputs: Inputs) -> Inputs:
        return inputs.replace(scale=float(factor * inputs.effective_scale))

    for _ in range(4):
        found = [tool.oracle(scaled(factor * (1 + step), inputs)) for step in (0.0, 2.0**-10)]
        here, beside = (
            None if oracle is None else oracle.expected_given(got)["output"].value.astype(float)
            for oracle in found
        )
        if here is None or beside is None:
            return None
        slope = (beside - here) / (factor * 2.0**-10)
        factor += float(((got["output"] - here) * slope).sum() / max((slope * slope).sum(), 1e-300))
        if not 0.1 < factor < 10:
            return None
    return partial(scaled, factor)


def _by_place(read: Read, name: str) -> Iterator[Symptom]:
    """The finding for an output that is right for no known other problem: a factor, or a place."""
    inputs, got, right = read.inputs, read.got[name], read.oracle.expected_given(read.got)[name]
    want, bound, judged = np.asarray(right.value, float), right.error, read.judged(name)
    family = "layer" if inputs.operator.is_layer else inputs.operator.name
    known = judged & np.isfinite(want)
    if not np.isfinite(got[known]).all():
        hint = "scores or log-sum-exps whose maximum is not subtracted, rows or parts without keys"
        yield Symptom(f"NaN or infinity comes back in {name}.", family, hint)
        return
    if not got[known].any() and want[known].any():
        hint = "an overflow that is caught, or an early return"
        yield Symptom(f"The {name} is zero.", family, hint)
        return
    factor = float((got * want)[known].sum() / max((want * want)[known].sum(), 1e-300))
    limit, most = WIDER * max(1, abs(factor)) * bound, WIDER * bound[known].max(initial=0.0)
    clear = abs(factor - 1) * np.abs(want[known]).max(initial=0.0) > most
    if clear and (np.abs(got - factor * want) <= limit)[known].all():
        text = f"All of {name} is {factor:.4g} times the right one."
        of_base = abs(factor - {"lse": math.log2(math.e)}.get(name, 0.0)) < 1e-3
        hint = "a logarithm to the base 2" if of_base else "a factor behind everything else"
        yield Symptom(text, family, hint, key=f"factor of {name}")
        return
    step = float(np.median((got - want)[known]))
    if abs(step) > most and (np.abs(got - want - step) <= limit)[known].all():
        text = f"All of {name} is the right one {'plus' if step > 0 else 'minus'} {abs(step):.4g}."
        yield Symptom(text, family, "a constant that is added or forgotten", key=f"step of {name}")
        return
    query = inputs.arrays.get("query")
    same = query is not None and query.shape == got.shape
    if same and (np.abs(got - query - want) <= 2 * bound + 1e-6)[known].all():
        hint = "a residual connection that the caller adds, too"
        yield Symptom("The query is added to the output.", family, hint)
        return
    letters = inputs.operator.outputs(inputs.case)[name]
    words = {"b": "sample", "h": "head", "q": "row", "k": "key"}
    if inputs.operator.takes_masks and not inputs.attends.all():
        del words["b"]  # samples have other masks
    places = few_places(read.wrong[name] & np.isfinite(want))
    parts = [f"{words[letters[a]]} {at}" for a, at in places if letters[a] in words]
    if parts:
        text = f"{name.capitalize()} is wrong in {' and '.join(parts)} alone."
        yield Symptom(text, family, key=f"{PLACES} of {name}")


PROBLEMS: Mapping[str, Callable[[Inputs], Iterator[ProblemVariant]]] = {
    "rotary": rotary_problems,
    "latent": mask_problems,
}
"""The other problems of operators that are no layers, whose families have a number."""
