"""Users' functions of JAX as programs: which calls are programs, and that no verdict depends on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.levels import AS_CALLED

pytest.importorskip("jax")

FUNCTIONS = """
from functools import lru_cache
import jax
import jax.numpy as jnp
import numpy as np

calls = []

def right(query, key, value, is_causal=False):
    calls.append(type(query).__name__)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
    if is_causal:
        scores = jnp.where(mask_of(*scores.shape[-2:]), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)

@lru_cache
def mask_of(rows, columns):
    return jnp.tri(rows, columns, dtype=bool)

def wrong(query, key, value, is_causal=False):
    return right(query * 1.1, key, value, is_causal)

def branching(query, key, value, is_causal=False):
    return right(query, key, value, is_causal) if (query > 0).any() else value

def in_numpy(query, key, value, is_causal=False):
    answer = right(query, key, value, is_causal)
    return np.asarray(answer) if is_causal else answer

def refusing(query, key, value, is_causal=False):
    if is_causal:
        raise NotImplementedError("is_causal is not supported")
    return right(query, key, value)

stored = {}

def forgetful(query, key, value, is_causal=False):
    stored.setdefault(key.shape, key)
    return right(query, stored[key.shape], value, is_causal)

def overflowing(query, key, value, is_causal=False):
    far = right(query * 300, key * 300, value, is_causal)
    return far * 0 + right(query, key, value, is_causal)
"""

PLAIN = "sdpa/none/mha/f32/b2h3q5k7d8"
CAUSAL = ("sdpa/causal/mha/f32/b2h3q5k7d8", "sdpa/causal/mha/f32/b3h2q5k7d8")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("functions") / "functions_of_jax.py"
    path.write_text(FUNCTIONS)
    return path


def planned(path: Path, name: str, **options: Any) -> Plan:
    return Plan.make(Options(backend=("jax",), function=(f"{path}:{name}",), **options))


def judged(plan: Plan, *cases: str, check: str = "values") -> list[Verdict]:
    (function,) = plan.functions
    cells = [Cell(all_checks()[check], Case.parse(case), function) for case in cases]
    return [judge(cell, plan.policy(cell)) for cell in cells]


def calls_of(function: Any) -> list[str]:
    """What the function was called with, from now on: the kinds of arrays."""
    calls: list[str] = function.called.__globals__["calls"]
    calls.clear()
    return calls


def test_a_function_is_traced_once_and_not_called_again(path: Path) -> None:
    plan = planned(path, "right")
    (function,) = plan.functions
    assert function.optimized is not None
    traced = calls_of(function)
    assert judged(plan, PLAIN)[0].status == "pass"
    assert len(traced) == 1
    assert "Tracer" in traced[0]
    plain = calls_of(function.optimized)  # elections called the function
    for check, count in (("values", 1), ("gradients", 2)):
        assert judged(plan, PLAIN, check=check)[0].status == "pass"
        assert (len(traced), plain) == (count, [])


def test_checks_of_calls_and_a_share_of_values_call_the_function(path: Path) -> None:
    plan = planned(path, "right")
    (function,) = plan.functions
    plain = calls_of(function.optimized)
    for check in ("stateless", "gradient_contract"):
        assert AS_CALLED[check] == 1
        assert judged(plan, PLAIN, check=check)[0].status == "pass"
        assert plain
        plain.clear()
    contract = list(all_checks()["contract"].cells("standard", [function]))
    share = sum(cell.asks_optimized for cell in contract) / len(contract)
    assert 0.5 / AS_CALLED["contract"] < share < 2 / AS_CALLED["contract"]


@pytest.mark.parametrize(
    ("name", "plain", "causal"),
    [
        ("wrong", "fail", "fail"),
        ("branching", "pass", "pass"),
        ("in_numpy", "pass", "fail"),
        ("refusing", "pass", "unsupported"),
    ],
)
def test_verdicts_are_the_functions(path: Path, name: str, plain: str, causal: str) -> None:
    """Of every cell, and as without programs; a mask that is kept is no tracer."""
    plans = [planned(path, name), planned(path, name, optimized=True)]
    assert [plan.functions[0].optimized is None for plan in plans] == [False, True]
    for check in ("values", "gradients"):
        quick, full = (judged(plan, PLAIN, *CAUSAL, check=check) for plan in plans)
        assert [v.status for v in quick] == [plain, causal, causal], quick
        assert [(v.status, v.kind, v.message) for v in quick] == [
            (v.status, v.kind, v.message) for v in full
        ]


def test_what_a_program_stored_is_no_part_of_the_verdict(path: Path) -> None:
    """The function that answers from an earlier call fails for its answer, and names no tracer."""
    (verdict,) = judged(planned(path, "forgetful"), PLAIN, check="stateless")
    assert (verdict.status, "Tracer" in verdict.message) == ("fail", False), verdict


def test_programs_round_where_operations_do(path: Path) -> None:
    """Scores beyond float16 are infinite in a program, too."""
    (function,) = planned(path, "overflowing").functions
    cell = Cell(all_checks()["values"], Case.parse(PLAIN.replace("f32", "f16")), function)
    assert not cell.asks_optimized
    assert "nan" in str(cell.prepare(cell.inputs)())


def test_promises_about_calls_or_bits_need_the_function(path: Path) -> None:
    for claim in ("bitwise=batch", "forbid=jax.nn.dot_product_attention"):
        (function,) = planned(path, "right", claim=(claim,)).functions
        assert function.optimized is None
