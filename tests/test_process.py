"""Processes: children end at their limit, and say where they stood. What a call leaves of its process is
restored and said, and what the process lacks is one sentence. A death in the trial call of a person's
function is said to be one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.run import process
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from tests.processes import CONTROL, ROOT, python, run
from tests.test_runs import FEW, ISOLATED, judged, usage
from tests.unruly import LEAKS

PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.environ["WORD"], child.pid, flush=True)
if len(sys.argv) > 1:
    time.sleep(600)
child.kill()
sys.exit(3)
"""


def test_a_command_ends_at_its_limit_with_its_own_children(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    code, said = process.run_module(["parent"], tmp_path, {"WORD": "word"}, 60.0)
    assert (code, said.split()[0]) == (3, "word")
    code, said = process.run_module(["parent", "hang"], tmp_path, {"WORD": "word"}, 2.0)
    assert code is None
    wait_for_end(int(said.split()[1]))


GRANDPARENT = """
import os, sys
from pathlib import Path
os.register_at_fork(before=lambda: os._exit(1))  # as JAX warns: its threads are not safe in a fork
from attention_conformance.suite.run import process
process.run_module(["endless"], Path.cwd(), {})
"""


def test_a_command_dies_with_the_process_that_started_it_without_a_fork(tmp_path: Path) -> None:
    (tmp_path / "grandparent.py").write_text(GRANDPARENT)
    (tmp_path / "endless.py").write_text(
        "import os, time; open('pid', 'w').write(f'{os.getpid()} '); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "grandparent.py"], cwd=tmp_path) as parent:
        while not (file := tmp_path / "pid").is_file() or not file.read_text().endswith(" "):
            assert parent.poll() is None
            time.sleep(0.1)
        parent.kill()
    wait_for_end(int(file.read_text()))


def wait_for_end(pid: int, seconds: float = 30.0) -> None:
    """Wait until a process is gone, or waits for nobody to ask how it ended."""
    until = time.monotonic() + seconds
    with contextlib.suppress(OSError):  # which reading raises once the process is gone
        while " Z " not in (status := Path(f"/proc/{pid}/stat").read_text()):
            assert time.monotonic() < until, status
            time.sleep(0.1)


def test_a_setting_of_the_process_is_restored_and_held_against_the_call(tmp_path: Path) -> None:
    """All implementations run in one process: what one leaves would be held against the next one."""
    out, loaded = judged("leaks", tmp_path / "r.jsonl")
    assert out.returncode == 1, out.stdout + out.stderr
    assert {c.implementation for c in loaded.cells} == {*LEAKS}
    for cell in loaded.cells:
        if "k9" in cell.case:
            assert cell.status == "pass", cell.message
        else:
            kind = "raised" if cell.implementation == "fork" else "leaked-state"
            assert (cell.status, cell.kind) == ("fail", kind), cell.implementation
            assert LEAKS[cell.implementation][1] in cell.message
    assert loaded.complete
    assert "Traceback" not in out.stdout + out.stderr


def test_what_a_module_leaves_is_said_once(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "leaky.py"
    path.write_text(
        "import sys, warnings\n"
        "import torch\n"
        "sys.setrecursionlimit(150)\n"
        "sys.path[:] = []\n"
        "warnings.simplefilter('error')\n"
        "attention = torch.nn.functional.scaled_dot_product_attention\n"
    )
    out = run(
        *FEW, "--backend=torch", f"--function={path}:attention", "-k", "q17k9d8", "--no-header"
    )
    assert out.returncode == 0, out.stdout + out.stderr
    said = " ".join(out.stdout.split())
    assert f"importing {path}:attention left the recursion limit at 150, it was 1000" in said
    assert "left the import path" in said


def test_records_that_cannot_be_written_end_a_run_in_one_sentence(tmp_path: Path) -> None:
    for number, (size, words) in enumerate([(0, ()), (3000, ()), (3000, ISOLATED)]):
        path = tmp_path / f"{number}.jsonl"
        program = (
            f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size})); "
            "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
        )
        asked = ("-q", "-s", "-p", "no:cacheprovider", *FEW, *words, *CONTROL)
        out = python("-B", "-c", program, *asked, f"--results={path}")
        said = out.stdout + out.stderr
        assert out.returncode == pytest.ExitCode.INTERRUPTED, said
        assert f"{path} cannot be written to: File too large; make room" in said
        assert "Traceback" not in said
        assert "INTERNALERROR" not in said


def test_a_python_without_assertions_is_refused() -> None:
    out = run(*FEW, *CONTROL, env={"PYTHONOPTIMIZE": "1"})
    assert out.returncode == pytest.ExitCode.USAGE_ERROR
    assert "expected a Python that executes assertions" in usage(out)
    assert "Traceback" not in out.stdout + out.stderr


def test_what_holds_the_end_of_a_run_is_ended_and_named(tmp_path: Path) -> None:
    (tmp_path / "holds.py").write_text(
        "import atexit, threading\n"
        "from attention_conformance.suite.run import process\n"
        "from tests.unruly import Miniatures, unruly\n"
        "process.EXIT_SECONDS = 1.0\n"
        "def hold():\n"
        "    threading.Event().wait(600)\n"
        "def act():\n"
        "    atexit.register(hold)\n"
        "    threading.Thread(target=hold).start()\n"
        "def backend(device): return Miniatures(device, unruly(act))\n"
    )
    out = run(
        *FEW, "--backend=holds:backend", "-k", "b3h3q11k17d8/bias",
        env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert out.returncode == 0, out.stdout + out.stderr
    assert "held the process for" in out.stderr
    assert "in hold (holds.py:" in out.stderr or "in wait (threading.py:" in out.stderr


@pytest.mark.parametrize(("name", "words", "how"), [
    ("ends_the_process", (), "it ended with exit code 0, unasked"),
    ("is_killed", (), "it died of SIGSEGV"),
    ("is_killed", ISOLATED, "an exit, a signal, or a crash of what it called"),
    ("holds_the_lock", (), "in holds_the_lock"),
    ("holds_the_lock", ISOLATED, "it ran too long, in holds_the_lock (faulty.py:"),
])  # fmt: skip
def test_a_death_in_the_trial_call_is_said_to_be_one(
    tmp_path: Path, name: str, words: tuple[str, ...], how: str
) -> None:
    pytest.importorskip("torch")
    function = f"{ROOT / 'tests' / 'functions' / 'faulty.py'}:{name}"
    results = tmp_path / "r.jsonl"
    asked = ("--backend=torch", f"--function={function}", "--cell-timeout=1")
    out = run(*FEW, *asked, f"--results={results}", *words)
    assert out.returncode == process.DIED
    case = "sdpa/none/mha/f32/b2h3q5k7d8"
    said = out.stdout + out.stderr
    assert f"function {function!r} killed the process in its trial call on {case}: " in said
    assert how in said
    assert not results.exists()


TRACED = """
import jax
kept = []
def attention(query, key, value, bias=None, mask=None, *, scale=None, is_causal=False):
    jax.jit(lambda x: kept.append(x) or x)(query)
    return kept[-1]
"""


def test_a_tracer_is_no_answer(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    path = tmp_path / "traced.py"
    path.write_text(TRACED)
    with pytest.raises(UsageError, match=r"got jax\.\S*Tracer, which cannot be read"):
        Plan.make(Options(("jax",), function=(f"{path}:attention",)))
