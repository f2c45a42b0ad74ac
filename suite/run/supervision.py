"""Supervision: another process sees how a run ends.

- A plain run forks before a framework is imported. The parent believes an exit code only if the
  child wrote it, at its end, to the memory that both share (`suite.run.process.Board`).
- Workers (`-n`) have pytest-xdist's controller. If a worker cannot begin, because of a usage error or
  because it died during imports, the run ends: the next worker could not begin either. A worker that
  dies later is one crash, and a new worker continues.

A plain run has no worker: a worker would take 3 CPU seconds of every run (`-n 1` in
docs/data/measured.md).
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.records import cells as records
from attention_conformance.suite.records.files import remove_empty
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.run.log import RECORDS_PATH, RunLog, check_and_cell
from attention_conformance.suite.run.options import NAMES, Options
from attention_conformance.suite.run.process import (
    FORWARDED_SIGNALS,
    INTERRUPTED,
    Board,
    Fields,
    can_fork,
    interrupt_handler,
    place_in,
    run_in_fork,
    signal_handlers,
)
from attention_conformance.suite.run.recorded import crashed
from attention_conformance.suite.run.verdict import RunVerdict, VerdictOutput, run_verdict

OUTSIDE_SIGNALS = (*FORWARDED_SIGNALS, signal.SIGKILL)
"""Signals by which people and the system end a run: the judged cell is then no crash."""

BOARD = pytest.StashKey[Board]()
PROPERTY = "attention-cell"
"""The property of a test's report that has the cell's record."""

USAGE, IDENTITY = "attention-usage", "attention-identity"
"""Keys of what a worker sends: the text of a usage error, and `Plan.identity`."""

STACKS, SEED = "attention-stacks", "attention-seed"
"""Keys of what a worker receives: the file of its watchdog, and the seed."""


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run the session in a fork of this process, and return its exit code. This process sees how the fork
    ends. Returns None, so that pytest runs the session in this process, for workers, for their
    controller, and if this process cannot be forked."""
    option = config.option
    exempting = ("numprocesses", "tx", "help", "version", "collectonly", "usepdb", "trace")
    backend = config.getoption(NAMES.destination("backend"))
    is_exempt = hasattr(config, "workerinput") or any(getattr(option, n, None) for n in exempting)
    if not backend or is_exempt or BOARD in config.stash or not can_fork():
        return None

    def judge(board: Board) -> int:
        config.stash[BOARD] = board
        try:
            return int(config.hook.pytest_cmdline_main(config=config))
        except pytest.UsageError as error:
            board.say(usage=str(error))
            return int(pytest.ExitCode.USAGE_ERROR)

    path, descriptor = map(config.getoption, map(NAMES.destination, ("verdict", "verdict-fd")))
    has_output = bool(path or descriptor)
    temporary = tempfile.TemporaryDirectory(prefix="attention-") if has_output else nullcontext()
    with temporary as folder:
        if folder:
            config.stash[RECORDS_PATH] = str(Path(folder) / "cells.jsonl")
        code, facts = run_in_fork(judge, "With -n 1 such a cell is one crash, and the run goes on")
        if "results" in facts:
            remove_empty(facts["results"])
        if has_output and "died" in facts and "verdict" not in facts:
            options = Options.from_lookup(lambda name: config.getoption(NAMES.destination(name)))
            VerdictOutput(path, descriptor, True).write(verdict_of_death(options, code, facts))
    if "usage" in facts:
        raise pytest.UsageError(facts["usage"])
    return code


def verdict_of_death(options: Options, code: int, facts: Fields) -> RunVerdict:
    """Returns the verdict of a run whose process died, from its records and the `facts` on its board. The
    cell that was being judged counts as a crash, unless one of `OUTSIDE_SIGNALS` ended the process."""
    cells: list[records.CellRecord] = []
    with suppress(RecordError):
        cells += records.load(facts.get("results", ""), partial=True).cells
    names = check_and_cell(facts.get("cell", ""))
    if names is not None and facts["signal"] not in OUTSIDE_SIGNALS:
        crash = crashed(*names, facts["kind"], facts["died"], options)
        cells += [crash] if crash.key not in {cell.key for cell in cells} else []
    return run_verdict(
        code, cells, [facts["died"]], seed=options.seed,
        missing=max(0, facts.get("owed", 0) - len(cells)),
        functions=options.function_names,
    )  # fmt: skip


