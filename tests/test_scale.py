"""What docs/sweeps.md shows can be used: plan, words, tables, the jobs for Kubernetes and Slurm."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from attention_conformance.suite.report.kinds import SWEEPS
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.sweep import tasks_of

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


def pinned(name: str) -> str:
    """The version of a package that is known to be good with the others."""
    constraints = (DOCS.parent / "constraints.txt").read_text(encoding="utf-8")
    (version,) = re.findall(rf"^{name}==(\S+)$", constraints, re.MULTILINE)
    return str(version)


def test_the_job_for_kubernetes() -> None:
    """Its objects, its volumes and its command."""
    plan, claim, job = yaml.safe_load_all((DOCS / "sweep-job.yaml").read_text(encoding="utf-8"))
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    head, (workers,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    assert {head["rayStartParams"]["num-cpus"], cluster["rayVersion"]} == {"0", pinned("ray")}
    assert len(tasks_of(tomllib.loads(plan["data"]["plan.toml"]))) == 40
    pod = head["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["plan"]["configMap"]["name"] == plan["metadata"]["name"]
    assert volumes["results"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    (container,) = pod["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    words = shlex.split(spec["entrypoint"])
    assert words[:4] == ["python", "-m", "suite", "sweep"]
    assert mounts == {"/plan": "plan", "/results": "results"}
    assert words[4] == "/plan/plan.toml"
    assert "--results=/results/sweep" in words
    assert "--cluster=auto" in words
    assert spec["backoffLimit"] == 0, "exit codes 1 and 3 are ends, not accidents"


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
    options = Options.of(lambda name: words.get(name))
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
