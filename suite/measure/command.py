"""The command `bench` of `attention-conformance`.

Without --against the command times workloads and writes speed records. With --against it runs the gate
(`suite.measure.gate`). Exit codes:

    code  without --against                          with --against
    0     at least one call was timed                no regression
    1                                                regression
    2     a time was refused                         wrong answer
    3     nothing was timed, a worker failed, usage  not measured, usage
    4                                                too noisy
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from attention_conformance.suite.measure.options import BenchOptions
from attention_conformance.suite.run.options import SECRET_SEEDS
from attention_conformance.suite.run.progress import Steps
from attention_conformance.suite.spec.catalogue.workloads import QUICK

if TYPE_CHECKING:
    from attention_conformance.suite.measure.gate import GateOutcome
    from attention_conformance.suite.records.speed import SpeedRecord
    from attention_conformance.suite.run.verdict import RunVerdict

TABLE_COLUMNS = 5
"""The most workloads, which are columns, of a printed table."""


def run(options: BenchOptions) -> int:
    """Run the command `bench`, and return its exit code."""
    from attention_conformance.backends.registry import UsageError
    from attention_conformance.suite.measure.gate import NOTHING, GateError
    from attention_conformance.suite.measure.pool import NothingToMeasure
    from attention_conformance.suite.measure.verdict import bench_verdict
    from attention_conformance.suite.run.verdict import VerdictOutput

    try:
        output = VerdictOutput(options.verdict, options.verdict_fd)
    except ValueError as error:
        print(error, file=sys.stderr)
        return NOTHING
    error_text = ""
    try:
        options = completed(options)
        verdict = _gate(options) if options.against else _measure(options)
    except (UsageError, NothingToMeasure, GateError) as error:
        error_text = str(error)
    except FileExistsError:
        error_text = f"{options.results} exists, and nothing is overwritten; name a new file"
    if error_text:
        print(error_text, file=sys.stderr)
        verdict = bench_verdict(NOTHING, reasons=(error_text,))
    if write_error := output.write(verdict):
        print(write_error, file=sys.stderr)
        return NOTHING
    if not error_text and options.seed in SECRET_SEEDS:
        _say(f"seed {options.seed}; --seed={options.seed} repeats the run")
    return verdict.exit_code


def completed(options: BenchOptions) -> BenchOptions:
    """Returns the options; without --workload the options of a quick run.

    Raises UsageError for invalid options, FileExistsError if the results file exists.
    """
    if not options.workload:
        direction = options.direction or ("forward",)
        options = replace(options, workload=QUICK, quick=True, direction=direction)
    options.check()
    return options


def _measure(options: BenchOptions) -> RunVerdict:
    from attention_conformance.suite.measure.gate import NOTHING, OK, WRONG
    from attention_conformance.suite.measure.pool import Pool
    from attention_conformance.suite.measure.run import header, measure
    from attention_conformance.suite.measure.verdict import bench_verdict
    from attention_conformance.suite.records import speed

    records: list[SpeedRecord] = []
    with Pool(options) as pool:
        # An unknown name ends the run before a results file is made.
        pool.offers()
        for worker in pool.workers.values():
            for note in worker.hello["notes"]:
                _say(f"note: {note}")
        writer = speed.writer(options.results, header(options, pool)) if options.results else None
        finished = False
        try:
            for record in measure(options, pool, _say):
                records.append(record)
                print(record_line(record), flush=True)
                if writer:
                    writer.write(record)
            finished = True
        finally:
            if writer:
                writer.close(finished)
    statuses = [record.status for record in records]
    counts = {name: statuses.count(name) for name in dict.fromkeys(statuses)}
    print("\n".join(side_by_side(records)))
    names = ", ".join(workload.name for workload in options.workloads)
    print(
        ", ".join(f"{count} {name}" for name, count in counts.items())
        or f"nothing to measure: no selected implementation computes {names}; name another --workload"
    )
    timed = set(speed.TIMED) & set(statuses) and "error" not in statuses
    code = WRONG if "refused" in statuses else OK if timed else NOTHING
    return bench_verdict(code, options, records)


def _say(text: str) -> None:
    """Print progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def record_line(record: SpeedRecord) -> str:
    """Returns one record as a line: implementation, time, share of the limits, tokens per second, error
    ratio, memory."""
    implementation = f"{record.backend}:{record.implementation}"
    begin = f"{record.workload:24} {implementation:28} {record.direction:16} {record.dtype:4}"
    seconds = record.seconds
    if seconds is None:
        return f"{begin} {record.status} {record.kind}: {record.message}"
    parts = [f"{seconds * 1e3:9.3f} ms"]
    for share, limit in ((record.share_of_gemm, "gemm"), (record.share_of_copy, "copy")):
        parts.append(f"{share:6.1%} {limit}" if share is not None else " " * 11)
    if record.tokens_per_second is not None:
        parts.append(f"{record.tokens_per_second:.4g} tokens/s")
    parts.append(f"error ratio {record.error_ratio:.2g}")
    if record.peak_bytes is not None:
        parts.append(f"{record.peak_bytes / 2**20:.1f} MiB")
    if record.status != "timed":
        parts.append(record.status)
    return f"{begin} {'  '.join(parts)}"


