"""The child of a task: a plain run or search in a process of its own, on whatever machine Ray chose."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from suite.front.jax_caches import compilations_in
from suite.front.process import how_it_ended
from suite.sweep.plan import Task

LAST_LINES = 12
"""Lines of a child's output that are told if it leaves no result file."""

DIE_WITH_PARENT = 1
"""Linux' PR_SET_PDEATHSIG."""


@dataclass(frozen=True)
class Outcome:
    """How a child ended: its exit code, its last lines, and the text of its result file, "" for none."""

    code: int
    said: str
    records: str


class ChildDied(Exception):
    """Somebody killed the child, or the system did; Ray runs the task again."""


def carry_out(task: Task, compiled: str = "") -> Outcome:
    """Run a task in a child. JAX keeps what it compiles in the folder `compiled`, by default in a
    temporary one of this machine. Raises ChildDied."""
    with tempfile.TemporaryDirectory(prefix="attention-") as folder:
        results = Path(folder, "records.jsonl")
        cache = compiled or Path(tempfile.gettempdir(), "attention-conformance-jax")
        child = subprocess.run(
            [sys.executable, "-m", *task.words, f"--results={results}"], cwd=folder,
            env={**os.environ, **compilations_in(cache)}, preexec_fn=_die_with_parent,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        )  # fmt: skip
        records = results.read_text(encoding="utf-8") if results.is_file() else ""
    if child.returncode < 0:
        raise ChildDied(f"the child {how_it_ended(child.returncode)}")
    lines = [line for line in child.stdout.splitlines() if line.strip()]
    return Outcome(child.returncode, "\n".join(lines[-LAST_LINES:]), records)


def _die_with_parent() -> None:
    """Have the system end this process with the one that started it: Ray ends its workers by SIGKILL."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
