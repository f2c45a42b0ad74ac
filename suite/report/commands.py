"""The commands `report`, `diff` and `findings`.

Exit codes: 0; 1 if `diff` finds a new failure; 2 if files or arguments are invalid.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
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

    results: tuple[Path, ...] = option("files; - for stdin", "RESULTS", kind=Path, nargs="+")
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


def _parse_rename(text: str) -> tuple[str, str]:
    """Parse the two names of a --map."""
    old, equals, new = text.partition("=")
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"expected OLD=NEW, got {text!r}")
    return old, new


@dataclass(frozen=True)
class DiffOptions(OutputOptions):
    """The options of `diff`."""

    old: Path = option("result file of the old run, or a sweep", "OLD", kind=Path, nargs="1")
    new: Path = option("result file of the new run, or a sweep", "NEW", kind=Path, nargs="1")
    map: tuple[tuple[str, str], ...] = option(
        "compare the old run's implementation OLD with the new run's NEW (sdpa=flash, or "
        "torch:sdpa=jax:jax-nn), and skip implementations of only one run; repeatable",
        "OLD=NEW",
        many=True,
        kind=_parse_rename,
    )


def _guarded(command: Callable[[Any], int]) -> Callable[[Any], int]:
    """Returns the command with errors handled: it prints RecordError and OSError to standard error, and
    returns 2. Python looks for no cycles meanwhile: records and frames have none, and are many."""

    @wraps(command)
    def guarded(options: OutputOptions) -> int:
        is_collecting = gc.isenabled()
        gc.disable()
        try:
            if options.format in (*DATA_FORMATS, SITE) and options.output is None:
                raise RecordError(f"{options.format} has several files: name a folder by --output")
            return command(options)
        except (RecordError, OSError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 2
        finally:
            if is_collecting:
                gc.enable()

    return guarded


@_guarded
def report(options: ReportOptions) -> int:
    """Run the command `report`, and return its exit code."""
    from attention_conformance.suite.report.render import render

    paths_by_kind = _paths_by_kind(options.results)
    for kind in KINDS:
        names = [name for name in kind.tables if name in options.table]
        if kind not in paths_by_kind and names:
            raise RecordError(
                f"{', '.join(names)}: these tables need {kind.name}, and none is given"
            )
    if options.plots and not {SPEED, CONFORMANCE} & {*paths_by_kind}:
        raise RecordError(f"--plots needs {SPEED.name} or {CONFORMANCE.name}, and none is given")
    if (options.badge or options.badges) and CONFORMANCE not in paths_by_kind:
        raise RecordError(f"badges need {CONFORMANCE.name}, and none is given")
    if options.format == SITE and CONFORMANCE not in paths_by_kind:
        raise RecordError(f"--format=site needs {CONFORMANCE.name}, and none is given")
    if options.format == SITE and options.table:
        raise RecordError("--format=site chooses its tables itself: leave --table out")
    # Data formats include the rare tables; a site makes its own.
    tables_of_format = {**dict.fromkeys(DATA_FORMATS, tuple(TABLES)), SITE: ()}
    names_of_tables = options.table or tables_of_format.get(options.format)
    tables: dict[str, Any] = {}
    all_frames: dict[str, Any] = {}
    for kind, paths in paths_by_kind.items():
        loaded = kind.load(paths, options.partial)
        if kind is CONFORMANCE and (options.badge or options.badges):
            from attention_conformance.suite.report import badge

            badge.write_badges(loaded, options.badge, options.badges)
        frames = kind.frames(loaded, options.baseline)
        del loaded  # free the memory of the records
        all_frames |= frames
        tables |= kind.make(frames, names_of_tables)
    if options.plots:
        from attention_conformance.suite.report.plots import draw

        draw(all_frames, options.plots)
    if options.format == SITE:
        from attention_conformance.suite.report import site

        assert options.output is not None
        site.write_site(all_frames, CONFORMANCE.title, options.output)
        return 0
    first_screen = {}
    if options.format == "html" and not options.table:
        from attention_conformance.suite.report.overview import overview

        first_screen = overview(all_frames, tables)
    render(tables, options.format, options.output, next(iter(paths_by_kind)).title, first_screen)
    return 0


def _paths_by_kind(paths: Sequence[Path]) -> dict[Kind, list[Path]]:
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
def diff(options: DiffOptions) -> int:
    """Run the command `diff`, and return its exit code."""
    from attention_conformance.suite.report.diff import compare_paths, new_failures
    from attention_conformance.suite.report.render import render

    renames = dict(options.map)
    if len(renames) < len(options.map):
        raise RecordError("--map names the same old implementation twice; name it once")
    tables = compare_paths(options.old, options.new, renames, options.partial)
    render(tables, options.format, options.output, f"From {options.old} to {options.new}")
    return 1 if new_failures(tables["changes"]) else 0


@dataclass(frozen=True)
class FindingsOptions(CommandOptions):
    """The options of `findings`."""

    results: tuple[str, ...] = option("result files", "RESULTS", nargs="*")
    output: Path | None = option("write the pages there", "FOLDER", default=None, kind=Path)
    reports: Path | None = option(
        "run the scripts of unreported wrong answers and write reports to post upstream there",
        "FOLDER",
        default=None,
        kind=Path,
    )


def findings(options: FindingsOptions) -> int:
    """Run the command `findings`, and return its exit code."""
    from attention_conformance.suite.records.cells import load
    from attention_conformance.suite.records.expectations import ExpectationError
    from attention_conformance.suite.records.findings import manifests, pages, reports

    try:
        texts = pages(manifests(), [load(path) for path in options.results])
        if options.output:
            _write_pages(options.output, texts)
        if options.reports:
            _write_pages(options.reports, reports(manifests()))
        if not options.output and not options.reports:
            print("\n".join(texts.values()), end="")
    except (OSError, ExpectationError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _write_pages(folder: Path, pages: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
