"""Say what is wrong with an implementation that fails: by the catalogue of faults, and by probes.

    diagnose(backend, implementation, failing, passing) -> at most three diagnoses, the best first

The catalogue names a fault whose answers are the implementation's. Probes measure what no catalogue has.
A right implementation is told nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, tee

from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.diagnosis.catalogue import (
    BESIDE,
    MORE,
    TRIED,
    explained,
    wrong_outcomes,
)
from attention_conformance.suite.judge.diagnosis.conditions import alike
from attention_conformance.suite.judge.diagnosis.evidence import Evidence
from attention_conformance.suite.judge.diagnosis.finding import Diagnosis
from attention_conformance.suite.judge.diagnosis.identify import identify
from attention_conformance.suite.judge.diagnosis.instrument import deadline
from attention_conformance.suite.judge.diagnosis.others import PLACES
from attention_conformance.suite.judge.diagnosis.weights import BROKEN
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Deviation, NotApplicable
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.elections import ElectionCase
from attention_conformance.suite.spec.vocabulary import GRADIENTS, VALUES

MOST = 3
"""The largest number of diagnoses."""

LARGE = 2**16
"""The largest number of products of a query with a key in cells that are tried, if there are smaller
ones."""

OF_CATALOGUE = 0.6
"""The part of the time that the catalogue may take; measurements take what the catalogue leaves."""

NAN = "/nan-in-attended-"
"""Stands in the ids of election cases of NaN that must reach the output, whatever else is wrong."""

PATHS, WEIGHTS = "paths", "returned weights"
"""The check of what is returned on other paths, and its name of weights."""

NO_KEYS = "/no-keys/"
"""Stands in the ids of election cases without keys."""

WITHOUT_KEYS = (
    "begin with `if {} == 0: raise NotImplementedError('no keys')`, or return zeros there"
)
"""What to write in a function that raises without keys."""

ELECTION = "election"
"""The family of answers that nobody elects."""


def diagnose(
    backend: Backend,
    implementation: Implementation,
    failing: Sequence[Cell],
    passing: Sequence[Cell],
    seconds: float = 5.0,
    without: str = "",
) -> list[Diagnosis]:
    """What is wrong with an implementation of `backend`, in at most three sentences, the best first.

    `failing` and `passing` are cells of the implementation; `seconds` is the processor time after which
    nothing more is asked. `without` is the name of a fault that the catalogue lacks. Settings that calls
    change are restored.
    """
    with leaks.undone(backend):
        elected = list(never_elected(failing, any(isinstance(c.case, Case) for c in failing)))
    beside = [cell for cell in passing if cell.check.name == VALUES and _size(cell) <= LARGE]
    failing = chosen(failing, TRIED + BESIDE)
    cases = [cell.case for cell in failing[:TRIED] if isinstance(cell.case, Case)]
    beside, checks = alike(beside, cases), {cell.check.name for cell in failing} - {VALUES}
    most = max([LARGE, *map(_size, failing)])
    same = (cell for cell in passing if cell.check.name in checks and _size(cell) <= most)
    passing = [
        *beside[: BESIDE // 2], *alike(same, cases)[: BESIDE // 2], *chosen(passing, BESIDE + MORE),
    ]  # fmt: skip
    passing = [*dict.fromkeys(passing)]
    begin = time.process_time()
    wrong, evidence_looks = tee(wrong_outcomes(failing))
    with leaks.undone(backend):
        found = explained(failing, passing, deadline(OF_CATALOGUE * seconds), without, wrong)
    left = max((1 - OF_CATALOGUE) * seconds, seconds - (time.process_time() - begin))
    evidence = Evidence(islice(evidence_looks, len(cases)), beside)
    measured = identify(backend, implementation, cases, left, evidence)
    # If outputs are wrong, gradients and elections may be consequences: these explain nothing alone.
    aside = {"gradient"} if any(cell.check.name == VALUES for cell in failing) else set()
    aside |= {ELECTION} if failing else set()
    diagnoses = joined(found, measured, bool(evidence.failing))
    whole = bool(diagnoses) and diagnoses[0].explains == diagnoses[0].tried
    diagnoses += [one for one in elected if not whole or NAN in one.case]
    diagnoses.sort(key=lambda one: one.family in aside)
    diagnoses = diagnoses or list(wrong_weights(failing))
    diagnoses[1:] = [
        replace(one, sentence=f"{one.sentence[:-1]}; perhaps a consequence of 1.")
        if one.key in BROKEN
        else one
        for one in diagnoses[1:]
    ]
    return diagnoses[:MOST] if diagnoses and diagnoses[0].family not in aside else []


def never_elected(failing: Iterable[Cell], beside: bool) -> Iterator[Diagnosis]:
    """The sentences of election cells whose answers are never right, one of each check; those of cells
    whose answers are unknown, too, if no other cells fail `beside`, or if the cells are `NAN`."""
    cells = [cell for cell in failing if isinstance(cell.case, ElectionCase)]
    first = {cell.check.name: cell for cell in reversed(cells)}
    of_nan = [cell for cell in cells if NAN in cell.case.id and cell.dtype.name == "f32"]
    without_keys = [cell for cell in cells if NO_KEYS in cell.case.id][:1]
    diagnoses: dict[str, Diagnosis] = {}
    for cell in (*first.values(), *of_nan, *without_keys) if beside else cells:
        verdict, sentence = judge(cell), ""
        what, hint = verdict.what.rstrip("."), verdict.advice
        if hint or (verdict.kind == "election" and (not beside or NAN in cell.case.id)):
            sentence = f"{what[0].upper()}{what[1:]}."
        elif verdict.kind == "raised" and NO_KEYS in cell.case.id:
            keys = f"key.shape[{cell.implementation.axis_order.index('l')}]"
            sentence = (
                f"Without keys ({keys} is 0) the function raises {what}, expected zeros, NaN or "
                "NotImplementedError."
            )
            hint = WITHOUT_KEYS.format(keys)
        if sentence:
            one = Diagnosis(sentence, hint, ELECTION, "measured", 1, 1, 0, cell.case.id)
            diagnoses.setdefault(sentence, one)
    yield from diagnoses.values()


def wrong_weights(failing: Iterable[Cell]) -> Iterator[Diagnosis]:
    """The sentence if weights that are returned beside right outputs are wrong."""
    cells = [cell for cell in failing if cell.check.name == PATHS]
    for cell in cells[:1]:
        path = cell.implementation.paths(cell.inputs).get(WEIGHTS)
        if path is None:
            continue
        problem = path.problem or cell.inputs
        try:
            cell.judge(cell.read(cell.call(path), problem, path), problem)
        except NotApplicable:
            continue
        except Deviation as wrong:
            by = wrong.measured.max_abs_error
            by_much = "" if by is None else f", by up to {by:.2g}"
            text = f"Of what is returned only the weights are wrong{by_much}."
            hint = "weights before the softmax, the dropout or a factor"
            case, count = str(cell.case.id), len(cells)
            yield Diagnosis(text, hint, "softmax", "measured", count, count, 0, case)


def joined(
    found: Iterable[Diagnosis], measured: Iterable[Diagnosis], answered: bool = True
) -> list[Diagnosis]:
    """The diagnoses of both sources, what explains most first. Faults of the catalogue explain different
    cells; of what is measured one of each family is left. A fault is left out beside a measurement of all
    cells, a fault of a single cell beside one of several cells. What passing cells contradict is left out
    beside anything else. What the catalogue explains gets the picture that was measured of its family. No
    sentence is said twice. Without answers that are compared (`answered`), faults only fail the same
    checks, and come behind what is measured."""
    pictures = {one.family: one.picture for one in measured if one.picture}
    named = [replace(one, picture=pictures.get(one.family, "")) for one in found]
    diagnoses: list[Diagnosis] = []
    for one in sorted([*named, *measured], key=partial(_place_of, answered)):
        same = [other for other in diagnoses if other.family == one.family]
        if one.sentence in {other.sentence for other in diagnoses}:
            continue
        if not same or (one.fault and all(other.fault for other in same)):
            diagnoses.append(one)
    return [
        one
        for one in diagnoses
        if (not one.fault or diagnoses[0].fault or not _is_enough(diagnoses[0], one))
        and (not one.contradicts or diagnoses[0].contradicts)
    ]


def _is_enough(first: Diagnosis, fault: Diagnosis) -> bool:
    """True if a measured diagnosis explains all cells, or several and the fault a single one."""
    return first.explains == first.tried or (first.explains > 1 >= fault.explains)


def _place_of(answered: bool, one: Diagnosis) -> tuple[bool, float, bool]:
    """What passing cells contradict comes last, what explains most first. Faults of rounding are alike in
    16 bits, and measured better, as are those that only fail the same checks. A fault says more than the
    type, dtype or shape of what is returned, and than the places of wrong numbers."""
    return (
        one.contradicts > 0,
        -one.explains / max(one.tried, 1),
        (bool(one.fault) and (not answered or one.family == "numerics"))
        or one.family == "contract"
        or one.key.startswith(PLACES),
    )


def chosen(cells: Sequence[Cell], most: int) -> list[Cell]:
    """At most `most` cells to try: simple and small ones of different masks, features and dtypes, the
    simplest of the check `values` first. If there is none of `values`, of different checks, too."""
    known = [cell for cell in cells if isinstance(cell.case, Case)]
    left = sorted([cell for cell in known if _size(cell) <= LARGE] or known, key=place)
    taken: list[Cell] = []
    seen: set[str] = set()
    by_check = not any(cell.check.name == VALUES for cell in left)
    while left and len(taken) < most:
        best = max(left, key=lambda cell: len(_marks(cell, by_check) - seen) if taken else 0)
        taken.append(best)
        left.remove(best)
        seen |= _marks(best, by_check)
    return taken


def place(cell: Cell) -> tuple[int, bool, int, int, str]:
    """Sorts cells: the check `values` first, then gradients; then float32, few features, small cases."""
    first = (VALUES, *GRADIENTS)
    check = first.index(cell.check.name) if cell.check.name in first else len(first)
    features = len(cell.case.needs) + (getattr(cell.case, "recipe", "") != Case.recipe)
    return check, cell.dtype.name != "f32", features, _size(cell), cell.case.id


def _size(cell: Cell) -> int:
    s = cell.case.sizes if isinstance(cell.case, Case) else None
    return 0 if s is None else s.pairs * max(s.D, s.Dv)


def _marks(cell: Cell, by_check: bool) -> set[str]:
    """What a cell is about: its dtype, kind of mask, heads, recipe and features, and its check."""
    case = cell.case
    assert isinstance(case, Case)
    kind = "mask " + re.sub(r"[\d.][^+]*", "", case.mask_token)
    check = {cell.check.name} if by_check else set()
    return {case.dtype.name, kind, case.sizes.heads, case.recipe, *case.needs} | check
