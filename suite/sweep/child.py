"""The child process of a task: a run or a search, on the machine that Ray chose."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from attention_conformance.suite.run.jax_caches import compilations_in
from attention_conformance.suite.run.process import how_it_ended, run_module
from attention_conformance.suite.sweep.plan import Task

LAST_LINES = 12
"""The number of output lines that are shown if a child leaves no result file."""


@dataclass(frozen=True)
class Outcome:
    """How a child ended: its exit code, its last lines (`said`), the text of its result file or ""."""

    code: int
    said: str
    records: str


class ChildDied(Exception):
    """A signal killed the child. Ray runs the task again."""


def carry_out(task: Task, compiled: str = "") -> Outcome:
    """Run a task in a child process.

    JAX's compilation cache is the folder `compiled`, by default a temporary one. Raises ChildDied.
    """
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
