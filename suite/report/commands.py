"""The commands `report` and `diff` of `python -m suite`.

Exit codes: 0; 1 if `diff` finds a new failure; 2 if files or arguments are invalid.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from suite.records.cells import load
from suite.records.lines import RecordError
from suite.report import DATA_FORMATS, FORMATS
from suite.report.kinds import CONFORMANCE, KINDS, SPEED, TABLES, Kind, Request, kind_of, load_runs


def add_report_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `report RESULTS...` to the subparsers of `argparse`; sets `run`."""
    parser = subparsers.add_parser(
        "report",
        help="tables from result files",
        description="Tables of conformance and speed from result files (--results), and from asv's "
        "folder of results. Shards of one run are merged and must be complete; others are separate runs.",
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="result files")
    parser.add_argument(
        "--table",
        action="extend",
        nargs="+",
        choices=list(TABLES),
        metavar="NAME",
        help=f"only these tables: {', '.join(TABLES)}; default: all except "
        f"{', '.join(table.name for table in TABLES.values() if table.rare)}, in csv and parquet all",
    )
    parser.add_argument(
        "--baseline",
        default="",
        metavar="NAME",
        help="baseline of the table speedup, as torch:sdpa",
    )
    parser.add_argument(
        "--plots",
        type=Path,
        metavar="FOLDER",
        help="draw speed and precision into a new or empty folder",
    )
    parser.add_argument(
        "--badge",
        type=Path,
        metavar="FILE",
        help="draw the verdict of whole runs into a new SVG file",
    )
    _add_output(parser)
    parser.set_defaults(run=report)
    return parser


def add_diff_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `diff OLD NEW` to the subparsers of `argparse`; sets `run`."""
    parser = subparsers.add_parser(
        "diff",
        help="changes between two runs; exit code 1 on new failures",
        description="Changes between two runs, cell by cell. If a run is partial, only cells in both "
        "runs are compared. Exit code 1 on new failures, else 0.",
    )
    parser.add_argument(
        "old", type=Path, metavar="OLD", help="result file of the old run, or a sweep"
    )
    parser.add_argument(
        "new", type=Path, metavar="NEW", help="result file of the new run, or a sweep"
    )
    parser.add_argument(
        "--map",
        action="append",
        default=[],
        type=_rename,
        metavar="OLD=NEW",
        help="compare the old run's implementation OLD with the new run's NEW (sdpa=flash, or "
        "torch:sdpa=jax:jax-nn), and skip implementations of only one run; repeatable",
    )
    _add_output(parser)
    parser.set_defaults(run=diff)
    return parser


def _rename(text: str) -> tuple[str, str]:
    """Parse the two names of a --map."""
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"expected OLD=NEW, got {text!r}")
    return old, new


def _guarded(command: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """A command that prints RecordError and the like to standard error and returns 2."""

    def guarded(args: argparse.Namespace) -> int:
        try:
            if args.format in DATA_FORMATS and args.output is None:
                raise RecordError(
                    f"{args.format} has one file per table: name a folder by --output"
                )
            return command(args)
        except (RecordError, OSError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 2

    return guarded


@_guarded
def report(args: argparse.Namespace) -> int:
    """Run `report`; returns the exit code."""
    from suite.report.render import render

    paths_of = _by_kind(args.results)
    for kind in KINDS:
        names = [name for name in kind.tables if name in (args.table or ())]
        if kind not in paths_of and names:
            raise RecordError(
                f"{', '.join(names)}: these tables need {kind.name}, and none is given"
            )
    if args.plots and not {SPEED, CONFORMANCE} & {*paths_of}:
        raise RecordError(f"--plots needs {SPEED.name} or {CONFORMANCE.name}, and none is given")
    if args.badge:
        from suite.report import badge

        if CONFORMANCE not in paths_of:
            raise RecordError(f"--badge needs {CONFORMANCE.name}, and none is given")
        badge.draw(load_runs(paths_of[CONFORMANCE], args.partial), args.badge)
    # Data formats include the rare tables.
    chosen = args.table or (TABLES if args.format in DATA_FORMATS else None)
    tables: dict[str, Any] = {}
    all_frames: dict[str, Any] = {}
    for kind, paths in paths_of.items():
        frames = kind.read(paths, Request(args.partial, args.baseline))
        all_frames |= frames
        tables |= kind.of(frames, chosen)
    if args.plots:
        from suite.report.plots import draw

        draw(all_frames, args.plots)
    first = {}
    if args.format == "html" and not args.table:
        from suite.report.overview import overview

        first = overview(all_frames)
    render(tables, args.format, args.output, next(iter(paths_of)).title, first)
    return 0


def _by_kind(paths: list[Path]) -> dict[Kind, list[Path]]:
    """The paths by kind, in the order of a report. Raises RecordError if a path is named twice."""
    seen: dict[Path, Path] = {}
    for path in paths:
        if path.resolve() in seen:
            raise RecordError(f"{path} is given twice (as {seen[path.resolve()]}); name it once")
        seen[path.resolve()] = path
    kinds = [kind_of(path) for path in paths]
    return {
        kind: [path for path, its in zip(paths, kinds, strict=True) if its is kind]
        for kind in KINDS
        if kind in kinds
    }


@_guarded
def diff(args: argparse.Namespace) -> int:
    """Run `diff`; returns the exit code."""
    from suite.report.diff import compare, header_changes, mapped, new_failures, summary
    from suite.report.render import render
    from suite.report.sweep_diff import difference, is_of_sweeps

    renames = dict(args.map)
    if len(renames) < len(args.map):
        raise RecordError("--map names the same old implementation twice; name it once")
    if is_of_sweeps(args.old, args.new):
        comparison = difference(args.old, args.new, renames, args.partial)
        changes, headers = comparison.changes, comparison.headers
        more = {} if comparison.alone.empty else {"alone": comparison.alone}
    else:
        old, new = (load(path, args.partial) for path in (args.old, args.new))
        changes = compare(*(mapped(old, new, renames) if renames else (old, new)))
        headers, more = header_changes(old, new), {}
    tables = {"summary": summary(changes), "changes": changes, "headers": headers, **more}
    render(tables, args.format, args.output, f"From {args.old} to {args.new}")
    return 1 if new_failures(changes) else 0


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="a new file, default stdout; for csv and parquet a new or empty folder",
    )
    add_partial(parser)


def add_partial(parser: argparse.ArgumentParser) -> None:
    """Add the option `--partial`."""
    parser.add_argument("--partial", action="store_true", help="also read runs that did not finish")
