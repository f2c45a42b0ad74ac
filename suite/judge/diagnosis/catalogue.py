"""Diagnosis by the catalogue: the faults of `suite.faults` that an implementation behaves like.

A fault explains a failing cell if its answer to the same inputs equals the implementation's within both
bounds of rounding, and differs from the right answer. A passing cell contradicts a fault that answers
otherwise there.

The implementation's answer must be four times nearer to the fault's than to the right one: in 16 bits
bounds are wide, and faults of rounding lie within them. NaN and infinity are no numbers to compare. Cells
that differ by such elements alone explain a fault only if there are no others, and if several cells have
them in the same places, not everywhere.

The bounds are derived for the right function. A fault combines the same operands in another way: keys,
heads or rows change places, factors and terms are lost. So the largest bound of the array is taken for
every element, in proportion to the size of the answer. A fault whose rounding errors are larger than that
is not recognised; two functions that differ do not agree in all elements.

Where plain answers are right, and only a check fails (a leak, a later call, a layout), a fault explains
the cell if it fails the same check with the same kind and message, apart from numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations, islice

import numpy as np

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.faults import all_faults
from attention_conformance.suite.faults.backend import KernelBackend
from attention_conformance.suite.faults.deviation import Deviation
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.judge.diagnosis.finding import Diagnosis
from attention_conformance.suite.judge.diagnosis.look import (
    Arrays,
    Look,
    close,
    observed,
    right,
    unkeyed,
)
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.spec.cache import Cache
from attention_conformance.suite.spec.inputs import Inputs

TRIED = 6
"""The number of failing cells that every fault answers."""

REST = 3
"""The number of cells that all faults answer, too, if the first faults found do not explain them."""

BESIDE = 12
"""The number of passing cells, and of further failing cells, that decide between the faults left."""

MORE = 36
"""The number of passing cells, after these, that decide between faults that explain the same cells."""

NEARER = 4.0
"""How many times nearer than the right answer the answer of a fault must be."""

PAIRED = 64
"""The number of different answers of faults that are paired."""

_ANSWERS: Cache[Arrays | None] = Cache(8192)
"""Answers of faults, by fault and inputs."""


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
    return _Behaving(failing, passing, late).of(faults)


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
    kernels = [one for one in _kernelled() if one.kernel.operator is forms[0].operator]
    found: dict[str, Diagnosis] = {}
    for inputs in forms:
        look = Look.of_call(check, inputs, kernels[0].kernel, got, oracle)
        for one in _Matching([look], iter(()), [], late).of(kernels):
            found.setdefault(one.family, one)
    return list(found.values()) if len(found) == 1 else []


def faults_of(implementation: Implementation) -> list[Kernelled]:
    """The faults of the implementation's operator."""
    return [one for one in _kernelled() if one.kernel.operator is implementation.operator]


@dataclass(frozen=True, eq=False)
class Kernelled:
    """A fault with its implementation."""

    fault: Deviation
    kernel: Implementation
    called: str = ""

    @property
    def name(self) -> str:
        return self.called or self.fault.name


@lru_cache(maxsize=1)
def _kernelled() -> tuple[Kernelled, ...]:
    faults = all_faults()
    kernels = KernelBackend("catalogue", tuple(fault.kernel for fault in faults)).implementations()
    return tuple(map(Kernelled, faults, kernels))


