"""Diagnosis by the catalogue: the faults of `suite.deviations` that an implementation behaves like.

A fault explains and contradicts cells as `evidence` says. Cells that differ from the right answer by NaN
and infinity alone explain a fault only if there are no others, and if several cells have them in the same
places, not everywhere.

Where plain answers are right, and only a check fails (a leak, a later call, a layout), a fault explains
the cell if it fails the same check in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, islice

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.judge.diagnosis.conditions import only, separating
from attention_conformance.suite.judge.diagnosis.evidence import (
    RETURNED,
    differs,
    explains,
    fails_like,
)
from attention_conformance.suite.judge.diagnosis.finding import Diagnosis
from attention_conformance.suite.judge.diagnosis.kernels import (
    Kernelled,
    answered,
    changes,
    faults_of,
    kernelled,
    paired,
)
from attention_conformance.suite.judge.diagnosis.look import Arrays, Look
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import VALUES

TRIED = 6
"""The number of failing cells that every fault answers."""

REST = 3
"""The number of cells that all faults answer, too, if the first faults found do not explain them."""

BESIDE = 12
"""The number of passing cells, and of further failing cells, that decide between the faults left."""

MORE = 36
"""The number of passing cells, after these, that decide between faults that explain the same cells."""

ALIKE = 1 / 16
"""The relative difference of the largest errors of two implementations with the same fault, which round
differently: eight unit roundoffs of bfloat16."""

MOST = 3
"""The number of faults, contradicted by passing cells, that are tried under a condition."""

PAIRED = 64
"""The number of different answers of faults that are paired."""


def explained(
    failing: Sequence[Cell],
    passing: Sequence[Cell],
    late: Callable[[], bool],
    without: str = "",
    wrong: Iterator[Look] | None = None,
) -> list[Diagnosis]:
    """The faults that failing cells of one implementation behave like, and no passing cell contradicts:
    first the fault that explains most, then the fault that explains most of the rest.

    The cells stand in the order in which they are tried. `late` says that the time is over. `without` is
    the name of a fault that is left out. `wrong` are the looks of `wrong_looks(failing)`, if they are
    needed elsewhere, too.
    """
    if not failing:
        return []
    faults = [f for f in faults_of(failing[0].implementation) if f.name != without]
    wrong = wrong_looks(failing) if wrong is None else wrong
    first = list(islice(wrong, TRIED))
    if first:
        # The first answer of a call is wrong already: nothing that calls leave behind explains this.
        faults = [fault for fault in faults if fault.fault.family != "state"]
        return _Matching(first, wrong, passing, late).of(faults)
    # Wrong values that no fault can be given, as with a mask beside a flag, say nothing by their kind.
    judged = ((cell, judge(cell)) for cell in failing)
    said = ((c, v) for c, v in judged if c.check.name != VALUES or v.kind in RETURNED)
    beside = list(islice(said, TRIED))
    return _Behaving(beside, passing, late).of(faults) if beside else []


def wrong_looks(cells: Iterable[Cell]) -> Iterator[Look]:
    """Looks at the cells whose plain answers are wrong."""
    for cell in cells:
        look = Look.of(cell)
        if look is not None and look.is_wrong:
            yield look


def explained_call(
    check: Check, forms: Sequence[Inputs], got: Arrays, oracle: Oracle, late: Callable[[], bool]
) -> list[Diagnosis]:
    """The fault that one call behaves like, whose outputs a person has; [] if faults of several families
    do. `forms` are the inputs, in every form in which the call may have been given them."""
    kernels = [one for one in kernelled() if one.kernel.operator is forms[0].operator]
    found: dict[str, Diagnosis] = {}
    for inputs in forms:
        look = Look.of_call(check, inputs, kernels[0].kernel, got, oracle)
        for one in _Matching([look], iter(()), [], late).of(kernels):
            found.setdefault(one.family, one)
    return list(found.values()) if len(found) == 1 else []


@dataclass(eq=False)
class Matched:
    """How one fault compares with the implementation: numbers of the looks that it explains, and of those
    that it answers wrongly in another way."""

    one: Kernelled
    explains: set[int] = field(default_factory=set)
    contradicts: set[int] = field(default_factory=set)


class _Matching:
    """The comparison of answers, cell by cell."""

    def __init__(
        self,
        failing: Sequence[Look],
        more: Iterator[Look],
        passing: Sequence[Cell],
        late: Callable[[], bool],
    ) -> None:
        self.failing, self.more, self.passing, self.late = [*failing], more, passing, late
        self.contradicted: list[Matched] = []

    def _passes(self, cells: Sequence[Cell]) -> Iterator[Look]:
        """Looks at passing cells whose plain answers are right: some checks pass wrong ones."""
        for cell in cells:
            look = Look.of(cell)
            if look is not None and not look.is_wrong:
                yield look

    @cached_property
    def near(self) -> list[Look]:
        """Looks at the passing cells that are asked first."""
        return [*self._passes(self.passing[:BESIDE])]

    def of(self, faults: Sequence[Kernelled]) -> list[Diagnosis]:
        """The diagnoses, best first."""
        first = [*self.failing]
        entries = [Matched(one) for one in faults]
        for number, look in enumerate(first):
            known = [entry for entry in entries if entry.explains]
            self._ask(known, look, number)
            if not any(number in entry.explains for entry in known):
                self._ask(entries, look, number)
        left = self._by_numbers(entries)
        for number, look in enumerate(first):
            self._ask(left, look, number)
        if not left:
            left = [Matched(pair, {0}) for pair in self._pairs(faults, first[0])]
            for number, look in enumerate(first[1:], 1):
                self._ask(left, look, number)
            left = self._by_numbers(left)
        # What is left is little work, and no fault is named that was not compared with passing cells.
        left = self._uncontradicted(left, self.near)
        for number, look in enumerate(islice(self.more, BESIDE if left else 0), len(first)):
            self.failing.append(look)
            self._ask(left, look, number)
        left += self._of_rest(entries, left)
        if len({frozenset(entry.explains) for entry in left}) < len(left):
            left = self._uncontradicted(left, self._passes(self.passing[BESIDE:]))
        return self._diagnoses(left) or self._conditioned()

    def _of_rest(self, entries: Sequence[Matched], left: Sequence[Matched]) -> list[Matched]:
        """The entries that explain failing cells that those which are left do not: another fault."""
        numbers = set(range(len(self.failing))).difference(*(entry.explains for entry in left))
        others = [entry for entry in entries if entry not in left and not entry.explains]
        for number in sorted(numbers)[:REST]:
            self._ask(others, self.failing[number], number)
        found = self._by_numbers(entry for entry in others if entry.explains)
        return self._uncontradicted(found, self.near)

    def _by_numbers(self, entries: Iterable[Matched]) -> list[Matched]:
        """The entries that explain finite wrong elements; if no cell has such, those that explain NaN in
        some places of several cells."""
        finite = {n for n, look in enumerate(self.failing) if look.differs_in_numbers}
        partly = {n for n, look in enumerate(self.failing) if look.has_numbers}
        return [
            entry
            for entry in entries
            if (entry.explains & finite if finite else len(entry.explains & partly) > 1)
        ]

    def _uncontradicted(self, left: list[Matched], passing: Iterable[Look]) -> list[Matched]:
        """The faults that answer as the implementation does in all these passing cells."""
        for look in passing:
            against = [one for one in left if differs(look, answered(one.one.kernel, look))]
            left = [one for one in left if one not in against]
            self.contradicted += against
        return left

    def _conditioned(self) -> list[Diagnosis]:
        """The fault that explains most, said of what tells these cells from passing ones that contradict
        it."""
        for entry in sorted(self.contradicted, key=lambda entry: -len(entry.explains))[:MOST]:
            against = [x for x in self.near if differs(x, answered(entry.one.kernel, x))]
            concerned = [self.failing[n] for n in sorted(entry.explains | entry.contradicts)]
            where = separating(concerned, against) if against else ""
            if where and len(entry.explains) > len(entry.contradicts):
                (found,) = self._diagnoses([entry])
                return [replace(found, sentence=only(where, found.sentence))]
        return []

    def _ask(self, entries: Iterable[Matched], look: Look, number: int) -> None:
        for entry in entries:
            if self.late():
                return
            answer = answered(entry.one.kernel, look)
            if explains(look, answer):
                if changes(entry.one, look):
                    entry.explains.add(number)
            elif look.differs_in_numbers and differs(look, answer):
                entry.contradicts.add(number)

    def _pairs(self, faults: Sequence[Kernelled], look: Look) -> list[Kernelled]:
        """Pairs of faults that together explain a cell that no fault explains alone."""
        distinct: dict[bytes, Kernelled] = {}
        for one in faults:
            answer = answered(one.kernel, look)
            if self.late() or answer is None:
                continue
            if differs(look, answer):
                key = b"".join(np.ascontiguousarray(a).tobytes() for a in answer.values())
                distinct.setdefault(key, one)
        found = []
        for first, second in combinations(list(distinct.values())[:PAIRED], 2):
            if self.late():
                break
            pair = paired(first, second)
            if pair is not None and explains(look, answered(pair.kernel, look)):
                found.append(pair)
        return found

    def _diagnoses(self, left: list[Matched]) -> list[Diagnosis]:
        """The diagnoses of the faults that are left: each explains most of what the ones before leave. A
        fault that more cells contradict, which no fault explains, is told to nobody."""
        diagnoses: list[Diagnosis] = []
        known = set().union(*(entry.explains for entry in left))
        left = [one for one in left if len(one.explains) >= len(one.contradicts - known)]
        rest = set().union(*(entry.explains for entry in left))
        tried = len(self.failing)
        while rest:
            best = max(left, key=lambda entry: len(entry.explains & rest))
            if not best.explains & rest:
                break
            case = str(self.failing[min(best.explains)].cell.case.id)
            diagnoses.append(_diagnosis(best.one, len(best.explains), tried, case))
            rest -= best.explains
        return diagnoses


def _diagnosis(one: Kernelled, explains: int, tried: int, case: str) -> Diagnosis:
    """The diagnosis of a fault that no passing cell contradicts: others are named to nobody."""
    fault = one.fault
    return Diagnosis(
        sentence=fault.sentence, hint=fault.hint, family=fault.family, source="catalogue",
        explains=explains, tried=tried, contradicts=0, case=case, fault=one.name,
    )  # fmt: skip


class _Behaving:
    """The comparison of verdicts, for implementations whose plain answers are right."""

    def __init__(
        self,
        failing: Sequence[tuple[Cell, Verdict]],
        passing: Sequence[Cell],
        late: Callable[[], bool],
    ) -> None:
        self.failing, self.passing, self.late = failing, passing[:BESIDE], late

    def of(self, faults: Sequence[Kernelled]) -> list[Diagnosis]:
        """The fault that fails the same cells in the same way; [] if several families do."""
        checks = {cell.check.name for cell, _ in self.failing}
        left = [Matched(one) for one in faults if one.fault.killed_by in checks]
        for number, (cell, verdict) in enumerate(self.failing):
            for entry in left:
                if self.late():
                    return []
                if fails_like(judge(_twin(cell, entry.one)), verdict):
                    entry.explains.add(number)
        most = max((len(entry.explains) for entry in left), default=0)
        left = [entry for entry in left if entry.explains and len(entry.explains) == most]
        for cell in self.passing:
            for entry in [*left]:
                if self.late():
                    return []
                if judge(_twin(cell, entry.one)).status == "fail":
                    left.remove(entry)
        if len({entry.one.fault.family for entry in left}) > 1:
            left = [entry for entry in left if self._errs_alike(entry)]
        if not left or len({entry.one.fault.family for entry in left}) > 1:
            return []
        best = left[0]
        case = str(self.failing[min(best.explains)][0].case.id)
        return [_diagnosis(best.one, most, len(self.failing), case)]

    def _errs_alike(self, entry: Matched) -> bool:
        """True if the largest error is that of the implementation, or depends on chance."""
        cell, verdict = self.failing[min(entry.explains)]
        errors = verdict.measured, judge(_twin(cell, entry.one)).measured
        error, other = (measured.max_abs_error or 0.0 for measured in errors)
        return entry.one.fault.family == "dropout" or abs(error - other) <= ALIKE * error


def _twin(cell: Cell, one: Kernelled) -> Cell:
    return Cell(cell.check, cell.case, one.kernel, cell.seed)
