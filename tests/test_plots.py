"""Plots of speed and precision."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.records import speed
from attention_conformance.suite.report import plots
from attention_conformance.suite.report.frames import measurements
from attention_conformance.suite.report.kinds import conformance_frames
from tests.rows import cell
from tests.rows import run as run_of_cells
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


def test_precision_is_drawn_of_what_is_no_control(tmp_path: Path) -> None:
    cells = [cell(implementation=f"torch:{name}", error_ratio=0.5) for name in ("sdpa", "eager")]
    judged = run_of_cells(*cells, cell("sdpa/none/mha/f32/b1h1q1k1d8", error_ratio=math.inf))
    judged = replace(judged, header=replace(judged.header, controls=("torch:eager",)))
    drawn = dict(plots.pictures(conformance_frames(judged)))
    (axis,) = drawn["precision-f32"].axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["torch:sdpa"]
    assert "torch 2.13.0; 2026-11-20" in drawn["precision-f32"].get_supxlabel()


def test_the_front_names_what_none_beats_in_time_and_precision(tmp_path: Path) -> None:
    entries = [
        record("fast", 0.01, error_ratio=0.5),
        record("exact", 0.04, error_ratio=0.1),
        record("beaten", 0.05, error_ratio=0.2),
    ]
    runs = [run(*entries)]
    frames = {"measurements": measurements(runs), "timed": {"a": runs[0].header}}
    (axis,) = dict(plots.pictures(frames))["exact-forward-gpt2-train-f32"].axes
    assert "nearer: torch:fast, torch:exact" in axis.get_xlabel()
    (line,) = (line for line in axis.lines if line.get_drawstyle() == "steps-post")
    assert line.get_ydata().tolist() == [0.5, 0.1]


def test_pictures_of_forty_implementations_can_be_read() -> None:
    """Nothing is cut off, and no text lies on another one."""
    draw = random.Random(0)
    names = [f"a-rather-long-name-of-a-kernel-{n}" for n in range(40)]
    backends = dict(zip(names, ("torch", "tf", "jax", "keras-torch") * 10, strict=True))
    entries = [
        record(name, draw.uniform(1e-3, 1), backend=backend, error_ratio=draw.uniform(1e-3, 1))
        for name, backend in backends.items()
    ]
    swept = [
        replace(one, backend=backend)
        for name, backend in backends.items()
        for one in sweep(name, lambda n: 1e-9 * n * n)
    ]
    runs = [run(*entries, *swept)]
    cells = [
        cell(implementation=f"{b}:{n}", error_ratio=draw.random()) for n, b in backends.items()
    ]
    frames = {"measurements": measurements(runs), "timed": {"a": runs[0].header}}
    drawn = dict(plots.pictures(frames | conformance_frames(run_of_cells(*cells))))
    assert len(drawn) == 4
    for figure in drawn.values():
        figure.draw_without_rendering()
        whole = figure.bbox
        (axis,) = figure.axes
        low, high = axis.get_ylim()
        ticks = [t for t in axis.get_yticklabels() if low <= t.get_position()[1] <= high]
        texts = [*axis.texts, *ticks, figure._supxlabel]
        texts += [text for legend in figure.legends for text in legend.get_texts()]
        texts = [text for text in texts if text.get_text()]
        boxes = [text.get_window_extent().padded(-0.5) for text in texts]
        assert len(boxes) >= 40
        for number, box in enumerate(boxes):
            assert whole.x0 <= box.x0 < box.x1 <= whole.x1
            assert whole.y0 <= box.y0 < box.y1 <= whole.y1
            beside = [n for n, other in enumerate(boxes[:number]) if box.overlaps(other)]
            assert not beside, (texts[number], texts[beside[0]])


@pytest.mark.parametrize("absent", [{"flops": 0.0, "error_ratio": 0.0}, {"error_ratio": None}])
def test_plots_of_measurements_without_a_share_or_an_error(tmp_path: Path, absent: Any) -> None:
    path = speed.save(tmp_path / "speed.jsonl", run(record("sdpa", 0.02, **absent)))
    assert main(["report", str(path), f"--plots={tmp_path / 'plots'}"]) == 0
    assert not list((tmp_path / "plots").glob("exact-*"))
