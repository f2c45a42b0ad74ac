"""Rows of result files, and runs of them, for the tests of records, reports, plots and diffs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from attention_conformance.suite.records.cells import CellRecord, Header, Run, digest
from attention_conformance.suite.records.speed import SpeedHeader, SpeedRecord, SpeedRun
from attention_conformance.suite.report import frames


def cell(
    case: str = "sdpa/none/mha/f32/b2h3q5k7d8",
    implementation: str = "torch:sdpa",
    status: str = "pass",
    **fields: Any,
) -> CellRecord:
    """A cell of the check `values`; its dtype is read from the case id."""
    backend, _, name = implementation.partition(":")
    dtype = next((p for p in case.split("/") if p in ("f64", "f32", "bf16", "f16")), "f32")
    record = CellRecord(case, "values", backend, name, "eager", "cpu", dtype, status, group="none")
    return replace(record, **{"operator": "sdpa", **fields})


def elect(
    question: str, answers: dict[str, str], implementation: str = "torch:sdpa"
) -> list[CellRecord]:
    """Election cells of one question, a dtype each; the answer "unsupported" is the status."""
    return [
        cell(
            f"elect/{question}/{dtype}",
            implementation,
            "unsupported" if answer == "unsupported" else "pass",
            check="election",
            question=question,
            observed="" if answer == "unsupported" else answer,
        )
        for dtype, answer in answers.items()
    ]


def header(*cells: CellRecord, **fields: Any) -> Header:
    """The header of the whole run that these cells are."""
    default = Header(
        digest=digest(c.key for c in cells),
        cells=len(cells),
        commit="abc1234",
        suite_version="0.1.0",
        versions={"torch": "2.13.0"},
        python="3.11.2",
        machine={"cpus": 2},
        options={"level": "smoke", "seed": 0},
        started="2026-11-20T10:15:00+00:00",
    )
    return replace(default, **fields)


def run(*cells: CellRecord, source: str = "run.jsonl", complete: bool = True, **fields: Any) -> Run:
    """A loaded run of these cells; `fields` go to its header."""
    return Run(header(*cells, **fields), cells, source, complete)


def frame(*cells: CellRecord, **fields: Any) -> pd.DataFrame:
    """The cells of such a run as reports have them, a row each."""
    return frames.cells(run(*cells, **fields))


def timed(implementation: str, seconds: float, **changes: Any) -> SpeedRecord:
    """A measurement of 1e9 operations at this median, on a machine that does 1e11 a second."""
    fields: dict[str, Any] = {
        "workload": "gpt2-train", "case": "sdpa/causal/mha/f32/b2h12q256k256d64", "backend": "torch",
        "implementation": implementation, "mode": "eager", "device": "cpu", "dtype": "f32",
        "direction": "forward", "threads": 1, "status": "timed",
        "samples": (seconds / 2, seconds, seconds * 2), "flops": 1e9, "bytes": 10**6, "gemm": 1e11,
        "copy": 1e9, "error_ratio": 0.25, "first_call": 0.5, "peak_bytes": 2**20, "kernel": "flash",
        "keys": 256,
    }  # fmt: skip
    return SpeedRecord(**{**fields, **changes})


def timings(*records: SpeedRecord, source: str = "a.jsonl", started: str = "") -> SpeedRun:
    """A loaded file of these measurements."""
    return SpeedRun(SpeedHeader(started=started), records, source)


def timed_lengths(
    implementation: str, seconds: Any, lengths: Any = (64, 128, 256, 512)
) -> list[SpeedRecord]:
    """Measurements of a sweep over lengths; `seconds` is a function of the length."""
    return [
        timed(
            implementation, seconds(length), workload=f"sweep-{length}", keys=length, swept=True,
            case=f"sdpa/none/mha/f32/b1h4q{length}k{length}d64",
        )
        for length in lengths
    ]  # fmt: skip
