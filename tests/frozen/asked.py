"""What is asked and how strictly: the ids of every level with their checks, and the bounds of some cells.

In smoke.txt, standard.txt and full.txt "compiled:values" is asked of compiled implementations. In
bounds.txt a line "CASE CLASS DIRECTION:" adds a cell; `write bounds` fills in its figures.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import draw, draw_cotangent, draw_tangents
from attention_conformance.suite.spec.vocabulary import LEVELS, OPERANDS
from tests.frozen.part import Part, Texts, Wanted, everything

LAST_DIGITS = 2.0**-20
"""The relative difference from which on a bound has changed: sixteen unit roundoffs of float32, in which
`references.terms` adds up. NumPy's float32 exponential differs by one or two of them between CPUs with
and without AVX512; the largest difference of a bound seen between CPUs was 1.1e-7."""


def ids(level: str, wanted: Wanted) -> Texts:
    """The names of the checks that ask a case, by its id."""
    sources = [(check.name, check.cases) for check in all_checks().values()]
    sources += [(f"compiled:{c.name}", c.compiled) for c in all_checks().values() if c.compiled]
    checks: dict[str, set[str]] = {}
    for name, cases in sources:
        for case in cases(level):
            checks.setdefault(case.id, set()).add(name)
    return {case: " ".join(sorted(names)) for case, names in checks.items() if wanted(case)}


def bounds(wanted: Wanted = everything) -> Texts:
    """The figures of every array of the cells that frozen keys "CASE CLASS DIRECTION [ARRAY]" name."""
    cells = dict.fromkeys(tuple(key.split()[:3]) for key in BOUNDS.read() if wanted(key))
    return {
        f"{' '.join(cell)} {name}": figures(bound)
        for cell in cells
        for name, bound in bounded(*cell).items()
    }


def bounded(case_id: str, numerics: str, direction: str) -> dict[str, np.ndarray]:
    """The bounds of a case's outputs, of its gradients ("vjp") or of its tangent ("jvp"), by array."""
    case, rounding = Case.parse(case_id), Rounding(numerics)
    inputs = draw(case)
    if direction == "vjp":
        oracle = Oracle.vjp(inputs, draw_cotangent(case), rounding)
    elif direction == "jvp":
        moving = inputs.arrays.keys() - {*inputs.operator.array_kinds.constants}
        operands = [name for name in OPERANDS if name in moving]
        oracle = Oracle.jvp(inputs, draw_tangents(case, operands), rounding)
    else:
        oracle = Oracle.forward(inputs, rounding)
    return {name: oracle.bound(name) for name in oracle.expected}


def figures(bound: np.ndarray) -> str:
    """The largest, the mean and the number of the finite bounds."""
    finite = bound[np.isfinite(bound)].astype(np.float64)
    largest, mean = (finite.max(), finite.mean()) if finite.size else (0.0, 0.0)
    return f"{largest:.9g} {mean:.9g} {finite.size}"


def alike(key: str, before: str, now: str) -> bool:
    """True if figures differ in their last digits alone (`LAST_DIGITS`)."""
    pairs = zip(before.split(), now.split(), strict=True)
    return all(math.isclose(float(a), float(b), rel_tol=LAST_DIGITS) for a, b in pairs)


IDS = [Part("ids", level, partial(ids, level), quick=everything, separator=" ") for level in LEVELS]
BOUNDS = Part("bounds", "bounds", bounds, quick=everything, same=alike)
