"""The front door: every way of calling `pytest suite`, and what each wrong way is told."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.__main__ import main
from attention_conformance.suite.records import cells as records
from attention_conformance.suite.records.lines import TruncatedRun
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.catalogue import find
from tests.test_shown import options_of_pytest

ROOT = Path(__file__).resolve().parents[1]

ONE_FILE = "suite/test_extremes.py"

FEW = ("--backend=numpy", "--level=smoke", "--implementation=definition", "--dtype=f32")
"""A whole run of one implementation."""


def run(*words: str, cwd: Path = ROOT, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """`pytest ...` in a process of its own, without the cache folder."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess, Path]:
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


def test_the_summary_says_verdict_precision_and_records(smoke) -> None:  # type: ignore[no-untyped-def]
    out, results = smoke
    for text in ("RIGHT: ", "numpy:definition", "unsupported)", f"records: {results}"):
        assert text in out.stdout
    assert "Elections" not in out.stdout


def test_results_are_never_overwritten(smoke) -> None:  # type: ignore[no-untyped-def]
    _, results = smoke
    before = results.read_bytes()
    out = run(ONE_FILE, "--backend=numpy", f"--results={results}")
    assert out.returncode == 4
    assert "nothing is overwritten" in out.stderr
    assert results.read_bytes() == before


USAGE = [
    (["--backend=caffe"], "unknown backend 'caffe'; valid: numpy, torch, tf, jax"),
    (["--backend=numpy", "--level=huge"], "valid: smoke, standard, full"),
    (["--backend=numpy", "--dtype=f8"], "valid: f64 (float64)"),
    (["--backend=numpy", "--implementation=flash"], "valid: numpy:definition"),
    (["--backend=numpy", "--shard=3/2"], "expected --shard=i/n"),
    (["--backend=numpy", "--shard=1/" + "1" * 5000], "expected --shard=i/n"),
    (["--backend=numpy", "--numerics=exact"], "none is given"),
    (["--backend=numpy", "--backend=torch", "--function=x.py:f"], "exactly one --backend"),
    (["--backend=tf", "--backend=keras-jax"], "KERAS_BACKEND is process-global"),
    (["--backend=numpy", "--function=nowhere.py:f"], "there is no file nowhere.py"),
    (["--backend=no.such.module:x"], "importing no.such.module failed"),
    (["--backend=tests.miniatures:ONE"], "has no 'ONE'"),
    (["--backend=numpy", "--device=tpu"], "unknown device 'tpu'; valid: cpu, cuda"),
    (["--backend=numpy", "--device=cuda"], "is judged on cpu only, not on cuda"),
]


@pytest.mark.parametrize(("words", "hint"), USAGE)
def test_usage_errors_list_what_would_be_right(words: list[str], hint: str) -> None:
    """Options as pytest reads them, in this process."""
    with pytest.raises(UsageError) as error:
        planned(words)
    assert hint in str(error.value)


def planned(words: list[str]) -> Plan:
    options = options_of_pytest(words)
    options.check()
    return Plan.make(options)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "choose what to judge with --backend=NAME; installed here: numpy"),
        (["--results=x.jsonl"], "need a --backend"),
        (["--backend=caffe"], "unknown backend 'caffe'"),
        (["--backend=numpy", "--threads=1" + "1" * 5000], "of at most 18 digits, got '1"),
    ],
)
def test_a_usage_error_ends_the_run(words: list[str], hint: str) -> None:
    out = run(ONE_FILE, "--collect-only", *words)
    assert out.returncode != 0
    assert hint in " ".join((out.stdout + out.stderr).split()), out.stdout + out.stderr


def test_broken_implementations_fail_with_the_command_to_run_again(tmp_path: Path) -> None:
    results = tmp_path / "r.jsonl"
    out = run(
        "suite/test_values.py", "--backend=tests.miniatures:always_wrong", "--level=smoke",
        "--dtype=f32", "-k", "sdpa and q17k23", f"--results={results}",
    )  # fmt: skip
    assert out.returncode == 1
    assert "values of mini:alwayswrong: " in out.stdout
    assert (
        "again     pytest 'suite/test_values.py::test_values[mini:alwayswrong/sdpa/" in out.stdout
    )
    loaded = records.load(results)
    assert loaded.header.partial
    assert loaded.totals["fail"] > 5
    # The command that is printed runs just that cell.
    line = next(x for x in out.stdout.splitlines() if x.strip().startswith("again     pytest '"))
    node = line.split("'")[1]
    again = run(node, "--backend=tests.miniatures:always_wrong", "--level=smoke")
    assert "1 failed" in again.stdout


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
    out = run(ONE_FILE, str(own), "--backend=numpy", "--level=smoke")
    assert out.returncode == 1, out.stdout + out.stderr
    assert "RIGHT: 14 of 14 judged cells" in out.stdout
    assert "1 failed, 14 passed" in out.stdout


