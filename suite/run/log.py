"""The log of a run: the cells that a run owes, the verdict of each, and the file of records.

The file is opened before any cell is judged, by a path that no kernel can change. If a plugin repeats a
test, the worst of the cell's verdicts counts. An error that pytest reports before or after the verdict
of a test is part of the verdict. So records and exit code agree.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

import pytest

from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.records import cells as records
from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.records.coverage import shortfalls
from attention_conformance.suite.records.diagnoses import LINE_NAME, NO_REPORT
from attention_conformance.suite.records.files import new_file, remove_empty
from attention_conformance.suite.records.lines import RecordError, Writer
from attention_conformance.suite.run.options import ALLOWS, NAMES, Options
from attention_conformance.suite.run.recorded import crashed, header
from attention_conformance.suite.run.suggestions import suggestions, together
from attention_conformance.suite.run.terminal import FAILED, Terminal
from attention_conformance.suite.run.timing import timed
from attention_conformance.suite.run.verdict import Door, of_run
from attention_conformance.suite.spec.catalogue.workloads import named
from attention_conformance.suite.spec.text import printable
from attention_conformance.suite.spec.vocabulary import BROKEN

if TYPE_CHECKING:
    from attention_conformance.suite.run.plan import Plan

CELLS = pytest.StashKey[str]()
"""A file for the records of a run without --results, which another process reads if this one dies."""

FILTERS = ("-k", "-m", "--deselect", "--lf", "--ff", "--last-failed", "--ignore", "--sw")
"""Options of pytest that leave out tests."""


def cell_of(node: str) -> tuple[str, str] | None:
    """Check and name of the cell of a test, by the test's id; None for a test that is no cell."""
    check, _, parameter = node.partition("::test_")[2].partition("[")
    implementation, slash, _ = parameter.partition("/")
    cell = slash and ":" in implementation and check in all_checks()
    return (check, parameter.rpartition("]")[0]) if cell else None


