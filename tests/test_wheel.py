"""The wheel: it holds what git tracks, under one name."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.shown import FOLDERS
from tests.wheels import Environment, tracked

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment.create(tmp_path_factory.mktemp("environment") / "environment", wheel)


def test_the_wheel_holds_what_git_tracks(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    inside = "attention_conformance/"
    assert packed == {f"{inside}{name.removeprefix(inside)}" for name in tracked(*FOLDERS)}
    for part in (
        "suite/benchmarks/releases/jax-", "suite/report/page.html.jinja",
        "suite/report/page.js", "backends/_torch/torch.toml", "suite/deviations/kernels/attention.py",
        "suite/py.typed",
    ):  # fmt: skip
        assert any(name.startswith(inside + part) for name in packed), part


def test_locks_of_releases_come_with_the_wheel(environment: Environment, tmp_path: Path) -> None:
    out = environment.run("attention-conformance", "releases", "axis", where=tmp_path)
    assert "asv needs a checkout" in out.stderr, "the locks were found, and can be read"


def test_one_name_is_installed(environment: Environment, tmp_path: Path) -> None:
    pip = environment.run("python -m pip", "show", "-f", "attention-conformance", where=tmp_path)
    files = [line.strip() for line in pip.stdout.partition("Files:\n")[2].splitlines()]
    tops = {file.partition("/")[0] for file in files if not file.startswith("..")}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"attention_conformance"}
