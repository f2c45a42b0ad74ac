"""The verdict that `bench` writes for programs has the times, with intervals, and agrees with its exit
code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.measure import gate, protocol
from attention_conformance.suite.measure.gate import GateOutcome
from attention_conformance.suite.measure.options import BenchOptions
from attention_conformance.suite.measure.verdict import bench_verdict

pytestmark = pytest.mark.clock

CASE = "sdpa/none/mha/f32/b1h4q16k1024d64"
"""Multiplying so few queries by signs, which calls with new inputs add, takes little beside the call."""

ARRAYS = "tests.isolated:backend"


def bench(path: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the verdict of a run of `bench`."""
    common = ["bench", f"--backend={ARRAYS}", f"--workload={CASE}", "--direction=forward"]
    code = main([*common, f"--verdict={path}", *words])
    return code, json.loads(path.read_bytes())


def test_times_have_intervals(tmp_path: Path) -> None:
    words = ("--function=tests/isolated.py:attend", "--isolate", "--samples=9")
    code, verdict = bench(tmp_path / "a.json", *words)
    assert (code, verdict["verdict"], verdict["exit_code"]) == (0, "right", 0)
    (time,) = verdict["times"]
    assert (time["case"], time["implementation"], time["samples"]) == (CASE, "attend", 9)
    assert 0 < time["low"] <= time["seconds"] <= time["high"]
    assert verdict["functions"] == ["attend"]
    assert 0 < verdict["worst"]["error_ratio"] < 1
    assert verdict["first_failure"] is None


def test_a_wrong_answer_has_no_time(tmp_path: Path) -> None:
    words = ("--function=tests/isolated.py:attend_too_much", "--isolate", "--samples=2")
    code, verdict = bench(tmp_path / "a.json", *words)
    assert (code, verdict["verdict"], verdict["times"]) == (gate.WRONG, "wrong", [])
    assert verdict["first_failure"]["kind"] == "value"
    assert verdict["first_failure"]["error_ratio"] > 1


def test_a_usage_error_is_a_reason(tmp_path: Path) -> None:
    code, verdict = bench(tmp_path / "a.json", "--function=tests/isolated.py:absent")
    assert (code, verdict["verdict"]) == (gate.NOTHING, "not judged")
    assert "has no 'absent'" in verdict["reasons"][0]
    with pytest.raises(SystemExit):
        main(["bench", "--backend=numpy", "--verdict-fd"])
    assert main(["bench", "--backend=numpy", "--verdict-fd=999"]) == gate.NOTHING


def test_a_gate_says_the_ratio() -> None:
    pairs = {"verdict": [0.1] * 20}
    outcome = GateOutcome(
        "w", CASE, "forward", gate.REGRESSION, "slower", 1.1, 1.05, 1.2, 2.0, 1.8, pairs=pairs
    )
    verdict = bench_verdict(gate.REGRESSION, BenchOptions(), outcomes=[outcome])
    assert (verdict.verdict, verdict.reasons) == ("slower", ("slower",))
    (time,) = verdict.times
    assert (time["seconds"], time["baseline"], time["ratio"]) == (2.0, 1.8, 1.1)
    assert (time["low"], time["high"], time["samples"]) == (1.05, 1.2, 20)
    assert protocol.interval(range(20))[0] > 0
