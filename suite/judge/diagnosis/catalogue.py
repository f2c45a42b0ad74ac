"""Diagnosis by the catalogue: the faults of `suite.deviations` that an implementation behaves like.

A fault explains and contradicts cells as `evidence` says. Cells that differ from the right answer by NaN
and infinity alone explain a fault only if no cell differs in numbers, and if several cells have NaN or
infinity in the same places, not everywhere.

If the answer to a cell's inputs is right, and only its check fails (a leak, a later call, a layout), a
fault explains the cell if it fails the same check in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
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

BESIDE = 12
"""The number of passing cells, and of further failing cells, that decide between the remaining faults."""

MOST = 3
"""The largest number of faults, contradicted by passing cells, that are tried under a condition."""


def explaining_faults(
    evidence: Evidence,
    failing: Sequence[Cell],
    passing: Sequence[Cell],
    is_late: Callable[[], bool],
    without: str = "",
) -> list[Diagnosis]:
    """Returns diagnoses of the faults that failing cells of one implementation behave like, and no
    passing cell contradicts: first the fault that explains most cells, then the one that explains most
    other cells.

    `evidence`: the outcomes of these cells, which are tried in their order. `is_late` returns True after
    the time is over. `without` is the name of a fault that is left out.
    """
    if not failing:
        return []
    faults = [f for f in faults_of(failing[0].implementation.operator) if f.name != without]
    if evidence.failing:
        # The answer of a first call is wrong: this is no fault of state that calls leave behind.
        faults = [fault for fault in faults if fault.deviation.family != "state"]
        return _Matching(evidence, is_late).find(faults)
    # Failures of `values` without an outcome, as with a mask and a flag, are alike for many faults.
    judged = ((cell, judge(cell)) for cell in failing)
    informative = ((c, v) for c, v in judged if c.check.name != VALUES or v.kind in CONTRACT_KINDS)
    tried = list(islice(informative, TRIED))
    return _behaving_fault(tried, passing, faults, is_late)


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
        for diagnosis in _Matching(Evidence([outcome]), is_late).find(faults):
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

    def __init__(self, evidence: Evidence, is_late: Callable[[], bool]) -> None:
        self.evidence, self.is_late = evidence, is_late
        self.failing = evidence.failing[:TRIED]
        self.contradicted: list[Match] = []

    def find(self, faults: Sequence[Fault]) -> list[Diagnosis]:
        """Returns the diagnoses by these faults, best first."""
        found: list[Match] = []
        others = [Match(fault) for fault in faults]
        for number, outcome in enumerate(self.failing):
            if not any(number in match.explains for match in found):
                self._compare(others, outcome, number)
                explaining = [match for match in others if match.explains]
                others = [match for match in others if not match.explains]
                for other_number, other in enumerate(self.failing):
                    self._compare(explaining, other, other_number)
                found += self._uncontradicted(self._by_elements(explaining))
        if found:
            self.failing = self.evidence.failing
            for number, outcome in enumerate(self.failing[TRIED:], TRIED):
                self._compare(found, outcome, number)
        return self._diagnoses(found) or self._conditioned()

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

    def _uncontradicted(self, matches: list[Match]) -> list[Match]:
        """Returns the matches that agree with every passing outcome. Appends the contradicted matches to
        `self.contradicted`."""
        for outcome in self.evidence.passing if matches else ():
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
        while unexplained:
            best = max(remaining, key=lambda match: len(match.explains & unexplained))
            if not best.explains & unexplained:
                break
            case = str(self.failing[min(best.explains)].cell.case.id)
            diagnosis = _diagnosis(best.fault, len(best.explains), len(self.failing), case)
            if self.evidence.passing:  # a single call has none, nor neighbours
                evidence = Evidence(self.failing, self.evidence.passing)
                symptom, _, against = restrict_symptom(
                    evidence, fault_symptom(best.fault), [], self.is_late
                )
                diagnosis = replace(diagnosis, sentence=symptom.sentence, contradicts=against)
            diagnoses.append(diagnosis)
            unexplained -= best.explains
        return diagnoses


def _diagnosis(fault: Fault, explains: int, tried: int, case: str) -> Diagnosis:
    """Returns the diagnosis of a fault that no passing cell contradicts."""
    deviation = fault.deviation
    return Diagnosis(
        sentence=deviation.sentence, hint=deviation.hint, family=deviation.family, source="catalogue",
        explains=explains, tried=tried, contradicts=0, case=case, fault=fault.name,
    )  # fmt: skip


def _behaving_fault(
    failing: Sequence[tuple[Cell, Verdict]],
    passing: Sequence[Cell],
    faults: Sequence[Fault],
    is_late: Callable[[], bool],
) -> list[Diagnosis]:
    """Returns a list of one diagnosis: the fault that fails most of the cells in the same way, and no
    passing cell. Returns [] for no fault, for faults of several families, or after the time is over.
    Used if the answers to the cells' own inputs are right, so that no answers can be compared."""
    checks = {cell.check.name for cell, _ in failing}
    explained: dict[Fault, list[Cell]] = {}
    for fault in faults:
        if fault.deviation.killed_by in checks:
            explained[fault] = [
                cell for cell, verdict in failing
                if not is_late() and fails_like(_verdict(fault, cell), verdict)
            ]  # fmt: skip
    most = max(map(len, explained.values()), default=0)
    best = [
        fault for fault, cells in explained.items() if cells and len(cells) == most
        and not any(is_late() or _verdict(fault, c).status == "fail" for c in passing[:BESIDE])
    ]  # fmt: skip
    if len({fault.deviation.family for fault in best}) != 1 or is_late():
        return []
    return [_diagnosis(best[0], most, len(failing), str(explained[best[0]][0].case.id))]


def _verdict(fault: Fault, cell: Cell) -> Verdict:
    """Returns the verdict of the fault's kernel in a cell."""
    return judge(Cell(cell.check, cell.case, fault.kernel, cell.seed))
