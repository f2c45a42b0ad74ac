"""Measured sentences compared with cells: what their formulas predict, and what was answered.

If one property tells the cells that a sentence explains from those that contradict it, the sentence is
said of this property alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.diagnosis.evidence import Evidence, differs
from attention_conformance.suite.judge.diagnosis.instrument import Reading, Symptom, softmax
from attention_conformance.suite.judge.diagnosis.outcome import Arrays, Outcome
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.judge.verdict import HarnessError, NotApplicable
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs

NEEDED = {"bias": "a bias", "scale": "a given scale", "causal": "a causal mask"}
"""Words for what cases need; others are read as they stand."""

ENOUGH = 4
"""The smallest number of cells on either side that sizes alone tell apart."""

TILES = (128, 64, 32, 16)
"""Numbers of keys, queries or components that kernels take at once."""


def conditioned(
    evidence: Evidence, found: Symptom, cases: Sequence[Case]
) -> tuple[Symptom, Sequence[Case], int]:
    """A finding with the property that it needs, the cases it explains, and the number of passing cells
    that contradict it. `cases` are those like the problem in which it was found, which a finding without
    a formula, or with another fault beside it, explains."""
    if not evidence.failing or (found.formula is None and found.problem is None):
        return found, cases, 0
    answer = partial(predicted, found)
    explained, against = evidence.explained(answer), evidence.contradicting(answer)
    if explained and found.family == "mask":
        # A sentence about a mask concerns masks that are given in the same form.
        forms = {_form(outcome) for outcome in explained}
        against = [outcome for outcome in against if _form(outcome) in forms]
    cases = [outcome.inputs.case for outcome in explained] or cases
    concerned = [outcome for outcome in evidence.failing if differs(outcome, answer(outcome))]
    where = separating(concerned, against) if explained and against else ""
    if where and where.removeprefix("with ") not in found.sentence.lower():
        found = replace(found, sentence=only(where, found.sentence))
    return found, cases, 0 if where else len(against)


def only(where: str, sentence: str) -> str:
    """A sentence, said of a property alone."""
    text = sentence if sentence[1].isupper() else sentence[0].lower() + sentence[1:]
    return f"Only {where}: {text}"


def alike(cells: Iterable[Cell], cases: Sequence[Case]) -> list[Cell]:
    """The cells of cases, those first that have the mask and most properties of one of `cases`."""

    def words(case: Case) -> set[str]:
        return {*_properties(case).values(), *case.needs}

    def difference(cell: Cell) -> tuple[bool, int]:
        """Whether the masks differ, and the number of differing properties, for the nearest case."""
        assert isinstance(cell.case, Case)
        token, own = cell.case.mask_token, words(cell.case)
        return min(((token != mask, len(own ^ other)) for mask, other in known), default=(False, 0))

    known = [(case.mask_token, words(case)) for case in cases]
    return sorted((cell for cell in cells if isinstance(cell.case, Case)), key=difference)


def predicted(found: Symptom, outcome: Outcome) -> Arrays | None:
    """The output that a finding predicts; None if the finding says nothing of the inputs."""
    want = outcome.expected.get("output")
    if want is None or not want[0].size:
        return None
    try:
        return (_weighed if outcome.inputs.operator.is_default else _of_problem)(found, outcome)
    except (NotApplicable, HarnessError):
        return None


def _weighed(found: Symptom, outcome: Outcome) -> Arrays | None:
    """The values weighed by the formula of a finding. None if the inputs have more than a formula
    knows."""
    inputs, (want, limit) = outcome.fault_inputs, outcome.expected["output"]
    reading, value = Reading.of_mask(inputs), np.repeat(inputs.value, inputs.sizes.group, axis=1)
    with np.errstate(all="ignore"):
        known = softmax(reading.scores, reading.visible) @ value
        weights = None if found.formula is None else found.formula(reading)
    if weights is None or not outcome.close("output", known, want, limit).all():
        return None
    output, got = weights @ value, outcome.got.get("output")
    if got is not None and got.shape == output.shape:
        blank = np.isnan(got).all(-1)  # whatever weights rows have that become NaN
        if blank.all():
            return None
        output[blank] = np.nan
    return {"output": output}


def _of_problem(found: Symptom, outcome: Outcome) -> Arrays | None:
    """The output of the problem that a finding says is answered, or the answer that it gives itself."""
    other = None if found.problem is None else found.problem(outcome.inputs)
    if not isinstance(other, Inputs):
        return other
    right = Oracle.forward(other, outcome.cell.rounding).expected["output"]
    return {"output": np.asarray(right.value, float)}


def _form(outcome: Outcome) -> str:
    """How a mask is given, in words that stand behind "only"."""
    presented_case = outcome.fault_inputs
    if presented_case.mask is None and presented_case.mask_array is None:
        return "without a mask" if outcome.inputs.case.mask is None else "with a mask in the bias"
    return "with a mask as an array" if presented_case.form == "dense" else "with a mask by a flag"


def _properties(case: Case, needs: Iterable[str] = ()) -> Mapping[str, str]:
    """Properties of a case in words that stand behind "only"; each name is an axis. `needs` are what
    cases may need, each an axis."""
    s, mask = case.sizes, case.mask
    length = "differ" if s.Lq != s.Lk else "are equal"
    than = {-1: "fewer queries than", 0: "as many queries as", 1: "more queries than"}
    return {
        "one": f"with {'one query' if s.Lq == 1 else 'several queries'}",
        **{
            name: f"with{'' if name in case.needs else 'out'} {NEEDED.get(name, name)}".replace("-", " ")
            for name in needs
        },
        "mask": "without a mask" if mask is None else f"with the mask {mask.token}",
        "parts": f"with{'' if mask is not None and len(mask.parts) > 1 else 'out'} another mask",
        "lengths": f"where the numbers of queries and keys {length}",
        "more": f"with {than[int(np.sign(s.Lq - s.Lk))]} keys",
        "samples": f"with {'one sample' if s.B == 1 else 'several samples'}",
        "dtype": f"in {case.dtype.long_name}",
        "pages": f"with pages of {case.letters.get('s')}",
    }  # fmt: skip


def separating(failing: Sequence[Outcome], passing: Sequence[Outcome]) -> str:
    """The properties that all failing cells have in which a fault should show itself, and no passing one.
    "" for more than two, which these cells do not tell apart, and for less than two failing cells."""
    ours, theirs = (
        [outcome.inputs.case for outcome in outcomes] for outcomes in (failing, passing)
    )
    if len(ours) < 2:
        return ""
    needs = sorted({name for case in (*ours, *theirs) for name in case.needs})
    have, have_not = (
        [
            {"form": _form(outcome), **_properties(outcome.inputs.case, needs)}
            for outcome in outcomes
        ]
        for outcomes in (failing, passing)
    )
    apart = {
        name: text
        for name, text in have[0].items()
        if all(one[name] == text for one in have) and all(one[name] != text for one in have_not)
    }
    if apart or min(len(ours), len(theirs)) >= ENOUGH:
        apart |= _sizes_apart(ours, theirs)  # few cells differ in some size by chance
    for name, follows in (("one", "lengths"), ("one", "more"), ("one", "Lq"), ("lengths", "more")):
        if name in apart:
            apart.pop(follows, None)
    return " or ".join(apart.values()) if len(apart) <= 2 else ""


def _sizes_apart(ours: Sequence[Case], theirs: Sequence[Case]) -> dict[str, str]:
    """The sizes from which on, or up to which, all of `ours` lie and none of `theirs`; the tiles that
    divide a size of all of `ours` and of none of `theirs`."""
    apart = {}
    for name, word in (("Lk", "keys"), ("Lq", "queries"), ("D", "components")):
        inside, outside = (
            {getattr(case.sizes, name) for case in cases} for cases in (ours, theirs)
        )
        if min(inside) > max(outside):
            apart[name] = f"from {min(inside)} {word} on (not up to {max(outside)})"
        elif max(inside) < min(outside):
            apart[name] = f"up to {max(inside)} {word} (not from {min(outside)} on)"
        divisors = (
            tile
            for tile in TILES
            if not any(n % tile for n in inside) and all(n % tile for n in outside)
        )
        if (tile := next(divisors, None)) is not None:
            apart[f"{name} in tiles"] = f"where {tile} divides the number of {word}"
    return apart
