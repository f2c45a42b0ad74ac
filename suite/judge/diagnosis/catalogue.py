"""Diagnosis by the catalogue: the faults of `suite.deviations` that an implementation behaves like.

A fault explains and contradicts cells as `evidence` says. Cells that differ from the right answer by NaN
and infinity alone explain a fault only if no cell differs in numbers, and if several cells have NaN or
infinity in the same places, not everywhere.

If the answer to a cell's inputs is right, and only its check fails (a leak, a later call, a layout), a
fault explains the cell if it fails the same check in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.judge.diagnosis.conditions import restrict_symptom
from attention_conformance.suite.judge.diagnosis.evidence import (
    CONTRACT_KINDS,
    Evidence,
    contradicts,
    explains,
    fails_like,
)
from attention_conformance.suite.judge.diagnosis.finding import Diagnosis
from attention_conformance.suite.judge.diagnosis.instrument import fault_symptom
from attention_conformance.suite.judge.diagnosis.kernels import (
    Fault,
    answer_of,
    faults_of,
    shows_fault,
)
from attention_conformance.suite.judge.diagnosis.outcome import Arrays, Outcome
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import VALUES

TRIED = 6
"""The number of failing cells that every fault answers."""

REST = 3
"""The number of unexplained failing cells that are compared with all faults again."""

BESIDE = 12
"""The number of passing cells, and of further failing cells, that decide between the remaining faults."""

MORE = 36
"""The number of further passing cells, which decide between faults that explain the same cells."""

ALIKE = 1 / 16
"""The largest relative difference between the largest errors of two implementations with the same fault,
which round differently: eight unit roundoffs of bfloat16."""

MOST = 3
"""The largest number of faults, contradicted by passing cells, that are tried under a condition."""


def explaining_faults(
    failing: Sequence[Cell],
    passing: Sequence[Cell],
    is_late: Callable[[], bool],
    without: str = "",
    wrong: Iterator[Outcome] | None = None,
) -> list[Diagnosis]:
    """Returns diagnoses of the faults that failing cells of one implementation behave like, and no
    passing cell contradicts: first the fault that explains most cells, then the one that explains most
    other cells.

    The cells are tried in their order. `is_late` returns True after the time is over. `without` is the
    name of a fault that is left out. `wrong` are the outcomes `wrong_outcomes(failing)`, if the caller
    needs them, too.
    """
    if not failing:
        return []
    faults = [f for f in faults_of(failing[0].implementation.operator) if f.name != without]
    wrong = wrong_outcomes(failing) if wrong is None else wrong
    first = list(islice(wrong, TRIED))
    if first:
        # The answer of a first call is wrong: this is no fault of state that calls leave behind.
        faults = [fault for fault in faults if fault.deviation.family != "state"]
        return _Matching(first, wrong, passing, is_late).find(faults)
    # Failures of `values` without an outcome, as with a mask and a flag, are alike for many faults.
    judged = ((cell, judge(cell)) for cell in failing)
    informative = ((c, v) for c, v in judged if c.check.name != VALUES or v.kind in CONTRACT_KINDS)
    tried = list(islice(informative, TRIED))
    return _Behaving(tried, passing, is_late).find(faults) if tried else []


def wrong_outcomes(cells: Iterable[Cell]) -> Iterator[Outcome]:
    """Yields the outcomes of cells whose answers are wrong."""
    for cell in cells:
        outcome = Outcome.from_cell(cell)
        if outcome is not None and outcome.is_wrong:
            yield outcome


def explained_call(
    check: Check, forms: Sequence[Inputs], got: Arrays, oracle: Oracle, is_late: Callable[[], bool]
) -> list[Diagnosis]:
    """Returns a list of one diagnosis: the fault whose answer is `got`, the outputs of one call. Returns
    [] if no fault, or faults of several families, give this answer. `forms`: the inputs in each form that
    the call may have had, such as a mask as a flag or as an array."""
    faults = faults_of(forms[0].operator)
    by_family: dict[str, Diagnosis] = {}
    for inputs in forms:
        outcome = Outcome.from_call(check, inputs, faults[0].kernel, got, oracle)
        for diagnosis in _Matching([outcome], iter(()), [], is_late).find(faults):
            by_family.setdefault(diagnosis.family, diagnosis)
    return list(by_family.values()) if len(by_family) == 1 else []


@dataclass(eq=False)
class Match:
    """The comparison of one fault with the implementation. `explains`: indices of the failing outcomes
    that the fault explains. `contradicts`: indices of the failing outcomes that it contradicts."""

    fault: Fault
    explains: set[int] = field(default_factory=set)
    contradicts: set[int] = field(default_factory=set)


class _Matching:
    """Finds the faults whose answers are equal to the implementation's wrong answers."""

    def __init__(
        self,
        failing: Sequence[Outcome],
        more_failing: Iterator[Outcome],
        passing: Sequence[Cell],
        is_late: Callable[[], bool],
    ) -> None:
        self.failing, self.more_failing = [*failing], more_failing
        self.passing, self.is_late = passing, is_late
        self.contradicted: list[Match] = []

    def _right_outcomes(self, cells: Sequence[Cell]) -> Iterator[Outcome]:
        """Yields the outcomes of passing cells whose answers are right: some checks pass wrong
        answers."""
        for cell in cells:
            outcome = Outcome.from_cell(cell)
            if outcome is not None and not outcome.is_wrong:
                yield outcome

    @cached_property
    def right(self) -> list[Outcome]:
        """The right outcomes of the first passing cells."""
        return [*self._right_outcomes(self.passing[:BESIDE])]

    def find(self, faults: Sequence[Fault]) -> list[Diagnosis]:
        """Returns the diagnoses by these faults, best first."""
        first = [*self.failing]
        matches = [Match(fault) for fault in faults]
        for number, outcome in enumerate(first):
            explaining = [match for match in matches if match.explains]
            self._compare(explaining, outcome, number)
            if not any(number in match.explains for match in explaining):
                self._compare(matches, outcome, number)
        remaining = self._by_elements(matches)
        for number, outcome in enumerate(first):
            self._compare(remaining, outcome, number)
        # The remaining faults are few, and none is named without a comparison with passing cells.
        remaining = self._uncontradicted(remaining, self.right)
        more_failing = islice(self.more_failing, BESIDE if remaining else 0)
        for number, outcome in enumerate(more_failing, len(first)):
            self.failing.append(outcome)
            self._compare(remaining, outcome, number)
        remaining += self._second_faults(matches, remaining)
        if len({frozenset(match.explains) for match in remaining}) < len(remaining):
            remaining = self._uncontradicted(remaining, self._right_outcomes(self.passing[BESIDE:]))
        return self._diagnoses(remaining) or self._conditioned()

    def _second_faults(self, matches: Sequence[Match], remaining: Sequence[Match]) -> list[Match]:
        """Returns matches that explain failing cells which no match in `remaining` explains: a second
        fault."""
        unexplained = {*range(len(self.failing))}.difference(*(m.explains for m in remaining))
        unmatched = [m for m in matches if m not in remaining and not m.explains]
        for number in sorted(unexplained)[:REST]:
            self._compare(unmatched, self.failing[number], number)
        explaining = self._by_elements(match for match in unmatched if match.explains)
        return self._uncontradicted(explaining, self.right)

    def _by_elements(self, matches: Iterable[Match]) -> list[Match]:
        """Returns the matches that explain a failing cell with finite wrong elements. If no cell has such
        elements, returns the matches that explain several cells which are not NaN everywhere."""
        finite = {n for n, outcome in enumerate(self.failing) if outcome.has_wrong_numbers}
        partly = {n for n, outcome in enumerate(self.failing) if outcome.has_numbers}
        return [
            match
            for match in matches
            if (match.explains & finite if finite else len(match.explains & partly) > 1)
        ]

    def _uncontradicted(self, matches: list[Match], passing: Iterable[Outcome]) -> list[Match]:
        """Returns the matches that agree with every passing outcome. Appends the contradicted matches to
        `self.contradicted`."""
        for outcome in passing:
            answers = [answer_of(match.fault.kernel, outcome) for match in matches]
            against = [m for m, a in zip(matches, answers, strict=True) if contradicts(outcome, a)]
            matches = [match for match in matches if match not in against]
            self.contradicted += against
        return matches

    def _conditioned(self) -> list[Diagnosis]:
        """Returns the diagnosis of a contradicted fault under a condition ("Only with a mask: ...") that
        holds in the failing cells, and in no passing cell. [] without such a condition. The faults that
        explain most cells are tried first."""
        for match in sorted(self.contradicted, key=lambda match: -len(match.explains))[:MOST]:
            if len(match.explains) >= max(len(match.contradicts), 1):
                (diagnosis,) = self._diagnoses([match])
                if (
                    diagnosis.sentence != match.fault.deviation.sentence
                    and not diagnosis.contradicts
                ):
                    return [diagnosis]
        return []

    def _restricted(self, match: Match) -> tuple[str, int]:
        """Returns the sentence of a fault, under the condition that separates the cells that it explains
        from passing cells and from neighbours (see `restrict_symptom`), and the number of passing cells
        that contradict it. Calls of `explained_call` have no passing cells: then the sentence is
        unchanged."""
        symptom = fault_symptom(match.fault)
        if not self.passing:
            return symptom.sentence, 0
        evidence = Evidence(self.failing, self.right)
        symptom, _, contradicts = restrict_symptom(evidence, symptom, [], self.is_late)
        return symptom.sentence, contradicts

    def _compare(self, matches: Iterable[Match], outcome: Outcome, number: int) -> None:
        """Adds `number`, the index of an outcome, to each match that explains or contradicts the outcome.
        Does nothing after the time is over."""
        for match in matches:
            if self.is_late():
                return
            answer = answer_of(match.fault.kernel, outcome)
            if explains(outcome, answer):
                if shows_fault(match.fault, outcome):
                    match.explains.add(number)
            elif outcome.has_wrong_numbers and contradicts(outcome, answer):
                match.contradicts.add(number)

    def _diagnoses(self, remaining: list[Match]) -> list[Diagnosis]:
        """Returns the diagnoses of the remaining faults: first the fault that explains most cells, then
        the fault that explains most of the unexplained cells. Among the cells that no fault explains, a
        fault may contradict at most as many as it explains elsewhere; otherwise it is left out."""
        diagnoses: list[Diagnosis] = []
        covered = set().union(*(m.explains for m in remaining))
        remaining = [m for m in remaining if len(m.explains) >= len(m.contradicts - covered)]
        unexplained = set().union(*(match.explains for match in remaining))
        tried = len(self.failing)
        while unexplained:
            best = max(remaining, key=lambda match: len(match.explains & unexplained))
            if not best.explains & unexplained:
                break
            case = str(self.failing[min(best.explains)].cell.case.id)
            diagnosis = _diagnosis(best.fault, len(best.explains), tried, case)
            sentence, contradicts = self._restricted(best)
            diagnoses.append(replace(diagnosis, sentence=sentence, contradicts=contradicts))
            unexplained -= best.explains
        return diagnoses


