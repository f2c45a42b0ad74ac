"""The wheel: it holds what git tracks, and works beside folders that have its packages' names."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.shown import FOLDERS
from tests.wheels import WAYS, Environment, tracked

pytestmark = pytest.mark.slow

NAMES = ("suite", "backends", "references", "tests")

MINE = """
import numpy as np
from attention_conformance import assert_attention_close

def test_mine():
    ones = np.ones((1, 1, 2, 2))
    assert assert_attention_close(ones, ones, ones, ones) <= 1
"""


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment.create(tmp_path_factory.mktemp("environment") / "environment", wheel)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A person's own checkout, with one test of the public package."""
    (tmp_path / "test_mine.py").write_text(MINE)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q -p no:cacheprovider\n")
    return tmp_path


def own(checkout: Path, name: str, package: bool) -> None:
    """Put a folder with a module into a checkout, and a test that imports it."""
    (checkout / name).mkdir()
    (checkout / name / "helpers.py").write_text("ANSWER = 42\n")
    if package:
        (checkout / name / "__init__.py").touch()
    (checkout / "test_helpers.py").write_text(
        f"from {name}.helpers import ANSWER\n\ndef test_helpers():\n    assert ANSWER == 42\n"
    )


def test_the_wheel_holds_what_git_tracks(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == set(tracked(*FOLDERS))
    for part in (
        "suite/benchmarks/releases/jax-", "suite/report/page.html.jinja",
        "suite/report/page.js", "backends/_torch/torch.toml", "suite/faults/kernels/attention.py",
        "suite/py.typed",
    ):  # fmt: skip
        assert any(name.startswith(part) for name in packed), part


def test_locks_of_releases_come_with_the_wheel(environment: Environment, tmp_path: Path) -> None:
    out = environment.run("attention-conformance", "releases", "axis", where=tmp_path)
    assert out.returncode == 0, out.stderr
    assert out.stdout.endswith("bench_jax\n")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("package", [True, False], ids=["package", "folder"])
@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_that_name_works_or_is_told(
    environment: Environment, checkout: Path, name: str, package: bool, way: str
) -> None:
    own(checkout, name, package)
    out = environment.run(way, where=checkout)
    if name == "tests":
        assert out.returncode == 0, out.stdout
        assert "2 passed" in out.stdout
    elif package:
        # The person's own package goes before ours, and the suite cannot be imported beside it.
        assert "ERROR test_mine.py" in out.stdout
        assert f"ImportError: the package '{name}' is imported from {checkout}" in out.stdout
        assert "rename the other one" in out.stdout
        assert "ERROR test_helpers.py" not in out.stdout
    else:
        # Ours goes before the folder: the public package works, what lies in the folder is hidden.
        assert "ERROR test_mine.py" not in out.stdout
        assert (
            f"hides a folder called '{name}' without __init__.py: rename the folder" in out.stdout
        )
        alone = environment.run(way, "test_mine.py", where=checkout)
        assert alone.returncode == 0, alone.stdout


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_the_suite_beside_a_package_of_that_name(
    environment: Environment, checkout: Path, name: str, way: str
) -> None:
    own(checkout, name, package=True)
    words = ("--pyargs", "attention_conformance.suite.test_extremes", "--attention-backend=numpy")
    out = environment.run(way, *words, "--attention-level=smoke", where=checkout)
    told = f"the package '{name}' is imported from {checkout}" in out.stderr
    # Plain `pytest` has no folder of the person's on its path, so that ours are the first.
    assert told == (name != "tests" and way == "python -m pytest"), out.stdout + out.stderr
    assert out.returncode == (4 if told else 0), out.stdout + out.stderr