class Controller:
    """Hooks of pytest-xdist's controller, the process that starts workers and writes records."""

    def __init__(self, config: pytest.Config, log: RunLog) -> None:
        self._log = log
        self._collected: set[str] = set()
        self._folder = Path(tempfile.mkdtemp(prefix="attention-"))
        config.add_cleanup(lambda: shutil.rmtree(self._folder, ignore_errors=True))
        if threading.current_thread() is threading.main_thread():
            stack = ExitStack()
            write_verdict = partial(log.write_verdict, INTERRUPTED)
            handlers = {
                signal.SIGINT: interrupt_handler(write_verdict),
                signal.SIGTERM: end_on_sigterm,
            }
            stack.enter_context(signal_handlers(handlers))
            config.add_cleanup(stack.close)
            # A session that is ended while it starts has no other end.
            config.add_cleanup(write_verdict)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[STACKS] = str(self._folder / node.gateway.id)
        node.workerinput[SEED] = self._log.options.seed

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._collected.add(node.gateway.id)
        self._log.set_test_ids(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        output = getattr(node, "workeroutput", {})
        if USAGE in output:
            self._log.write_verdict(int(pytest.ExitCode.USAGE_ERROR), output[USAGE])
            raise pytest.UsageError(output[USAGE])
        if IDENTITY in output:
            self._log.write_header(output[IDENTITY])
        if error and node.gateway.id not in self._collected:
            name, place = node.gateway.id, self.watchdog_place(node)
            death = self._text_of_worker(f"{name}.death") or (
                f"the worker {name} died before its first cell, as it imported frameworks and kernels"
            )
            pytest.exit(
                f"{death}: {place or 'an exit, a signal, or a crash of what it called'}",
                returncode=pytest.ExitCode.TESTS_FAILED,
            )

    def watchdog_place(self, node: Any) -> str:
        """Returns the place at which the watchdog ended a worker; "" if the watchdog did not end it."""
        return place_in(self._text_of_worker(node.gateway.id))

    def _text_of_worker(self, name: str) -> str:
        """Returns the text of a file that a worker wrote; "" without the file."""
        file = self._folder / name
        return file.read_text(errors="replace") if file.is_file() else ""


class RecordReader:
    """Passes the records in reports of tests to a run log. `controller`: None without workers."""

    def __init__(self, log: RunLog, controller: Controller | None) -> None:
        self._log, self._controller = log, controller

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Pass the record in a report to the run log. `when` "???": a worker died, which is a crash."""
        log = self._log
        if report.when == "call":
            for name, value in report.user_properties:
                if name == PROPERTY and isinstance(value, dict):
                    log.add(records.CellRecord(**value["cell"]), value["run"], report.nodeid)
        names = check_and_cell(report.nodeid)
        if names is not None and report.when == "???":
            assert self._controller is not None
            place = self._controller.watchdog_place(report.node)
            ending = place or "a signal, an abort or an exit"
            message = f"the process that judged this cell died: {ending}"
            cell = crashed(*names, "timeout" if place else "crash", message, log.options)
            log.add(cell, {}, report.nodeid)
        elif report.failed:
            line = str(report.longrepr).strip().rpartition("\n")[2]
            log.add_error(report.nodeid, f"in {report.when}, beside the verdict: {line[:300]}")


def death_reporter(config: pytest.Config) -> Callable[[str], object]:
    """Returns a function that stores a sentence for the parent, which prints it if this process dies."""
    if BOARD in config.stash:
        return lambda death: config.stash[BOARD].say(death=death)
    if stacks := getattr(config, "workerinput", {}).get(STACKS):
        return Path(f"{stacks}.death").write_text
    return lambda death: None


def end_on_sigterm(*details: object) -> None:
    """A handler of SIGTERM: end the session, which then writes its verdict."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pytest.exit("the run was ended by SIGTERM", returncode=INTERRUPTED)


class InWorker:
    """Hooks of pytest in a worker of pytest-xdist: they sort cells, and send usage errors to the main
    process."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort cells so that neighbours share work: pytest-xdist gives each worker runs of neighbours.

        Cells of a case share a reference. If a backend compiles every new shape, cells of an
        implementation share programs: they are sorted by implementation first. Tests that are no cells
        stay in front.
        """
        orders: dict[object, int] = {}

        def order_of(key: object) -> int:
            return orders.setdefault(key, len(orders))

        def sort_key(item: pytest.Item) -> tuple[int, int]:
            callspec = getattr(item, "callspec", None)
            cell = callspec.params.get("cell") if callspec else None
            if not isinstance(cell, Cell):
                return -1, -1
            case = order_of(cell.case.id)
            compiles = cell.implementation.backend.compiles_shapes
            return order_of(str(cell.implementation)) if compiles else case, case

        items.sort(key=sort_key)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, object, object]:
        try:
            return (yield)
        except pytest.UsageError as error:
            output: dict[str, Any] = session.config.workeroutput  # type: ignore[attr-defined]
            output[USAGE] = str(error)
            raise
