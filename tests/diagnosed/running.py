"""Judging a kernel of the corpus in a child process, and reading what the run says of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.diagnosed.expected import Fault, Kernel

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Outcome:
    """What a run left: its exit code, failing cells, records of diagnoses (best first), text, CPU
    seconds."""

    code: int
    failures: list[str]
    diagnoses: list[dict[str, Any]]
    text: str
    seconds: float

    @property
    def lines(self) -> int:
        """Lines that the run ends with: all behind the line with the percentage of the last test."""
        lines = self.text.splitlines()
        progress = [n for n, line in enumerate(lines) if re.search(r"\[ *\d+%\]$", line)]
        return len(lines) - 1 - (progress[-1] if progress else 0)

    @property
    def first(self) -> str:
        """The first sentence, "" if there is none."""
        return self.diagnoses[0]["sentence"] if self.diagnoses else ""


def judge(kernel: Kernel, level: str = "smoke", *options: str) -> Outcome:
    """Run the suite on one kernel, in a child process of its own.

    The run has no limits of time, so that a busy machine breaks off no diagnosis. If the trial call
    refuses the kernel, the message is its only diagnosis, of the family "trial". Raises RuntimeError if
    the run leaves neither records nor such a message.
    """
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "run.jsonl"
        command = [
            sys.executable, "-m", "pytest", "suite", f"--backend={kernel.backend}",
            f"--function={HERE / kernel.name}", f"--level={level}",
            f"--results={records}", "--cell-timeout=0", "-p", "no:cacheprovider", "-q", *options,
        ]  # fmt: skip
        if kernel.like:
            command.append(f"--like={kernel.like}")
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
        before = os.times()
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        after = os.times()
        refused = re.search(
            r"^ERROR: function '\S+': (.+)", done.stdout + done.stderr, re.MULTILINE
        )
        if refused and not records.exists():
            trial = {"record": "diagnosis", "sentence": refused[1], "hint": "", "family": "trial"}
            records.write_text(json.dumps(trial), encoding="utf-8")
        if not records.exists():
            raise RuntimeError(f"{kernel.name} left no records:\n{done.stdout}{done.stderr}")
        found = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    return Outcome(
        done.returncode,
        [
            f"{r['check']}/{r['case']}"
            for r in found
            if r["record"] == "cell" and r["status"] in ("fail", "error", "crash")
        ],
        [r for r in found if r["record"] == "diagnosis"],
        done.stdout,
        after.children_user - before.children_user + after.children_system - before.children_system,
    )


def names(fault: Fault, diagnosis: dict[str, Any]) -> bool:
    """True if sentence and hint of a diagnosis match every pattern of a fault."""
    text = f"{diagnosis['sentence']} {diagnosis['hint']}"
    return all(re.search(pattern, text, re.IGNORECASE) for pattern in fault.patterns)


def verdict(kernel: Kernel, diagnoses: list[dict[str, Any]]) -> str:
    """How well diagnoses name the faults of a kernel.

    - without faults: "quiet" if there is no diagnosis, "wrong" otherwise
    - no diagnosis: "silent"
    - "right": the first diagnosis names a fault, and all of them together name every fault
    - "one": the first diagnosis names one of two faults, and none names the other
    - "later": a later diagnosis names a fault
    - "near": the first diagnosis is of the family of a fault
    - "wrong" otherwise
    """
    if not kernel.faults:
        return "wrong" if diagnoses else "quiet"
    if not diagnoses:
        return "silent"
    named = [any(names(fault, d) for d in diagnoses) for fault in kernel.faults]
    first = [names(fault, diagnoses[0]) for fault in kernel.faults]
    if all(named) and any(first):
        return "right"
    if any(first):
        return "one"
    families = {family for fault in kernel.faults for family in fault.families}
    near = any(family in families for family in re.findall(r"\w+", diagnoses[0]["family"]))
    return "later" if any(named) else "near" if near else "wrong"
