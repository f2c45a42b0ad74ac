"""Projects of other people, with the wheel installed: each holds what is right and what is wrong. The
wheel holds what git tracks, under one name."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

import pytest

from tests.shown import FOLDERS
from tests.wheels import ROOT, WAYS, Environment, outcomes, tracked

pytestmark = pytest.mark.slow

PASSED, FAILED = {"passed"}, {"failed"}


class Project(NamedTuple):
    """A project's framework, what becomes of each of its tests, and how its failures are explained."""

    framework: str
    tests: dict[str, set[str]]
    told: tuple[str, ...]


PROJECTS = {
    "torch_closures": Project(
        "torch",
        {
            "test_blocks_of_16": PASSED,
            "test_every_size_of_blocks": PASSED,
            "test_one_call": PASSED,
            "test_wrong": PASSED | FAILED,
            "test_wrong_in_one_sweep": FAILED,
        },
        (
            r"2 workers",
            r"attention on torch, level smoke: \d+ pass, \d+ fail, ",
            r"all \d+ failures have Lk >= 17",
            r"smallest  sdpa/\S+k17d8",
            r"FAILED test_block_attention.py::test_wrong\[values/sdpa/none/mha/f32/b2h3q17k23d8\]",
            r"value: element \(b=\d.*\): got \S+, want \S+, .*, bound \S+ \(stepwise\), ratio ",
        ),
    ),
    "triton_flash": Project(
        "triton", {"test_kernel": PASSED, "test_deviations_are_red": PASSED}, (r"2 workers",)
    ),
}


@pytest.fixture(scope="module", params=PROJECTS)
def name(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(PROJECTS[request.param].framework)
    return request.param


@pytest.fixture(scope="module")
def environment(name: str, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment.create(tmp_path_factory.mktemp(name) / "environment", wheel)


@pytest.mark.parametrize("way", WAYS)
def test_a_project_of_its_own(
    name: str, environment: Environment, way: str, tmp_path: Path
) -> None:
    project, place = PROJECTS[name], tmp_path / "checkout"
    copytree(ROOT / "tests" / "outside" / name, place)
    assert environment.place(place).is_relative_to(environment.folder)

    out = environment.run(way, "--junitxml=../report.xml", where=place, timeout=1200)
    red = any("failed" in ends for ends in project.tests.values())
    assert out.returncode == int(red), out.stdout + out.stderr
    counts = outcomes(tmp_path / "report.xml")
    assert {test: set(tally) for test, tally in counts.items()} == project.tests, out.stdout
    for text in project.told:
        assert re.search(text, out.stdout), (text, out.stdout)
    # Whose file failed is said by a line of the person's own, and none of the suite's.
    assert f"{environment.folder}/lib" not in out.stdout


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment.create(tmp_path_factory.mktemp("environment") / "environment", wheel)


def test_the_wheel_holds_what_git_tracks(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    inside = "attention_conformance/"
    assert packed == {f"{inside}{name.removeprefix(inside)}" for name in tracked(*FOLDERS)}
    for part in (
        "suite/benchmarks/releases/jax-", "suite/report/page.html.jinja",
        "suite/report/page.css", "suite/report/page.js", "backends/_torch/torch.toml",
        "suite/deviations/kernels/attention.py",
        "suite/py.typed",
    ):  # fmt: skip
        assert any(name.startswith(inside + part) for name in packed), part


def test_locks_of_releases_come_with_the_wheel(installed: Environment, tmp_path: Path) -> None:
    out = installed.run("attention-conformance", "releases", "axis", where=tmp_path)
    assert "asv needs a checkout" in out.stderr, "the locks were found, and can be read"


def test_one_name_is_installed(installed: Environment, tmp_path: Path) -> None:
    pip = installed.run("python -m pip", "show", "-f", "attention-conformance", where=tmp_path)
    files = [line.strip() for line in pip.stdout.partition("Files:\n")[2].splitlines()]
    tops = {file.partition("/")[0] for file in files if not file.startswith("..")}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"attention_conformance"}
