"""The commands `report` and `diff` of `python -m suite`.

Exit codes: 0; 1 where `diff` finds a new failure; 2 where files or arguments cannot be used.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from suite.judge.records import IncompleteShards, RecordError, Run, load, merge
from suite.measure.record import is_speed, load_speed
from suite.report import FORMATS, SPEED_TABLES, TABLES


def add_report_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `report RESULTS...` to the subparsers of `argparse`; sets `run`."""
    parser = subparsers.add_parser(
        "report",
        help="tables from result files",
        description="Tables from result files written by --results, of conformance and of speed, and "
        "from asv's folder of results. The shards of one run are merged, and must be complete; other "
        "files stand beside each other.",
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="result files")
    parser.add_argument(
        "--table",
        action="extend",
        nargs="+",
        choices=[*TABLES, *SPEED_TABLES],
        metavar="NAME",
        help=f"only these tables: {', '.join([*TABLES, *SPEED_TABLES])}; default: all but cells and "
        "samples, in csv and parquet all",
    )
    parser.add_argument(
        "--baseline", default="", metavar="NAME", help="of the table speedup, as torch:sdpa"
    )
    parser.add_argument(
        "--plots", type=Path, metavar="FOLDER", help="draw speed records into a new or empty folder"
    )
    _add_output(parser)
    parser.set_defaults(run=report)
    return parser


def add_diff_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `diff OLD NEW` to the subparsers of `argparse`; sets `run`."""
    parser = subparsers.add_parser(
        "diff",
        help="what changed between two runs; exit code 1 on new failures",
        description="What changed between two runs, cell by cell. Where either is partial, only "
        "the cells in both are compared. Exit code 1 on new failures, else 0.",
    )
    parser.add_argument("old", type=Path, metavar="OLD", help="result file of the old run")
    parser.add_argument("new", type=Path, metavar="NEW", help="result file of the new run")
    _add_output(parser)
    parser.set_defaults(run=diff)
    return parser


def report(args: argparse.Namespace) -> int:
    """Run `report`; returns the exit code."""

    def work() -> int:
        from suite.report.render import render
        from suite.report.tables import build

        every = args.format in ("csv", "parquet")
        folders = [path for path in args.results if path.is_dir()]
        measured = [path for path in args.results if path not in folders and is_speed(path)]
        judged = [path for path in args.results if path not in folders and path not in measured]
        for kind, tables, given in (
            ("conformance", TABLES, judged),
            ("speed", SPEED_TABLES, measured),
        ):
            if not given and (asked := [name for name in tables if name in (args.table or ())]):
                raise RecordError(
                    f"{', '.join(asked)}: made of records of {kind}, and none is given"
                )
        wanted = set(args.table or ([*TABLES, *SPEED_TABLES] if every else []))
        made: dict[str, Any] = {}
        if judged:
            names = [name for name in TABLES if name in wanted]
            made |= build(load_runs(judged, args.partial), names if wanted else None)
        if measured:
            made |= _speed(args, measured, wanted)
        elif args.plots:
            raise RecordError("--plots draws speed records, and none is given")
        if folders:
            import pandas as pd

            from suite.report.speed import asv_history, asv_results

            results = pd.concat([asv_results(folder) for folder in folders], ignore_index=True)
            made["asv_history"] = asv_history(results)
            made |= {"asv": results} if every else {}
        title = "Attention conformance" if judged else "Attention speed"
        render(made, args.format, args.output, title)
        return 0

    return _guarded(args, work)


def _speed(args: argparse.Namespace, paths: list[Path], wanted: set[str]) -> dict[str, Any]:
    """The tables of speed records, and their plots. Raises RecordError."""
    from suite.report import speed
    from suite.report.plots import NoPlots, plots

    runs = [load_speed(path, args.partial) for path in paths]
    names = [name for name in SPEED_TABLES if name in wanted]
    try:
        made = speed.build(runs, names if wanted else None, args.baseline)
        if args.plots:
            plots(speed.measurements(runs), args.plots)
    except (KeyError, NoPlots) as error:
        raise RecordError(str(error.args[0])) from error
    return made


def diff(args: argparse.Namespace) -> int:
    """Run `diff`; returns the exit code."""

    def work() -> int:
        from suite.report.diff import compare, header_changes, new_failures, summary
        from suite.report.render import render

        old, new = (load(path, args.partial) for path in (args.old, args.new))
        changes = compare(old, new)
        tables = {
            "summary": summary(changes),
            "changes": changes,
            "headers": header_changes(old, new),
        }
        render(tables, args.format, args.output, f"From {args.old} to {args.new}")
        return 1 if new_failures(changes) else 0

    return _guarded(args, work)


def load_runs(paths: list[Path], partial: bool = False) -> list[Run]:
    """The runs of these files, the shards of one run merged into one.

    Shards belong together where their case lists, commits and versions are the same. Raises
    RecordError where a file cannot be used, is given twice, or shards are missing; with `partial`,
    files without a footer and incomplete shards stand for themselves.
    """
    seen: dict[Path, Path] = {}
    for path in paths:
        if path.resolve() in seen:
            raise RecordError(f"{path} is given twice (as {seen[path.resolve()]}); name it once")
        seen[path.resolve()] = path
    groups: dict[str, list[Run]] = {}
    for number, path in enumerate(paths):
        run = load(path, partial)
        h = run.header
        identity = json.dumps([h.digest, h.commit, h.dirty, h.versions, h.python], sort_keys=True)
        groups.setdefault(identity if h.shard else f"whole {number}", []).append(run)
    runs: list[Run] = []
    for group in groups.values():
        try:
            runs += [merge(group)] if group[0].header.shard else group
        except IncompleteShards:
            if not partial:
                raise
            runs += group
    return runs


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="a new file, default stdout; for csv and parquet a new or empty folder",
    )
    parser.add_argument("--partial", action="store_true", help="also read runs that did not finish")


def _guarded(args: argparse.Namespace, work: Callable[[], int]) -> int:
    if args.format in ("csv", "parquet") and args.output is None:
        print(f"{args.format} is one file per table: name a folder by --output", file=sys.stderr)
        return 2
    try:
        return work()
    except (RecordError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
