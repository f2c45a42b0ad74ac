"""Runs made by hand, for the tests of pages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from suite.records.diagnoses import DiagnosisRecord
from tests.records_by_hand import cell, elect, header, run

HOSTILE = "<img src=x onerror=boom()> </script><script>boom()</script> & 'quotes\""


def runs(*, again: str = "fail") -> list[Any]:
    """An earlier run, and a later one in which a cell of causal attention has the status `again`."""
    causal = {"case": "sdpa/causal/mha/f32/b2h3q5k7d8", "features": ("causal",), "group": "causal"}
    told = DiagnosisRecord(
        "torch", "mine", "A causal query sees the next key.", "", "mask", "catalogue", 1, 1, 0,
        "values", causal["case"],
    )  # fmt: skip
    cells = [
        cell(implementation="torch:mine", error_ratio=0.25, grade="exact", numerics="exact"),
        cell(implementation="torch:mine", dtype="bf16", case="sdpa/none/mha/bf16/b2h3q5k7d8"),
        cell(implementation="torch:mine", status=again, kind="value", message=HOSTILE,
             error_ratio=float("inf") if again == "fail" else 0.5, **causal),
        cell(implementation="jax:jax-nn", **causal),
        cell(implementation="jax:jax-nn", status="unsupported", message="no window",
             case="sdpa/win3/mha/f32/b2h3q5k7d8", features=("window",), group="win"),
        cell(implementation="tf:eager", operator="rotary", case="rotary/x/f32"),
        *elect("no-keys", {"f32": "zeros"}, "torch:mine"),
        *elect("no-keys", {"f32": "nan"}, "jax:jax-nn"),
    ]  # fmt: skip
    later = header(*cells, started="2026-11-21T10:00:00+00:00", controls=("tf:eager",),
                   again=("--level=smoke",))  # fmt: skip
    before = [replace(c, status="pass", kind="", message="") for c in cells[2:3]]
    first = replace(run(*before), source="first.jsonl")
    last = replace(run(*cells), source="last.jsonl", header=later)
    return [first, replace(last, diagnoses=(told,) if again == "fail" else ())]
