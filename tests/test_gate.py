"""The gate, `bench` and files of speed: verdicts of times, and when there are none."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.commands import parsed
from attention_conformance.suite.measure import command, gate, protocol
from attention_conformance.suite.measure.options import BenchOptions
from attention_conformance.suite.records import speed
from attention_conformance.suite.records.speed import SpeedRecord
from attention_conformance.suite.spec.catalogue.workloads import QUICK, WORKLOADS
from attention_conformance.suite.spec.vocabulary import DIRECTIONS
from tests.rows import timed

ROOT = Path(__file__).resolve().parents[1]
CASE = "sdpa/causal/mha/f32/b2h3q65k65d16"


def test_the_interval_of_so_many_values_is_that_of_the_tables() -> None:
    """Ranks for 99 %, from the smallest and from the largest, as tables of the sign test have them."""
    for count, rank in ((7, 0), (8, 1), (10, 1), (20, 4), (25, 6), (50, 16), (100, 37)):
        low, high = protocol.interval(range(1, count + 1))
        assert (low, high) == ((rank, count + 1 - rank) if rank else (-np.inf, np.inf))
    assert protocol.interval(range(1, 26), 0.95) == (8, 18)
    assert protocol.interval([]) == (-np.inf, np.inf)


def pairs_of(ratio: float, noise: float, seed: int, twin: float) -> dict[str, list[float]]:
    rng = np.random.default_rng(seed)
    drawn = {"verdict": ratio, "twin": twin, "injected": 1.0 + gate.INJECTED}
    return {n: list(np.log(r) + noise * rng.normal(size=60)) for n, r in drawn.items()}


TIMES = {"candidate": [1.0], "baseline": [1.0]}


@pytest.mark.parametrize(
    ("ratio", "noise", "twin", "code"),
    [
        (1.00, 0.01, 1.0, gate.OK),
        (1.05, 0.01, 1.0, gate.REGRESSION),
        (0.90, 0.01, 1.0, gate.OK),
        (1.05, 0.30, 1.0, gate.NOISY),
        (1.00, 0.30, 1.0, gate.NOISY),
        # On a machine on which two equal workers differ by 4 % a regression may be none.
        (1.05, 0.01, 1.04, gate.NOISY),
    ],
)
def test_verdicts(ratio: float, noise: float, twin: float, code: int) -> None:
    outcome = gate.GateOutcome("w", CASE, "forward", gate.OK)
    pairs = (pairs_of(ratio, noise, seed, twin) for seed in range(20))
    assert {gate.judge(outcome, one, TIMES).code for one in pairs} == {code}


def test_the_worst_outcome_decides() -> None:
    by_code = {c: gate.GateOutcome("w", CASE, "forward", c) for c in range(5)}
    assert gate.exit_code_of([by_code[gate.OK], by_code[gate.NOTHING]]) == gate.OK
    assert gate.exit_code_of([by_code[gate.NOTHING]]) == gate.NOTHING
    assert gate.exit_code_of([]) == gate.NOTHING
    assert gate.exit_code_of([by_code[gate.OK], by_code[gate.NOISY]]) == gate.NOISY
    assert gate.exit_code_of([by_code[gate.NOISY], by_code[gate.REGRESSION]]) == gate.REGRESSION
    assert gate.exit_code_of(list(by_code.values())) == gate.WRONG
    died = gate.GateOutcome("w", CASE, "forward", gate.NOTHING, broken=True)
    assert gate.exit_code_of([by_code[gate.OK], died]) == gate.NOTHING


def record(implementation: str = "sdpa", **changes: Any) -> SpeedRecord:
    return timed(implementation, 0.02, **changes)


RIGHT = ROOT / "tests" / "functions" / "of_torch.py"
WRONG = ROOT / "tests" / "diagnosed" / "of_torch.py"


def test_bench_times_a_function_and_refuses_a_wrong_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["bench", "--backend=torch", f"--workload={CASE}", "--mode=eager", "--quick"]
    common.append("--direction=forward")
    results = tmp_path / "speed.jsonl"
    functions = [f"--function={RIGHT}:textbook", f"--function={WRONG}:reaches_next_key"]
    assert main([*common, *functions, f"--results={results}"]) == gate.WRONG
    out = capsys.readouterr().out
    right, wrong = speed.load(results).records
    assert right.status in ("timed", "unsettled")  # on a busy machine times do not settle
    assert f"1 {right.status}, 1 refused" in out
    assert len(right.samples) == 5
    assert 0 < right.share_of_gemm <= 1  # type: ignore[operator]
    assert right.peak_bytes
    assert right.first_call > 0  # type: ignore[operator]
    assert (wrong.status, wrong.kind, wrong.samples) == ("refused", "value", ())
    assert main([*common, functions[0], f"--results={results}"]) == gate.NOTHING
    assert "nothing is overwritten" in capsys.readouterr().err


def test_the_gate_never_times_a_wrong_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "gate.json"
    words = ["--backend=tests.miniatures:one_wrong", "--implementation=alwayswrong"]
    words += ["--against=miniature", f"--workload={CASE}", "--seconds=0.1", f"--results={results}"]
    assert main(["bench", *words]) == gate.WRONG
    assert "WRONG ANSWER" in capsys.readouterr().out
    (verdict,) = json.loads(results.read_text())
    assert "candidate (alwayswrong): value" in verdict["message"]


def bench_options(*words: str) -> BenchOptions:
    """The options that a command line of `bench` means."""
    _, options = parsed(["bench", "--backend=numpy", *words])
    return command.completed(options)


def test_without_a_workload_bench_takes_a_first_look() -> None:
    look = bench_options()
    assert [w.name for w in look.workloads] == list(QUICK)
    assert (look.directions, look.count) == (["forward"], 5)
    assert bench_options("--direction=backward", "--samples=2").directions == ["backward"]
    assert bench_options("--samples=2").count == 2
    every = bench_options("--workload=all")
    assert every.workloads == list(WORKLOADS)
    assert (every.directions, every.count) == (list(DIRECTIONS), protocol.SAMPLES)


def test_times_stand_side_by_side_under_the_names_of_workloads() -> None:
    records = [
        record(workload="gpt2-train"),
        record("eager", workload="gpt2-train", status="unsettled"),
        record(workload="llama-decode", status="refused", samples=()),
        record(workload="gpt2-train", direction="backward"),
        *(record(workload=f"w{n}") for n in range(4)),
    ]
    assert list(command.side_by_side(records)) == [
        "",
        "ms forward f32  gpt2-train  llama-decode      w0      w1      w2",
        "torch:sdpa          20.000       refused  20.000  20.000  20.000",
        "torch:eager        ~20.000",
        "",
        "ms forward f32      w3",
        "torch:sdpa      20.000",
        "",
        "ms backward f32  gpt2-train",
        "torch:sdpa           20.000",
        "",
    ]


UNRULY = """
from tests.miniatures import Miniature, Miniatures
from tests.unruly import ACTS, unruly