def side_by_side(records: Sequence[SpeedRecord]) -> Iterator[str]:
    """Yields lines of the tables of median times, one table per direction and dtype.

    Rows are implementations, columns workloads. A cell without a time shows its status; "~" marks an
    unsettled time.
    """
    from attention_conformance.suite.report.render import aligned

    for direction, dtype in dict.fromkeys((r.direction, r.dtype) for r in records):
        table_records = [r for r in records if (r.direction, r.dtype) == (direction, dtype)]
        cells = {
            (f"{r.backend}:{r.implementation}", r.workload): r.status
            if r.seconds is None
            else f"{'~' if r.status == 'unsettled' else ''}{r.seconds * 1e3:.3f}"
            for r in table_records
        }
        workloads = list(dict.fromkeys(workload for _, workload in cells))
        for first in range(0, len(workloads), TABLE_COLUMNS):
            columns = workloads[first : first + TABLE_COLUMNS]
            rows = dict.fromkeys(name for name, workload in cells if workload in columns)
            table = [[f"ms {direction} {dtype}", *columns]]
            table += [
                [name, *(cells.get((name, workload), "") for workload in columns)] for name in rows
            ]
            yield from ("", *aligned(table, [False, *(True for _ in columns)]))
    yield ""


def _gate(options: BenchOptions) -> RunVerdict:
    from attention_conformance.suite.measure.gate import Gate, GateError, exit_code_of, sides
    from attention_conformance.suite.measure.verdict import bench_verdict
    from attention_conformance.suite.records.files import new_file

    names = options.implementation or options.function_names
    if len(options.backends) != 1 or len(names) != 1:
        raise GateError(
            "a gate compares one implementation: name one --backend and one --implementation or "
            "--function"
        )
    outcomes: list[GateOutcome] = []
    with tempfile.TemporaryDirectory(prefix="attention-gate-") as folder:
        (backend,), name = options.backends, names[0].rpartition(":")[2]
        pair = sides(options, backend, name, options.against, Path(folder))
        gate = Gate(*pair, seconds=options.seconds, say=_say)
        cases = [
            (workload.name, workload.case(dtype).id, direction)
            for workload in options.workloads
            for dtype in options.dtypes
            for direction in options.direction or ("forward",)
        ]
        steps = Steps(len(cases), _say)
        for name, case, direction in cases:
            steps.next(f"{name} {direction}, {case}")
            outcomes.append(gate.run(name, case, direction, options.seed))
            print(outcome_text(outcomes[-1], pair[0].label, pair[1].label), flush=True)
    if options.results:
        with new_file(options.results) as file:
            json.dump([asdict(outcome) for outcome in outcomes], file, indent=1)
    return bench_verdict(exit_code_of(outcomes), options, outcomes=outcomes)


def outcome_text(outcome: GateOutcome, mine: str, other: str) -> str:
    """Returns the text of an outcome, with the gate's error rates. `mine` and `other`: the labels of
    candidate and baseline."""
    from attention_conformance.suite.measure.gate import INJECTED, NOISY, NOTHING, REGRESSION, WRONG

    word = {
        REGRESSION: "REGRESSION",
        WRONG: "WRONG ANSWER",
        NOTHING: "NOT MEASURED",
        NOISY: "NOISY",
    }
    lines = [
        f"{word.get(outcome.code, 'ok')}: {outcome.workload} {outcome.direction}, {mine} against {other}",
        f"  case      {outcome.case}",
    ]
    if outcome.ratio is not None:
        times = (outcome.candidate or 0.0) * 1e3, (outcome.baseline or 0.0) * 1e3
        lines += [
            f"  time      {times[0]:.4g} ms against {times[1]:.4g} ms",
            f"  ratio     {outcome.ratio:.4f}, 99 % interval {outcome.low:.4f} to {outcome.high:.4f}, "
            f"{len(outcome.pairs['verdict'])} pairs",
            f"  twins     {outcome.twin_ratio:.4f}; called a regression in {outcome.alarms:.1%} of draws",
            f"  injected  {outcome.injected_ratio:.4f} for {1 + INJECTED:.2f}; missed in "
            f"{outcome.missed:.1%} of draws",
        ]
    if outcome.message:
        lines.append(f"  {outcome.message}")
    return "\n".join(lines)
