"""JAX's programs: one a call, shared by calls that differ in nothing a program depends on. Users'
functions as programs: which calls are programs, and that no verdict depends on them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs, draw
from tests.processes import run
from tests.runtimes import of

pytest.importorskip("jax")

PLAIN = "sdpa/none/mha/f32/b2h3q5k7d8"


@pytest.fixture(scope="module")
def backend() -> Backend:
    return registry.load("jax")


def inputs_of(text: str, seed: int = 0) -> Inputs:
    return draw(Case.parse(text), seed)


def double(query: Any, flag: Any) -> Any:
    return query * 2.0 if flag is True else query


def test_numbers_and_flags_of_equal_value_are_told_apart(backend: Any) -> None:
    """1 == True, and both are hashed alike."""
    query = backend.array(np.ones((2, 3)), inputs_of(PLAIN).dtype)
    eager = of(backend, "jax-nn")
    answers = []
    for flag in (True, 1):
        plain = PreparedCall(double, {"query": query, "flag": flag}, constants=("double",))
        answers.append(float(backend.jitted(eager, plain)()[0, 0]))
    assert answers == [2.0, 1.0]
    with pytest.raises(ValueError, match="names no constants"):
        backend.jitted(eager, replace(plain, constants=None))


def programs(*words: str, level: str = "smoke") -> tuple[int, int]:
    """How many programs a green run of a level asks of XLA, and how many cells pass."""
    asked = ("suite", "-p", "tests.programs", "--backend=jax", f"--level={level}", *words)
    out = run(*asked, timeout=4800)
    assert out.returncode == 0, out.stdout[-3000:]
    count, passed = (
        int(re.findall(pattern, out.stdout)[0]) for pattern in (r"programs: (\d+)", r"(\d+) passed")
    )
    return count, passed


def test_a_call_is_one_program() -> None:
    """What the suite itself computes with JAX, arrays and casts, compiles nothing for a case. One program
    tries which options XLA has."""
    count, passed = programs("--implementation=eager", "--dtype=f32", "-k", "test_values")
    assert 0 < count <= passed + 1


@pytest.mark.slow
@pytest.mark.parametrize(("level", "budget"), [("smoke", 800), ("standard", 4000)])
def test_a_level_has_a_budget_of_programs(level: str, budget: int) -> None:
    """Programs are nearly all the time of JAX. Those that are found in the cache count, too, and those
    that JAX had to forget, and compiles once more, count again."""
    count, _ = programs(level=level)
    assert 0 < count <= budget


def test_functions_see_numbers_of_64_bits_in_float64_alone(backend: Backend) -> None:
    import jax

    seen: list[str] = []

    @jax.custom_vjp
    def attend(query: Any, key: Any, value: Any) -> Any:
        seen.append(str(jax.numpy.arange(2).dtype))
        return query * 1

    def forward(*arrays: Any) -> tuple[Any, Any]:
        return attend(*arrays), arrays

    def backward(arrays: Any, cotangent: Any) -> Any:
        seen.append(str(jax.numpy.arange(2).dtype))
        return (cotangent, *(0 * array for array in arrays[1:]))

    attend.defvjp(forward, backward)
    function, _ = registry.callable_implementation(
        backend, lambda query, key, value: attend(query, key, value), "attend", {}
    )
    for dtype, integers in (("f32", "int32"), ("bf16", "int32"), ("f64", "int64")):
        inputs = draw(Case.parse(f"sdpa/none/mha/{dtype}/b2h3q5k7d8"))
        call, seen[:] = function.prepare(inputs), []
        cotangent = call()
        backend.vjp(call, ["query"], cotangent)
        _, pull = backend.pullback(call, ["query"])
        pull(cotangent)
        step = backend.timed_step(call, "backward", ["query"])(call.arguments, cotangent)
        step()
        assert {*seen} == {integers}
        assert len(seen) >= 5


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

CAUSALS = ("sdpa/causal/mha/f32/b2h3q5k7d8", "sdpa/causal/mha/f32/b3h2q5k7d8")


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
    assert len(traced) == 2  # the probe of an election is a program, too
    assert all("Tracer" in kind for kind in traced)
    plain = calls_of(function.optimized)  # loading called the function
    for check, count in (("values", 2), ("gradients", 3)):
        assert judged(plan, PLAIN, check=check)[0].status == "pass"
        assert (len(traced), plain) == (count, [])


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize(
    ("name", "plain", "causal"),
    [
        ("wrong", "fail", "fail"),
        ("branching", "pass", "pass"),
        ("in_numpy", "pass", "fail"),
        ("refusing", "pass", "unsupported"),
    ],
)
def test_verdicts_are_the_functions(
    path: Path, name: str, plain: str, causal: str, isolate: bool
) -> None:
    """Of every cell, and as without programs, in a child, too; a mask that is kept is no tracer."""
    plans = [planned(path, name, isolate=isolate), planned(path, name, optimized=True)]
    assert [plan.functions[0].optimized is None for plan in plans] == [False, True]
    for check in ("values", "gradients"):
        quick, full = (judged(plan, PLAIN, *CAUSALS, check=check) for plan in plans)
        assert [v.status for v in quick] == [plain, causal, causal], quick
        assert [(v.status, v.kind, v.message) for v in quick] == [
            (v.status, v.kind, v.message) for v in full
        ]
        if isolate:
            plans[0].functions[0].backend.link.kill(False)  # a new child compiles quickly, too


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
        for isolate in (False, True):
            (function,) = planned(path, "right", claim=(claim,), isolate=isolate).functions
            assert function.optimized is None
