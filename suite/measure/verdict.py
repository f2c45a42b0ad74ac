"""The verdict of `attention-conformance bench` as one JSON object, for programs (`suite.run.verdict`)."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from attention_conformance.suite.measure import gate, protocol
from attention_conformance.suite.measure.gate import GateOutcome
from attention_conformance.suite.measure.options import BenchOptions
from attention_conformance.suite.records.speed import SpeedRecord
from attention_conformance.suite.run.verdict import NOT_JUDGED, RunVerdict, fields_of, worst

VERDICTS = {gate.OK: "right", gate.WRONG: "wrong", gate.REGRESSION: "slower"}
"""The verdicts by exit code; any other code is `NOT_JUDGED`."""

CELL_FIELDS = (
    "workload", "case", "backend", "implementation", "mode", "dtype", "direction", "status", "kind",
    "message", "error_ratio",
)  # fmt: skip
"""Fields of a record that the verdict shows of a refused time and of the worst answer."""

TIME_FIELDS = (
    "workload", "case", "backend", "implementation", "mode", "dtype", "direction", "status",
)  # fmt: skip
"""Fields of a record that the verdict shows with its time."""


def bench_verdict(
    exit_code: int,
    options: BenchOptions | None = None,
    records: Sequence[SpeedRecord] = (),
    outcomes: Sequence[GateOutcome] = (),
    reasons: tuple[str, ...] = (),
) -> RunVerdict:
    """Returns the verdict of a run with the measured `records`, or with the `outcomes` of a gate.
    `reasons`: sentences that explain the exit code, by default the messages of outcomes that are not OK.
    `options`: None if they are invalid."""
    failure = next((one for one in records if one.status in ("refused", "error")), None)
    statuses = [one.status for one in records]
    refusals = [one.message for one in records if one.status == "unsupported"]
    return RunVerdict(
        VERDICTS.get(exit_code, NOT_JUDGED), exit_code, seed=options.seed if options else 0,
        functions=options.function_names if options else (),
        cells=dict(Counter(statuses)), first_failure=fields_of(failure, CELL_FIELDS),
        worst=fields_of(worst(records), CELL_FIELDS),
        refusals=dict(Counter(refusals)),
        reasons=reasons or tuple(one.message for one in outcomes if one.code != gate.OK),
        times=(*map(_time, (r for r in records if r.samples)), *map(_ratio, outcomes)),
    )  # fmt: skip


def _time(record: SpeedRecord) -> dict[str, Any]:
    """Returns `TIME_FIELDS` of a record, with the median seconds of a call, the 99 % interval of the
    median, and the number of samples."""
    low, high = (_finite(limit) for limit in protocol.interval(record.samples))
    seconds = statistics.median(record.samples)
    fields = {name: getattr(record, name) for name in TIME_FIELDS}
    return fields | {"seconds": seconds, "low": low, "high": high, "samples": len(record.samples)}


def _ratio(outcome: GateOutcome) -> dict[str, Any]:
    """Returns the fields of an outcome for the verdict: the seconds of candidate and baseline, their
    ratio with its 99 % interval, and the number of pairs."""
    names = ("workload", "case", "direction", "message", "ratio", "low", "high")
    fields = {name: getattr(outcome, name) for name in names}
    return fields | {
        "seconds": outcome.candidate, "baseline": outcome.baseline,
        "samples": len(outcome.pairs.get("verdict", ())),
    }  # fmt: skip


def _finite(limit: float) -> float | None:
    """Returns the limit of an interval, or None if it is infinite: there are too few samples."""
    return limit if math.isfinite(limit) else None
