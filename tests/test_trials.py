"""The trial call of a person's function: a death in it is said to be one."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.run import process
from tests.test_runs import FEW, ISOLATED, ROOT, run

OF_WORKERS = "an exit, a signal, or a crash of what it called"


@pytest.mark.parametrize("words", [(), ISOLATED])
@pytest.mark.parametrize(("name", "how", "of_worker"), [
    ("ends_the_process", "it ended with exit code 0, unasked", OF_WORKERS),
    ("is_killed", "it died of SIGSEGV", OF_WORKERS),
    ("holds_the_lock", "in holds_the_lock", "it ran too long, in holds_the_lock (faulty.py:"),
])  # fmt: skip
def test_a_death_in_the_trial_call_is_said_to_be_one(
    tmp_path: Path, name: str, how: str, of_worker: str, words: tuple[str, ...]
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
    assert (of_worker if words else how) in said
    assert not results.exists()