@dataclass(eq=False)
class Matched:
    """How one fault compares with the implementation: numbers of the looks that it explains."""

    one: Kernelled
    explains: set[int] = field(default_factory=set)


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

    def _passes(self, cells: Sequence[Cell]) -> Iterator[Look]:
        """Looks at passing cells whose plain answers are right: some checks pass wrong ones."""
        for cell in cells:
            look = Look.of(cell)
            if look is not None and not look.is_wrong:
                yield look

    def of(self, faults: Sequence[Kernelled]) -> list[Diagnosis]:
        """The diagnoses, best first."""
        first = [*self.failing]
        entries = [Matched(one) for one in faults]
        for number, look in enumerate(first):
            known = [entry for entry in entries if entry.explains]
            self._ask(known, look, number)
            if not any(number in entry.explains for entry in known):
                self._ask(entries, look, number)
        left = self._told_apart(entries)
        for number, look in enumerate(first):
            self._ask(left, look, number)
        if not left:
            left = [Matched(pair, {0}) for pair in self._pairs(faults, first[0])]
            for number, look in enumerate(first[1:], 1):
                self._ask(left, look, number)
            left = self._told_apart(left)
        # What is left is little work, and no fault is named that was not held against passing cells.
        left = self._uncontradicted(left, self._passes(self.passing[:BESIDE]))
        for number, look in enumerate(islice(self.more, BESIDE if left else 0), len(first)):
            self.failing.append(look)
            self._ask(left, look, number)
        left += self._of_rest(entries, left)
        if len({frozenset(entry.explains) for entry in left}) < len(left):
            left = self._uncontradicted(left, self._passes(self.passing[BESIDE:]))
        return self._told(left)

    def _of_rest(self, entries: Sequence[Matched], left: Sequence[Matched]) -> list[Matched]:
        """The entries that explain failing cells that those which are left do not: another fault."""
        numbers = set(range(len(self.failing))).difference(*(entry.explains for entry in left))
        others = [entry for entry in entries if entry not in left and not entry.explains]
        for number in sorted(numbers)[:REST]:
            self._ask(others, self.failing[number], number)
        found = self._told_apart(entry for entry in others if entry.explains)
        return self._uncontradicted(found, self._passes(self.passing[:BESIDE]))

    def _told_apart(self, entries: Iterable[Matched]) -> list[Matched]:
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
            left = [entry for entry in left if self._agree(entry.one, look)[0] is not False]
        return left

    def _ask(self, entries: Iterable[Matched], look: Look, number: int) -> None:
        for entry in entries:
            if self.late():
                return
            same, differs = self._agree(entry.one, look)
            if same and differs:
                entry.explains.add(number)

    def _agree(self, one: Kernelled, look: Look) -> tuple[bool | None, bool]:
        """True if the fault answers as the implementation does, None if it gives no answer; and True if
        it answers wrongly."""
        answer, limits = answered(one.kernel, look)
        if answer is None:
            return None, False
        same, differs = True, False
        apart = beside = 0.0
        for name, got in look.got.items():
            want, limit = look.expected.get(name, (None, 0.0))
            if want is None or name not in answer or want.shape != got.shape:
                continue
            if answer[name].shape != got.shape:
                return False, True
            finite = np.isfinite(answer[name])
            reach = np.abs(answer[name]).max(initial=0.0, where=finite)
            top = np.abs(want).max(initial=0.0, where=np.isfinite(want))
            limit = (limit + limits.get(name, 0.0)) * max(1.0, reach / top if top else 1.0)
            near = surely = close(look, name, got, answer[name], limit)
            if name == "output" and look.has_rows and not near.all():
                near = near | unkeyed(look, got, answer[name], limit)
            same = same and bool(near.all())
            differs = differs or not close(look, name, answer[name], want, limit).all()
            told = look.wrong[name] & surely & np.isfinite(got) & np.isfinite(want)
            unit = max(limit, np.finfo(float).tiny)
            apart += float((((got - answer[name])[told] / unit) ** 2).sum())
            beside += float((((got - want)[told] / unit) ** 2).sum())
        return same and NEARER**2 * apart <= beside, differs

    def _pairs(self, faults: Sequence[Kernelled], look: Look) -> list[Kernelled]:
        """Pairs of faults that together explain a cell that no fault explains alone."""
        distinct: dict[bytes, Kernelled] = {}
        for one in faults:
            answer, _ = answered(one.kernel, look)
            if self.late() or answer is None:
                continue
            if self._agree(one, look)[1]:
                key = b"".join(np.ascontiguousarray(a).tobytes() for a in answer.values())
                distinct.setdefault(key, one)
        found = []
        for first, second in combinations(list(distinct.values())[:PAIRED], 2):
            if self.late():
                break
            pair = paired(first, second)
            if pair is not None and all(self._agree(pair, look)):
                found.append(pair)
        return found

    def _told(self, left: list[Matched]) -> list[Diagnosis]:
        """The diagnoses of the faults that are left: each explains most of what the ones before leave."""
        told: list[Diagnosis] = []
        rest = set().union(*(entry.explains for entry in left))
        tried = len(self.failing)
        while rest:
            best = max(left, key=lambda entry: len(entry.explains & rest))
            if not best.explains & rest:
                break
            case = str(self.failing[min(best.explains)].cell.case.id)
            told.append(_diagnosis(best.one, len(best.explains), tried, case))
            rest -= best.explains
        return told


