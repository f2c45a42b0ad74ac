"""The golden figures: what is asked, what is drawn, how far rounding may move it, how it is judged.

    python -m tests.golden ids draws bounds numpy honest torch      prints them as JSON

`tests/golden.json` holds them as they were before the house was rebuilt around operators;
`tests/test_golden.py` compares. A figure belongs to a check and an operator, so that a check that is
asked of one more operator adds a figure and changes none.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from backends.protocol import Implementation
from suite.checks import all_checks
from suite.front.options import Options
from suite.front.plan import Plan
from suite.judge.oracle import Oracle, Rounding
from suite.spec.case import Case
from suite.spec.catalogue import everything
from suite.spec.dtypes import DTYPES
from suite.spec.inputs import draw, draw_cotangent
from suite.spec.levels import filled
from suite.spec.operators.sdpa_cases import SIZES
from suite.spec.vocabulary import LEVELS
from suite.test_dropout import OF_ATTENTION
from suite.test_paths import MASKED_SAMPLE, ONE_SAMPLE, SLIDING
from suite.test_spread import CAPPED, LONG, WIDE_LAYERS

FILE = Path(__file__).with_suffix(".json")

ADDED = (
    "sinks",
    "needle",
    "lse",
    "lse-of-empty-row",
    "lse-gradient",
    "rotary",
    "packed",
    "nan-in-other-segment",
    "merge",
    "encoder",
    "rate-above-one",
    "rate-negative",
    "bias.alibikeys",
    "bias.lowest",
    "slopes",
    "causal-alone",
    "lowest-row",
)
"""Words of ids of cases, and operators, that came later: no golden figure counts them."""

LATER = (
    *SIZES, *WIDE_LAYERS, CAPPED, LONG, ONE_SAMPLE, MASKED_SAMPLE, SLIDING,
    "multi-head/none/mha/{dt}/b2h3q5k9d4/e12.12.12.12/nobias",
    "multi-head/none/mha/{dt}/b3h3q3k3d4/e12.12.12.12/self",
    "multi-head/none/mha/{dt}/b2h1q5k9d12/e12.12.12.12",
    "multi-head/pad/mha/{dt}/b1h2q3k1025d4/e8.8.8.8",
    "dot/pad/mha/{dt}/b1h1q3k1025d8/e8.8.8.8",
    "sdpa/none/mha/{dt}/b2h3q17k23d8/bias.1hqk",
    "sdpa/bool.b11k/mha/{dt}/b1h2q1k65d8/dense",
    "sdpa/bool.bhqk/gqa2/{dt}/b2h4q11k9d6/bias.bhqk/dense",
)  # fmt: skip

ADDED_CASES = {*OF_ATTENTION, *filled(LATER, DTYPES)}
"""Cases that came later, of words that were there."""

ADDED_VARIANTS = ("dropping", "dropping-by-blocks", "dropping-fused", "dropping-shared")
"""Honest variants that came later."""


def counted(case: Any) -> bool:
    """Whether the golden figures know the case."""
    return not set(case.id.split("/")) & set(ADDED) and case.id not in ADDED_CASES


def digest(lines: Iterable[str]) -> str:
    """How many lines there are, and a digest of them that does not hang on their order."""
    texts = sorted(lines)
    return f"{len(texts)} {hashlib.sha256(chr(10).join(texts).encode()).hexdigest()[:16]}"


def ids() -> dict[str, str]:
    """The ids asked at every level, by check and operator, and those of the catalogue."""
    groups: dict[str, set[str]] = defaultdict(set)
    for level in LEVELS:
        for case in filter(counted, everything(level)):
            groups[f"{level} catalogue"].add(case.id)
        for check in all_checks():
            for mode, source in (("", check.cases), (" compiled", check.compiled)):
                for case in filter(counted, source(level) if source else ()):
                    groups[f"{level}{mode} {check.name} {case.operator}"].add(case.id)
    return {name: digest(lines) for name, lines in sorted(groups.items())}


def drawn(case: Case) -> str:
    """A digest of the arrays that are drawn for a case."""
    inputs = draw(case)
    arrays = {n: a for n, a in inputs.arrays.items() if n != "bias"}
    h = hashlib.sha256()
    for name, array in (*arrays.items(), ("bias", inputs.bias), ("mask", inputs.dense_mask)):
        if array is not None:
            h.update(f"{name}{array.shape}{array.dtype}".encode() + array.tobytes())
    return f"{case.id} {h.hexdigest()}"


def draws() -> dict[str, str]:
    """All bytes drawn at full, by operator."""
    cases = [case for check in all_checks() for case in check.cases("full")]
    groups: dict[str, dict[str, Case]] = defaultdict(dict)
    for case in filter(counted, [*cases, *everything("full")]):
        if isinstance(case, Case):
            groups[case.operator.name][case.id] = case
    return {name: digest(map(drawn, cases.values())) for name, cases in sorted(groups.items())}


def figures(array: np.ndarray) -> list[float]:
    """Largest and mean of what is finite, and how much of it is."""
    finite = array[np.isfinite(array)].astype(np.float64)
    if not finite.size:
        return [0.0, 0.0, 0]
    return [float(finite.max()), float(finite.mean()), int(finite.size)]


def bounds() -> dict[str, list[float]]:
    """Bounds of a sample of cases in every class: of outputs, weights and gradients."""
    entries: dict[str, list[float]] = {}
    for name in json.loads(FILE.read_text(encoding="utf-8"))["bounds"]:
        case_id, numerics, what, *operand = name.split()
        case = Case.parse(case_id)
        inputs, rounding = draw(case), Rounding(numerics)
        if what == "gradient":
            oracle = Oracle.vjp(inputs, draw_cotangent(case), rounding)
        else:
            problem = inputs.replace(returned="head") if what == "weights" else inputs
            oracle = Oracle.forward(problem, rounding)
        array = operand[0] if operand else what
        # Norms attend to nothing: they have no weights.
        entries[name] = figures(oracle.bound(array) if array in oracle.expected else np.zeros(0))
    return entries


def statuses(backend: str) -> dict[str, str]:
    """The statuses of all cells at standard, by check and operator.

    A known failure counts as a pass: which of them there are hangs on the processor. No dtype is left to
    a later level: the figures are of all.
    """
    plan = Plan.make(Options((backend,)))
    groups: dict[str, set[str]] = defaultdict(set)
    for check in all_checks():
        with patch.object(Implementation, "later_dtypes", ()):
            cells = list(plan.cells(check))
        for cell in cells:
            if counted(cell.case) and cell.implementation.name not in ADDED_VARIANTS:
                verdict = plan.judge(cell)
                status = "pass" if verdict.status == "known" else verdict.status
                name = f"{check.name} {cell.case.operator}"
                groups[name].add(f"{cell.implementation.name} {cell.case.id} {status}")
    return {name: digest(lines) for name, lines in sorted(groups.items())}


PARTS = {
    "ids": ids,
    "draws": draws,
    "bounds": bounds,
    "numpy": lambda: statuses("numpy"),
    "honest": lambda: statuses("tests.mutants:honest"),
    "torch": lambda: statuses("torch"),
}


def main() -> None:
    """Print the figures of the parts that are named, of all where none is."""
    names = sys.argv[1:] or list(PARTS)
    print(json.dumps({name: PARTS[name]() for name in names}, indent=1))


if __name__ == "__main__":
    main()
