"""The log of a run: the cells that must get a verdict, their verdicts, and the file of records.

The file is opened before any cell is judged, by a path that no kernel can change. If a plugin repeats a
test, the worst of the cell's verdicts counts. An error that pytest reports before or after the verdict
of a test is part of the verdict. So records and exit code agree. The log keeps what it wrote, since a
later test or error may correct a verdict.
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
from attention_conformance.suite.run.options import FORBID_ADVICE, NAMES, Options
from attention_conformance.suite.run.recorded import crashed, header
from attention_conformance.suite.run.suggestions import joint_suggestions, suggestions
from attention_conformance.suite.run.terminal import FAILED, Terminal
from attention_conformance.suite.run.timing import time_functions
from attention_conformance.suite.run.verdict import VerdictOutput, run_verdict
from attention_conformance.suite.spec.catalogue.workloads import find_workloads
from attention_conformance.suite.spec.text import printable
from attention_conformance.suite.spec.vocabulary import BROKEN

if TYPE_CHECKING:
    from attention_conformance.suite.run.plan import Plan

RECORDS_PATH = pytest.StashKey[str]()
"""The path of the records if --results is not given: another process reads them if this one dies."""

FILTERS = ("-k", "-m", "--deselect", "--lf", "--ff", "--last-failed", "--ignore", "--sw")
"""Options of pytest that leave out tests."""


def check_and_cell(test_id: str) -> tuple[str, str] | None:
    """Returns the names of the check and of the cell in a test's id; None if the test is no cell."""
    check, _, parameter = test_id.partition("::test_")[2].partition("[")
    implementation, slash, _ = parameter.partition("/")
    is_cell = slash and ":" in implementation and check in all_checks()
    return (check, parameter.rpartition("]")[0]) if is_cell else None


