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
from suite.report import FORMATS, TABLES


def add_report_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `report RESULTS...` to the subparsers of `argparse`; sets `run`."""
    parser = subparsers.add_parser(
        "report",
        help="tables from result files",
        description="Tables from result files written by --results. The shards of one run are "
        "merged, and must be complete; other files stand beside each other.",
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="result files")
    parser.add_argument(
        "--table",
        action="extend",
        nargs="+",
        choices=list(TABLES),
        metavar="NAME",
        help=f"only these tables: {', '.join(TABLES)}; default: all but cells, in csv and parquet "
        "all",
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

        everything = list(TABLES) if args.format in ("csv", "parquet") else None
        runs = load_runs(args.results, args.partial)
        render(build(runs, args.table or everything), args.format, args.output)
        return 0

    return _guarded(args, work)


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
