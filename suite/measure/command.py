"""The command `bench` of `python -m suite`.

Without --against: measures workloads and writes speed records; exit code 0 where something was timed,
2 where an answer was wrong, 3 where nothing was measured. With --against: the gate
(`suite.measure.gate`), 0 no regression, 1 regression, 2 wrong answer, 3 nothing measured, 4 too noisy.
Usage errors are 3: nothing was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from suite.measure.gate import Verdict
    from suite.records.speed import SpeedRecord

DIRECTIONS = ("forward", "backward", "forward+backward")
QUICK_SAMPLES = 5


class _Parser(argparse.ArgumentParser):
    """Ends with 3 where arguments are wrong: 2 would say that an answer was."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(3, f"{self.prog}: error: {message}\n")


def add_bench_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `bench` to the subparsers of `argparse`; sets `run`."""
    subparsers._parser_class, before = _Parser, subparsers._parser_class
    parser = subparsers.add_parser(
        "bench",
        help="time workloads, or gate one implementation against another",
        description="Times workloads in every implementation, and keeps a time only where the answer "
        "that was timed is right. With --against, says whether one is slower than another. Exit codes: 0 "
        "no regression, 1 regression, 2 wrong answer, 3 nothing measured, 4 too noisy.",
    )
    subparsers._parser_class = before
    parser.add_argument("--backend", action="append", required=True, metavar="NAME")
    parser.add_argument(
        "--workload", action="append", default=[], metavar="NAME",
        help="a workload, the id of a case, sweep, or all (default); repeatable",
    )  # fmt: skip
    parser.add_argument("--implementation", action="append", default=[], metavar="NAME")
    parser.add_argument("--function", action="append", default=[], metavar="PATH.py:NAME")
    parser.add_argument("--numerics", default="", metavar="CLASS", help="class of a --function")
    parser.add_argument(
        "--direction", action="append", default=[], choices=DIRECTIONS,
        help="default: forward, and the others of workloads that are part of training",
    )  # fmt: skip
    parser.add_argument("--dtype", action="append", default=[], metavar="NAME", help="default f32")
    parser.add_argument("--mode", choices=("eager", "compiled", "all"), default="all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="0: one for every CPU; default 1")
    parser.add_argument("--samples", type=int, metavar="N", help="of each; default 20")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SAMPLES} samples of each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", metavar="FILE.jsonl", help="a new file for the records")
    parser.add_argument(
        "--against", metavar="OTHER",
        help="another implementation, venv:PATH, or commit:REV of a --function's file",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="of a gate's pairs, for each case; default 20"
    )
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run `bench`; returns the exit code."""
    from suite.measure.gate import NOTHING, GateError
    from suite.measure.run import NothingToMeasure

    try:
        _check(arguments)
        return _gate(arguments) if arguments.against else _measure(arguments)
    except (NothingToMeasure, GateError, ValueError) as error:
        print(error, file=sys.stderr)
        return NOTHING
    except FileExistsError:
        print(f"{arguments.results} exists, and nothing is overwritten", file=sys.stderr)
        return NOTHING


def _check(arguments: argparse.Namespace) -> None:
    """Raise ValueError for what can be known to be wrong before anything is started."""
    from backends.registry import UsageError, canonical
    from suite.spec.dtypes import dtype
    from suite.spec.workloads import named

    try:
        arguments.backend = [canonical(name) for name in arguments.backend]
    except UsageError as error:
        raise ValueError(str(error)) from error
    for text in arguments.workload:
        named(text)
    arguments.dtype = list(dict.fromkeys(dtype(name).name for name in arguments.dtype)) or ["f32"]
    if arguments.samples is not None and arguments.samples < 1:
        raise ValueError(f"--samples must be positive, got {arguments.samples}")
    if arguments.threads < 0:
        raise ValueError(f"--threads must not be negative, got {arguments.threads}")
    if not arguments.seconds > 0:
        raise ValueError(f"--seconds must be positive, got {arguments.seconds}")
    if arguments.function and len(arguments.backend) != 1:
        raise ValueError("--function needs exactly one --backend (whose signature it has)")
    if arguments.results and Path(arguments.results).exists():
        raise FileExistsError(arguments.results)


def _options(arguments: argparse.Namespace) -> Any:
    from suite.measure import protocol
    from suite.measure.run import Options

    samples = arguments.samples or (QUICK_SAMPLES if arguments.quick else protocol.SAMPLES)
    made = Options(
        backend=tuple(arguments.backend),
        workload=tuple(arguments.workload) or ("all",),
        implementation=tuple(arguments.implementation),
        function=tuple(arguments.function),
        direction=tuple(dict.fromkeys(arguments.direction)) or DIRECTIONS,
        dtype=tuple(arguments.dtype),
        mode=arguments.mode,
        device=arguments.device,
        threads=arguments.threads,
        samples=samples,
        seed=arguments.seed,
    )
    if arguments.numerics:
        from dataclasses import replace

        made = replace(made, numerics=arguments.numerics)
    return made


