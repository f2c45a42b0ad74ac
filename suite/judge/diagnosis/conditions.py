"""Symptoms compared with cells: the answers of their kernels, and the implementation's.

If one property separates the cells that a symptom explains from those that contradict it, the sentence is
restricted to this property.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.diagnosis.evidence import Evidence, contradicts
from attention_conformance.suite.judge.diagnosis.instrument import Symptom
from attention_conformance.suite.judge.diagnosis.kernels import answer_of
from attention_conformance.suite.judge.diagnosis.outcome import Arrays, Outcome
from attention_conformance.suite.spec.case import Case

NEEDED = {"bias": "a bias", "scale": "a given scale", "causal": "a causal mask"}
"""The names of features in sentences; other features are named as in `Case.needs`."""

ENOUGH = 4
"""The smallest number of failing and of passing cells that may be separated by sizes alone."""

TILES = (128, 64, 32, 16)
"""Numbers of keys, queries or components that kernels process at once."""


def restrict_symptom(
    evidence: Evidence, symptom: Symptom, cases: Sequence[Case]
) -> tuple[Symptom, Sequence[Case], int]:
    """Returns three values: the symptom, whose sentence may be restricted to a condition; the cases that
    it explains; and the number of passing cells that contradict it. If the symptom has no kernel, or its
    kernel explains no cell, the explained cases are `cases`."""
    if not evidence.failing or symptom.kernel is None:
        return symptom, cases, 0
    answer = partial(prediction, symptom.kernel)
    explained, contradicting = evidence.explained(answer), evidence.contradicting(answer)
    if explained and symptom.family == "mask":
        # A sentence about a mask concerns masks of the same form.
        forms = {_form(outcome) for outcome in explained}
        contradicting = [outcome for outcome in contradicting if _form(outcome) in forms]
    cases = [outcome.inputs.case for outcome in explained] or cases
    concerned = [outcome for outcome in evidence.failing if contradicts(outcome, answer(outcome))]
    condition = separators(concerned, contradicting) if explained and contradicting else ""
    if condition and condition.removeprefix("with ") not in symptom.sentence.lower():
        symptom = replace(symptom, sentence=restrict_sentence(condition, symptom.sentence))
    return symptom, cases, 0 if condition else len(contradicting)


def restrict_sentence(condition: str, sentence: str) -> str:
    """Returns a sentence with a condition before it: "Only with a mask: ..."."""
    text = sentence if sentence[1].isupper() else sentence[0].lower() + sentence[1:]
    return f"Only {condition}: {text}"


def sorted_by_likeness(cells: Iterable[Cell], cases: Sequence[Case]) -> list[Cell]:
    """Returns the cells that have inputs, sorted by likeness: first those whose mask and properties are
    most like one of `cases`."""

    def traits(case: Case) -> set[str]:
        return {*_properties(case).values(), *case.needs}

    def difference(cell: Cell) -> tuple[bool, int]:
        """Returns the sort key: True if the masks differ, and the number of differing properties, for the
        most similar case."""
        assert isinstance(cell.case, Case)
        token, cell_traits = cell.case.mask_token, traits(cell.case)
        return min(((token != t, len(cell_traits ^ x)) for t, x in references), default=(False, 0))

    references = [(case.mask_token, traits(case)) for case in cases]
    return sorted((cell for cell in cells if isinstance(cell.case, Case)), key=difference)


def prediction(kernel: Implementation, outcome: Outcome) -> Arrays | None:
    """Returns the outputs of a symptom's kernel for an outcome's inputs, by name. Rows that are NaN in
    the implementation's output become NaN, because a symptom does not predict NaN. None if the kernel
    gives no answer, or all rows are NaN."""
    answer, got = answer_of(kernel, outcome), outcome.got.get("output")
    if answer is None or got is None or got.shape != answer["output"].shape:
        return answer
    nan_rows = np.asarray(np.isnan(got).all(-1))
    if nan_rows.all():
        return None
    return {**answer, "output": np.where(nan_rows[..., None], np.nan, answer["output"])}


def _form(outcome: Outcome) -> str:
    """Returns the form of an outcome's mask as text: "with a mask by a flag"."""
    inputs = outcome.fault_inputs
    if inputs.mask is None and inputs.mask_array is None:
        return "without a mask" if outcome.inputs.case.mask is None else "with a mask in the bias"
    return "with a mask as an array" if inputs.form == "dense" else "with a mask by a flag"


