"""Times of a judged function, for the verdict of its run (`--time`).

A cell calls the function once, which is no measurement of time. So the command `bench` times the function
in a child process, by its protocol, and judges the timed answers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from attention_conformance.suite.run.options import CELL_OPTIONS, Options
from attention_conformance.suite.run.process import run_module
from attention_conformance.suite.run.verdict import RunVerdict


def time_functions(
    options: Options, workloads: Sequence[str], folder: Path
) -> tuple[tuple[dict[str, Any], ...], list[str]]:
    """Time the functions of a run on these workloads, forward and in float32, in a child process. Returns
    the times (`RunVerdict.times`), and a sentence for each missing time."""
    defaults = {name: getattr(Options, name) for name in (*CELL_OPTIONS, "dtype", "mode")}
    words = [
        *replace(options, **defaults).command_line(every=True),
        f"--mode={options.mode}",
        "--direction=forward",
        *(f"--workload={name}" for name in workloads),
    ]
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "verdict.json"
        _, output = run_module(
            ["attention_conformance.suite", "bench", *words, f"--verdict={path}"], folder, {}
        )
        try:
            verdict = msgspec.json.decode(path.read_bytes(), type=RunVerdict)
        except (OSError, msgspec.DecodeError):
            last_line = (output.strip().splitlines() or ["nothing"])[-1]
            return (), [f"no time: {last_line}"]
    failure = verdict.first_failure
    reasons = [f"{failure['workload']}: {failure['message']}"] if failure else []
    reasons += [*verdict.refusals, *verdict.reasons]
    return verdict.times, [f"no time of {reason}" for reason in reasons]


def time_line(time: dict[str, Any]) -> str:
    """Returns a line for people: implementation, workload, median and interval in ms. `time`: one of the
    times from `time_functions`."""
    low, high = (f"{(time[name] or 0) * 1e3:.4g}" for name in ("low", "high"))
    interval = f", 99 % interval {low} to {high} ms" if time["low"] is not None else ""
    function = f"{time['backend']}:{time['implementation']}"
    return f"{function} on {time['workload']}: median {time['seconds'] * 1e3:.4g} ms{interval}"
