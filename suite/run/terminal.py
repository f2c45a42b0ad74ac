"""The terminal: the output of a run for the person who started it.

While cells are judged, a line sometimes says how much is left. After the run come one line of verdict,
a few facts, and the failures by group. A failing cell is shown once: pytest's own sections list only
tests that are no cells. With `-v` tables come first, every group and every failure is shown in full;
with `-rf` pytest lists every failing cell in a line.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from attention_conformance.suite.records.cells import CellRecord, Run
from attention_conformance.suite.records.diagnoses import NO_REPORT, DiagnosisRecord, FailureReport
from attention_conformance.suite.run.options import NAMES, SECRET_SEEDS, Options
from attention_conformance.suite.run.progress import EVERY, Progress
from attention_conformance.suite.run.timing import time_line
from attention_conformance.suite.spec.text import printable
from attention_conformance.suite.spec.vocabulary import BROKEN, SEARCHED

if TYPE_CHECKING:
    from attention_conformance.suite.report.explanation import Group
    from attention_conformance.suite.run.log import RunLog

MOST, MOST_EXPLAINED = 10, 2
"""The number of groups of failures that have a line of their own: usually, and after a diagnosis."""

IN_FULL = 3
"""The number of groups that are shown in full."""

FAILED = "a cell failed"
"""A reason why a run fails that the verdict's line tells already: it is not printed again."""

REPORTED = "fE"
"""The default of pytest's option -r, by which failed tests and errors are listed."""


