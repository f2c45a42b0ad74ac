"""The commands `report` and `diff` of `python -m suite`.

Exit codes: 0; 1 where `diff` finds a new failure; 2 where files or arguments cannot be used.
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
from suite.report.kinds import KINDS, SPEED, TABLES, Kind, Request, kind_of


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
        choices=list(TABLES),
        metavar="NAME",
        help=f"only these tables: {', '.join(TABLES)}; default: all but "
        f"{', '.join(table.name for table in TABLES.values() if table.rare)}, in csv and parquet all",
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
        "torch:sdpa=jax:jax-nn), and leave out those that one run has alone; repeatable",
    )
    _add_output(parser)
    parser.set_defaults(run=diff)
    return parser


def _rename(text: str) -> tuple[str, str]:
    """The two names of a --map."""
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"expected OLD=NEW, got {text!r}")
    return old, new


def _guarded(command: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """A command that says on standard error what cannot be used, with the exit code 2."""

    def guarded(args: argparse.Namespace) -> int:
        try:
            if args.format in DATA_FORMATS and args.output is None:
                raise RecordError(f"{args.format} is one file per table: name a folder by --output")
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
            raise RecordError(f"{', '.join(names)}: made of {kind.name}, and none is given")
    if args.plots and SPEED not in paths_of:
        raise RecordError(f"--plots draws {SPEED.name}, and none is given")
    # In files of data the rare tables, too.
    chosen = args.table or (TABLES if args.format in DATA_FORMATS else None)
    tables: dict[str, Any] = {}
    for kind, paths in paths_of.items():
        frames = kind.read(paths, Request(args.partial, args.baseline))
        tables |= kind.of(frames, chosen)
        if kind is SPEED and args.plots:
            from suite.report.plots import draw

            draw(frames["measurements"], args.plots)
    render(tables, args.format, args.output, next(iter(paths_of)).title)
    return 0


def _by_kind(paths: list[Path]) -> dict[Kind, list[Path]]:
    """The paths by what they hold, in the order of a report. Raises RecordError for one named twice."""
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
    """The option `--partial` of all that read result files."""
    parser.add_argument("--partial", action="store_true", help="also read runs that did not finish")
