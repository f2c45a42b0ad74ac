"""Runs made by hand, for the tests of pages."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.records.diagnoses import DiagnosisRecord
from attention_conformance.suite.records.facts import FactsHeader, FactsRecord, FactsRun
from tests.records_by_hand import cell, elect, header, run


def facts(of: str, started: str = "2026-11-21", **answers: str) -> FactsRun:
    """What was read of one implementation, "backend:name", on a day."""
    backend, _, name = of.partition(":")
    return FactsRun(FactsHeader(started=started), (FactsRecord(backend, name, "cpu", answers),))


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
        cell(implementation="torch:mine", check="gradients", ratios={"query": 0.5, "key": 0.125},
             error_ratio=0.125),
        cell(implementation="jax:jax-nn", check="gradients", ratios={"query": 0.25}),
        *elect("no-keys", {"f32": "zeros"}, "torch:mine"),
        *elect("no-keys", {"f32": "nan"}, "jax:jax-nn"),
        *elect("value-size", {"f32": "raises"}, "jax:jax-nn"),
    ]  # fmt: skip
    later = header(*cells, started="2026-11-21T10:00:00+00:00", controls=("tf:eager",),
                   again=("--level=smoke",))  # fmt: skip
    before = [replace(c, status="pass", kind="", message="") for c in cells[2:3]]
    first = replace(run(*before), source="first.jsonl")
    last = replace(run(*cells), source="last.jsonl", header=later)
    return [first, replace(last, diagnoses=(told,) if again == "fail" else ())]


def hostile() -> Any:
    """A run with `HOSTILE` in every text that no list of words bounds."""
    bounded = {"dtype", "status", "operator", "kind"}
    texts = {
        f.name: f"{HOSTILE} {f.name}"
        for f in fields(CellRecord)
        if f.type == "str" and f.name not in bounded
    }
    statuses = ("pass", "fail", "known", "unsupported", "error", "crash")
    cells = [
        replace(cell(status=status), **texts, seed=seed, error_ratio=0.5, facts={HOSTILE: HOSTILE},
                ratios={HOSTILE: 0.25}, features=(HOSTILE,))
        for seed, status in enumerate(statuses)
    ]  # fmt: skip
    ours = texts["backend"], texts["implementation"]
    asked = replace(cells[0], check="election", question=HOSTILE, observed=HOSTILE)
    judged = [replace(c, check=check) for c in cells for check in ("values", "gradients")]
    told = DiagnosisRecord(
        *ours, HOSTILE, HOSTILE, HOSTILE, HOSTILE, 1, 1, 0, HOSTILE, HOSTILE, HOSTILE, HOSTILE
    )
    made = run(*cells, *judged, asked, versions={HOSTILE: HOSTILE}, machine={"cpu": HOSTILE},
               options={HOSTILE: HOSTILE}, again=(HOSTILE,), source=HOSTILE)  # fmt: skip
    return replace(made, diagnoses=(told,))


def many(cells: int, implementations: int = 100) -> Any:
    """A run of so many cells, of which one in ten is refused and one in fifty fails."""
    masks = ("none", "causal", "bool.bhqk", "win3", "prefix")
    needs = ((), ("causal",), ("mask-array",), ("window",), ("padding",))
    made = []
    for number in range(cells):
        one, case = number % implementations, number // implementations
        mask, dtype = case % len(masks), ("f32", "bf16", "f16")[case % 3]
        status = "unsupported" if case % 10 == 9 else "fail" if case % 50 == 24 else "pass"
        made.append(
            cell(
                f"sdpa/{masks[mask]}/mha/{dtype}/b2h3q5k{case}d8", f"torch:kernel-{one}", status,
                features=needs[mask], group=masks[mask].partition(".")[0], grade="exact",
                error_ratio=None if status == "unsupported" else 2.0 if status == "fail" else 0.5,
                kind="value" if status == "fail" else "", check=("values", "gradients")[case % 2],
                message={"unsupported": "does not declare sinks", "fail": "element [0, 1, 2, 3]: "
                         "expected 0.25, got 0.75, which is 2 times its bound"}.get(status, ""),
            )
        )  # fmt: skip
    return run(*made)
