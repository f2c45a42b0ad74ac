"""Measured sentences held against cells: what their formulas predict, beside what was answered.

A formula explains a failing cell if its answer is the implementation's within the bound of rounding, and
four times nearer than the right one. A passing cell of the check `values` is answered rightly, so it
contradicts a formula whose answer differs from the right one. If one property tells the cells that are
explained from those that contradict, the sentence is said of this property alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.diagnosis.catalogue import NEARER
from attention_conformance.suite.judge.diagnosis.instrument import Found, Reading, softmax
from attention_conformance.suite.judge.diagnosis.look import Look
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.judge.verdict import HarnessError, NotApplicable
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs

ERRORS = 8.0
"""The bound of the error of a formula in bounds of the right answer: its scores may be larger."""

ASKED = 40
"""The number of passing cells that a formula is asked."""

NEEDED = {"bias": "a bias", "scale": "a given scale", "causal": "a causal mask"}
"""Words for what cases need; others are read as they stand."""

ENOUGH = 4
"""The smallest number of cells on either side that make a size a property."""


class Evidence:
    """Cells of one implementation: failing ones whose plain answer is wrong, and passing ones of the
    check `values`, of which the first are asked."""

    def __init__(self, failing: Iterable[Look] = (), passing: Iterable[Cell] = ()) -> None:
        self.failing, self.passing = [*failing], [*passing][:ASKED]

    @cached_property
    def _passes(self) -> list[Look]:
        return [Look(cell, cell.inputs, {}) for cell in self.passing]

    def held(self, found: Found, cases: Sequence[Case]) -> tuple[Found, Sequence[Case], int]:
        """A finding with the property that it needs, the cases it explains, and the number of passing
        cells that contradict it. `cases` are those like the problem in which it was found, which a
        finding without a formula, or with another fault beside it, explains."""
        if not self.failing or (found.formula is None and found.problem is None):
            return found, cases, 0
        explained = [look for look in self.failing if _explains(found, look)]
        # A sentence about a mask concerns masks that are given in the same form.
        forms = {_form(look) for look in explained} if found.family == "mask" else set()
        asked = [look for look in self._passes if not forms or _form(look) in forms]
        against = [look for look in asked if _contradicts(found, look)]
        if explained:
            cases = [look.inputs.case for look in explained]
        if explained and against:
            where, text = _told_apart(explained, against), found.sentence
            if where and where.removeprefix("with ") not in text.lower():
                text = text if text[1].isupper() else text[0].lower() + text[1:]
                found = replace(found, sentence=f"Only {where}: {text}")
            return found, cases, 0 if where else len(against)
        return found, cases, len(against)


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


def _predicted(found: Found, look: Look) -> tuple[np.ndarray, np.ndarray, float] | None:
    """The output that a finding predicts, the right one, and the largest bound; NaN where nothing is
    predicted. None if the finding says nothing of the inputs."""
    expected = look.expected.get("output")
    if expected is None or not expected[0].size:
        return None
    want, limit = expected
    try:
        predicted = _weighed if look.inputs.operator.is_default else _of_problem
        answer = predicted(found, look, want, limit)
    except (NotApplicable, HarnessError):
        return None
    if answer is None or answer.shape != want.shape:
        return None
    top, reach = (float(np.abs(x)[np.isfinite(x)].max(initial=0.0)) for x in (want, answer))
    return answer, want, ERRORS * limit * max(1.0, reach / top if top else 1.0)


def _weighed(found: Found, look: Look, want: np.ndarray, limit: float) -> np.ndarray | None:
    """The values weighed by the formula of a finding; NaN in rows that attend nothing, or nothing by the
    formula. None if the inputs have more than a formula knows."""
    inputs = look.presented
    reading, value = Reading.of(inputs), np.repeat(inputs.value, inputs.sizes.group, axis=1)
    rows = reading.rows[..., None]
    with np.errstate(all="ignore"):
        known = softmax(reading.scores, reading.seen) @ value
        if not (np.abs(known - want) <= limit + 1e-12 * np.abs(want).max())[rows[..., 0]].all():
            return None
        weights = None if found.formula is None else found.formula(reading)
        if weights is None:
            return None
        return np.where(rows & weights.any(-1, keepdims=True), weights @ value, np.nan)


def _of_problem(found: Found, look: Look, want: np.ndarray, limit: float) -> np.ndarray | None:
    """The output of the problem that a finding says is answered, or the answer that it gives itself."""
    other = None if found.problem is None else found.problem(look.inputs)
    if isinstance(other, Inputs):
        return np.asarray(Oracle.forward(other, look.cell.rounding).expected["output"].value, float)
    return None if other is None else other.get("output")


def _explains(found: Found, look: Look) -> bool:
    predicted = _predicted(found, look)
    if predicted is None:
        return False
    (answer, want, limit), got = predicted, look.got["output"]
    told = np.isfinite(answer) & np.isfinite(got)
    apart, beside = np.abs(got - answer)[told], np.abs(got - want)[told]
    judged = np.isfinite(answer) & ~(np.isnan(got).all(-1) | (got == 0).all(-1))[..., None]
    return bool(
        told.any()
        and told[judged].all()
        and (apart <= limit).all()
        and NEARER**2 * (apart**2).sum() <= (beside**2).sum()
    )


def _contradicts(found: Found, look: Look) -> bool:
    predicted = _predicted(found, look)
    if predicted is None:
        return False
    answer, want, limit = predicted
    return bool((np.abs(answer - want) > 2 * limit).any())


def _form(look: Look) -> str:
    """How a mask is given, in words that stand behind "only"."""
    try:
        shown = look.presented
    except NotApplicable:
        return "with a mask beside a flag"
    if shown.mask is None and shown.mask_array is None:
        return "without a mask" if look.inputs.case.mask is None else "with a mask in the bias"
    return "with a mask as an array" if shown.form == "dense" else "with a mask by a flag"


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
    }  # fmt: skip


def _told_apart(explained: Sequence[Look], against: Sequence[Look]) -> str:
    """The first property that all cells explained have, and none that contradicts; "" without one, and if
    one cell alone has several."""
    ours, theirs = ([look.inputs.case for look in looks] for looks in (explained, against))
    needs = sorted({name for case in (*ours, *theirs) for name in case.needs})
    have, have_not = (
        [{"form": _form(look), **_properties(look.inputs.case, needs)} for look in looks]
        for looks in (explained, against)
    )
    apart = [
        text
        for name, text in have[0].items()
        if all(one[name] == text for one in have) and all(one[name] != text for one in have_not)
    ]
    if apart:
        return apart[0] if len(ours) > 1 or len(apart) == 1 else ""
    if min(len(ours), len(theirs)) >= ENOUGH:
        for name, word in (("Lk", "keys"), ("Lq", "queries"), ("D", "components")):
            inside, outside = ({getattr(case.sizes, name) for case in of} for of in (ours, theirs))
            if min(inside) > max(outside):
                return f"from {min(inside)} {word} on, not up to {max(outside)}"
            if max(inside) < min(outside):
                return f"up to {max(inside)} {word}, not from {min(outside)} on"
    return ""