class RunLog:
    """The state of a run in the process that writes its records: the plan's identity, the records, the
    open file."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self.config, self.options = config, options
        self.results: str | None = config.getoption(NAMES.destination("results"))
        try:
            self.door = Door(
                *(config.getoption(NAMES.destination(n)) for n in ("verdict", "verdict-fd"))
            )
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
        self.workloads = checked_workloads(config, options)
        self.times: tuple[dict[str, Any], ...] = ()
        self._untimed: list[str] = []
        self.header: records.Header | None = None
        self.writer: Writer[records.Header, CellRecord] | None = None
        self.nodes: dict[tuple, str] = {}
        self.pending: list[CellRecord] = []
        self.unavailable: dict[str, str] = {}
        self.failed_imports: list[str] = []
        self._notes: list[str] = []
        self.functions: list[str] = []
        self.report = NO_REPORT
        self.terminal = Terminal(config, self)
        self._keys: dict[str, tuple] = {}
        self._cells: dict[tuple, CellRecord] = {}
        self._owed: list[str] = []
        self._owes_answers = True
        self._corrected = False
        self._file: TextIO | None = None

    @property
    def cells(self) -> list[CellRecord]:
        """The records in order of arrival, each cell once."""
        return list(self._cells.values())

    @property
    def notes(self) -> list[str]:
        """The notes of the plan; the option that allows forbidden calls, if any were made; the claims
        that errors suggest, one by one; and what failures and diagnoses suggest together, a line."""
        by_default = self.options.untrusted and not self.options.forbid
        called = by_default and any(cell.kind == "forbidden" for cell in self.cells)
        return [
            *self._notes,
            *([ALLOWS] if called else []),
            *suggestions(self.cells, self.functions),
            *together(self.cells, self.report.diagnoses, self.functions),
        ]

    @property
    def missing(self) -> list[str]:
        """The ids of tests that are cells and have no verdict."""
        return [node for node in self._owed if node not in self._keys]

    def reserve(self) -> str:
        """Open the file of --results or `CELLS`, and return its path; "" if there is none. Raises
        pytest.UsageError."""
        name = self.results or self.config.stash.get(CELLS, "")
        if not name:
            return ""
        path = self.config.invocation_params.dir / name
        try:
            self._file = new_file(path)
        except FileExistsError as error:
            raise pytest.UsageError(
                f"--results={self.results} exists, and nothing is overwritten; name a new file"
            ) from error
        except (OSError, ValueError) as error:
            raise pytest.UsageError(
                f"--results={self.results} cannot be opened: {error}"
            ) from error
        self.config.add_cleanup(self._release)
        return str(path)

    def say_verdict(self, exit_code: int, usage: str = "") -> None:
        """Write the verdict to where --verdict and --verdict-fd say. If there is no room for it, the run
        ends as one whose records cannot be written."""
        if not self.door:
            return
        ended = ["the run did not finish"] if exit_code == pytest.ExitCode.INTERRUPTED else []
        reasons = [usage] if usage else [*ended, *self.failures(), *self.shortfalls()]
        verdict = of_run(
            exit_code, self.cells, reasons, functions=tuple(self.functions), seed=self.options.seed,
            missing=len(self.missing), times=self.times,
            diagnoses=tuple(one.sentence for one in self.report.diagnoses),
        )  # fmt: skip
        if said := self.door.write(verdict):
            pytest.exit(said, int(pytest.ExitCode.INTERRUPTED))

    def _release(self) -> None:
        """Close the file, and remove it if no cell was judged."""
        if self._file is not None and self.writer is None:
            self._file.close()
            remove_empty(self._file.name)

    def owe(self, nodes: Iterable[str]) -> None:
        """Take in the ids of the tests that will run."""
        self._owed = [node for node in nodes if cell_of(node)]

    def take(self, cell: CellRecord, identity: dict[str, Any], node: str) -> None:
        """Keep a record, and write it. The first record with the plan's identity begins the file.

        The record of a crash has no identity, and waits for a record that has.
        """
        self._keys[node] = cell.key
        if cell.key in self._cells:
            self._correct(cell)
            return
        self._cells[cell.key] = cell
        self.nodes[cell.key] = node
        self.terminal.take(cell, identity.get("owed", {}))
        self.pending.append(cell)
        if identity:
            self.begin(identity)
        self._flush()

    def take_failure(self, node: str, message: str) -> None:
        """Put an error that pytest reports before or after a test's verdict into its record."""
        key, of = self._keys.get(node), cell_of(node)
        if key is not None:
            before = self._cells[key]
            if before.status not in BROKEN:
                self._correct(
                    replace(before, status="error", kind="harness", message=printable(message))
                )
        elif of is not None:
            cell = crashed(*of, "harness", printable(message), self.options)
            self.take(replace(cell, status="error"), {}, node)

    def _correct(self, cell: CellRecord) -> None:
        """Keep the worse of the two records of a cell."""
        before = self._cells[cell.key]
        if _severity(cell) > _severity(before):
            self._cells[cell.key] = cell
            self._corrected = True

    def begin(self, identity: dict[str, Any]) -> None:
        """Make and write the header, once."""
        if self.header is not None:
            return
        self.header = _header(self.config, self.options, identity)
        self.unavailable = identity.get("unavailable", {})
        self.failed_imports = identity.get("failed_imports", [])
        self._notes = list(identity.get("notes", []))
        self.functions = list(identity.get("functions", []))
        self._owes_answers = identity.get("owes_answers", True)
        if self._file is not None:
            with self._writing():
                self.writer = records.writer(self._file.name, self.header, self._file)

    def _flush(self) -> None:
        """Write the waiting records, if a file is open."""
        if self.writer:
            with self._writing():
                for cell in self.pending:
                    self.writer.write(cell)
            self.pending = []

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A context that ends the run in one sentence if the records cannot be written."""
        try:
            yield
        except RecordError as error:
            self.writer = self._file = None
            pytest.exit(f"--results: {error}", returncode=pytest.ExitCode.INTERRUPTED)

    def diagnose(self, plan: Plan | None) -> None:
        """Say what is wrong with implementations that fail, except in silent runs, and write it. With
        workers, which have the backends, there is no `plan` here, and a child is asked."""
        if self.config.getoption("verbose") < -1 or not self.options.backend:
            return
        from attention_conformance.suite.run.diagnosing import diagnose_in_child, diagnose_run

        cache, folder = getattr(self.config, "cache", None), None
        if cache is not None:
            with suppress(OSError):  # a checkout that cannot be written to
                folder = cache.mkdir("attention-failures")
        if plan is None:
            self.report = diagnose_in_child(self.options, self.cells, folder)
        else:
            self.report = diagnose_run(plan, self.cells, folder)
        if self.writer:
            with self._writing():
                for one in self.report.diagnoses:
                    self.writer.remark(LINE_NAME, one)

    def time(self) -> None:
        """Time the functions on the workloads of --time if nothing is wrong with them."""
        if self.workloads and not [*self.failures(), *self.shortfalls()]:
            folder = self.config.invocation_params.dir
            self.times, self._untimed = timed(self.options, self.workloads, folder)

    def close(self, finished: bool) -> None:
        """Write the waiting records and, if the run is `finished`, the footer. If records were
        corrected, write the file anew."""
        with self._writing():
            self._close(finished)

    def _close(self, finished: bool) -> None:
        if self.header is None and self.pending:
            self.begin({})
        self._flush()
        if self.writer is None:
            return
        self.writer.close(finished and not self._corrected)
        if self._corrected:
            assert self.header is not None
            path = self.writer.path
            again = records.writer(path.with_name(f"{path.name}.{os.getpid()}"), self.header)
            for cell in self.cells:
                again.write(cell)
            for one in self.report.diagnoses:
                again.remark(LINE_NAME, one)
            again.close(finished)
            again.path.replace(path)

    @property
    def _has_passed(self) -> bool:
        """True if any cell passed. In a shard a known failure is enough, too."""
        enough = {"pass", "known"} if self.options.shard else {"pass"}
        return any(cell.status in enough for cell in self._cells.values())

    @property
    def silence(self) -> str:
        """The reason why a shard says nothing of any implementation; "" if it says something."""
        if self.header is None or self._owes_answers:
            return ""
        return (
            f"part {self.options.shard} of the {self.header.cells} cells holds "
            f"{len(self._cells) or 'none'}{', which nobody supports' if self._cells else ''}"
        )

    def failures(self) -> list[str]:
        """The reasons why a run fails although no test does."""
        reasons = [f"{name} is {self.unavailable[name]}" for name in self.failed_imports]
        if any(cell.status in BROKEN for cell in self._cells.values()):
            reasons.append(FAILED)
        if self._owes_answers and not self._has_passed:
            reasons.append("no cell passed")
        if self.missing:
            reasons.append(
                f"{len(self.missing)} of {len(self._owed)} cells have no verdict, the first is "
                f"{self.missing[0]}"
            )
        return reasons + self._untimed

    def shortfalls(self) -> list[str]:
        """The reasons why a run without failures has not judged enough; empty if it has."""
        return shortfalls(
            self.cells, self.functions, part=bool(self.options.shard), filtered=filtered(self.config),
            allow_refusals=self.options.allow_refusals,
        )  # fmt: skip


def checked_workloads(config: pytest.Config, options: Options) -> list[str]:
    """The workloads of --time. Raises pytest.UsageError."""
    workloads: list[str] = config.getoption(NAMES.destination("time"))
    try:
        for workload in workloads:
            named(workload)
    except ValueError as error:
        raise pytest.UsageError(f"--time: {error}") from error
    if workloads and not options.function:
        raise pytest.UsageError("--time speaks of a --function, and none is given")
    return workloads


def _severity(cell: CellRecord) -> int:
    return ("pass", "unsupported", "known", *BROKEN).index(cell.status)


def _header(config: pytest.Config, options: Options, identity: dict[str, Any]) -> records.Header:
    workers = str(getattr(config.option, "numprocesses", None))
    return header(options, identity, filtered(config), xdist=workers)


def filtered(config: pytest.Config) -> bool:
    """True if options of pytest leave out cells."""
    words = map(str, config.invocation_params.args)
    return any("::" in word or word.startswith(FILTERS) for word in words)
