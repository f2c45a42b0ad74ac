"""Supervision: another process sees how a run ends.

- A plain run forks before a framework is imported. The parent takes an outcome only if the child says
  that it came to its end.
- Workers (`-n`) have pytest-xdist's controller. If a worker cannot begin, because of a usage error or
  because it died during imports, the run ends: the next worker could not begin either. A worker that
  dies later is one crash, and a new worker continues.
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
from attention_conformance.suite.run.log import CELLS, RunLog, cell_of
from attention_conformance.suite.run.options import NAMES, Options
from attention_conformance.suite.run.process import (
    HANDED_ON,
    INTERRUPTED,
    Board,
    Fields,
    can_fork,
    handled,
    interrupting,
    place_in,
    supervised,
)
from attention_conformance.suite.run.recorded import crashed
from attention_conformance.suite.run.verdict import Door, RunVerdict, of_run

FROM_OUTSIDE = (*HANDED_ON, signal.SIGKILL)
"""Signals by which people and the system end a run; no kernel is blamed for them."""

BOARD = pytest.StashKey[Board]()
USAGE, IDENTITY = "attention-usage", "attention-identity"
"""What a worker tells of a usage error and of its plan."""

STACKS, SEED = "attention-stacks", "attention-seed"
"""What a worker is told: where its watchdog writes, and the seed."""


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Judge in a child, unless another process sees how the run ends: workers have their controller."""
    option = config.option
    others = ("numprocesses", "tx", "help", "version", "collectonly", "usepdb", "trace")
    plain = config.getoption(NAMES.destination("backend")) and not hasattr(config, "workerinput")
    busy = any(getattr(option, name, None) for name in others)
    if not plain or busy or BOARD in config.stash or not can_fork():
        return None

    def judge(board: Board) -> int:
        config.stash[BOARD] = board
        try:
            return int(config.hook.pytest_cmdline_main(config=config))
        except pytest.UsageError as error:
            board.say(usage=str(error))
            return int(pytest.ExitCode.USAGE_ERROR)

    path, descriptor = map(config.getoption, map(NAMES.destination, ("verdict", "verdict-fd")))
    wanted = bool(path or descriptor)
    with tempfile.TemporaryDirectory(prefix="attention-") if wanted else nullcontext() as folder:
        if folder:
            config.stash[CELLS] = str(Path(folder) / "cells.jsonl")
        code, said = supervised(judge, "With -n 1 such a cell is one crash, and the run goes on")
        if "results" in said:
            remove_empty(said["results"])
        if wanted and "died" in said and "verdict" not in said:
            options = Options.of(lambda name: config.getoption(NAMES.destination(name)))
            Door(path, descriptor, True).write(of_death(options, code, said))
    if "usage" in said:
        raise pytest.UsageError(said["usage"])
    return code


def of_death(options: Options, code: int, said: Fields) -> RunVerdict:
    """The verdict of a run whose process died, by the records that it wrote before. The cell that it
    judged then is a crash, unless somebody else ended the process."""
    cells: list[records.CellRecord] = []
    with suppress(RecordError):
        cells += records.load(said.get("results", ""), partial=True).cells
    at = cell_of(said.get("cell", "")) if said["signal"] not in FROM_OUTSIDE else None
    if at is not None:
        crash = crashed(*at, "crash", said["died"], options)
        cells += [crash] if crash.key not in {cell.key for cell in cells} else []
    return of_run(
        code, cells, [said["died"]], seed=options.seed,
        missing=max(0, said.get("owed", 0) - len(cells)),
        functions=options.function_names,
    )  # fmt: skip


class Controller:
    """Hooks of the process that starts workers."""

    def __init__(self, config: pytest.Config, log: RunLog) -> None:
        self._log = log
        self._begun: set[str] = set()
        self._folder = Path(tempfile.mkdtemp(prefix="attention-"))
        config.add_cleanup(lambda: shutil.rmtree(self._folder, ignore_errors=True))
        if threading.current_thread() is threading.main_thread():
            stack = ExitStack()
            leaving = partial(log.say_verdict, INTERRUPTED)
            ends = {signal.SIGINT: interrupting(leaving), signal.SIGTERM: terminated}
            stack.enter_context(handled(ends))
            config.add_cleanup(stack.close)
            config.add_cleanup(leaving)  # a session that is ended while it starts has no other end

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[STACKS] = str(self._folder / node.gateway.id)
        node.workerinput[SEED] = self._log.options.seed

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._begun.add(node.gateway.id)
        self._log.owe(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        output = getattr(node, "workeroutput", {})
        if USAGE in output:
            self._log.say_verdict(int(pytest.ExitCode.USAGE_ERROR), output[USAGE])
            raise pytest.UsageError(output[USAGE])
        if IDENTITY in output:
            self._log.begin(output[IDENTITY])
        if error and node.gateway.id not in self._begun:
            name, why = node.gateway.id, self.why(node)
            death = self._written(f"{name}.death") or (
                f"the worker {name} died before its first cell, as it imported frameworks and kernels"
            )
            pytest.exit(
                f"{death}: {why or 'an exit, a signal, or a crash of what it called'}",
                returncode=pytest.ExitCode.TESTS_FAILED,
            )

    def why(self, node: Any) -> str:
        """The place at which the watchdog ended a worker; "" if the watchdog did not end it."""
        return place_in(self._written(node.gateway.id))

    def _written(self, name: str) -> str:
        """The text that a worker wrote into a file of the folder."""
        file = self._folder / name
        return file.read_text(errors="replace") if file.is_file() else ""


def death_reporter(config: pytest.Config) -> Callable[[str], object]:
    """Returns a function of a sentence that is said if this process dies, "" for none."""
    if BOARD in config.stash:
        return lambda death: config.stash[BOARD].say(death=death)
    if stacks := getattr(config, "workerinput", {}).get(STACKS):
        return Path(f"{stacks}.death").write_text
    return lambda death: None


def terminated(*details: object) -> None:
    """End the session, which writes its verdict."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pytest.exit("the run was ended by SIGTERM", returncode=INTERRUPTED)


class InWorker:
    """Hooks of pytest in a worker of pytest-xdist: they sort cells, and hand usage errors to the main
    process."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Sort cells so that neighbours share work: pytest-xdist hands each worker runs of neighbours.

        Cells of a case share a reference. If a backend compiles every new shape, cells of an
        implementation share programs: they are sorted by implementation first. Tests that are no cells
        stay in front.
        """
        ranks: dict[object, int] = {}

        def rank(key: object) -> int:
            return ranks.setdefault(key, len(ranks))

        def place(item: pytest.Item) -> tuple[int, int]:
            call = getattr(item, "callspec", None)
            cell = call.params.get("cell") if call else None
            if not isinstance(cell, Cell):
                return -1, -1
            case = rank(cell.case.id)
            compiles = cell.implementation.backend.compilers.compiles_shapes
            return rank(str(cell.implementation)) if compiles else case, case

        items.sort(key=place)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, object, object]:
        try:
            return (yield)
        except pytest.UsageError as error:
            output: dict[str, Any] = session.config.workeroutput  # type: ignore[attr-defined]
            output[USAGE] = str(error)
            raise