class RunLog:
    """The state of a run in the process that writes its records: the records, the open result file, and
    `identity`, the facts of the plan (`Plan.identity`). `nodes` are the ids of tests by the keys of their
    records."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self.config, self.options = config, options
        self.results: str | None = config.getoption(NAMES.destination("results"))
        try:
            self.verdict_output = VerdictOutput(
                *(config.getoption(NAMES.destination(n)) for n in ("verdict", "verdict-fd"))
            )
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
        self.workloads = checked_workloads(config, options)
        self.times: tuple[dict[str, Any], ...] = ()
        self._missing_times: list[str] = []
        self.header: records.Header | None = None
        self.writer: Writer[records.Header, CellRecord] | None = None
        self.nodes: dict[tuple, str] = {}
        self.identity: dict[str, Any] = {}
        self.report = NO_REPORT
        self.terminal = Terminal(config, self)
        self._key_by_test: dict[str, tuple] = {}
        self._cell_by_key: dict[tuple, CellRecord] = {}
        self._test_ids: list[str] = []
        self._has_corrections = False
        self._file: TextIO | None = None

    @property
    def cells(self) -> list[CellRecord]:
        """The records in order of arrival, each cell once."""
        return list(self._cell_by_key.values())

    @property
    def functions(self) -> list[str]:
        """The names of the user functions."""
        return list(self.identity.get("functions", ()))

    @property
    def notes(self) -> list[str]:
        """Notes for people: those of the plan; how to allow forbidden calls, if a cell failed by one; a
        sentence for each claim that errors suggest; and a line for each function with all suggested
        options."""
        by_default = self.options.untrusted and not self.options.forbid
        has_forbidden_call = by_default and any(c.kind == "forbidden" for c in self.cells)
        return [
            *self.identity.get("notes", ()),
            *([FORBID_ADVICE] if has_forbidden_call else []),
            *suggestions(self.cells, self.functions),
            *joint_suggestions(self.cells, self.report.diagnoses, self.functions),
        ]

    @property
    def missing(self) -> list[str]:
        """The ids of tests that are cells and have no verdict."""
        return [node for node in self._test_ids if node not in self._key_by_test]

    def open_results(self) -> str:
        """Open the new file of --results or `RECORDS_PATH`. Returns its path, "" if neither is set.
        Raises pytest.UsageError if the file exists or cannot be opened."""
        name = self.results or self.config.stash.get(RECORDS_PATH, "")
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
        self.config.add_cleanup(self._remove_if_empty)
        return str(path)

    def write_verdict(self, exit_code: int, usage: str = "") -> None:
        """Write the verdict to the outputs of --verdict and --verdict-fd, if any. If that fails, the run
        ends. `usage` is the text of a usage error."""
        if not self.verdict_output:
            return
        interrupted = ["the run did not finish"] if exit_code == pytest.ExitCode.INTERRUPTED else []
        reasons = [usage] if usage else [*interrupted, *self.failures(), *self.shortfalls()]
        verdict = run_verdict(
            exit_code, self.cells, reasons, functions=tuple(self.functions), seed=self.options.seed,
            missing=len(self.missing), times=self.times,
            diagnoses=tuple(one.sentence for one in self.report.diagnoses),
        )  # fmt: skip
        if error := self.verdict_output.write(verdict):
            pytest.exit(error, int(pytest.ExitCode.INTERRUPTED))

    def _remove_if_empty(self) -> None:
        """Close and remove the result file if it has no header."""
        if self._file is not None and self.writer is None:
            self._file.close()
            remove_empty(self._file.name)

    def set_test_ids(self, nodes: Iterable[str]) -> None:
        """Store the ids of the tests that will run: each must get a verdict."""
        self._test_ids = [node for node in nodes if check_and_cell(node)]

    def add(self, cell: CellRecord, identity: dict[str, Any], node: str) -> None:
        """Store the record of a cell, and write it if a file is open. `node`: the id of its test. If the
        cell has a record already, the worse one is stored. `identity`: see `Plan.identity`; the first
        one also writes the header. Records of crashes have {}, and are written after the header."""
        self._key_by_test[node] = cell.key
        if cell.key in self._cell_by_key:
            self._keep_worse(cell)
            return
        self._cell_by_key[cell.key] = cell
        self.nodes[cell.key] = node
        self.terminal.count_cell(cell, identity.get("owed", {}))
        if self.header is not None:
            self._write([cell])
        elif identity:
            self.write_header(identity)

    def add_error(self, node: str, message: str) -> None:
        """Store an error that pytest reported for a test before or after its verdict. A record that does
        not fail becomes an error; without a record a new one is stored."""
        key, names = self._key_by_test.get(node), check_and_cell(node)
        if key is not None:
            stored = self._cell_by_key[key]
            if stored.status not in BROKEN:
                self._keep_worse(
                    replace(stored, status="error", kind="harness", message=printable(message))
                )
        elif names is not None:
            cell = crashed(*names, "harness", printable(message), self.options)
            self.add(replace(cell, status="error"), {}, node)

    def _keep_worse(self, cell: CellRecord) -> None:
        """Replace the stored record of a cell if this record is worse."""
        stored = self._cell_by_key[cell.key]
        if _severity(cell) > _severity(stored):
            self._cell_by_key[cell.key] = cell
            self._has_corrections = True

    def write_header(self, identity: dict[str, Any]) -> None:
        """Store `identity` (`Plan.identity`), and write the header and the records so far if a file is
        open. Later calls do nothing."""
        if self.header is not None:
            return
        self.identity, self.header = identity, _header(self.config, self.options, identity)
        if self._file is not None:
            with self._ending_on_errors():
                self.writer = records.writer(self._file.name, self.header, self._file)
        self._write(self.cells)

    def _write(self, cells: Iterable[CellRecord]) -> None:
        """Write records if a file is open."""
        if writer := self.writer:
            with self._ending_on_errors():
                for cell in cells:
                    writer.write(cell)

    @contextmanager
    def _ending_on_errors(self) -> Iterator[None]:
        """A context that ends the run with one sentence if records cannot be written."""
        try:
            yield
        except RecordError as error:
            self.writer = self._file = None
            pytest.exit(f"--results: {error}", returncode=pytest.ExitCode.INTERRUPTED)

    def diagnose(self, plan: Plan | None) -> None:
        """Set `report` to the diagnoses of failing implementations, and write them. Does nothing in
        silent runs. Under pytest-xdist `plan` is None, because only workers have backends; then a child
        process diagnoses."""
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
            with self._ending_on_errors():
                for one in self.report.diagnoses:
                    self.writer.remark(LINE_NAME, one)

    def time_functions(self) -> None:
        """Time the functions on the workloads of --time if the run has no failure. Sets `times`."""
        if self.workloads and not [*self.failures(), *self.shortfalls()]:
            folder = self.config.invocation_params.dir
            self.times, self._missing_times = time_functions(self.options, self.workloads, folder)

    def close(self, finished: bool) -> None:
        """Write the footer if the run is `finished`. If records were replaced, the whole file is written
        again."""
        with self._ending_on_errors():
            self._close(finished)

    def _close(self, finished: bool) -> None:
        """Close the file as `close` says. A run that ended before its header was known gets one without
        an identity."""
        if self.cells:
            self.write_header({})
        if self.writer is None:
            return
        self.writer.close(finished and not self._has_corrections)
        if self._has_corrections:
            assert self.header is not None
            path = self.writer.path
            corrected = records.writer(path.with_name(f"{path.name}.{os.getpid()}"), self.header)
            for cell in self.cells:
                corrected.write(cell)
            for one in self.report.diagnoses:
                corrected.remark(LINE_NAME, one)
            corrected.close(finished)
            corrected.path.replace(path)

    @property
    def _has_passed(self) -> bool:
        """True if any cell passed. In a shard a known failure is enough, too."""
        enough = {"pass", "known"} if self.options.shard else {"pass"}
        return any(cell.status in enough for cell in self._cell_by_key.values())

    @property
    def shard_note(self) -> str:
        """A note that says why a shard judged no implementation; "" if it judged one."""
        if self.header is None or self.identity.get("needs_pass", True):
            return ""
        return (
            f"part {self.options.shard} of the {self.header.cells} cells holds "
            f"{len(self._cell_by_key) or 'none'}{', which nobody supports' if self._cell_by_key else ''}"
        )

    def failures(self) -> list[str]:
        """Returns the reasons why a run fails, other than by its tests, as sentences; [] for none."""
        failed_imports = self.identity.get("failed_imports", ())
        reasons = [f"{name} is {self.identity['unavailable'][name]}" for name in failed_imports]
        if any(cell.status in BROKEN for cell in self._cell_by_key.values()):
            reasons.append(FAILED)
        if self.identity.get("needs_pass", True) and not self._has_passed:
            reasons.append("no cell passed")
        if self.missing:
            reasons.append(
                f"{len(self.missing)} of {len(self._test_ids)} cells have no verdict, the first is "
                f"{self.missing[0]}"
            )
        return reasons + self._missing_times

    def shortfalls(self) -> list[str]:
        """Returns the reasons why a run without failures has judged too few cells; [] if it has judged
        enough."""
        return shortfalls(
            self.cells, self.functions, part=bool(self.options.shard), filtered=filtered(self.config),
            allow_refusals=self.options.allow_refusals,
        )  # fmt: skip


def checked_workloads(config: pytest.Config, options: Options) -> list[str]:
    """Returns the workloads of --time. Raises pytest.UsageError for an unknown one, or without
    --function."""
    workloads: list[str] = config.getoption(NAMES.destination("time"))
    try:
        for workload in workloads:
            find_workloads(workload)
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
    """True if arguments of pytest select tests, so that cells may be left out."""
    words = map(str, config.invocation_params.args)
    return any("::" in word or word.startswith(FILTERS) for word in words)