def backend(device):
    return Miniatures(device, Miniature, unruly(ACTS[{act!r}]), Twin)

class Twin(Miniature):
    pass
"""


@pytest.mark.parametrize(
    ("act", "kind", "said"),
    [
        ("leaves", "crash", "the worker ended with exit code 0"),
        ("holds_the_lock", "timeout", "the worker was ended: 'open' took longer than 8 s"),
    ],
)
def test_a_worker_that_ends_costs_one_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str, kind: str, said: str
) -> None:
    (tmp_path / "mixed.py").write_text(UNRULY.format(act=act))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    case, path = "sdpa/none/mha/f32/b2h3q5k17d8", tmp_path / "speed.jsonl"
    limit = 8 if kind == "timeout" else 100
    common = ["bench", "--backend=mixed:backend", f"--workload={case}", f"--cell-timeout={limit}"]
    words = ["--direction=forward", "--samples=2", f"--results={path}"]
    assert main([*common, *words]) == gate.NOTHING
    by_name = {r.implementation: r for r in speed.load(path).records}
    assert (by_name["unruly"].status, by_name["unruly"].kind) == ("error", kind)
    assert said in by_name["unruly"].message
    for name in ("miniature", "twin"):
        assert by_name[name].status in speed.TIMED
        assert len(by_name[name].samples) == 2
    if act == "leaves":
        against = ["--implementation=miniature", "--against=unruly", "--seconds=0.1"]
        assert main([*common, *against]) == gate.NOTHING


def test_a_worker_that_does_not_start_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(["bench", "--backend=slow:backend", "--start-timeout=1"]) == gate.NOTHING
    assert "the worker was ended: 'start' took longer than 1 s" in capsys.readouterr().err


def test_a_revision_is_no_option_of_git(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, victim = tmp_path / "kernels.py", tmp_path / "victim"
    path.write_text(RIGHT.read_text())
    victim.write_text("kept")
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    words = ["bench", "--backend=numpy", f"--function={path}:textbook"]
    assert main([*words, f"--against=commit:--output={victim}"]) == gate.NOTHING
    assert "git rev-parse" in capsys.readouterr().err
    assert victim.read_text() == "kept"


def test_a_malformed_command_line_is_no_wrong_answer() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--backend=torch", "--foo"])
    assert ended.value.code == gate.NOTHING == main(["bench", "--backend=torch", "--samples=0"])


@pytest.mark.slow
def test_the_gate_sees_what_a_commit_made_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel of an earlier commit against itself, and against one that waits 1 ms."""

    def git(*words: str) -> None:
        who = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
        subprocess.run(("git", *who, *words), cwd=tmp_path, check=True, capture_output=True)

    (path := tmp_path / "kernels.py").write_text(kernels := RIGHT.read_text())
    git("init", "--quiet")
    git("add", "kernels.py")
    git("commit", "--quiet", "-m", "right")
    gated = [
        "bench", "--backend=torch", f"--function={path}:textbook", "--against=commit:HEAD",
        f"--workload={CASE}", "--seconds=20",
    ]  # fmt: skip
    assert main(gated) == gate.OK, capsys.readouterr().out
    slow = "    import time; time.sleep(1e-3)\n    return scores.softmax(-1) @ value"
    path.write_text(kernels.replace("    return scores.softmax(-1) @ value", slow))
    assert main(gated) == gate.REGRESSION, capsys.readouterr().out
    assert "time.sleep" in path.read_text()
