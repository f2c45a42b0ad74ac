"""Doors for other projects: prefixed options, a plugin that costs nothing, names that others have."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, Done, python, run

OWN_OPTIONS = """
def pytest_addoption(parser):
    parser.addoption("--backend", default="theirs")
    parser.addoption("--level", default="theirs")
"""

THEIRS = """
def test_theirs(request):
    assert request.config.getoption("--backend") == "theirs"
"""


def project_run(folder: Path, *words: str, **environment: str) -> Done:
    """`pytest` in another project's folder, which knows this project as an installed package alone."""
    return run(*words, cwd=folder, env=environment)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(OWN_OPTIONS)
    (tmp_path / "test_theirs.py").write_text(THEIRS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def test_prefixed_options_stand_beside_those_of_another_project(project: Path) -> None:
    words = ("--attention-backend=numpy", "--attention-level=smoke", "--attention-results=r.jsonl")
    out = project_run(
        project, "--pyargs", "attention_conformance.suite.test_extremes", "test_theirs.py", *words
    )
    assert out.returncode == 0, out.stdout + out.stderr
    assert "numpy:definition" in out.stdout
    assert (project / "r.jsonl").stat().st_size > 1000


def test_a_failing_cell_is_judged_again_by_prefixed_options(project: Path) -> None:
    words = ("--attention-backend=tests.miniatures:always_wrong", "--attention-level=smoke")
    out = project_run(
        project,
        "--pyargs",
        "attention_conformance.suite.test_extremes",
        *words,
        "-n",
        "1",
        PYTHONPATH=str(ROOT),
    )
    assert out.returncode == 1
    assert "--attention-backend=tests.miniatures:always_wrong --attention-level=smoke" in out.stdout


def test_a_project_that_does_not_ask_sees_nothing_and_pays_nothing(project: Path) -> None:
    out = project_run(project, "test_theirs.py")
    assert out.returncode == 0
    assert "attention" not in project_run(project, "--help").stdout
    code = (
        "import sys, pytest, time\n"
        "manager, began = pytest.PytestPluginManager(), time.process_time()\n"
        "import attention_conformance.pytest_plugin as plugin\n"
        "manager.register(plugin)\n"
        "print(time.process_time() - began)\n"
        "assert not {'attention_conformance.suite', 'numpy'} & set(sys.modules)"
    )
    words = [sys.executable, "-c", code]
    spent = [
        float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        for _ in range(5)
    ]
    assert 0 < min(spent) < 0.005, spent  # seconds; the others were interrupted


@pytest.mark.parametrize("name", ["suite", "tests"])
def test_another_package_of_that_name_does_not_matter(project: Path, name: str) -> None:
    (project / name).mkdir()
    (project / name / "__init__.py").write_text("ANSWER = 42\n")
    (project / name / "test_mine.py").write_text(
        f"from {name} import ANSWER\n"
        "from attention_conformance import assert_attention_close\n"
        "def test_mine(): assert ANSWER == 42 and callable(assert_attention_close)\n"
    )
    assert project_run(project, name).returncode == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("attention-conformance ben", {"bench"}),
        ("attention-conformance list --level ", {"smoke", "standard", "full"}),
        ("attention-conformance describe --he", {"--help"}),
    ],
)
def test_shells_complete_commands_options_and_words(
    line: str, words: set[str], tmp_path: Path
) -> None:
    """As argcomplete's own shell function asks for them."""
    answers = tmp_path / "answers"
    environment = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answers),
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    python("-m", "suite", env=environment, check=True)
    completions = answers.read_text(encoding="utf-8").split("\v")
    assert {word.strip() for word in completions} == words


@pytest.mark.parametrize("name", ["torch", "numpy"])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["attention_conformance.suite", "list", "--level=smoke"], 2),
        (
            [
                "pytest",
                "-p",
                "attention_conformance.suite.plugin",
                "--pyargs",
                "attention_conformance.suite",
                "--collect-only",
            ],
            4,
        ),
    ],
)
def test_a_file_named_like_a_package_ends_in_one_sentence(
    tmp_path: Path, name: str, words: list[str], code: int
) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"needs {name}")
    (tmp_path / f"{name}.py").write_text("")
    done = python("-m", *words, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{tmp_path / name}.py is imported instead of the package {name} (")
    assert line.endswith("rename it, or start in another folder")
