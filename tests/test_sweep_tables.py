"""Tables and differences of sweeps: what many seeds say, read run by run. What docs/sweeps.md shows can
be used: plan, words, tables, the jobs for Kubernetes and Slurm."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.records.cells import CellRecord, Run
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.records.searches import FoundRecord, SearchHeader, SearchRun, save
from attention_conformance.suite.report.diff import NothingInCommon, compare_paths
from attention_conformance.suite.report.kinds import SWEEPS, kind_of
from attention_conformance.suite.report.swept import read_sweeps
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.sweep import tasks_of
from tests.rows import cell, header

ONE, TWO = "sdpa/none/mha/f32/b2h3q5k7d8", "sdpa/causal/mha/f32/b2h3q5k7d8"


def swept(
    folder: Path,
    *cells: CellRecord,
    seed: int = 0,
    release: str = "",
    parts: int = 1,
    **options: Any,
) -> Path:
    """The folder of a sweep with one more run, of these cells, in so many shards."""
    stated = {"backend": ["torch"], "level": "smoke", "mode": "eager", "seed": seed, **options}
    of_run = header(*cells, options=stated | {"release": release})
    for part in range(1, parts + 1):
        shard = f"{part}/{parts}" if parts > 1 else ""
        name = f"run{seed}{release}{options}{shard}".replace(" ", "").replace("/", "of")
        Run(replace(of_run, shard=shard), cells[part - 1 :: parts]).save(folder / f"{name}.jsonl")
    return folder


def table(name: str, *folders: Path) -> pd.DataFrame:
    """A table of sweeps."""
    return SWEEPS.make(read_sweeps(folders), [name])[name]


def test_a_folder_is_a_sweep_and_every_table_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = swept(tmp_path / "one", cell(ONE))
    assert kind_of(folder) is SWEEPS
    assert main(["report", str(folder)]) == 0
    said = capsys.readouterr().out
    for name in SWEEPS.tables:
        assert f"\n{name.replace('_', ' ').capitalize()}\n" in said
    assert main(["report", str(folder), "--table", "statuses"]) == 2
    assert "Seeds of one case are not independent" in " ".join(said.split())
    assert "these tables need records of conformance" in capsys.readouterr().err


def test_several_sweeps_are_read_together_and_none_twice(tmp_path: Path) -> None:
    folder = swept(tmp_path / "one", cell(ONE), cell(TWO), parts=2)
    more = swept(tmp_path / "more", cell(ONE, seed=77), seed=77)
    assert len(read_sweeps([folder, more])["swept_runs"]) == 2
    with pytest.raises(RecordError, match="is given twice"):
        read_sweeps([folder, more, folder])
    with pytest.raises(RecordError, match="the folders hold no records"):
        read_sweeps([tmp_path / "empty"])


def test_differences_are_those_of_the_runs_that_both_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for seed in range(3):
        swept(old, cell(ONE, seed=seed), cell(TWO, seed=seed), seed=seed)
    for seed in range(1, 4):
        worse = {"status": "fail", "kind": "value"} if seed == 2 else {}
        swept(new, cell(ONE, seed=seed), cell(TWO, seed=seed, **worse), seed=seed, versions=1)
    comparison = compare_paths(old, new, {})
    (change,) = comparison["changes"].to_dict("records")
    assert (change["change"], change["seed"], change["case"]) == ("new failure", 2, TWO)
    assert comparison["alone"].to_numpy().tolist() == [
        ["torch smoke installed seed 0", "old"], ["torch smoke installed seed 3", "new"],
    ]  # fmt: skip
    (header,) = comparison["headers"].to_dict("records")
    assert (header["field"], header["runs"]) == ("options.versions", 2), "each once"
    assert main(["diff", str(old), str(new)]) == 1
    assert "new failure" in capsys.readouterr().out
    assert main(["diff", str(old), str(old)]) == 0
    with pytest.raises(NothingInCommon):
        compare_paths(old, swept(tmp_path / "other", cell(ONE, seed=9), seed=9), {})


def found(case: str, said: str = "element", **fields: Any) -> FoundRecord:
    """A way of failing that a search found."""
    record = FoundRecord("torch:sdpa", "values", "value", "f32", said, "fail", case, "off by 3")
    return replace(record, **fields)


def test_searches_are_counted_and_each_cause_is_listed_once(tmp_path: Path) -> None:
    asked = {"backend": ["torch"], "dtype": ["f32"], "mode": "eager", "gradients": True}
    small, large = "sdpa/none/mha/f32/b1h1q1k1d1", "sdpa/none/mha/f32/b1h1q1k1d10"
    ways = {0: [found(large, times=2)], 1: [found(small, times=3), found(large, "other")], 2: []}
    for seed, records in ways.items():
        header = SearchHeader(
            options=asked | {"seed": seed}, examples=5, statuses={"pass": 9, "fail": len(records)},
            seconds=36.0,
        )  # fmt: skip
        save(tmp_path / f"{seed}.jsonl", SearchRun(header, tuple(records)))
    save(tmp_path / "3.jsonl", SearchRun(SearchHeader(options=asked | {"seed": 3}), ()))
    (row,) = table("searched", tmp_path).reset_index().to_dict("records")
    assert (row["backends"], row["dtypes"], row["gradients"]) == ("torch", "f32", "yes")
    assert [row[name] for name in ("seeds", "died", "examples", "pass", "fail")] == [
        4,
        1,
        15,
        27,
        3,
    ]
    assert row["core_hours"] == pytest.approx(0.03)
    first, second = table("found", tmp_path).reset_index().to_dict("records")
    assert (first["case"], first["times"], first["seeds"], first["seed"]) == (small, 5, 2, 0)
    assert (second["case"], second["times"]) == (large, 1)
    assert main(["report", str(tmp_path)]) == 0


DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = (DOCS / "sweeps.md").read_text(encoding="utf-8")


def test_the_plan_is_one() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    every = tasks_of(tomllib.loads(text))
    assert {task.release for task in every} == {"installed", "jax-0.8.1", "jax-0.9.2"}
    assert len(every) == 20 * 4 + 3 * 20 + 100


def test_every_table_is_told() -> None:
    told = PAGE[PAGE.index("### Tables") : PAGE.index("### Kubernetes")]
    rows = re.findall(r"^\| (`.*?`) \|", told, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(SWEEPS.tables)


def test_the_job_for_kubernetes() -> None:
    """Its plan and its command, and the version of Ray that is known to be good."""
    plan, _, job = yaml.safe_load_all((DOCS / "sweep-job.yaml").read_text(encoding="utf-8"))
    assert len(tasks_of(tomllib.loads(plan["data"]["plan.toml"]))) == 40
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:5] == ["python", "-m", "suite", "sweep", "/plan/plan.toml"]
    assert {"--results=/results/sweep", "--cluster=auto"} <= {*words}
    constraints = (DOCS.parent / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert f"ray=={job['spec']['rayClusterSpec']['rayVersion']}" in constraints


def array(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """What a task of the array for Slurm does, where Python says what it was asked for."""
    fake = folder / "python"
    fake.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(DOCS / "slurm-array.sh"), "torch", "smoke", "7"], capture_output=True, text=True,
        env=os.environ | {"PATH": path, "RESULTS": "there", **variables},
    )  # fmt: skip


def slurm(part: int, first: int, last: int) -> dict[str, str]:
    """The variables of a task of an array of neighbouring parts."""
    numbers = {"ID": part, "MIN": first, "MAX": last, "COUNT": last - first + 1}
    return {f"SLURM_ARRAY_TASK_{name}": str(number) for name, number in numbers.items()}


@pytest.mark.parametrize("variables", [slurm(3, 1, 40), slurm(3, 3, 3) | {"OF": "40"}])
def test_the_array_for_slurm(tmp_path: Path, variables: dict[str, str]) -> None:
    said = array(tmp_path, **variables).stdout.split()
    flags = dict(word.removeprefix("--").split("=", 1) for word in said if word.startswith("--"))
    results = flags["results"]
    assert results == "there/torch-smoke-7-3.jsonl"
    words = {**flags, "backend": (flags["backend"],), "seed": int(flags["seed"])}
    options = Options.from_lookup(lambda name: words.get(name))
    assert options.part() == (3, 40)
    assert (options.backend, options.level, options.seed) == (("torch",), "smoke", 7)


@pytest.mark.parametrize(
    "variables", [slurm(7, 7, 7), slurm(1, 1, 9) | {"SLURM_ARRAY_TASK_COUNT": "2"}]
)
def test_an_array_of_some_parts_must_say_of_how_many(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    refused = array(tmp_path, **variables)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "say of how many they are: OF=40 sbatch" in refused.stderr
