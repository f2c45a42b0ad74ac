"""Reports of speed: figures that can be checked by hand, laws that are known, files of asv, plots."""

from __future__ import annotations

import json
import math
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.measure.releases import LOCKS
from attention_conformance.suite.measure.run import decoded_tokens
from attention_conformance.suite.records import speed
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.report.frames import asv_results, measurements
from attention_conformance.suite.report.laws import cost_law, predicted_seconds
from attention_conformance.suite.report.speed import ASV_HISTORY
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue.workloads import WORKLOADS
from tests.processes import python
from tests.rows import timed as record
from tests.rows import timed_lengths as sweep
from tests.rows import timings as run

OURS = {"attention_conformance"}


def test_tokens_of_a_step_of_decoding_are_counted() -> None:
    """One of each sample; a packed query has none of its samples twice."""
    counted = {w.name: count for w in WORKLOADS if (count := decoded_tokens(w.case()))}
    assert counted == {
        "llama-decode": 1, "llama-decode-batch": 8, "llama-cache": 1, "llama-cache-batch": 8,
        "llama-cache-server": 64, "llama-paged-decode": 1, "llama-paged-decode-batch": 8,
        "llama-int8-decode": 1, "deepseek-decode": 1, "deepseek-decode-batch": 8, "falcon-decode": 1,
        "whisper-cross-decode": 5, "bahdanau-seq2seq": 16,
    }  # fmt: skip
    assert decoded_tokens(Case.parse("cached/none/gqa2/f32/b2h4q3k27d8/c3")) == 6
    assert (
        decoded_tokens(Case.parse("paged/none/gqa2/f32/b3h4q9k24d8/seg1.3.5x7.12.5/shared/causal"))
        == 9
    )


def test_the_law_of_cost_has_intervals_that_hold_it() -> None:
    """Samples of a known law with 3 % noise: the intervals hold the coefficients, and are not wide."""
    rng = np.random.default_rng(0)
    true = np.array([2e-5, 1e-7, 1e-9])
    entries = [
        record(
            "sdpa", 1.0, workload=f"sweep-{length}", case=f"sdpa/none/mha/f32/b1h4q{length}k{length}d64",
            keys=length, swept=True,
            samples=tuple(predicted_seconds(true, length) * rng.normal(1, 0.03, 40)),
        )
        for length in (64, 128, 256, 512, 1024)
    ]  # fmt: skip
    few = sweep("eager", lambda n: 1e-9 * n * n, (64, 128, 256))
    frame = measurements([run(*entries, *few)])
    (row,) = cost_law(frame).to_dict("records")
    assert row["implementation"] == "torch:sdpa"
    for name, exact in (("a_us", 20), ("b_us", 0.1), ("c_ns", 1.0)):
        assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
        assert row[f"{name}_low"] <= exact <= row[f"{name}_high"]
    assert row["c_ns_high"] - row["c_ns_low"] < 0.5
    assert row["worst_misfit"] < 0.05
    assert cost_law(measurements([run(*few)])).empty


@pytest.mark.parametrize("text", ['{"result_columns": ["result"], "results": []}', "[" * 100_000])
def test_results_of_asv_of_wrong_types_are_one_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "a-env.json").write_text(text)
    with pytest.raises(RecordError, match="not a result file of asv"):
        asv_results(tmp_path)


@pytest.mark.parametrize("sample", [0.0, -1.0, float("nan"), float("inf")])
def test_a_sample_that_cannot_be_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sample: float
) -> None:
    path = speed.save(tmp_path / "speed.jsonl", run(record("sdpa", 0.02, samples=(0.02, sample))))
    assert main(["report", str(path), f"--plots={tmp_path / 'plots'}"]) == 2
    said = capsys.readouterr().err
    assert "line 2: Expected `float`" in said
    assert "at `$.samples[1]`" in said
    assert not (tmp_path / "plots").exists()


ASV = {
    "commit_hash": "a" * 40, "env_name": "virtualenv-py3.11", "date": 1_700_000_000_000,
    "params": {"machine": "box"}, "python": "3.11",
    "result_columns": ["result", "params", "version", "stats_ci_99_a", "stats_ci_99_b"],
    "results": {
        "bench_jax.Forward.time_forward": [
            [0.5, None], [["'case'"], ["'jax-nn'", "'jax-nn@jit'"]], "protocol-1",
            [0.4, None], [0.6, None],
        ],
        "bench_jax.Conformance.track_cells": [[12], [["'pass'"]], "protocol-1"],
        "bench_jax.Broken.time_it": [None, [], "protocol-1"],
    },
}  # fmt: skip


