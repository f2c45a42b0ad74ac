"""Supervision: a process judges, and its parent sees how it ended.

What a kernel does to its process, no code in that process sees to its end: an exit by C's own function,
or `os._exit(0)`, looks like a run that finished. So the process that was started forks before a framework
is imported, lets the child judge, and takes an outcome only from a child that says it came to the end.

The child writes what it does on a `Board`, memory that both share, which outlives it.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import mmap
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from backends.registry import DISTRIBUTIONS
from suite.front.options import NAMES
from suite.records.files import remove_empty

DIED = 1
"""The exit code where the process that judged died."""

SUITE_BROKE = 3
"""The exit code where the suite itself broke: pytest's."""

EXIT_SECONDS = 60.0
"""What frameworks get to end what they have started, once the outcome is known."""


class Board:
    """What a process last said of itself, by name; also when it is gone."""

    SIZE = 1 << 16

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self.SIZE)
        self._said: dict[str, Any] = {}

    def say(self, **facts: Any) -> None:
        """Add or change facts: numbers and short texts."""
        self._said |= facts
        text = json.dumps(self._said).encode()
        if len(text) < self.SIZE - 8:
            self._memory[8 : 8 + len(text)] = text
            self._memory[:8] = len(text).to_bytes(8, "big")

    def read(self) -> dict[str, Any]:
        """All that was said; {} where nothing was, or where the process died as it wrote."""
        size = int.from_bytes(self._memory[:8], "big")
        try:
            return json.loads(self._memory[8 : 8 + size])
        except ValueError:
            return {}


def possible() -> bool:
    """Whether this process can be forked: it is single, and no framework has begun to work in it."""
    imported = {module for modules in DISTRIBUTIONS.values() for module in modules} & {*sys.modules}
    return hasattr(os, "fork") and threading.active_count() == 1 and not imported


def supervised(judge: Callable[[Board], int], advice: str = "") -> tuple[int, dict[str, Any]]:
    """The exit code of `judge`, run in a child process, and what the child said at last.

    Where the child died before it had an exit code, standard error is told how, and at which cell, with
    an `advice`; the code is `DIED`.
    """
    board = Board()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, of which there is one
        child = os.fork()
    if not child:
        board.say(parent=parent)
        _judge_and_leave(judge, board)
    return _outcome(child, board, advice)


def orphaned(board: Board | None) -> bool:
    """Whether who would notice how this process ends is gone."""
    return board is not None and os.getppid() != board.read().get("parent")


def _judge_and_leave(judge: Callable[[Board], int], board: Board) -> NoReturn:
    code = SUITE_BROKE
    try:
        code = judge(board)
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        board.say(code=int(code))
        # What frameworks started of their own ends with them; how long that takes changes no outcome.
        faulthandler.dump_traceback_later(EXIT_SECONDS, exit=True, file=sys.__stderr__ or 2)
        atexit._run_exitfuncs()
        _flush()
        os._exit(int(code))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue


def _outcome(child: int, board: Board, advice: str) -> tuple[int, dict[str, Any]]:
    """Wait for the child. An interrupt from the keyboard reaches it, too, and the child says what becomes
    of the run; what ends this process alone is handed on."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    ended = signal.signal(signal.SIGTERM, lambda *details: os.kill(child, signal.SIGTERM))
    try:
        _, status = os.waitpid(child, 0)
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, ended)
    said = board.read()
    if "code" in said:
        return said["code"], said
    print(f"\nERROR: {_death(status, said, advice)}", file=sys.stderr, flush=True)
    return DIED, said


def _death(status: int, said: dict[str, Any], advice: str) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        how = f"died of {signal.Signals(number).name}"
    else:
        how = f"ended with exit code {os.WEXITSTATUS(status)}, unasked"
    if "cell" not in said:
        return f"the process {how} before its first cell, as it imported frameworks and kernels"
    count = f"{said['judged']} of {said['owed']}" if "owed" in said else str(said["judged"])
    return (
        f"the process {how} while it judged {said['cell']}, after {count} cells; the run did not finish"
        f"{advice and f'. {advice}'}"
    )


BOARD = pytest.StashKey[Board]()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Judge in a child where nobody else would see how the run ends: workers have their controller."""
    option = config.option
    others = ("numprocesses", "tx", "help", "version", "collectonly", "usepdb", "trace")
    plain = config.getoption(NAMES.destination("backend")) and not hasattr(config, "workerinput")
    busy = any(getattr(option, name, None) for name in others)
    if not plain or busy or BOARD in config.stash or not possible():
        return None

    def judge(board: Board) -> int:
        config.stash[BOARD] = board
        try:
            return int(config.hook.pytest_cmdline_main(config=config))
        except pytest.UsageError as error:
            board.say(usage=str(error))
            return int(pytest.ExitCode.USAGE_ERROR)

    code, said = supervised(judge, "With -n 1 such a cell is one crash, and the run goes on")
    if "results" in said:
        remove_empty(said["results"])
    if "usage" in said:
        raise pytest.UsageError(said["usage"])
    return code