class Terminal:
    """The part of the pytest plugin that writes to the terminal, in the process that writes records."""

    def __init__(self, config: pytest.Config, log: RunLog) -> None:
        self._config, self._log = config, log
        self._progress: Progress | None = None
        self._failed: list[Any] = []

    @property
    def _is_silent(self) -> bool:
        return self._config.getoption("verbose") < -1

    def count_cell(self, cell: CellRecord, owed: Mapping[str, int]) -> None:
        """Count a judged cell, and write a line of progress if one is due. `owed`: the numbers of cells
        to judge in total by backend, {} if unknown."""
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or self._is_silent:
            return
        if self._progress is None:
            self._progress = Progress(EVERY[bool(reporter.isatty)])
        if owed and not self._progress.owed:
            self._progress.owe(owed)
        if text := self._progress.count_cell(cell.backend, cell.seconds):
            if reporter.currentfspath is None:  # with -q and under xdist dots follow no name
                reporter.write("\n")
            reporter.ensure_newline()
            reporter.write_line(printable(text))

    @pytest.hookimpl(specname="pytest_terminal_summary", wrapper=True, tryfirst=True)
    def pytest_terminal_summary_begins(self, terminalreporter: Any) -> Generator[None, None, None]:
        """Write verdict, facts and failures by group before pytest's own sections, which leave out
        failing cells."""
        log, reporter = self._log, terminalreporter
        if not log.cells or self._is_silent:
            return (yield)
        assert log.header is not None
        run, verbosity = Run(log.header, tuple(log.cells)), self._config.getoption("verbose")
        for text in self._summary_lines(run, verbosity > 0):
            reporter.write_line(printable(text))
        if verbosity < 2:
            # On CI machines pytest would give the whole message of each, once more, for its line.
            self._config.option.force_short_summary = True
        self._failed = reporter.stats.get("failed", [])
        if verbosity <= 0:
            reporter.stats["failed"] = self._other_failed_tests()
        try:
            return (yield)
        finally:
            reporter.stats["failed"] = self._failed

    def _summary_lines(self, run: Run, verbose: bool) -> Iterator[str]:
        from attention_conformance.suite.report import diagnoses, summary

        log = self._log
        tables = summary.tables(run) if verbose else summary.statuses(run)
        yield from ("", *tables, *([""] if tables else []))
        yield summary.verdict(run, [*log.shortfalls(), *log.failures()])
        yield from diagnoses.lines(log.report.diagnoses, self._command_of)
        usual = MOST_EXPLAINED if log.report.diagnoses else MOST
        most = len(run.cells) if verbose else usual
        yield from Listing(run, log.nodes, log.options, most, verbose, log.report).explanation()
        yield from (
            "",
            *summary.summary_lines(run.cells, log.identity.get("unavailable", {})),
            *([] if verbose else [summary.HIDDEN]),
        )

    def _command_of(self, one: DiagnosisRecord) -> str:
        """Returns the command that judges the smallest cell of the diagnosis `one` again; "" if it is no
        cell of this run."""
        log, identity = self._log, (one.check, one.case, one.backend, one.implementation)
        nodes = (node for key, node in log.nodes.items() if key[: len(identity)] == identity)
        node = next(nodes, "")
        return rerun_command(node, log.options) if node else ""

    def _other_failed_tests(self) -> list[Any]:
        """Returns the reports of failed tests that are no cells."""
        cells = set(self._log.nodes.values())
        return [report for report in self._failed if report.nodeid not in cells]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write notes, times, shortfalls and the path of the records. Only with `-r` does pytest's short
        summary list failing cells."""
        log = self._log
        if log.header is None or self._is_silent or self._config.option.collectonly:
            return
        if log.cells:
            lists_cells = self._config.option.reportchars != REPORTED
            listed = self._failed if lists_cells else self._other_failed_tests()
            terminalreporter.stats["failed"] = listed
        for text in filter(None, (*log.notes, *log.report.notes, log.shard_note)):
            terminalreporter.write_line(printable(text), yellow=True)
        for time in log.times:
            terminalreporter.write_line(printable(time_line(time)))
        for text in log.shortfalls():
            terminalreporter.write_line(printable(f"not judged enough: {text}"), red=True)
        for text in (reason for reason in log.failures() if reason != FAILED):
            terminalreporter.write_line(f"{printable(text)}: the run fails", red=True)
        if log.options.seed in SECRET_SEEDS:
            terminalreporter.write_line(f"--seed=secret drew this seed: --seed={log.options.seed}")
        if log.writer and log.results:
            terminalreporter.write_line(printable(f"records: {log.results}"))


class Listing:
    """The failures of a run by group, as lines of text.

    - `nodes`: the ids of tests by the keys of their records
    - `most`: the number of groups that have a line of their own
    - `verbose`: all of these are shown in full; else the first `IN_FULL`, or one if `report` has a
      diagnosis
    - `report`: its smaller case is shown in its group
    """

    def __init__(
        self,
        run: Run,
        nodes: Mapping[tuple, str],
        options: Options,
        most: int = MOST,
        verbose: bool = False,
        report: FailureReport = NO_REPORT,
    ) -> None:
        self._run, self._nodes, self._options, self._most_groups = run, nodes, options, most
        self._in_full = most if verbose else 1 if report.diagnoses else IN_FULL
        self._report = report
        self._groups = groups(run)

    def explanation(self) -> Iterator[str]:
        """Returns an iterator over lines of text: the failures by group. It is empty if no cell fails."""
        return failure_lines(
            self._run, self._groups, self._most_groups, self._commands, self._in_full
        )

    def _commands(self, cell: CellRecord) -> dict[str, str]:
        commands = {"again": rerun_command(self._nodes[cell.key], self._options)}
        report = self._report
        if report.smaller and report.group == (cell.check, cell.implementation, cell.kind):
            commands["smaller"] = report.smaller
            if report.takes:
                commands["takes"] = f"{report.takes}: with less of any of them it passes"
            if report.script:
                return commands | {"script": shlex.join(["python", report.script])}
        if command := search_command(cell, self._options):
            commands["go on"] = command
        return commands


def groups(run: Run) -> list[Group]:
    """Returns the groups of failing cells; [] for none."""
    if not any(run.totals[status] for status in BROKEN):
        return []  # without the import of pandas
    from attention_conformance.suite.report import explanation, frames

    return explanation.failure_groups(frames.cells(run))


Commands = Callable[[CellRecord], Mapping[str, str]]
"""Returns the commands that judge a failing cell again or shrink it, by their names in the listing."""


def failure_lines(
    run: Run, groups: Sequence[Group], most_groups: int, commands: Commands, in_full: int = IN_FULL
) -> Iterator[str]:
    """Yields failures by group as lines of text, none if no cell fails. The first `in_full` groups are
    shown in full, `most_groups` groups have a line each, and one line counts the remaining groups."""
    if groups:
        yield from ("", "Failures by group", "-----------------")
    for number, group in enumerate(groups[:most_groups], 1):
        smallest = run.cells[group.cells[0]]
        yield f"{number:2}. {_group_line(group)}"
        if number > in_full:
            continue
        if group.separation:
            yield f"    {group.separation}"
        yield f"    smallest  {smallest.case}"
        yield f"              {' '.join(smallest.message.split())}"
        yield from (f"    {name:9} {text}" for name, text in commands(smallest).items())
    if unlisted := groups[most_groups:]:
        counts = Counter(group.check for group in unlisted for _ in group.cells)
        checks = ", ".join(f"{check} {count}" for check, count in counts.items())
        noun = "group" if len(unlisted) == 1 else "groups"
        yield f"and {len(unlisted)} {noun} more, in full under -v: {checks}"


def _group_line(group: Group) -> str:
    count = len(group.cells)
    failures = "1 failure" if count == 1 else f"{count} failures"
    return f"{group.check} of {group.implementation}: {failures}, {group.kind}"


def rerun_command(node: str, options: Options) -> str:
    """Returns the one-line command that judges just the cell of this test."""
    return shlex.join(["pytest", node, *NAMES.in_pytest(options.command_line())])


def search_command(cell: CellRecord, options: Options, with_script: bool = True) -> str:
    """Returns the command that shrinks a failing case; with `with_script` the command also saves a
    script. "" if `search` does not judge the check, or if the run's seed is not the default."""
    if cell.check not in SEARCHED or options.seed != Options.seed:
        return ""
    backend = (cell.backend,) if len(options.backend) > 1 or "all" in options.backend else ()
    level = Options.level
    search_options = replace(
        options, backend=backend or options.backend, mode=cell.mode, level=level, audit=False
    )
    words = search_options.command_line()
    if not options.function:
        words.append(f"--implementation={cell.implementation}")
    file = f"{cell.check}-{cell.implementation.replace('@', '-')}.py"
    words += [f"--case={cell.case}", *([f"--script={file}"] if with_script else [])]
    return shlex.join(["attention-conformance", "search", *words])


def failure_text(cell: CellRecord, node: str, options: Options) -> str:
    """Returns the text that pytest shows for the test of a failing cell."""
    worst = "" if cell.error_ratio is None else f"\n  error ratio {cell.error_ratio:.3g}"
    return printable(
        f"{cell.status}: {cell.kind}\n"
        f"  case   {cell.case}\n"
        f"  check  {cell.check}, in {cell.name} "
        f"({cell.mode}, {cell.device}, numerics {cell.numerics}){worst}\n"
        f"  {cell.message}\n"
        f"  again: {rerun_command(node, options)}"
    )
