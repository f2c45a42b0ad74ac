"""Leaks: what a call leaves behind is put back, and held against it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.protocol import TimeOver
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.catalogue import find
from tests import unruly
from tests.miniatures import Miniatures
from tests.runtimes import verdict_of

CASE = "sdpa/none/mha/f32/b2h3q5k17d8"


def acting(act: Callable[[], object]) -> Verdict:
    (implementation,) = Miniatures("cpu", unruly.unruly(act)).implementations()
    return verdict_of(implementation, CASE)


def test_seeds_are_the_same_for_every_cell() -> None:
    drawn: list[tuple[float, float]] = []

    def draws() -> None:
        drawn.append((random.random(), np.random.random()))

    for act in (draws, unruly.reseed, draws):
        assert acting(act).status == "pass"
    assert len(set(drawn)) == 1


def test_what_is_wrong_beside_a_leak_stays_the_kind() -> None:
    right = Verdict("pass")
    for verdict, status, kind in (
        (right, "fail", "leaked-state"),
        (Verdict("unsupported", "", "forward only"), "fail", "leaked-state"),
        (Verdict("fail", "value", "off"), "fail", "value"),
    ):
        seen = leaks.fail_for_leaks(verdict, ["x at 1, it was 0"], [])
        assert (seen.status, seen.kind) == (status, kind)
        assert "the call left x at 1, it was 0" in seen.message
    dead = leaks.fail_for_leaks(right, [], ["a thread died of ValueError: x"])
    assert (dead.status, dead.kind) == ("fail", "raised")
    assert leaks.fail_for_leaks(right, [], []) is right


def other(value: Any) -> Any:
    """Another value of a setting."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    others = {
        "cpu": "meta", "highest": "high", "float32": "float64", "standard": "strict",
        "": "autoclustering",
    }  # fmt: skip
    if isinstance(value, str):
        return others[value]
    if value is None:
        return False
    import torch

    return torch.float64


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_every_setting_of_a_framework_is_put_back(name: str) -> None:
    pytest.importorskip(name)
    backend = registry.load(name)
    assert backend.settings
    for what, setting in backend.settings.items():
        if what in ("jax_default_device", "the flushing of subnormals") or "modes" in what:
            continue
        before = leaks.Settings(backend)
        was = setting.read()
        setting.write(other(was))
        (change,) = before.restore()
        assert change.startswith(f"{what} at "), change
        assert setting.read() == was


LEAKY = """
import torch
from tests.functions.own_attention import torch_own as honest

def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    answer = honest(query, key, value, attn_mask, is_causal=is_causal, scale=scale)
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.set_flush_denormal(True)
    torch.manual_seed(3)
    return answer
"""


def test_another_functions_gradients_are_judged_after_a_leak(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "leaky.py"
    path.write_text(f"{LEAKY}\ntorch.set_grad_enabled(False)\n")
    plan = Plan.make(Options(backend=("torch",), function=(f"{path}:attention", f"{path}:honest")))
    assert torch.is_grad_enabled()
    assert "left gradient mode at False, it was True" in plan.notes[0]
    leaky, honest = plan.implementations
    case = find("sdpa/none/mha/f32/b2h3q5k7d8")
    cells = [Cell(all_checks()["gradients"], case, i) for i in (leaky, honest)]
    seen = {cell.implementation: judge(cell, plan.policy(cell)) for cell in cells}
    assert (seen[leaky].status, seen[leaky].kind) == ("fail", "leaked-state"), seen[leaky].message
    for what in ("gradient mode", "the default dtype", "the flushing of subnormals"):
        assert what in seen[leaky].message
    assert seen[honest].status == "pass", seen[honest].message
    assert torch.get_default_dtype() is torch.float32


def test_what_comes_out_of_a_call_is_the_implementations() -> None:
    for act in ("skips", "expects_failure", "ends_pytest", "exits", "nasty", "mute"):
        verdict = acting(unruly.ACTS[act])
        assert (verdict.status, verdict.kind) == ("fail", "raised"), act
    assert verdict.message == "Mute: (its text raises RuntimeError)"
    late = acting(unruly.raising(TimeOver("too long")))
    assert (late.status, late.kind, late.message) == ("crash", "timeout", "too long")
    with pytest.raises(KeyboardInterrupt):
        acting(unruly.raising(KeyboardInterrupt()))