def test_results_of_asv_become_a_frame(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "results"
    (folder / "box").mkdir(parents=True)
    (folder / "benchmarks.json").write_text("{}")
    (folder / "box" / "machine.json").write_text("{}")
    with pytest.raises(RecordError, match="expected result files, a sweep, or"):
        asv_results(folder)
    (folder / "box" / "aaaa-env.json").write_text(json.dumps(ASV))
    frame = asv_results(folder)
    timed, none, counted, broken = frame.to_dict("records")
    assert (timed["value"], timed["low"], timed["high"]) == (0.5, 0.4, 0.6)
    shown = [timed[name] for name in ("parameters", "machine", "version")]
    assert shown == ["case, jax-nn", "box", "protocol-1"]
    assert timed["date"].year == 2023
    assert math.isnan(none["value"])
    assert counted["value"] == 12
    assert math.isnan(broken["value"])
    later = ASV | {"commit_hash": "b" * 40, "date": ASV["date"] + 86_400_000}
    later["results"] = {"bench_jax.Conformance.track_cells": [[13], [["'pass'"]], "protocol-1"]}
    (folder / "box" / "aaa-env.json").write_text(json.dumps(later))
    wide = ASV_HISTORY.make(asv_results(folder))
    assert list(wide) == ["2023-11-14 aaaaaaaa", "2023-11-15 bbbbbbbb"]
    assert list(wide.xs("bench_jax.Conformance.track_cells").iloc[0]) == [12, 13]
    assert main(["report", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "bench_jax.Conformance.track_cells" in out
    assert "2023-11-15 bbbbbbbb" in out
    (folder / "box" / "bbbb-env.json").write_text("{}")
    with pytest.raises(RecordError, match="bbbb-env"):
        asv_results(folder)


def test_asv_measures_releases_in_environments_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """asv itself reads the configuration and lists its environments."""
    locks = [f"--lock={name}" for name in ("jax-0.8.1", "jax-0.9.2")]
    assert main(["releases", str(tmp_path), *locks]) == 0
    path = tmp_path / "asv.conf.json"
    assert capsys.readouterr().out == f"asv run --config {path} --bench bench_jax 'HEAD^!'\n"
    configuration = json.loads(path.read_text())
    assert Path(configuration["benchmark_dir"], "bench_jax.py").exists()
    (install,) = configuration["install_command"]
    assert "numpy==2.4.6" in install
    assert "jaxlib" not in install, "pip chooses the one of the release"
    program = (
        "import sys; from asv.config import Config; from asv.environment import get_environments; "
        "print(*(e.name for e in get_environments(Config.load(sys.argv[1]), [])))"
    )
    done = python("-c", program, str(path), check=True, cwd=tmp_path)
    names = [name.partition("-jax")[2] for name in done.stdout.split()]
    assert names == ["0.8.1", "0.9.2"]
    assert main(["releases", str(tmp_path), *locks]) == 2
    assert "is not overwritten" in capsys.readouterr().err


def test_locks_pin_everything_but_the_framework_alike() -> None:
    kept = {
        frozenset(
            line
            for line in path.read_text().splitlines()
            if not line.startswith(("jax==", "jaxlib=="))
        )
        for path in LOCKS.glob("jax-*.txt")
    }
    assert len(kept) == 1


@pytest.mark.parametrize("path", sorted(LOCKS.glob("*.txt")), ids=lambda path: path.stem)
def test_locks_have_what_the_benchmarks_import(path: Path) -> None:
    """The benchmarks, and the plan of the cells that they count, with nothing but the lock installed."""
    pinned = {line.partition("==")[0] for line in path.read_text().splitlines()}
    installed = metadata.packages_distributions()
    absent = {top for top, names in installed.items() if not pinned & {canonical(n) for n in names}}
    program = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent - OURS!r}:
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
from attention_conformance.suite import checks
from attention_conformance.suite.benchmarks import bench_jax
from attention_conformance.suite.run import plan
checks.all_checks()
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr


def canonical(name: str) -> str:
    """A distribution's name as the locks spell it."""
    return name.replace("-", "_").lower()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("jax-0.9.2", "jax>=0.9.2\n", "expected a line jax==0.9.2, as in the file's name"),
        ("torch-2.13.0", "torch==2.13.0\n", "expected lock files of jax, got torch-2.13.0"),
    ],
)
def test_a_lock_that_pins_no_release_is_refused(
    tmp_path: Path, name: str, text: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{name}.txt"
    path.write_text(text)
    assert main(["releases", str(tmp_path / "made"), f"--lock={path}"]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_plots_are_drawn_into_a_new_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
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
    pytest.importorskip("matplotlib")
    path = speed.save(tmp_path / "speed.jsonl", run(record("sdpa", 0.02, **absent)))
    assert main(["report", str(path), f"--plots={tmp_path / 'plots'}"]) == 0
    assert not list((tmp_path / "plots").glob("exact-*"))
