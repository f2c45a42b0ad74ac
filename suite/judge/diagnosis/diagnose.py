"""Say what is wrong with an implementation that fails: by the catalogue of faults, and by probes.

    diagnose(implementation, failing, passing) -> at most three diagnoses, the best first

The catalogue names a fault whose answers are the implementation's. Probes measure faults that the
catalogue lacks. A right implementation gets no diagnosis.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.diagnosis.catalogue import (
    BESIDE,
    TRIED,
    explaining_faults,
)
from attention_conformance.suite.judge.diagnosis.conditions import sorted_by_likeness
from attention_conformance.suite.judge.diagnosis.evidence import Evidence
from attention_conformance.suite.judge.diagnosis.finding import Diagnosis
from attention_conformance.suite.judge.diagnosis.identify import identify
from attention_conformance.suite.judge.diagnosis.instrument import deadline
from attention_conformance.suite.judge.diagnosis.others import PLACES
from attention_conformance.suite.judge.diagnosis.weights import NONFINITE
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.elections import ElectionCase
from attention_conformance.suite.spec.vocabulary import GRADIENTS, VALUES

MOST = 3
"""The largest number of diagnoses."""

LARGE = 2**16
"""The largest number of query-key products in a cell that is tried, if a smaller cell fails."""

MOST_PASSING = 40
"""The largest number of passing cells that are like failing cells, and of cells that differ from each
other."""

CATALOGUE_SHARE = 0.6
"""The largest part of the time for the catalogue; probes have the time that it leaves."""

NAN_ID = "/nan-in-attended-"
"""Part of the ids of election cases of NaN that must reach the output, whatever else is wrong."""

PATHS, WEIGHTS = "paths", "returned weights"
"""The check of an implementation's further code paths, and the name of the path that returns weights."""

NO_KEYS_ID = "/no-keys/"
"""Part of the ids of election cases without keys."""

NO_KEYS_HINT = (
    "begin with `if {} == 0: raise NotImplementedError('no keys')`, or return zeros there"
)
"""The hint for a function that raises without keys."""

ELECTION = "election"
"""The family of diagnoses of answers that no election allows."""


