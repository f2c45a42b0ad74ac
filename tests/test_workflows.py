"""Workflows: what they promise about safety and about what they keep, read from the files themselves."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from attention_conformance.suite.records.cells import Run
from attention_conformance.suite.records.findings import KERAS, manifests
from tests.rows import cell, run

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def content(path: Path) -> dict[str, Any]:
    """A workflow; YAML reads its key `on` as true."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in document.items()}


def steps(path: Path) -> list[dict[str, Any]]:
    """All steps of a workflow or an action."""
    document = content(path)
    runs = [*document.get("jobs", {}).values(), document.get("runs", {})]
    return [step for each in runs for step in each.get("steps", [])]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_do_little_and_runs_once(path: Path) -> None:
    workflow = content(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "concurrency" in workflow
    triggers = workflow["on"]
    if "pull_request" in triggers:
        # A push to the branch of a pull request would run everything a second time.
        assert triggers["push"] == {"branches": ["main"]}
        assert workflow["concurrency"]["cancel-in-progress"] is True
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 120, name
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", ""), "values reach a shell through env"


def test_whoever_may_write_does_little_else() -> None:
    allowed = {("speed", "nightly"): {"contents"}, ("nightly", "publish"): {"pages", "id-token"},
               ("nightly", "tell"): {"issues"}}  # fmt: skip
    writing = {}
    for path in WORKFLOWS:
        for name, job in content(path)["jobs"].items():
            permissions = {
                what for what, how in job.get("permissions", {}).items() if how == "write"
            }
            if permissions:
                writing[path.stem, name] = permissions
    assert writing == allowed


def test_every_supported_python_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {
        text.rpartition(" ")[2]
        for text in project["classifiers"]
        if text.startswith("Programming Language :: Python :: 3.")
    }
    job = content(ROOT / ".github/workflows/tests.yml")["jobs"]["tests"]
    assert {entry["python"] for entry in job["strategy"]["matrix"]["include"]} == named
    assert named == {"3.11", "3.12", "3.13"}


def test_scripts_of_findings_run_for_every_backend_and_with_pre_releases() -> None:
    paths = [ROOT / ".github/workflows" / name for name in ("conformance.yml", "nightly.yml")]
    matrix = content(paths[0])["jobs"]["judge"]["strategy"]["matrix"]
    assert {*manifests()} - {KERAS} <= {*matrix["backend"]}
    for path in paths:
        commands = [step.get("run", "") for step in steps(path)]
        assert any("tests/test_findings.py -k" in command for command in commands)


class Night:
    """A folder in which nightly runs are compared, one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.last, self.number = folder, folder / "last" / "run.jsonl", 0

    def compare(self, new: Run | None) -> tuple[int, str]:
        """The exit code, and what `regression.md` says."""
        self.number += 1
        path = self.folder / f"{self.number}.jsonl"
        if new is not None:
            new.save(path)
        told = self.folder / "regression.md"
        told.unlink(missing_ok=True)
        out = subprocess.run(
            [sys.executable, str(ROOT / ".ci" / "nightly.py"), str(path), "last"],
            cwd=self.folder, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert "Traceback" not in out.stderr, out.stderr
        return out.returncode, told.read_text() if told.exists() else ""

    @property
    def kept(self) -> int:
        """The number of the run that is the last whole one."""
        files = [self.folder / f"{n}.jsonl" for n in range(1, self.number + 1)]
        return next(
            n for n, path in enumerate(files, 1)
            if path.exists() and path.read_bytes() == self.last.read_bytes()
        )  # fmt: skip


A, B = cell(), cell("sdpa/causal/mha/f32/b2h3q5k7d8")


def test_nights_are_compared_with_the_last_whole_one(tmp_path: Path) -> None:
    night = Night(tmp_path)
    assert night.compare(run(A, B)) == (0, "")
    assert night.kept == 1
    code, told = night.compare(run(A, complete=False, cells=2, started="second"))
    assert (code, night.kept) == (1, 1)
    assert "did not finish: 1 of 2 cells" in told
    code, told = night.compare(run(A, cells=2, started="third"))
    assert (code, night.kept) == (1, 1), "a run that left cells out is not whole"
    failing = cell(B.case, status="fail", kind="value", message="far off")
    code, told = night.compare(run(A, failing, started="fourth"))
    assert (code, night.kept) == (1, 4)
    for text in ("new failure", B.case, "far off", "torch 2.13.0"):
        assert text in told
    assert night.compare(run(A, failing, started="fifth")) == (0, "")


def test_a_night_without_a_file_is_told(tmp_path: Path) -> None:
    night = Night(tmp_path)
    code, told = night.compare(None)
    assert code == 1
    assert "cannot be read" in told
    assert not night.last.exists()