def answered(kernel: Implementation, look: Look) -> tuple[Arrays | None, Mapping[str, float]]:
    """The answer of a fault to the inputs of a look, and the largest bounds of its arrays; None if the
    fault lacks what the case needs, or gives no answer."""
    if kernel.unsupported(look.cell.case) is not None:
        return None, {}
    cell = Cell(look.cell.check, look.cell.case, kernel, look.cell.seed)
    cell.inputs = look.presented
    gradients = look.differentiates and kernel.missing(cell.check.needs) is None
    if gradients:
        cell.cotangent = look.cell.cotangent
    key = (kernel.name, cell.inputs.digest, cell.inputs.form, gradients)
    answer = _ANSWERS.get(key, lambda: observed(cell, gradients))
    rounds = (cell.numerics, id(kernel.declared.rounding), gradients)
    if rounds not in look.limits:
        known = right(cell, look.inputs, gradients)
        look.limits[rounds] = {name: limit for name, (_, limit) in known.items()}
    return answer, look.limits[rounds]


def paired(first: Kernelled, second: Kernelled) -> Kernelled | None:
    """A kernel with two faults; None if both change the same step."""
    one, other = type(first.kernel), type(second.kernel)
    steps = [{name for name in vars(of) if not name.startswith("__")} for of in (one, other)]
    if (steps[0] & steps[1]) - {"name", "declared", "killed_by"}:
        return None
    try:
        kind = type(f"{one.__name__}And{other.__name__}", (one, other), {})
    except TypeError:
        return None
    sentence = f"{first.fault.sentence} {second.fault.sentence}"
    hint = "; ".join(filter(None, (first.fault.hint, second.fault.hint)))
    kind.__doc__ = sentence
    name = f"{first.name} + {second.name}"
    fault = replace(first.fault, name=name, sentence=sentence, hint=hint, kernel=kind)
    return Kernelled(fault, kind(first.kernel.backend), name)


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
        self, failing: Sequence[Cell], passing: Sequence[Cell], late: Callable[[], bool]
    ) -> None:
        self.failing, self.passing, self.late = failing[:TRIED], passing[:BESIDE], late
        self.said = [said(cell) for cell in self.failing]

    def of(self, faults: Sequence[Kernelled]) -> list[Diagnosis]:
        """The fault that fails the same cells in the same way; [] if several families do."""
        checks = {cell.check.name for cell in self.failing}
        left = [Matched(one) for one in faults if one.fault.killed_by in checks]
        for number, cell in enumerate(self.failing):
            for entry in left:
                if self.late():
                    return []
                if self.said[number] and said(_twin(cell, entry.one)) == self.said[number]:
                    entry.explains.add(number)
        most = max((len(entry.explains) for entry in left), default=0)
        left = [entry for entry in left if entry.explains and len(entry.explains) == most]
        for cell in self.passing:
            for entry in [*left]:
                if self.late():
                    return []
                if said(_twin(cell, entry.one)):
                    left.remove(entry)
        if not left or len({entry.one.fault.family for entry in left}) > 1:
            return []
        best = left[0]
        case = str(self.failing[min(best.explains)].case.id)
        return [_diagnosis(best.one, most, len(self.failing), case)]


def _twin(cell: Cell, one: Kernelled) -> Cell:
    return Cell(cell.check, cell.case, one.kernel, cell.seed)


def said(cell: Cell) -> str:
    """The kind of a cell's failure with its message, without numbers; "" if the cell does not fail."""
    verdict = judge(cell)
    if verdict.status != "fail":
        return ""
    text = re.sub(r"[-+]?\d[\d.]*(e[-+]?\d+)?|\bnan\b|[-+]?\binf\b", "#", verdict.message)
    return f"{verdict.kind}: {text}"
