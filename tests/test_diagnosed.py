"""The corpus of faulty kernels: every kernel has an expectation, verdicts are what they should be, and
runs name the faults."""

from __future__ import annotations

import ast
from collections import Counter
from typing import Any

import pytest

from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge as judge_cell
from attention_conformance.suite.run import diagnosing
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.vocabulary import VALUES
from tests.diagnosed import later_kernels as later
from tests.diagnosed.expected import NEXT_KEY, NO_SCALE, Fault, Kernel
from tests.diagnosed.kernels import FAULTY, HEALTHY, KERNELS, PAIRS
from tests.diagnosed.running import HERE, judge, verdict

OF_KERNELS = sorted({kernel.name.split(":")[0] for kernel in KERNELS})
HELPERS = {
    "added", "allowed", "angles", "default_scale", "grouped", "hidden_in", "masked", "repeated",
    "rotate_half", "scale_of", "weights_of",
}  # fmt: skip
"""Functions that kernels call."""

NEXT = Fault(("mask",), (NEXT_KEY,))
SCALE = Fault(("scale",), (NO_SCALE,))


def said(sentence: str, family: str, hint: str = "") -> dict[str, Any]:
    return {"sentence": sentence, "family": family, "hint": hint}


IS_NEXT = said("A causal query sees the next key.", "mask")
IS_UNSCALED = said("Scores are not scaled.", "scale")
IS_LAYOUT = said("Strides are ignored.", "layout")
IS_MASK = said("The mask is inverted.", "mask")


@pytest.mark.parametrize("file", OF_KERNELS)
def test_every_kernel_has_an_expectation(file: str) -> None:
    tree = ast.parse((HERE / file).read_text(encoding="utf-8"))
    like_layers = file == "layers.py"
    kind = ast.ClassDef if like_layers else ast.FunctionDef
    written = {node.name for node in tree.body if isinstance(node, kind)} - HELPERS - {"Base"}
    written = {name for name in written if not name.startswith("_")}
    expected = Counter(k.name.split(":")[1] for k in KERNELS if k.name.split(":")[0] == file)
    assert set(expected) == written
    assert set(expected.values()) == {1}


def test_the_corpus_is_as_large_as_its_totals_need() -> None:
    assert len(FAULTY) >= 48
    assert len(PAIRS) == 20
    assert len(HEALTHY) >= 12
    assert all(len(kernel.faults) == 1 for kernel in FAULTY)
    assert all(len(kernel.faults) == 2 for kernel in PAIRS)
    backends = Counter(kernel.backend for kernel in FAULTY)
    assert min(backends["jax"], backends["tf"]) >= 6


@pytest.mark.parametrize(
    ("faults", "diagnoses", "is_called"),
    [
        ((NEXT,), [IS_NEXT], "right"),
        ((NEXT,), [IS_NEXT, IS_LAYOUT], "right"),
        ((NEXT,), [IS_LAYOUT, IS_NEXT], "later"),
        ((NEXT,), [IS_MASK], "near"),
        ((NEXT,), [said("The mask is wrong.", "mask", "`tril(diagonal=1)`")], "right"),
        ((NEXT,), [IS_LAYOUT], "wrong"),
        ((NEXT,), [], "silent"),
        ((NEXT, SCALE), [IS_UNSCALED, IS_NEXT], "right"),
        ((NEXT, SCALE), [said("Sees the next key; scores are not scaled.", "mask")], "right"),
        ((NEXT, SCALE), [IS_UNSCALED], "one"),
        ((NEXT, SCALE), [IS_LAYOUT, IS_NEXT], "later"),
        ((NEXT, SCALE), [IS_LAYOUT], "wrong"),
        ((), [], "quiet"),
        ((), [IS_NEXT], "wrong"),
    ],
)
def test_verdicts(faults: tuple[Fault, ...], diagnoses: list[Any], is_called: str) -> None:
    assert verdict(Kernel("masks.py:any", faults), diagnoses) == is_called


BY_NAME = {kernel.name: kernel for kernel in KERNELS}


@pytest.mark.parametrize(
    ("name", "options", "is_called"),
    [
        ("masks.py:reaches_next_key", ("-k", "values"), "right"),
        ("layers.py:ScaledByWholeWidth", ("-k", "values"), "right"),
        ("others.py:merged_without_maximum", (), "right"),
        ("others.py:rotated", ("-k", "values"), "quiet"),
    ],
)
def test_a_run_names_the_fault(name: str, options: tuple[str, ...], is_called: str) -> None:
    kernel = BY_NAME[name]
    outcome = judge(kernel, "smoke", *options)
    assert bool(outcome.failures) == bool(kernel.faults)
    assert verdict(kernel, outcome.diagnoses) == is_called


@pytest.mark.parametrize(
    ("name", "families"), [("mask_is_remembered", ["state"]), ("tiled_groups", [])]
)
def test_what_is_right_as_a_first_call_depends_on_earlier_calls(
    name: str, families: list[str]
) -> None:
    pytest.importorskip("torch")
    options = Options(("torch",), function=(f"{HERE}/heads.py:{name}",), cell_timeout=0.0)
    plan = Plan.make(options)
    (function,) = plan.functions
    values = all_checks()[VALUES]
    ids = (
        "sdpa/causal/mha/f32/b2h3q5k9d8",
        "sdpa/causal/mha/f32/b2h3q5k5d8",
        "sdpa/none/gqa2/f32/b2h4q5k5d8",
    )
    cells = [Cell(values, Case.parse(text), function) for text in ids]
    failing = [cell for cell in cells if judge_cell(cell).status == "fail"]
    assert failing
    found = diagnosing._of_state(plan, function, failing)
    assert [one.family for one in found] == families


@pytest.mark.slow
def test_most_faults_are_named_and_few_wrongly() -> None:
    """The aims are 80 % named, 2 % named wrongly, and both faults of half of the pairs. The floors are
    what was measured last without JAX: 105 of 105 named, both faults of 17 of 20 pairs; of kernels that
    came later 32 of 32, and both faults of 4 of 8 pairs."""
    outcomes = {kernel.name: judge(kernel) for kernel in KERNELS}
    colours = {name: outcome.code for name, outcome in outcomes.items()}
    assert [k.name for k in FAULTY + PAIRS if not colours[k.name]] == []
    assert [k.name for k in HEALTHY if colours[k.name] or outcomes[k.name].diagnoses] == []
    counts = Counter(verdict(kernel, outcomes[kernel.name].diagnoses) for kernel in FAULTY)
    assert counts["right"] >= 105
    assert counts["wrong"] <= 2
    for kernels, floor in ((PAIRS, 17), (later.FAULTY, 32), (later.PAIRS, 4)):
        named = Counter(verdict(kernel, outcomes[kernel.name].diagnoses) for kernel in kernels)
        assert named["right"] >= floor
