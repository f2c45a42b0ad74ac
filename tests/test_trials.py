"""The trial call of a person's function: a death in it is said to be one."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.run import process
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.catalogue import find
from tests.processes import ROOT, run
from tests.test_runs import FEW, ISOLATED


@pytest.mark.parametrize(("name", "words", "how"), [
    ("ends_the_process", (), "it ended with exit code 0, unasked"),
    ("is_killed", (), "it died of SIGSEGV"),
    ("is_killed", ISOLATED, "an exit, a signal, or a crash of what it called"),
    ("holds_the_lock", (), "in holds_the_lock"),
    ("holds_the_lock", ISOLATED, "it ran too long, in holds_the_lock (faulty.py:"),
])  # fmt: skip
def test_a_death_in_the_trial_call_is_said_to_be_one(
    tmp_path: Path, name: str, words: tuple[str, ...], how: str
) -> None:
    pytest.importorskip("torch")
    function = f"{ROOT / 'tests' / 'functions' / 'faulty.py'}:{name}"
    results = tmp_path / "r.jsonl"
    asked = ("--backend=torch", f"--function={function}", "--cell-timeout=1")
    out = run(*FEW, *asked, f"--results={results}", *words)
    assert out.returncode == process.DIED
    case = "sdpa/none/mha/f32/b2h3q5k7d8"
    said = out.stdout + out.stderr
    assert f"function {function!r} killed the process in its trial call on {case}: " in said
    assert how in said
    assert not results.exists()


def planned(name: str, backend: str = "torch", path: Path | None = None) -> Plan:
    """The plan of a run of one function, whose trial call is made."""
    path = path or ROOT / "tests" / "functions" / "of_other_kinds.py"
    return Plan.make(Options(backend=(backend,), function=(f"{path}:{name}",)))


def test_an_answer_without_dense_values_is_one_sentence() -> None:
    pytest.importorskip("torch")
    from tests.functions.of_other_kinds import UNREADABLE

    for name in UNREADABLE:
        with pytest.raises(UsageError) as error:
            planned(name)
        assert "expected a dense array of torch that holds values, got torch." in str(error.value)
        assert "\n" not in str(error.value)


def test_a_tensor_that_holds_its_values_otherwise_is_judged() -> None:
    pytest.importorskip("torch")
    from tests.functions.of_other_kinds import HARMLESS

    for name in HARMLESS:
        plan = planned(name)
        (function,) = plan.implementations
        cell = Cell(all_checks()["values"], find("sdpa/none/mha/f32/b2h3q5k7d8"), function)
        assert judge(cell).status == "pass", name


TRACED = """
import jax
kept = []
def attention(query, key, value, bias=None, mask=None, *, scale=None, is_causal=False):
    jax.jit(lambda x: kept.append(x) or x)(query)
    return kept[-1]
"""


def test_a_tracer_is_no_answer(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    path = tmp_path / "traced.py"
    path.write_text(TRACED)
    with pytest.raises(UsageError, match=r"got jax\.\S*Tracer, which cannot be read"):
        planned("attention", "jax", path)