def _measure(arguments: argparse.Namespace) -> int:
    from suite.measure.gate import NOTHING, OK, WRONG
    from suite.measure.run import Team, measure
    from suite.records import speed

    statuses: list[str] = []
    with Team(_options(arguments)) as team:
        team.implementations()
        writer = speed.writer(arguments.results, team.header()) if arguments.results else None
        finished = False
        try:
            for record in measure(team):
                statuses.append(record.status)
                print(line(record), flush=True)
                if writer:
                    writer.write(record)
            finished = True
        finally:
            if writer:
                writer.close(finished)
    counts = {name: statuses.count(name) for name in dict.fromkeys(statuses)}
    print(", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing to measure")
    if {"refused", "error"} & set(statuses):
        return WRONG
    return OK if set(speed.TIMED) & set(statuses) else NOTHING


def line(record: SpeedRecord) -> str:
    """A measurement in one line: where, how long, how good, and how right."""
    who = f"{record.backend}:{record.implementation}"
    head = f"{record.workload:24} {who:28} {record.direction:16} {record.dtype:4}"
    seconds = record.seconds
    if seconds is None:
        return f"{head} {record.status} {record.kind}: {record.message}"
    parts = [f"{seconds * 1e3:9.3f} ms"]
    for share, what in ((record.share_of_gemm, "gemm"), (record.share_of_copy, "copy")):
        parts.append(f"{share:6.1%} {what}" if share is not None else " " * 11)
    parts.append(f"error ratio {record.error_ratio:.2g}")
    if record.peak_bytes is not None:
        parts.append(f"{record.peak_bytes / 2**20:.1f} MiB")
    if record.status != "timed":
        parts.append(record.status)
    return f"{head} {'  '.join(parts)}"


def _gate(arguments: argparse.Namespace) -> int:
    from suite.measure.gate import Comparison, GateError, as_plain, sides, worst
    from suite.measure.run import asked
    from suite.records.files import new_file

    options = _options(arguments)
    functions = [text.rpartition(":")[2] for text in options.function]
    names = list(options.implementation) or functions
    if len(options.backend) != 1 or len(names) != 1:
        raise GateError(
            "a gate judges one implementation: name one --backend and one --implementation or "
            "--function"
        )
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="attention-gate-") as folder:
        mine = asked(options, options.backend[0])
        pair = sides(mine, names[0].rpartition(":")[2], arguments.against, Path(folder))
        comparison = Comparison(*pair, seconds=arguments.seconds)
        for workload in options.workloads:
            for dtype in options.dtype:
                for direction in arguments.direction or ["forward"]:
                    case = workload.case(dtype).id
                    verdicts.append(comparison.run(workload.name, case, direction, options.seed))
                    print(verdict_text(verdicts[-1], pair[0].label, pair[1].label), flush=True)
    if arguments.results:
        with new_file(arguments.results) as file:
            json.dump([as_plain(v) for v in verdicts], file, indent=1)
    return worst(verdicts)


def verdict_text(verdict: Verdict, mine: str, other: str) -> str:
    """A verdict for people, with how far it can be trusted."""
    from suite.measure.gate import INJECTED, NOISY, NOTHING, REGRESSION, WRONG

    word = {
        REGRESSION: "REGRESSION",
        WRONG: "WRONG ANSWER",
        NOTHING: "NOT MEASURED",
        NOISY: "NOISY",
    }
    lines = [
        f"{word.get(verdict.code, 'ok')}: {verdict.workload} {verdict.direction}, {mine} against {other}",
        f"  case      {verdict.case}",
    ]
    if verdict.ratio is not None:
        times = (verdict.candidate or 0.0) * 1e3, (verdict.baseline or 0.0) * 1e3
        lines += [
            f"  time      {times[0]:.4g} ms against {times[1]:.4g} ms",
            f"  ratio     {verdict.ratio:.4f}, 99 % interval {verdict.low:.4f} to {verdict.high:.4f}, "
            f"{len(verdict.pairs['verdict'])} pairs",
            f"  twins     {verdict.twin_ratio:.4f}; called a regression in {verdict.alarms:.1%} of draws",
            f"  injected  {verdict.injected_ratio:.4f} for {1 + INJECTED:.2f}; missed in "
            f"{verdict.missed:.1%} of draws",
        ]
    if verdict.message:
        lines.append(f"  {verdict.message}")
    return "\n".join(lines)
