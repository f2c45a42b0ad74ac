"""Records of speed made by hand, for the tests of their tables and plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attention_conformance.suite.records.speed import SpeedHeader, SpeedRecord, SpeedRun, writer


def record(implementation: str, seconds: float, **changes: Any) -> SpeedRecord:
    """A measurement of 1e9 operations at this median, on a machine that does 1e11 a second."""
    fields: dict[str, Any] = {
        "workload": "gpt2-train", "case": "sdpa/causal/mha/f32/b2h12q256k256d64", "backend": "torch",
        "implementation": implementation, "mode": "eager", "device": "cpu", "dtype": "f32",
        "direction": "forward", "threads": 1, "status": "timed",
        "samples": (seconds / 2, seconds, seconds * 2), "flops": 1e9, "bytes": 10**6, "gemm": 1e11,
        "copy": 1e9, "error_ratio": 0.25, "first_call": 0.5, "peak_bytes": 2**20, "kernel": "flash",
        "operator": "sdpa", "keys": 256,
    }  # fmt: skip
    return SpeedRecord(**{**fields, **changes})


def run(*records: SpeedRecord, source: str = "a.jsonl") -> SpeedRun:
    return SpeedRun(SpeedHeader(protocol=1), records, source)


def write(path: Path, *records: SpeedRecord) -> Path:
    lines = writer(path, SpeedHeader(protocol=1))
    for entry in records:
        lines.write(entry)
    lines.close()
    return path


def sweep(
    implementation: str, seconds: Any, lengths: Any = (64, 128, 256, 512)
) -> list[SpeedRecord]:
    return [
        record(
            implementation, seconds(length), workload=f"sweep-{length}", keys=length, swept=True,
            case=f"sdpa/none/mha/f32/b1h4q{length}k{length}d64",
        )
        for length in lengths
    ]  # fmt: skip
