"""Workers: what pytest-xdist's controller and its workers tell each other beside reports.

A worker that cannot begin, because of what was asked for or because it died as it imported that, ends the
run: the next one could not begin either. A worker that died later is one crash, and another one goes on.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from suite.front import watchdog

if TYPE_CHECKING:
    from suite.front.ledger import RunState

USAGE, IDENTITY, WATCHDOG = "attention-usage", "attention-identity", "attention-watchdog"
"""What a worker tells of a usage error and of its plan, and is told of where to write as it is ended."""


class Controller:
    """Hooks of the process that starts workers."""

    def __init__(self, config: pytest.Config, state: RunState) -> None:
        self._state = state
        self._begun: set[str] = set()
        self._folder = Path(tempfile.mkdtemp(prefix="attention-"))
        config.add_cleanup(lambda: shutil.rmtree(self._folder, ignore_errors=True))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[WATCHDOG] = str(self._folder / node.gateway.id)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._begun.add(node.gateway.id)
        self._state.owe(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        told = getattr(node, "workeroutput", {})
        if USAGE in told:
            raise pytest.UsageError(told[USAGE])
        if IDENTITY in told:
            self._state.begin(told[IDENTITY])
        if error and node.gateway.id not in self._begun:
            why = self.why(node) or "an exit, a signal, or a crash of what it imported"
            pytest.exit(
                f"the worker {node.gateway.id} died before its first cell, as it imported frameworks "
                f"and kernels: {why}",
                returncode=pytest.ExitCode.TESTS_FAILED,
            )

    def why(self, node: Any) -> str:
        """Why a worker died, where the watchdog knows it; else ""."""
        return watchdog.where(self._folder / node.gateway.id)


class InWorker:
    """Hooks of a worker."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, object, object]:
        try:
            return (yield)
        except pytest.UsageError as error:
            output: dict[str, Any] = session.config.workeroutput  # type: ignore[attr-defined]
            output[USAGE] = str(error)
            raise
