"""The terminal: the output of a run for the person who started it.

While cells are judged, a line sometimes says how much is left. After the run come tables, then the
reasons of failures, then a few failures in full. pytest's short summary has one line for every failure.
With `-v` every group and every failure is shown in full.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from suite.records.cells import CellRecord, Run
from suite.run.options import NAMES, Options
from suite.run.progress import EVERY, Progress
from suite.spec.text import printable
from suite.spec.vocabulary import SEARCHED

if TYPE_CHECKING:
    from suite.report.explanation import Group
    from suite.run.log import RunLog

MOST = 10
"""The number of groups of failures, and of failures, that are shown in full."""


class Terminal:
    """The part of the pytest plugin that writes to the terminal, in the process that writes records."""

    def __init__(self, config: pytest.Config, log: RunLog) -> None:
        self._config, self._log = config, log
        self._progress: Progress | None = None
        self._failed: list[Any] | None = None

    @property
    def _is_silent(self) -> bool:
        return self._config.getoption("verbose") < -1

    def take(self, cell: CellRecord, owed: Mapping[str, int]) -> None:
        """Count a judged cell, and write a line if one is due. `owed` are the numbers of cells by
        backend, empty if unknown."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or self._is_silent:
            return
        if self._progress is None:
            self._progress = Progress(EVERY[bool(reporter.isatty)])
        if owed and not self._progress.owed:
            self._progress.owe(owed)
        if line := self._progress.take(cell.backend, cell.seconds):
            if reporter.currentfspath is None:  # with -q and under xdist dots follow no name
                reporter.write("\n")
            reporter.ensure_newline()
            reporter.write_line(printable(line))

    @pytest.hookimpl(specname="pytest_terminal_summary", wrapper=True, tryfirst=True)
    def pytest_terminal_summary_begins(self, terminalreporter: Any) -> Generator[None, None, None]:
        """Write tables and reasons of failures before pytest lists the failures, of which it then has
        few."""
        log = self._log
        if log.cells and not self._is_silent:
            from suite.report.summary import lines

            assert log.header is not None
            run = Run(log.header, tuple(log.cells))
            for text in ("", *lines(run, log.unavailable)):
                terminalreporter.write_line(printable(text))
            verbose = self._config.getoption("verbose") > 0
            listing = Listing(run, log.nodes, log.options, len(run.cells) if verbose else MOST)
            for text in listing.explanation():
                terminalreporter.write_line(printable(text))
            if self._config.getoption("verbose") < 2:
                # On CI machines pytest would give the whole message of each, once more, for its line.
                self._config.option.force_short_summary = True
            self._failed = terminalreporter.stats.get("failed", [])
            terminalreporter.stats["failed"] = listing.chosen(self._failed)
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write notes, shortfalls and the path of the records after the failures."""
        log = self._log
        if self._failed is not None:
            left_out = len(self._failed) - len(terminalreporter.stats["failed"])
            terminalreporter.stats["failed"] = self._failed
            if left_out:
                terminalreporter.write_line(
                    f"... and {left_out} more failures, a line each below; -v shows all of them in full"
                )
        elif log.header is None or self._is_silent or self._config.option.collectonly:
            return
        for text in filter(None, (*log.notes, log.silence)):
            terminalreporter.write_line(printable(text), yellow=True)
        for text in log.shortfalls():
            terminalreporter.write_line(printable(f"not judged enough: {text}"), red=True)
        for text in log.failures():
            terminalreporter.write_line(f"{printable(text)}: the run fails", red=True)
        if log.writer:
            terminalreporter.write_line(printable(f"records: {log.results}"))


class Listing:
    """The reasons of a run's failures, and the choice of pytest's reports to show in full.

    `nodes` are the ids of the tests by the keys of their cells. `most` groups and failures are shown in
    full.
    """

    def __init__(
        self, run: Run, nodes: Mapping[tuple, str], options: Options, most: int = MOST
    ) -> None:
        from suite.report import explanation, frames

        self._run, self._nodes, self._options, self._most = run, nodes, options, most
        self._groups = explanation.groups(frames.cells(run))
        rows = explanation.in_full(self._groups, most)
        self._in_full = [nodes[run.cells[row].key] for row in rows]

    def explanation(self) -> Iterator[str]:
        """The reasons of failures as lines of text; none if no cell fails."""
        return why(self._run, self._groups, self._most, self._commands)

    def chosen(self, reports: list[Any]) -> list[Any]:
        """The reports to show in full: `most` of cells, the smallest of every group first, and all of
        other tests."""
        by_node = {report.nodeid: report for report in reports}
        cells = set(self._nodes.values())
        first = [by_node[node] for node in self._in_full if node in by_node]
        return first + [report for report in reports if report.nodeid not in cells]

    def _commands(self, cell: CellRecord) -> dict[str, str]:
        commands = {"again": rerun_command(self._nodes[cell.key], self._options)}
        if command := search_command(cell, self._options):
            commands["go on"] = command
        return commands


Commands = Callable[[CellRecord], Mapping[str, str]]
"""The commands that repeat or reduce a failing cell, by their purpose."""


def why(run: Run, groups: Sequence[Group], most: int, commands: Commands) -> Iterator[str]:
    """The reasons of failures as lines of text, none if no cell fails; `most` groups are in full."""
    if groups:
        yield from ("", "Why cells fail", "--------------")
    for number, group in enumerate(groups[:most], 1):
        smallest = run.cells[group.cells[0]]
        yield f"{number:2}. {_head(group)}"
        yield f"    {group.separation}"
        yield f"    smallest  {smallest.case}"
        yield f"              {' '.join(smallest.message.split())}"
        yield from (f"    {name:9} {text}" for name, text in commands(smallest).items())
    rest = groups[most:]
    if rest:
        yield f"and {len(rest)} more, with their cases and commands under -v:"
    yield from (f"    {_head(group)}; {group.separation}" for group in rest)


def _head(group: Group) -> str:
    count = len(group.cells)
    failures = "1 failure" if count == 1 else f"{count} failures"
    return f"{group.check} of {group.implementation}: {failures}, {group.kind}"


def rerun_command(node: str, options: Options) -> str:
    """The one-line command that judges just the cell of this test."""
    return shlex.join(["pytest", node, *NAMES.said(options.words())])


def search_command(cell: CellRecord, options: Options) -> str:
    """The command that searches for a smaller failing case, and saves its script; "" if the search does
    not judge the check, or draws other values."""
    if cell.check not in SEARCHED or options.seed != Options.seed:
        return ""
    one = (cell.backend,) if len(options.backend) > 1 or "all" in options.backend else ()
    search_options = replace(
        options, backend=one or options.backend, mode=cell.mode, level=Options.level, audit=False
    )
    words = search_options.words()
    if not options.function:
        words.append(f"--implementation={cell.implementation}")
    script = f"{cell.check}-{cell.implementation.replace('@', '-')}.py"
    words += [f"--case={cell.case}", f"--script={script}"]
    return shlex.join(["python", "-m", "suite", "search", *words])


def failure_text(cell: CellRecord, node: str, options: Options) -> str:
    """The text of a failing cell."""
    worst = "" if cell.error_ratio is None else f"\n  error ratio {cell.error_ratio:.3g}"
    return printable(
        f"{cell.status}: {cell.kind}\n"
        f"  case   {cell.case}\n"
        f"  check  {cell.check}, in {cell.backend}:{cell.implementation} "
        f"({cell.mode}, {cell.device}, numerics {cell.numerics}){worst}\n"
        f"  {cell.message}\n"
        f"  again: {rerun_command(node, options)}"
    )
