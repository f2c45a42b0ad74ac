"""The corpus of faulty kernels: first sentences name the faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge as judge_cell
from attention_conformance.suite.run import diagnosing
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.vocabulary import VALUES
from tests.diagnosed.expected import HERE, Kernel
from tests.diagnosed.kernels import FAULTY, HEALTHY, KERNELS, PAIRS
from tests.frozen.told import TOLD, of_kernel

(FROZEN,) = (part for part in TOLD if part.name == "told-diagnosed")


def share_of_named(kernels: Sequence[Kernel], told: Mapping[str, str]) -> float:
    """The share of kernels of which the first sentence names a fault."""
    named = [k for k in kernels if any(fault.is_named(told[k.name]) for fault in k.faults)]
    return len(named) / len(kernels)


@pytest.mark.parametrize("kernels", [FAULTY, PAIRS], ids=["one fault", "two faults"])
def test_frozen_sentences_name_nine_faults_of_ten(kernels: Sequence[Kernel]) -> None:
    told = FROZEN.read()
    assert share_of_named([k for k in kernels if k.name in told], told) >= 0.9


def test_frozen_verdicts_are_right() -> None:
    told = FROZEN.read()
    right = {name for name, text in told.items() if text == "right"}
    assert right == {kernel.name for kernel in HEALTHY} & told.keys()


@pytest.mark.slow
def test_kernels_of_jax_are_named() -> None:
    """JAX compiles every call, so that no sentence of these is frozen."""
    pytest.importorskip("jax")
    mine = [kernel for kernel in KERNELS if kernel.backend == "jax"]
    told = {kernel.name: of_kernel(kernel) for kernel in mine}
    assert [k.name for k in mine if (told[k.name] == "right") == bool(k.faults)] == []
    assert share_of_named([k for k in mine if k.faults], told) >= 0.9


@pytest.mark.parametrize(
    ("name", "families"), [("mask_is_remembered", ["state"]), ("tiled_groups", [])]
)
def test_what_is_right_as_a_first_call_depends_on_earlier_calls(
    name: str, families: list[str]
) -> None:
    pytest.importorskip("torch")
    options = Options(("torch",), function=(f"{HERE}/of_torch.py:{name}",), cell_timeout=0.0)
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
    found = diagnosing._state_diagnosis(plan, function, failing)
    assert [one.family for one in found] == families
