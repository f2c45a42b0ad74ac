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


JUDGED = """
import numpy as np
import pytest
from attention_conformance import AttentionFailure, check_attention

torch = pytest.importorskip("torch")

def right(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale)

def wrong(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    return 1.1 * right(query, key, value, attn_mask, dropout_p, is_causal, scale)

def test_right():
    check_attention(right, backend="torch", checks=["values"])

def test_wrong():
    with pytest.raises(AttentionFailure):
        check_attention(wrong, backend="torch", checks=["values"])
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


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("package", [True, False], ids=["package", "folder"])
@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_that_name_does_not_matter(
    environment: Environment, checkout: Path, name: str, package: bool, way: str
) -> None:
    own(checkout, name, package)
    out = environment.run(way, where=checkout)
    if way == "pytest" and not package:  # pytest finds no folder that is no package
        out = environment.run(way, "test_mine.py", where=checkout)
    assert out.returncode == 0, out.stdout
    words = ("--pyargs", "attention_conformance.suite.test_extremes", "--attention-backend=numpy")
    out = environment.run(way, *words, "--attention-level=smoke", where=checkout)
    assert out.returncode == 0, out.stdout + out.stderr


def test_functions_are_judged_beside_packages_of_those_names(
    environment: Environment, checkout: Path
) -> None:
    for name in NAMES:
        own(checkout, name, package=True)
    (checkout / "test_mine.py").write_text(JUDGED)
    out = environment.run("python -m pytest", "test_mine.py", where=checkout)
    assert out.returncode == 0, out.stdout


def test_one_name_is_installed(environment: Environment, tmp_path: Path) -> None:
    pip = environment.run("python -m pip", "show", "-f", "attention-conformance", where=tmp_path)
    files = [line.strip() for line in pip.stdout.partition("Files:\n")[2].splitlines()]
    tops = {file.partition("/")[0] for file in files if not file.startswith("..")}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"attention_conformance"}
