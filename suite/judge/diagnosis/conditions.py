"""Symptoms compared with cells: the answers of their kernels, and the implementation's.

If one property separates the cells that a symptom explains from those that contradict it, the sentence is
restricted to this property.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial

import numpy as np

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.diagnosis.evidence import (
    Answer,
    Evidence,
    contradicts,
    explains,
)
from attention_conformance.suite.judge.diagnosis.instrument import Symptom
from attention_conformance.suite.judge.diagnosis.kernels import answer_of
from attention_conformance.suite.judge.diagnosis.outcome import Arrays, Outcome
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.smaller import simpler_cases, well_posed

NEEDED = {"bias": "a bias", "scale": "a given scale", "causal": "a causal mask"}
"""The names of features in sentences; other features are named as in `Case.needs`."""

SOMETIMES = "in some calls"
"""The condition of a fault that some passing cells or neighbours lack, if no property separates them."""

ENOUGH = 4
"""The smallest number of failing and of passing cells that may be separated by sizes alone."""

SIZES = {
    "Lk": "keys", "Lq": "queries", "D": "components", "H": "heads", "Hkv": "key heads",
    "group": "query heads for a key head",
}  # fmt: skip
"""Sizes of which a fault may depend, and what they count."""

IMPLIED = {
    "one query": ("equality", "relation", "Lq"),
    "equality": ("relation",),
    "grouped-heads": ("group", "Hkv"),
    "H": ("Hkv",),
}
"""Properties that are not named beside another one, which implies them."""


def restrict_symptom(
    evidence: Evidence, symptom: Symptom, cases: Sequence[Case], is_late: Callable[[], bool]
) -> tuple[Symptom, Sequence[Case], int]:
    """Returns three values: the symptom, whose sentence may be restricted to a condition; the cases that
    it explains; and the number of passing cells, or of neighbours of an explained cell, that contradict
    it. If the symptom has no kernel, or its kernel explains no cell, the explained cases are `cases`. If
    `is_late()` ends the search for neighbours, the condition is `SOMETIMES`."""
    if not evidence.failing or symptom.kernel is None:
        return symptom, cases, 0
    answer = partial(prediction, symptom.kernel)
    explained, contradicting = evidence.explained(answer), evidence.contradicting(answer)
    if explained and symptom.family == "mask":
        # A sentence about a mask concerns masks of the same form.
        forms = {_form(outcome) for outcome in explained}
        contradicting = [outcome for outcome in contradicting if _form(outcome) in forms]
    cases = [outcome.inputs.case for outcome in explained] or cases
    condition = ""
    if explained:
        asked, is_complete = neighbours(explained[0], answer, is_late)
        wrong = [outcome for outcome in asked if outcome.is_wrong]
        concerned = [o for o in evidence.failing if contradicts(o, answer(o))] + wrong
        right = [*contradicting, *(outcome for outcome in asked if not outcome.is_wrong)]
        unexplained = [outcome for outcome in wrong if not explains(outcome, answer(outcome))]
        if right and unexplained:
            # The failing cell is explained by chance: the neighbours have another fault.
            return symptom, cases, len(right) + len(unexplained)
        condition = separators(concerned, right) if right and is_complete else ""
        contradicting = [] if condition else contradicting
        condition = condition or (SOMETIMES if right else "")
    if condition and condition.removeprefix("with ") not in symptom.sentence.lower():
        text = symptom.sentence
        text = text if text[1].isupper() else text[0].lower() + text[1:]
        symptom = replace(symptom, sentence=f"Only {condition}: {text}")
    return symptom, cases, len(contradicting)


def neighbours(
    outcome: Outcome, answer: Answer, is_late: Callable[[], bool]
) -> tuple[list[Outcome], bool]:
    """Returns two values: outcomes for cases that differ from a failing one in one respect, of which a
    fault with the answer `answer` gets wrong; and False if `is_late()` ended the search. What separates
    wrong outcomes from right ones is the condition of the fault. Sizes grow until an outcome is wrong."""
    case = outcome.cell.case
    assert isinstance(case, Case)
    found: list[Outcome] = []
    wrong_changes: set[tuple[int, ...]] = set()
    for other in dict.fromkeys((*simpler_cases(case), *_other_cases(case))):
        sizes = zip(astuple(case.sizes), astuple(other.sizes), strict=True)
        change = tuple(np.sign(new - old) for old, new in sizes)
        if change in wrong_changes or outcome.cell.implementation.unsupported(other) is not None:
            continue
        if is_late():
            return found, False
        neighbour = outcome.neighbour(other)
        if neighbour is not None and contradicts(neighbour, answer(neighbour)):
            found.append(neighbour)
            if neighbour.is_wrong and any(change):
                wrong_changes.add(change)
    return found, True


def _other_cases(case: Case) -> Iterator[Case]:
    """Yields the case in float32, with values of the keys' size, with a key head for every query head,
    with one query or with several, and with twice the components, heads or keys."""
    s = case.sizes
    changes: tuple[dict[str, int], ...] = (
        {}, {"Dv": s.D}, {"Hkv": s.H}, {"Lq": 1 if s.Lq > 1 else 3}, {"D": 2 * s.D, "Dv": 2 * s.Dv},
        {"H": 2 * s.H, "Hkv": 2 * s.Hkv}, {"Lk": 2 * s.Lk},
    )  # fmt: skip
    for change in changes:
        try:
            other = replace(case, sizes=replace(s, **change))
            other = other if change else replace(case, dtype=DTYPES["f32"])
        except ValueError:
            continue
        if other != case and Case.read(other.id) == other and well_posed(other):
            yield other


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
        "equality": f"where the numbers of queries and keys {comparison}",
        "relation": f"with {relations[int(np.sign(s.Lq - s.Lk))]} keys",
        "samples": f"with {'one sample' if s.B == 1 else 'several samples'}",
        "dtype": f"in {case.dtype.long_name}",
        "pages": f"with pages of {case.letters.get('s')}",
    }  # fmt: skip


def separators(failing: Sequence[Outcome], passing: Sequence[Outcome]) -> str:
    """Returns, as text, the property that all failing outcomes have and no passing outcome has, or two
    alternatives with "or". "" if more properties separate them, so that the needed one is unknown, or
    none."""
    failing_cases, passing_cases = (
        [outcome.inputs.case for outcome in outcomes] for outcomes in (failing, passing)
    )
    if len(failing) < 2 and len(passing) < ENOUGH:
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
    if texts or min(len(failing), len(passing)) >= ENOUGH:
        # Few cells differ in some size by chance.
        texts |= _separating_sizes(failing_cases, passing_cases)
    implied = {n for name, names in IMPLIED.items() if name in texts for n in names}
    texts = {name: text for name, text in texts.items() if name not in implied}
    return " or ".join(texts.values()) if len(texts) <= 2 else ""


def _separating_sizes(failing: Sequence[Case], passing: Sequence[Case]) -> dict[str, str]:
    """Returns texts of the ranges of sizes that all failing cases have, and no passing case has, by
    name."""
    texts = {}
    for name, word in SIZES.items():
        failing_sizes, passing_sizes = (
            [int(getattr(case.sizes, name)) for case in cases] for cases in (failing, passing)
        )
        least, most = min(failing_sizes), max(failing_sizes)
        below = [size for size in passing_sizes if size < least]
        above = [size for size in passing_sizes if size > most]
        if len(below) + len(above) < len(passing_sizes):
            continue
        if not above:
            texts[name] = f"from {least} {word} on (not up to {max(below)})"
        elif not below:
            texts[name] = f"up to {most} {word} (not from {min(above)} on)"
        elif least == most:
            texts[name] = f"with {least} {word} (not {max(below)} or {min(above)})"
    return texts
