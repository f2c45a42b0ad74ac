"""Runs end, and end with the right code, whatever a kernel does to its process; records say the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from attention_conformance.suite.records import cells as records
from attention_conformance.suite.run import process
from tests.processes import CONTROL, ROOT, Done, python, run

FEW = ("suite/test_values.py", "--level=smoke", "--dtype=f32", "-k", "sdpa/ and (k17d8 or q17k9d8)")
"""Cells of which some have 17 keys."""

ISOLATED = ("-n", "1")


def judged(act: str, path: Path, *words: str) -> tuple[Done, records.Run]:
    """A run of an unruly implementation, and its records. It is silent, and diagnoses nothing."""
    out = run("-q", *FEW, f"--backend=tests.unruly:{act}", f"--results={path}", *words)
    return out, records.load(path, partial=True)


def statuses(loaded: records.Run, keys: str = "k17") -> set[tuple[str, str]]:
    """Status and kind of the cells with so many keys."""
    return {(c.status, c.kind) for c in loaded.cells if keys in c.case}


DIES, HANGS, LOCKED = ("crash", "crash"), ("crash", "timeout"), ("-k", "bool.b11k or q17k9d8")
OFTEN = ("--dtype=f64", "--dtype=bf16", "-k", "sdpa/ and (k17d or q17k9d8)", *ISOLATED)
"""More crashes than xdist replaces workers, unasked."""

RAISED = ("fail", "raised")
NASTY = r"Nasty: \x1b[31mred\x00 \ud800 \x9b2J"
THREAD = "a thread died of ValueError: raised in a thread"
DESTRUCTOR = "Raises.__del__ raised ValueError: raised by a destructor"
LIMIT = "the cell ran longer than 2 s"


@pytest.mark.parametrize(
    ("act", "words", "status", "message"),
    [
        ("skips", (), RAISED, "Skipped: not today"),
        ("ends_pytest", ISOLATED, RAISED, "Exit: enough"),
        ("thread", ("-W", "default"), RAISED, THREAD),
        ("destructor", ISOLATED, RAISED, DESTRUCTOR),
        *(("nasty", (*words, "-v"), RAISED, NASTY) for words in ((), ISOLATED)),
        ("leaves_in_c", OFTEN, DIES, "the process that judged this cell died"),
        ("hangs", ("--timeout=2", "-v"), HANGS, LIMIT),
        ("hangs", ("--cell-timeout=2", *ISOLATED), HANGS, LIMIT),
        ("holds_the_lock", ("--cell-timeout=1", *LOCKED, *ISOLATED), HANGS, "in hold_the_lock (unruly"),
    ],
)  # fmt: skip
def test_what_a_kernel_does_to_its_process_is_in_its_records_alone(
    tmp_path: Path, act: str, words: tuple[str, ...], status: tuple[str, str], message: str
) -> None:
    """The cells that do nothing pass, the run is complete, and a terminal is not told to do anything."""
    out, loaded = judged(act, tmp_path / "r.jsonl", *words)
    assert out.returncode == 1, out.stdout + out.stderr
    assert statuses(loaded) == {status}
    assert statuses(loaded, "k9") == {("pass", "")}
    assert all(message in c.message for c in loaded.cells if "k17" in c.case)
    assert loaded.complete
    assert not {"\x1b", "\x00", "\x9b"} & {*out.stdout, *out.stderr}
    assert ("replacing crashed worker" in out.stdout) <= (status[0] == "crash")
    assert "-v" not in words or message in out.stdout


def test_garbage_of_the_last_cell_is_in_its_record(tmp_path: Path) -> None:
    out, loaded = judged("garbage", tmp_path / "r.jsonl", "-k", "b3h3q11k17d8/bias")
    assert out.returncode == 1
    assert statuses(loaded) == {RAISED}


@pytest.mark.parametrize(
    ("act", "how"),
    [
        ("leaves", "ended with exit code 0"), ("aborts", "died of SIGABRT"),
        ("holds_the_lock", "in hold_the_lock"),
    ],
)  # fmt: skip
def test_the_end_of_the_process_of_a_plain_run_is_seen_by_its_parent(
    tmp_path: Path, act: str, how: str
) -> None:
    out, loaded = judged(act, tmp_path / "r.jsonl", "--cell-timeout=1")
    assert out.returncode == process.DIED, out.stdout + out.stderr
    for said in (how, "k17d8", "the run did not finish"):
        assert said in out.stderr
    assert not loaded.complete


STARTS = {
    "leaves": ("import os\nos._exit(0)\n", "as it imported frameworks and kernels"),
    "dies": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "as it imported"),
    "exits": ("import sys\nsys.exit(0)\n", "failed with SystemExit: 0"),
    "skips": ("import pytest\npytest.skip('no', allow_module_level=True)\n", "failed with Skipped"),
    "sleeps": ("import time\ntime.sleep(600)\n", "ran longer than 1 s; --start-timeout"),
    "hangs": (
        "from tests import unruly\nunruly.hold_the_lock()\n",
        "as it imported frameworks and kernels",
    ),
}
"""Modules that do not come to their end, and what is said of them."""


@pytest.mark.parametrize(
    ("name", "words"), [*((name, ()) for name in STARTS), ("dies", ISOLATED), ("hangs", ISOLATED)]
)
def test_a_run_that_cannot_begin_ends(tmp_path: Path, name: str, words: tuple[str, ...]) -> None:
    source, reason = STARTS[name]
    (tmp_path / "kernel.py").write_text(f"{source}backend = None\n")
    results = tmp_path / "r.jsonl"
    out = run(
        *FEW, "--backend=kernel:backend", "--start-timeout=1", f"--results={results}", *words,
        env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert out.returncode not in (0, 5)
    assert reason in out.stdout + out.stderr
    assert "Traceback" not in out.stdout
    assert not results.exists()


def usage(out: Done) -> str:
    """The line of a usage error."""
    return next(line for line in out.stderr.splitlines() if line.startswith("ERROR: "))


@pytest.mark.parametrize(
    "words",
    [
        ("--backend=numpy", "--implementation=flash"),
        ("--backend=tests.unruly:nobody",),
        ("--backend=adapter:backend",),
    ],
)
def test_usage_errors_of_workers_are_the_same_line(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "adapter.py").write_text(
        "from pathlib import Path\n"
        "from attention_conformance.backends._numpy.backend import NumpyBackend\n"
        "class Mine(NumpyBackend):\n"
        "    expectations = Path(__file__).with_name('mine.toml')\n"
        "backend = Mine()\n"
    )
    (tmp_path / "mine.toml").write_text("[[expect]]\nimplementation = 3\n")
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    plain, isolated = (run(*FEW, *words, *more, env=env) for more in ((), ISOLATED))
    assert plain.returncode == isolated.returncode == pytest.ExitCode.USAGE_ERROR
    assert usage(plain) == usage(isolated)
    assert "Traceback" not in isolated.stdout + plain.stdout


@pytest.mark.parametrize("words", [(), ISOLATED])
def test_headings_hold_nothing_that_a_terminal_obeys(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    folder = tmp_path / "\x1b[31m\udc80"
    folder.mkdir()
    path = folder / "mine.py"
    path.write_text("from tests.miniatures import always_wrong as backend\n")
    asked = (f"--backend={path}:backend", f"--results={folder / 'r.jsonl'}")
    out = run("-v", *FEW, *words, *asked, errors="surrogateescape")
    if words:
        assert out.returncode == pytest.ExitCode.USAGE_ERROR
        assert "cannot be handed to workers" in usage(out)
        return
    assert out.returncode == 1, out.stdout + out.stderr
    assert r"\x1b[31m\udc80/mine.py:backend on cpu" in out.stdout
    assert r"\x1b[31m\udc80/r.jsonl" in out.stdout
    assert not {"\x1b", "\udc80"} & {*out.stdout, *out.stderr}
    assert records.load(folder / "r.jsonl").totals["fail"]


def test_a_search_ends_with_the_right_code() -> None:
    words = ("search", "--case=sdpa/none/mha/f32/b2h3q5k17d8", "--cell-timeout=1", "--no-gradients")
    for act, code, said in (
        ("leaves", process.DIED, "ended with exit code 0, unasked while it judged values of"),
        ("holds_the_lock", process.DIED, "in hold_the_lock"),
        ("hangs", 1, "found 1 times: timeout"),
    ):
        out = python("-m", "suite", *words, f"--backend=tests.unruly:{act}")
        assert out.returncode == code, out.stdout + out.stderr
        assert said in out.stdout + out.stderr


def test_a_path_of_results_is_opened_first_and_stays_where_it_is(tmp_path: Path) -> None:
    words = ("-q", *FEW, "--backend=tests.unruly:folder")
    out = run(*words, "--rootdir", str(ROOT), "--results=there/r.jsonl")
    try:
        assert out.returncode == 1
        loaded = records.load(ROOT / "there" / "r.jsonl")
    finally:
        (ROOT / "there" / "r.jsonl").unlink()
        (ROOT / "there").rmdir()
    assert statuses(loaded) == {("fail", "leaked-state")}
    (message,) = {c.message for c in loaded.cells if c.status == "fail"}
    assert message == f"the call left the folder at /, it was {ROOT}"
    assert statuses(loaded, "k9") == {("pass", "")}
    for place in ("/dev/null/r.jsonl", str(tmp_path)):
        out = run(*words, f"--results={place}")
        assert out.returncode == pytest.ExitCode.USAGE_ERROR
        assert f"--results={place}" in usage(out)


LEAVES_OUT = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    return True if "k9d8" in item.nodeid else None
"""

