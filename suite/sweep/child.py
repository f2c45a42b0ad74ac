"""The child of a task: a plain run or search in a process of its own, on whatever machine Ray chose."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from suite.run.jax_caches import compilations_in
from suite.run.process import how_it_ended, run_module
from suite.sweep.plan import Task

LAST_LINES = 12
"""Lines of a child's output that are told if it leaves no result file."""


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
        words = [*task.words, f"--results={results}"]
        code, said = run_module(words, Path(folder), compilations_in(cache))
        records = results.read_text(encoding="utf-8") if results.is_file() else ""
    assert code is not None, "there is no limit"
    if code < 0:
        raise ChildDied(f"the child {how_it_ended(code)}")
    lines = [line for line in said.splitlines() if line.strip()]
    return Outcome(code, "\n".join(lines[-LAST_LINES:]), records)
