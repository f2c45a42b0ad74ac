"""Processes: children end at their limit, and say where they stood."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attention_conformance.backends.protocol import TimeOver
from attention_conformance.suite.run import process

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


def test_where_the_watchdog_ended_a_process() -> None:
    assert process.place_in("") == process.place_in("Timeout in a message\n") == ""
    stacks = (
        "Timeout (0:00:01)!\nThread 0x1 (most recent call first):\n"
        '  File "/a/other.py", line 3 in wait\n'
        "\nThread 0x2 (most recent call first):\n"
        '  File "/a/kernel.py", line 7 in hang\n  File "/a/b.py", line 9 in main\n'
    )
    assert process.place_in(stacks) == "it ran too long, in hang (kernel.py:7)"


def test_a_limit_ends_what_waits() -> None:
    with pytest.raises(TimeOver, match="it ran longer"), process.time_limit(0.05, "it"):
        time.sleep(10)


@pytest.mark.parametrize(
    ("code", "said"), [(3, "exit code 3"), (-9, "died of SIGKILL"), (-40, "died of signal 40")]
)
def test_every_end_of_a_process_has_words(code: int, said: str) -> None:
    assert said in process.how_it_ended(code)