BREAKS_LATER = """
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    yield
    if "k9d8" in item.nodeid:
        raise RuntimeError("in the end")
"""


def test_a_run_knows_which_cells_it_owes(tmp_path: Path) -> None:
    (tmp_path / "leaves_out.py").write_text(LEAVES_OUT)
    path = tmp_path / "r.jsonl"
    out = run(
        *FEW, *CONTROL, "-p", "leaves_out", f"--results={path}",
        env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert out.returncode == 1
    assert "cells have no verdict, the first is suite/test_values.py" in out.stdout
    assert not records.load(path, partial=True).complete


def test_what_breaks_after_the_verdict_is_in_the_record(tmp_path: Path) -> None:
    (tmp_path / "breaks_later.py").write_text(BREAKS_LATER)
    path = tmp_path / "r.jsonl"
    out = run(
        *FEW, *CONTROL, "-p", "breaks_later", f"--results={path}",
        env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert out.returncode == 1
    loaded = records.load(path)
    assert statuses(loaded, "k9") == {("error", "harness")}
    assert statuses(loaded) == {("pass", "")}


def test_a_framework_that_fails_to_import_fails_a_run_of_all(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so: not found')\n")
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    program = (
        "import sys; from attention_conformance.backends import registry; "
        "few = {name: registry.REGISTRY[name] for name in ('numpy', 'torch')}; "
        "registry.registered = lambda: few; "
        f"import pytest; sys.exit(pytest.main({['-q', '-p', 'no:cacheprovider', *FEW]!r} + sys.argv[1:]))"
    )
    out = python("-c", program, "--backend=all", env=env)
    assert out.returncode == 1, out.stdout + out.stderr
    assert "not installed" not in out.stdout
    assert "torch is installed, and failed to import: ImportError: libcudart" in out.stdout
    one = run(*FEW, "--backend=torch", env=env)
    assert one.returncode == pytest.ExitCode.USAGE_ERROR
    assert "backend torch cannot be used: installed, and failed to import" in usage(one)


def test_threads_are_one_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    for number, (words, env, count) in enumerate([
        (("--threads=3",), {}, "3"),
        (ISOLATED, {}, "1"),
        ((), {"OMP_NUM_THREADS": "5"}, "5"),
    ]):  # fmt: skip
        path = tmp_path / f"{number}.jsonl"
        plain = {n: v for n, v in os.environ.items() if "THREADS" not in n} | env
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FEW, *words]
        out = subprocess.run(
            [*command, *CONTROL, f"--results={path}"],
            cwd=ROOT, capture_output=True, text=True, env=plain,
        )  # fmt: skip
        assert out.returncode == 0, out.stdout
        header = records.load(path).header
        assert header.machine["thread_variables"]["OMP_NUM_THREADS"] == count
        assert header.options["threads"] == (3 if "--threads=3" in words else 1)
