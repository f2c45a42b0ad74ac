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

import numpy as np

from backends.registry import load
from suite.checks import all_checks
from suite.judge.gradients import GradientOracle, layer_cotangent, layer_gradients
from suite.judge.layers import LayerOracle
from suite.judge.oracle import Oracle
from suite.judge.tolerance import NUMERICS
from suite.spec.catalogue import cases, everything
from suite.spec.gradient_catalogue import gradient_cases
from suite.spec.layer_catalogue import layer_cases
from suite.spec.layers import LayerCase, draw_layer
from suite.spec.problem import Case
from suite.spec.recipes import draw, draw_cotangent
from suite.test_layer_gradients import layers as layer_gradient_cases

FILE = Path(__file__).with_suffix(".json")

ADDED = ("sinks",)
"""Option tokens of cases that came later: no golden figure counts them."""

RENAMED = {
    "layer_batch_permutation": "batch_independence",
    "layer_head_permutation": "head_independence",
}


def canonical(check: str) -> str:
    """The name of a check, the same for plain attention and for layers."""
    return RENAMED.get(check, check.removeprefix("layer_"))


def counted(case: Any) -> bool:
    """Whether the golden figures know the case."""
    return not set(case.id.split("/")) & set(ADDED)


def digest(lines: Iterable[str]) -> str:
    """How many lines there are, and a digest of them that does not hang on their order."""
    found = sorted(lines)
    return f"{len(found)} {hashlib.sha256(chr(10).join(found).encode()).hexdigest()[:16]}"


def ids() -> dict[str, str]:
    """The ids asked at every level, by check and operator, and those of the catalogue."""
    found: dict[str, set[str]] = defaultdict(set)
    for level in ("smoke", "standard", "full"):
        for case in filter(counted, everything(level)):
            found[f"{level} catalogue"].add(case.id)
        for check in all_checks():
            for mode, asked in (("", check.cases), (" compiled", check.compiled)):
                for case in filter(counted, asked(level) if asked else ()):
                    name = f"{level}{mode} {canonical(check.name)} {case.operator}"
                    found[name].add(case.id)
    return {name: digest(lines) for name, lines in sorted(found.items())}


def drawn(case: Any, seed: int) -> str:
    """A digest of the arrays that are drawn for a case."""
    if isinstance(case, LayerCase):
        inputs: Any = draw_layer(case, seed)
        arrays = {n: getattr(inputs, n) for n in ("query", "key", "value")} | dict(
            inputs.parameters
        )
    else:
        inputs = draw(case, seed)
        arrays = {n: getattr(inputs, n) for n in ("query", "key", "value")}
    arrays |= {"bias": inputs.bias, "mask": inputs.dense_mask}
    h = hashlib.sha256()
    for name, array in arrays.items():
        if array is not None:
            h.update(f"{name}{array.shape}{array.dtype}".encode() + array.tobytes())
    return f"{case.id} {h.hexdigest()}"


def draws() -> dict[str, str]:
    """All bytes drawn at full, by operator."""
    found: dict[str, set[str]] = defaultdict(set)
    for check in all_checks():
        for case in filter(counted, check.cases("full")):
            if isinstance(case, Case | LayerCase):
                found[case.operator].add(case.id)
    for case in filter(counted, everything("full")):
        if isinstance(case, Case | LayerCase):
            found[case.operator].add(case.id)
    from suite.spec.catalogue import parse

    return {
        operator: digest(drawn(parse(name), 0) for name in names)
        for operator, names in sorted(found.items())
    }


def figures(array: np.ndarray) -> list[float]:
    """Largest and mean of what is finite, and how much of it is."""
    finite = array[np.isfinite(array)].astype(np.float64)
    if not finite.size:
        return [0.0, 0.0, 0]
    return [float(finite.max()), float(finite.mean()), int(finite.size)]


def bounds() -> dict[str, list[float]]:
    """Bounds of a sample of cases in every class: of outputs, weights and gradients."""
    found: dict[str, list[float]] = {}
    with np.errstate(all="ignore"):
        for case in [c for c in cases("standard") if counted(c)][::23]:
            oracle = Oracle.of(draw(case))
            for numerics in NUMERICS:
                found[f"{case.id} {numerics} output"] = figures(oracle.bound(numerics))
        for layer in [c for c in layer_cases("standard") if counted(c)][::11]:
            inputs = draw_layer(layer)
            for numerics in NUMERICS:
                reference = LayerOracle.of(inputs, numerics).reference
                found[f"{layer.id} {numerics} output"] = figures(reference.output.error)
                found[f"{layer.id} {numerics} weights"] = figures(reference.weights.error)
        for case in [c for c in gradient_cases("standard") if counted(c)][::9]:
            plain = draw(case)
            for numerics in NUMERICS:
                chain = GradientOracle.of(plain, draw_cotangent(case), numerics)
                for name in ("query", "key", "value"):
                    error = chain.gradient(name, ()).error
                    found[f"{case.id} {numerics} gradient {name}"] = figures(error)
        (definition,) = load("numpy").implementations()
        for name in ("narrow_biases", "narrow_statistics", "narrow_reductions"):
            setattr(definition, name, {} if name == "narrow_biases" else ())
        for layer in layer_gradient_cases("standard")[::5]:
            inputs = draw_layer(layer)
            cotangent = layer_cotangent(inputs, f"{layer.id}/cotangent")
            for numerics in NUMERICS:
                made = layer_gradients(definition, inputs, cotangent, numerics, False)
                for name, gradient in made.items():
                    found[f"{layer.id} {numerics} gradient {name}"] = figures(gradient.error)
    return found


def statuses(backend: str) -> dict[str, str]:
    """The statuses of all cells at standard, by check and operator.

    A known failure counts as a pass: which of them there are hangs on the processor.
    """
    from suite.plan import Options, Plan

    plan = Plan.make(Options((backend,)))
    found: dict[str, set[str]] = defaultdict(set)
    for check in all_checks():
        for cell in plan.cells(check):
            if counted(cell.case):
                verdict = plan.judge(cell)
                status = "pass" if verdict.status == "known" else verdict.status
                name = f"{canonical(check.name)} {cell.case.operator}"
                found[name].add(f"{cell.implementation.name} {cell.case.id} {status}")
    return {name: digest(lines) for name, lines in sorted(found.items())}


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
