"""Plots of speed and precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.records import speed
from tests.rows import timed as record
from tests.rows import timed_lengths as sweep
from tests.rows import timings as run

pytest.importorskip("matplotlib")


def test_plots_are_drawn_into_a_new_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [
        record("sdpa", 0.02),
        record("eager", 0.03),
        *sweep("sdpa", lambda n: 1e-5 + 1e-9 * n * n),
    ]
    path = speed.save(tmp_path / "speed.jsonl", run(*entries))
    folder = tmp_path / "plots"
    assert main(["report", str(path), f"--plots={folder}"]) == 0
    drawn = {p.name for p in folder.iterdir()}
    assert drawn == {
        f"{name}.{kind}"
        for name in ("time-forward-gpt2-train-f32", "exact-forward-gpt2-train-f32", "cost-forward")
        for kind in ("png", "svg", "pdf")
    }
    assert all(path.stat().st_size > 5_000 for path in folder.iterdir())
    assert "torch:sdpa" in (folder / "exact-forward-gpt2-train-f32.svg").read_text()
    capsys.readouterr()
    assert main(["report", str(path), f"--plots={folder}"]) == 2
    assert "not an empty folder" in capsys.readouterr().err


@pytest.mark.parametrize("absent", [{"flops": 0.0, "error_ratio": 0.0}, {"error_ratio": None}])
def test_plots_of_measurements_without_a_share_or_an_error(tmp_path: Path, absent: Any) -> None:
    path = speed.save(tmp_path / "speed.jsonl", run(record("sdpa", 0.02, **absent)))
    assert main(["report", str(path), f"--plots={tmp_path / 'plots'}"]) == 0
    assert not list((tmp_path / "plots").glob("exact-*"))
