"""Doors: every way of calling `pytest suite`, what a wrong one is told, and parts of a run. For other
projects: prefixed options, a plugin that costs nothing, names that others have."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from attention_conformance.suite.records import cells as records
from attention_conformance.suite.spec.catalogue import find
from tests.processes import CONTROL, ROOT, Done, python, run

ONE_FILE = "suite/test_extremes.py"
ONE_CHECK = "attention_conformance.suite.test_extremes"

FEW = (*CONTROL, "--level=smoke", "--dtype=f32")
"""A whole run of one implementation."""


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    results = tmp_path_factory.mktemp("smoke") / "numpy.jsonl"
    return run("suite", *FEW, f"--results={results}"), results


def test_the_control_passes_everything_it_supports(smoke) -> None:  # type: ignore[no-untyped-def]
    out, results = smoke
    assert out.returncode == 0, out.stdout[-3000:]
    loaded = records.load(results)
    assert set(loaded.totals) == {"pass", "unsupported"}
    assert loaded.totals["pass"] > 100
    assert loaded.header.partial, "some implementations and dtypes were left out"
    assert loaded.header.cells == len(loaded.cells)
    assert loaded.header.digest == records.digest(c.key for c in loaded.cells)
    assert loaded.header.versions["numpy"]
    measured = [c for c in loaded.cells if c.check == "values"]
    assert all(
        c.error_ratio is not None and c.error_ratio <= 1 for c in measured if c.status == "pass"
    )
    for cell in loaded.cells:
        case = find(cell.case)
        assert (cell.operator, cell.features) == (case.operator.name, case.needs)
    assert {c.question for c in loaded.cells if c.check == "election"} >= {"fully-masked-row"}
    assert "grouped-heads" in {name for c in measured for name in c.features}


def test_results_are_never_overwritten(smoke) -> None:  # type: ignore[no-untyped-def]
    _, results = smoke
    before = results.read_bytes()
    out = run(ONE_FILE, *CONTROL, f"--results={results}")
    assert out.returncode == 4
    assert "nothing is overwritten" in out.stderr
    assert results.read_bytes() == before


def test_shards_merge_to_the_whole_run(smoke, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    _, whole = smoke
    parts = []
    for shard in ("1/2", "2/2"):
        path = tmp_path / f"{shard[0]}.jsonl"
        words = (*FEW, f"--shard={shard}", f"--results={path}")
        assert run("suite", *words).returncode == 0
        parts.append(records.load(path))
    merged = records.merge(parts)
    assert {c.key for c in merged.cells} == {c.key for c in records.load(whole).cells}
    assert min(len(p.cells) for p in parts) > 20
    with pytest.raises(records.IncompleteShards):
        records.merge(parts[:1])


def test_xdist_gives_the_same_records(smoke, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    _, whole = smoke
    path = tmp_path / "parallel.jsonl"
    files = ("suite/test_values.py", "suite/test_elections.py")
    out = run(*files, *FEW, "-n", "2", f"--results={path}")
    assert out.returncode == 0, out.stdout[-2000:]
    one, other = records.load(whole), records.load(path)

    def verdicts(loaded: records.Run) -> dict:
        asked = (c for c in loaded.cells if c.check in ("values", "election"))
        return {c.key: (c.status, c.message, c.error_ratio) for c in asked}

    assert len(other.cells) == len(verdicts(other))
    assert verdicts(one) == verdicts(other)
    assert one.header.digest == other.header.digest


def test_a_failing_test_is_no_cell_though_its_id_looks_like_one(tmp_path: Path) -> None:
    own = tmp_path / "test_own.py"
    own.write_text(
        "import pytest\n\n\n@pytest.mark.parametrize('name', ['torch:eager/none/mha/f32/empty'])\n"
        "def test_own(name):\n    assert not name\n"
    )
    out = run(ONE_FILE, str(own), *CONTROL, "--level=smoke")
    assert out.returncode == 1, out.stdout + out.stderr
    assert "RIGHT: 14 of 14 judged cells" in out.stdout
    assert "1 failed, 14 passed" in out.stdout


def test_stale_expectations_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "odd_adapter.py").write_text(
        "from pathlib import Path\n"
        "from attention_conformance.backends._numpy.backend import NumpyBackend\n"
        "class Mine(NumpyBackend):\n"
        "    name = 'mine'\n"
        "    expectations = Path(__file__).with_name('mine.toml')\n"
        "backend = Mine()\n"
    )
    entry = (
        "[[expect]]\nimplementation = ['definition']\ncheck = ['values']\ncase = ['sdpa/diagonal/*']\n"
        "kind = 'value'\nmessage = 'x'\ncause = 'y'\nissue = 'none found'\nversions = ['numpy>=1']\n"
    )

    (tmp_path / "mine.toml").write_text(entry)
    out = run(
        "suite/test_values.py", "-k=f32/b1h1q1k1d1", "--level=smoke", "--backend=odd_adapter:backend",
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )  # fmt: skip
    assert out.returncode != 0
    assert "matches no cell of the catalogue" in out.stdout + out.stderr


OWN_OPTIONS = """
def pytest_addoption(parser):
    parser.addoption("--backend", default="theirs")
    parser.addoption("--level", default="theirs")
"""

THEIRS = """
def test_theirs(request):
    assert request.config.getoption("--backend") == "theirs"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(OWN_OPTIONS)
    (tmp_path / "test_theirs.py").write_text(THEIRS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def test_prefixed_options_stand_beside_those_of_another_project(project: Path) -> None:
    few = (word.replace("--", "--attention-") for word in FEW)
    words = ("--pyargs", ONE_CHECK, "test_theirs.py", *few, "--attention-results=r.jsonl")
    out = run(*words, cwd=project)
    assert out.returncode == 0, out.stdout + out.stderr
    assert "numpy:definition" in out.stdout
    assert (project / "r.jsonl").stat().st_size > 1000


def test_a_failing_cell_is_judged_again_by_prefixed_options(project: Path) -> None:
    words = ("--attention-backend=tests.miniatures:always_wrong", "--attention-level=smoke")
    out = run("--pyargs", ONE_CHECK, *words, "-n1", cwd=project, env={"PYTHONPATH": str(ROOT)})
    assert out.returncode == 1
    assert "--attention-backend=tests.miniatures:always_wrong --attention-level=smoke" in out.stdout


def test_a_project_that_does_not_ask_sees_nothing_and_pays_nothing(project: Path) -> None:
    assert run("test_theirs.py", cwd=project).returncode == 0
    assert "attention" not in run("--help", cwd=project).stdout
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
    assert run(name, cwd=project).returncode == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [("attention-conformance ben", {"bench"}), ("attention-conformance describe --he", {"--help"})],
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


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("torch", ["attention_conformance.suite", "list", "--level=smoke"], 2),
        ("numpy", ["pytest", "-p", "attention_conformance.suite.plugin", "--pyargs", ONE_CHECK], 4),
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