def _diagnosis(fault: Fault, explains: int, tried: int, case: str) -> Diagnosis:
    """Returns the diagnosis of a fault that no passing cell contradicts."""
    deviation = fault.deviation
    return Diagnosis(
        sentence=deviation.sentence, hint=deviation.hint, family=deviation.family, source="catalogue",
        explains=explains, tried=tried, contradicts=0, case=case, fault=fault.name,
    )  # fmt: skip


class _Behaving:
    """Finds the fault that fails the same checks in the same way. Used if the answers to the cells' own
    inputs are right, so that no answers can be compared."""

    def __init__(
        self,
        failing: Sequence[tuple[Cell, Verdict]],
        passing: Sequence[Cell],
        is_late: Callable[[], bool],
    ) -> None:
        self.failing, self.passing, self.is_late = failing, passing[:BESIDE], is_late

    def find(self, faults: Sequence[Fault]) -> list[Diagnosis]:
        """Returns a list of one diagnosis: the fault that fails most of the cells in the same way, and no
        passing cell. Returns [] for no fault, for faults of several families, or after the time is
        over."""
        checks = {cell.check.name for cell, _ in self.failing}
        matches = [Match(fault) for fault in faults if fault.deviation.killed_by in checks]
        for number, (cell, verdict) in enumerate(self.failing):
            for match in matches:
                if self.is_late():
                    return []
                if fails_like(judge(_cell_of(cell, match.fault)), verdict):
                    match.explains.add(number)
        most = max((len(match.explains) for match in matches), default=0)
        matches = [m for m in matches if m.explains and len(m.explains) == most]
        for cell in self.passing:
            for match in [*matches]:
                if self.is_late():
                    return []
                if judge(_cell_of(cell, match.fault)).status == "fail":
                    matches.remove(match)
        if len({match.fault.deviation.family for match in matches}) > 1:
            matches = [match for match in matches if self._errs_alike(match)]
        if not matches or len({match.fault.deviation.family for match in matches}) > 1:
            return []
        best = matches[0]
        case = str(self.failing[min(best.explains)][0].case.id)
        return [_diagnosis(best.fault, most, len(self.failing), case)]

    def _errs_alike(self, match: Match) -> bool:
        """True if the largest errors of the fault and the implementation differ by at most the part
        `ALIKE`. Always True for dropout, whose errors are random."""
        cell, verdict = self.failing[min(match.explains)]
        errors = verdict.measured, judge(_cell_of(cell, match.fault)).measured
        error, fault_error = (measured.max_abs_error or 0.0 for measured in errors)
        is_alike = abs(error - fault_error) <= ALIKE * error
        return match.fault.deviation.family == "dropout" or is_alike


def _cell_of(cell: Cell, fault: Fault) -> Cell:
    return Cell(cell.check, cell.case, fault.kernel, cell.seed)