def diagnose(
    implementation: Implementation,
    failing: Sequence[Cell],
    passing: Sequence[Cell],
    seconds: float = 5.0,
    without: str = "",
) -> list[Diagnosis]:
    """Returns at most three diagnoses of an implementation, the best first. Wrong gradients together with
    wrong outputs, and wrong elections together with other failures, may be consequences: [] if nothing
    else is found.

    1. Failing election cells are diagnosed by their answers.
    2. A few failing cells are compared with the faults of the catalogue. Passing cells that are most like
       them decide between faults.
    3. Probes measure what is wrong, in the time that is left.
    4. The diagnoses are merged. If there are none, wrong returned weights are named.

    `failing` and `passing` are cells of the implementation. `seconds` limits the processor time.
    `without` is the name of a fault that is left out of the catalogue. Settings that calls change are
    restored.
    """
    with leaks.restored_settings(implementation.backend):
        has_failing_case = any(isinstance(cell.case, Case) for cell in failing)
        by_elections = list(election_diagnoses(failing, has_failing_case))
    failing = choose_cells(failing, TRIED + BESIDE)
    cases = [cell.case for cell in failing[:TRIED] if isinstance(cell.case, Case)]
    checks = {cell.check.name for cell in failing} - {VALUES}
    largest = max([LARGE, *map(_size, failing)])
    same_checks = [c for c in passing if c.check.name in checks and _size(c) <= largest]
    comparable = [cell for cell in passing if cell.check.name == VALUES and _size(cell) <= LARGE]
    comparable = sorted_by_likeness(comparable, cases)[:MOST_PASSING]
    passing = [
        *comparable[: BESIDE // 2], *sorted_by_likeness(same_checks, cases)[: BESIDE // 2],
        *comparable, *choose_cells(passing, MOST_PASSING),
    ]  # fmt: skip
    passing = [*dict.fromkeys(passing)]
    begin = time.process_time()
    with leaks.restored_settings(implementation.backend):
        is_late = deadline(CATALOGUE_SHARE * seconds)
        evidence = Evidence.of_cells(failing, passing)
        by_catalogue = explaining_faults(evidence, failing, passing, is_late, without)
        right = evidence.passing if evidence.failing else ()
        evidence = Evidence(evidence.failing[: len(cases)], right)
    seconds_left = max((1 - CATALOGUE_SHARE) * seconds, seconds - (time.process_time() - begin))
    by_probes = identify(implementation, cases, seconds_left, evidence, without)
    # If outputs are wrong, wrong gradients and elections may be consequences, and are no diagnosis.
    minor = {"gradient"} if any(cell.check.name == VALUES for cell in failing) else set()
    minor |= {ELECTION} if failing else set()
    diagnoses = merge_diagnoses(by_catalogue, by_probes, bool(evidence.failing))
    is_explained = bool(diagnoses) and diagnoses[0].explains == diagnoses[0].tried
    diagnoses += [d for d in by_elections if not is_explained or NAN_ID in d.case]
    diagnoses.sort(key=lambda diagnosis: diagnosis.family in minor)
    diagnoses = diagnoses or list(returned_weights_diagnoses(failing))
    diagnoses[1:] = [
        replace(d, sentence=f"{d.sentence[:-1]}; perhaps a consequence of 1.")
        if d.key in NONFINITE
        else d
        for d in diagnoses[1:]
    ]
    return diagnoses[:MOST] if diagnoses and diagnoses[0].family not in minor else []


def election_diagnoses(failing: Iterable[Cell], has_failing_case: bool) -> Iterator[Diagnosis]:
    """Yields diagnoses of failing election cells. Answers that are never right are always diagnosed.
    Unknown answers are diagnosed if only election cells fail (`has_failing_case` is False), or if the
    cells are about NaN (`NAN_ID`)."""
    cells = [cell for cell in failing if isinstance(cell.case, ElectionCase)]
    first_of_check = {cell.check.name: cell for cell in reversed(cells)}
    nan_cells = [cell for cell in cells if NAN_ID in cell.case.id and cell.dtype.name == "f32"]
    no_keys_cells = [cell for cell in cells if NO_KEYS_ID in cell.case.id][:1]
    diagnoses: dict[str, Diagnosis] = {}
    chosen_cells = (*first_of_check.values(), *nan_cells, *no_keys_cells)
    for cell in chosen_cells if has_failing_case else cells:
        verdict, sentence = judge(cell), ""
        fault, hint = verdict.what.rstrip("."), verdict.advice
        may_be_unknown = not has_failing_case or NAN_ID in cell.case.id
        if hint or (verdict.kind == "election" and may_be_unknown):
            sentence = f"{fault[0].upper()}{fault[1:]}."
        elif verdict.kind == "raised" and NO_KEYS_ID in cell.case.id:
            key_length = f"key.shape[{cell.implementation.axis_order.index('l')}]"
            sentence = (
                f"Without keys ({key_length} is 0) the function raises {fault}, expected zeros, NaN or "
                "NotImplementedError."
            )
            hint = NO_KEYS_HINT.format(key_length)
        if sentence:
            diagnosis = Diagnosis(sentence, hint, ELECTION, "measured", 1, 1, 0, cell.case.id)
            diagnoses.setdefault(sentence, diagnosis)
    yield from diagnoses.values()


def returned_weights_diagnoses(failing: Iterable[Cell]) -> Iterator[Diagnosis]:
    """Yields at most one diagnosis: the output is right, and the weights returned together with it are
    wrong."""
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
        except WrongAnswer as deviation:
            error = deviation.measured.max_abs_error
            ending = "" if error is None else f", by up to {error:.2g}"
            text = f"Of what is returned only the weights are wrong{ending}."
            hint = "weights before the softmax, the dropout or a factor"
            case, count = str(cell.case.id), len(cells)
            yield Diagnosis(text, hint, "softmax", "measured", count, count, 0, case)


def merge_diagnoses(
    faults: Iterable[Diagnosis], measured: Iterable[Diagnosis], were_compared: bool = True
) -> list[Diagnosis]:
    """Returns the diagnoses of both sources, those that explain most first.

    - A fault of the catalogue is left out if a measured diagnosis makes it needless (`_makes_needless`).
    - A measured diagnosis is left out if its family has a diagnosis. Several faults of one family stay:
      they explain different cells.
    - Diagnoses that passing cells contradict are left out unless the first is contradicted, too.
    - Faults get the measured picture of their family. No sentence is repeated.
    - If answers were not compared (`were_compared` is False), faults only fail the same checks, and come
      last.
    """
    pictures = {d.family: d.picture for d in measured if d.picture}
    pictured = [replace(d, picture=pictures.get(d.family, "")) for d in faults]
    diagnoses: list[Diagnosis] = []
    for diagnosis in sorted([*pictured, *measured], key=partial(_rank, were_compared)):
        same_family = [earlier for earlier in diagnoses if earlier.family == diagnosis.family]
        if diagnosis.sentence in {earlier.sentence for earlier in diagnoses}:
            continue
        if not same_family or (diagnosis.fault and all(earlier.fault for earlier in same_family)):
            diagnoses.append(diagnosis)
    return [
        d
        for d in diagnoses
        if (not d.fault or diagnoses[0].fault or not _makes_needless(diagnoses[0], d))
        and (not d.contradicts or diagnoses[0].contradicts)
    ]


def _makes_needless(measured: Diagnosis, fault: Diagnosis) -> bool:
    """True if the measured diagnosis explains all tried cells, or explains several while the fault
    explains at most one."""
    return measured.explains == measured.tried or (measured.explains > 1 >= fault.explains)


def _rank(were_compared: bool, diagnosis: Diagnosis) -> tuple[bool, float, bool]:
    """Returns the sort key of a diagnosis:

    1. Contradicted diagnoses are last.
    2. Those that explain most cells are first. Places of wrong numbers name no cause, and count half.
    3. Last among equals are wrong types or shapes, faults of rounding (in 16 bits many are alike), and
       faults that only fail the same checks (`were_compared` is False).
    """
    weight = 0.5 if diagnosis.key.startswith(PLACES) else 1.0
    return (
        diagnosis.contradicts > 0,
        -weight * diagnosis.explains / max(diagnosis.tried, 1),
        (bool(diagnosis.fault) and (not were_compared or diagnosis.family == "numerics"))
        or diagnosis.family == "contract",
    )


def choose_cells(cells: Sequence[Cell], most: int) -> list[Cell]:
    """Returns at most `most` cells to try: simple and small ones with different masks, features and
    dtypes, the simplest cell of the check `values` first. If no cell is of `values`, the checks differ,
    too."""
    cells = [cell for cell in cells if isinstance(cell.case, Case)]
    candidates = sorted([c for c in cells if _size(c) <= LARGE] or cells, key=simplicity)
    chosen: list[Cell] = []
    covered: set[str] = set()
    with_check = not any(cell.check.name == VALUES for cell in candidates)
    while candidates and len(chosen) < most:
        best = max(candidates, key=lambda c: len(_traits(c, with_check) - covered) if chosen else 0)
        chosen.append(best)
        candidates.remove(best)
        covered |= _traits(best, with_check)
    return chosen


def simplicity(cell: Cell) -> tuple[int, bool, int, int, str]:
    """Returns the sort key of a cell: the check `values` first, then gradients; then float32, few
    features, and small cases."""
    order = (VALUES, *GRADIENTS)
    check = order.index(cell.check.name) if cell.check.name in order else len(order)
    features = len(cell.case.needs) + (getattr(cell.case, "recipe", "") != Case.recipe)
    return check, cell.dtype.name != "f32", features, _size(cell), cell.case.id


def _size(cell: Cell) -> int:
    s = cell.case.sizes if isinstance(cell.case, Case) else None
    return 0 if s is None else s.pairs * max(s.D, s.Dv)


def _traits(cell: Cell, with_check: bool) -> set[str]:
    """Returns the properties in which chosen cells shall differ: dtype, kind of mask, heads, features;
    the check, too, if `with_check`."""
    case = cell.case
    assert isinstance(case, Case)
    kind = "mask " + re.sub(r"[\d.][^+]*", "", case.mask_token)
    check = {cell.check.name} if with_check else set()
    return {case.dtype.name, kind, case.sizes.heads, case.recipe, *case.needs} | check
