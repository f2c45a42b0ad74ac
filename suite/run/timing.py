"""Times of a judged function, for the verdict of its run (`--time`).

Cells are called once each, so they have no time of the function. The command `bench` times it in
a child, by its own protocol, and judges what it times.
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


def timed(
    options: Options, workloads: Sequence[str], folder: Path
) -> tuple[tuple[dict[str, Any], ...], list[str]]:
    """The times of the functions of a run on these workloads, forward and in float32
    (`RunVerdict.times`), and the reasons why a time is missing, as sentences."""
    left_out = {name: getattr(Options, name) for name in (*CELL_OPTIONS, "dtype", "mode")}
    words = [
        *replace(options, **left_out).command_line(every=True),
        f"--mode={options.mode}",
        "--direction=forward",
        *(f"--workload={name}" for name in workloads),
    ]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "verdict.json"
        _, said = run_module(
            ["attention_conformance.suite", "bench", *words, f"--verdict={path}"], folder, {}
        )
        try:
            verdict = msgspec.json.decode(path.read_bytes(), type=RunVerdict)
        except (OSError, msgspec.DecodeError):
            last = (said.strip().splitlines() or ["nothing"])[-1]
            return (), [f"no time: {last}"]
    failed = verdict.first_failure
    untimed = [f"{failed['workload']}: {failed['message']}"] if failed else []
    untimed += [*verdict.refusals, *verdict.reasons]
    return verdict.times, [f"no time of {one}" for one in untimed]


def line(time: dict[str, Any]) -> str:
    """A time for people."""
    low, high = (f"{(time[name] or 0) * 1e3:.4g}" for name in ("low", "high"))
    within = f", 99 % interval {low} to {high} ms" if time["low"] is not None else ""
    who = f"{time['backend']}:{time['implementation']}"
    return f"{who} on {time['workload']}: median {time['seconds'] * 1e3:.4g} ms{within}"