def _properties(case: Case, needs: Iterable[str] = ()) -> Mapping[str, str]:
    """Returns properties of a case as texts by name, such as "with one query", and whether it has each of
    the features `needs`."""
    s, mask = case.sizes, case.mask
    comparison = "differ" if s.Lq != s.Lk else "are equal"
    relations = {-1: "fewer queries than", 0: "as many queries as", 1: "more queries than"}
    return {
        "one query": f"with {'one query' if s.Lq == 1 else 'several queries'}",
        **{
            name: f"with{'' if name in case.needs else 'out'} {NEEDED.get(name, name)}".replace("-", " ")
            for name in needs
        },
        "mask": "without a mask" if mask is None else f"with the mask {mask.token}",
        "parts": f"with{'' if mask is not None and len(mask.parts) > 1 else 'out'} another mask",
        "equality": f"where the numbers of queries and keys {comparison}",
        "relation": f"with {relations[int(np.sign(s.Lq - s.Lk))]} keys",
        "samples": f"with {'one sample' if s.B == 1 else 'several samples'}",
        "dtype": f"in {case.dtype.long_name}",
        "pages": f"with pages of {case.letters.get('s')}",
    }  # fmt: skip


def separators(failing: Sequence[Outcome], passing: Sequence[Outcome]) -> str:
    """Returns, as text, the properties that all failing outcomes have and no passing outcome has. "" for
    fewer than two failing outcomes, and for more than two properties: then the needed one is unknown."""
    failing_cases, passing_cases = (
        [outcome.inputs.case for outcome in outcomes] for outcomes in (failing, passing)
    )
    if len(failing_cases) < 2:
        return ""
    needs = sorted({name for case in (*failing_cases, *passing_cases) for name in case.needs})
    failing_properties, passing_properties = (
        [
            {"form": _form(outcome), **_properties(outcome.inputs.case, needs)}
            for outcome in outcomes
        ]
        for outcomes in (failing, passing)
    )
    texts = {
        name: text
        for name, text in failing_properties[0].items()
        if all(p[name] == text for p in failing_properties)
        and all(p[name] != text for p in passing_properties)
    }
    if texts or min(len(failing_cases), len(passing_cases)) >= ENOUGH:
        # Few cells differ in some size by chance.
        texts |= _separating_sizes(failing_cases, passing_cases)
    implied_by = {"one query": ("equality", "relation", "Lq"), "equality": ("relation",)}
    implied = {n for name, names in implied_by.items() if name in texts for n in names}
    texts = {name: text for name, text in texts.items() if name not in implied}
    return " or ".join(texts.values()) if len(texts) <= 2 else ""


def _separating_sizes(failing: Sequence[Case], passing: Sequence[Case]) -> dict[str, str]:
    """Returns, as texts by name, ranges and divisors of sizes that all failing cases have and no passing
    case has."""
    texts = {}
    for name, word in (("Lk", "keys"), ("Lq", "queries"), ("D", "components")):
        failing_sizes, passing_sizes = (
            {getattr(case.sizes, name) for case in cases} for cases in (failing, passing)
        )
        if min(failing_sizes) > max(passing_sizes):
            texts[name] = f"from {min(failing_sizes)} {word} on (not up to {max(passing_sizes)})"
        elif max(failing_sizes) < min(passing_sizes):
            texts[name] = f"up to {max(failing_sizes)} {word} (not from {min(passing_sizes)} on)"
        divisors = (
            tile
            for tile in TILES
            if not any(n % tile for n in failing_sizes) and all(n % tile for n in passing_sizes)
        )
        if (tile := next(divisors, None)) is not None:
            texts[f"{name} in tiles"] = f"where {tile} divides the number of {word}"
    return texts