def test_a_crash_is_one_cell_and_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "crash.jsonl"
    out = run(
        "-q", "suite/test_values.py", "--backend=tests.miniatures:segfaults", "--level=smoke", "-n", "1",
        "-k", "k17 or k23", f"--results={path}",
    )  # fmt: skip
    assert out.returncode == 1
    loaded = records.load(path)
    crashes = [c for c in loaded.cells if c.status == "crash"]
    assert len(crashes) > 4, "xdist's own limit of restarts must not end the run"
    assert all("k17" in c.case and c.kind == "crash" for c in crashes)
    assert loaded.totals["pass"] > 5
    assert not [c for c in loaded.cells if c.status in ("fail", "error")]


@pytest.mark.parametrize("words", [(), ("-n", "1", "--timeout-method=thread")])
def test_a_hang_is_a_timeout_in_its_own_cell(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "hang.jsonl"
    out = run(
        "-q", "suite/test_values.py", "--backend=tests.miniatures:hangs", "--level=smoke", "--dtype=bf16",
        "-k", "k17d or k47d", "--timeout=2", f"--results={path}", *words,
    )  # fmt: skip
    assert out.returncode == 1
    loaded = records.load(path)
    stopped = [c for c in loaded.cells if c.status == "crash"]
    assert stopped
    assert all("k17" in c.case for c in stopped)
    assert loaded.totals["pass"] >= 1
    assert loaded.header.partial


def test_a_killed_run_leaves_its_records(tmp_path: Path) -> None:
    path = tmp_path / "killed.jsonl"
    run(
        "suite/test_values.py", "--backend=tests.miniatures:segfaults", "--level=smoke",
        "--dtype=f32", f"--results={path}",
    )  # fmt: skip
    with pytest.raises(TruncatedRun, match="no footer"):
        records.load(path)
    assert records.load(path, partial=True).cells


def test_a_third_party_checkout_can_judge_its_own_backend(tmp_path: Path) -> None:
    (tmp_path / "my_adapter.py").write_text(
        "from attention_conformance.backends._numpy.backend import NumpyBackend\n"
        "class Mine(NumpyBackend):\n"
        "    name = 'mine'\n"
        "backend = Mine()\n"
    )
    out = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         "-p", "attention_conformance.suite.plugin",
         "--pyargs", "attention_conformance.suite.test_extremes",
         "--backend=my_adapter:backend", "--level=smoke"],
        cwd=tmp_path, capture_output=True, text=True,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert out.returncode == 0, out.stdout + out.stderr
    assert "mine:definition" in out.stdout


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
        "[[expect]]\nimplementation = ['definition']\ncheck = ['values']\ncase = ['{}']\n"
        "kind = 'value'\nmessage = 'x'\ncause = 'y'\nissue = 'none found'\nversions = ['numpy>=1']\n"
    )

    def judge(pattern: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "mine.toml").write_text(entry.format(pattern))
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
             str(ROOT / "suite/test_values.py"), "-k=f32/b1h1q1k1d1", "--level=smoke",
             "--backend=odd_adapter:backend"],
            cwd=ROOT, capture_output=True, text=True,
            env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"},
        )  # fmt: skip

    stale = judge("sdpa/diagonal/*")
    assert stale.returncode != 0
    assert "matches no cell of the catalogue" in stale.stdout + stale.stderr
    wrong = judge("sdpa/none/mha/f32/b1h1q1k1d1")
    assert wrong.returncode == 1
    assert "unexpected-pass" in wrong.stdout


def test_a_draft_of_expectations_from_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "r.jsonl"
    run("-q", "suite/test_values.py", "--backend=tests.miniatures:always_wrong", "--level=smoke",
        "--dtype=bf16", f"--results={results}")  # fmt: skip
    words = ["expect", "--write", str(results)]
    assert main(words) == 0
    entries = tomllib.loads(capsys.readouterr().out)["expect"]
    assert {name for entry in entries for name in entry["implementation"]} == {"alwayswrong"}
    target = tmp_path / "draft.toml"
    target.write_text("precious")
    assert main([*words, "--output", str(target)]) == 2
    assert target.read_text() == "precious"
