"""The commands `report` and `diff` of `attention-conformance`.

Exit codes: 0; 1 if `diff` finds a new failure; 2 if files or arguments are invalid.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_conformance.suite.flags import CommandOptions, option
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.report import DATA_FORMATS, FORMATS, SITE
from attention_conformance.suite.report.kinds import (
    CONFORMANCE,
    KINDS,
    SPEED,
    TABLES,
    Kind,
    kind_of,
)  # fmt: skip

PARTIAL: bool = option("also read runs that did not finish", switch=True)


@dataclass(frozen=True)
class OutputOptions(CommandOptions):
    """The options of every command that prints tables."""

    format: str = option("default: text", default="text", valid=FORMATS, checked=True)
    output: Path | None = option(
        "a new file, default stdout; for csv, parquet and site a new or empty folder",
        "PATH",
        default=None,
        kind=Path,
    )
    partial: bool = PARTIAL


RARE = ", ".join(table.name for table in TABLES.values() if table.rare)


@dataclass(frozen=True)
class ReportOptions(OutputOptions):
    """The options of `report`."""

    format: str = option(
        "default: text; site is a folder with a page for every implementation",
        default="text",
        valid=(*FORMATS, SITE),
        checked=True,
    )
    table: tuple[str, ...] = option(
        f"only these tables: {', '.join(TABLES)}; default: all except {RARE}, in csv and parquet all",
        "NAME",
        many=True,
        several=True,
        valid=tuple(TABLES),
        checked=True,
    )
    baseline: str = option("baseline of the table speedup, as torch:sdpa", "NAME")
    plots: Path | None = option(
        "draw speed and precision into a new or empty folder", "FOLDER", default=None, kind=Path
    )
    badge: Path | None = option(
        "draw the verdict of whole runs into a new SVG file", "FILE", default=None, kind=Path
    )
    badges: Path | None = option(
        "draw verdict, precision and coverage of whole runs into a new or empty folder",
        "FOLDER",
        default=None,
        kind=Path,
    )


def add_report_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `report RESULTS...` to the subparsers of `argparse`; sets `run`."""
    parser = subparsers.add_parser(
        "report",
        help="tables from result files",
        description="Tables of conformance and speed from result files (--results), and from asv's "
        "folder of results. Shards of one run are merged and must be complete; others are separate runs.",
    )
    parser.add_argument(
        "results", nargs="+", type=Path, metavar="RESULTS", help="files; - for stdin"
    )
    ReportOptions.declare(parser.add_argument)
    parser.set_defaults(run=report)
    return parser


def _parse_rename(text: str) -> tuple[str, str]:
    """Parse the two names of a --map."""
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"expected OLD=NEW, got {text!r}")
    return old, new


@dataclass(frozen=True)
class DiffOptions(OutputOptions):
    """The options of `diff`."""

    map: tuple[tuple[str, str], ...] = option(
        "compare the old run's implementation OLD with the new run's NEW (sdpa=flash, or "
        "torch:sdpa=jax:jax-nn), and skip implementations of only one run; repeatable",
        "OLD=NEW",
        many=True,
        kind=_parse_rename,
    )


def add_diff_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `diff OLD NEW` to the subparsers of `argparse`; sets `run`."""
    parser = subparsers.add_parser(
        "diff",
        help="changes between two runs; exit code 1 on new failures",
        description="Changes between two runs, cell by cell. If a run is partial, only cells in both "
        "runs are compared. Exit code 1 on new failures, else 0.",
    )
    for name in ("old", "new"):
        help = f"result file of the {name} run, or a sweep"
        parser.add_argument(name, type=Path, metavar=name.upper(), help=help)
    DiffOptions.declare(parser.add_argument)
    parser.set_defaults(run=diff)
    return parser


def _guarded(command: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Returns the command with errors handled: it prints RecordError and OSError to standard error, and
    returns 2."""

    def guarded(args: argparse.Namespace) -> int:
        try:
            if args.format in (*DATA_FORMATS, SITE) and args.output is None:
                raise RecordError(f"{args.format} has several files: name a folder by --output")
            return command(args)
        except (RecordError, OSError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 2

    return guarded


@_guarded
def report(args: argparse.Namespace) -> int:
    """Run the command `report`, and return its exit code."""
    from attention_conformance.suite.report.render import render

    paths_by_kind = _paths_by_kind(args.results)
    for kind in KINDS:
        names = [name for name in kind.tables if name in (args.table or ())]
        if kind not in paths_by_kind and names:
            raise RecordError(
                f"{', '.join(names)}: these tables need {kind.name}, and none is given"
            )
    if args.plots and not {SPEED, CONFORMANCE} & {*paths_by_kind}:
        raise RecordError(f"--plots needs {SPEED.name} or {CONFORMANCE.name}, and none is given")
    if (args.badge or args.badges) and CONFORMANCE not in paths_by_kind:
        raise RecordError(f"badges need {CONFORMANCE.name}, and none is given")
    if args.format == SITE and CONFORMANCE not in paths_by_kind:
        raise RecordError(f"--format=site needs {CONFORMANCE.name}, and none is given")
    if args.format == SITE and args.table:
        raise RecordError("--format=site chooses its tables itself: leave --table out")
    # Data formats include the rare tables; a site makes its own.
    tables_of_format = {**dict.fromkeys(DATA_FORMATS, tuple(TABLES)), SITE: ()}
    names_of_tables = args.table or tables_of_format.get(args.format)
    tables: dict[str, Any] = {}
    all_frames: dict[str, Any] = {}
    for kind, paths in paths_by_kind.items():
        loaded = kind.load(paths, args.partial)
        if kind is CONFORMANCE and (args.badge or args.badges):
            from attention_conformance.suite.report import badge

            badge.write_badges(loaded, args.badge, args.badges)
        frames = kind.frames(loaded, args.baseline)
        del loaded  # free the memory of the records
        all_frames |= frames
        tables |= kind.make(frames, names_of_tables)
    if args.plots:
        from attention_conformance.suite.report.plots import draw

        draw(all_frames, args.plots)
    if args.format == SITE:
        from attention_conformance.suite.report import site

        site.write_site(all_frames, CONFORMANCE.title, args.output)
        return 0
    first_screen = {}
    if args.format == "html" and not args.table:
        from attention_conformance.suite.report.overview import overview

        first_screen = overview(all_frames, tables)
    render(tables, args.format, args.output, next(iter(paths_by_kind)).title, first_screen)
    return 0


def _paths_by_kind(paths: list[Path]) -> dict[Kind, list[Path]]:
    """Returns the paths by the kind of their results, in the order of a report. Raises RecordError if a
    path is named twice."""
    listed: dict[Path, Path] = {}
    for path in paths:
        if path.resolve() in listed:
            raise RecordError(f"{path} is given twice (as {listed[path.resolve()]}); name it once")
        listed[path.resolve()] = path
    kinds = [kind_of(path) for path in paths]
    return {
        kind: [path for path, its_kind in zip(paths, kinds, strict=True) if its_kind is kind]
        for kind in KINDS
        if kind in kinds
    }


@_guarded
def diff(args: argparse.Namespace) -> int:
    """Run the command `diff`, and return its exit code."""
    from attention_conformance.suite.report.diff import compare_paths, new_failures
    from attention_conformance.suite.report.render import render

    renames = dict(args.map)
    if len(renames) < len(args.map):
        raise RecordError("--map names the same old implementation twice; name it once")
    tables = compare_paths(args.old, args.new, renames, args.partial)
    render(tables, args.format, args.output, f"From {args.old} to {args.new}")
    return 1 if new_failures(tables["changes"]) else 0
