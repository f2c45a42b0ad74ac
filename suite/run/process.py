"""Processes: time limits, crashes, and child processes.

A kernel can do anything to its process: hang outside Python, exit by C's own function, be killed. No
code in that process survives this, so another process watches.

- `limited` raises TimeOver at a time limit. Soon after, a watchdog outside Python's threads ends a
  process that did not react to the exception.
- A `Board` is memory that outlives the process: the process writes there what it does.
- `supervised` forks: the child does the work, the parent sees how the child ended.
- `run_module` runs a command in a child to its end.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from attention_conformance.backends.protocol import TimeOver
from attention_conformance.suite.records.machine import ROOT

Fields = dict[str, Any]
"""A request, an answer, or the facts on a board, as JSON objects."""

HANDED_ON = (signal.SIGINT, signal.SIGTERM)
"""Signals by which people end a run: a parent hands them on to the child that judges."""

ONE_KEY = 0.5
"""Seconds within which two interrupts are one. Ctrl-C reaches every process of a terminal, and a parent
hands its own interrupt on to its child."""

DIED = 1
"""The exit code of a supervised run whose child died."""

INTERRUPTED = 2
"""The exit code if the child was interrupted twice: pytest's for an interrupt."""

SUITE_BROKE = 3
"""The exit code if the suite itself broke: pytest's."""

YOUNG = 50_000
"""The number of new objects after which Python searches for cycles among them."""

GRACE = 3.0
"""Seconds between TimeOver and the watchdog."""

EXIT_SECONDS = 10.0
"""Seconds in which frameworks may end their threads after the exit code is known. The process is ended
then, and the exit code stands."""

CHILD = """
import ctypes, os, runpy, signal, sys
prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it
PR_SET_PDEATHSIG = 1
if prctl:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
_, parent, *sys.argv = sys.argv
if os.getppid() == int(parent):
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""The program of `run_module`: `python -m`, and the system kills the process if its parent dies. The
child itself asks for that: code of this process that runs between fork and exec is not safe among
threads."""


class Board:
    """Facts that a process tells of itself, in memory that a parent and its forks share."""

    SIZE = 1 << 16

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self.SIZE)
        self._said: Fields = {}

    def say(self, **facts: Any) -> None:
        """Add or change facts: numbers and short texts."""
        self._said |= facts
        text = json.dumps(self._said).encode() + b"\n"
        if len(text) <= self.SIZE:
            self._memory[: len(text)] = text

    def read(self) -> Fields:
        """All facts; {} if there is none, or if the process died while writing."""
        try:
            return json.loads(self._memory[:].partition(b"\n")[0])
        except ValueError:
            return {}


_STACKS: list[int] = []
"""The descriptor that the watchdog writes to, if there is one."""


def write_stacks(path: str = "") -> None:
    """Let the watchdog write the stacks of this process into a file, by default to the current standard
    error: while a cell is judged, pytest captures standard error."""
    for descriptor in _STACKS:
        os.close(descriptor)
    _STACKS[:] = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if path else os.dup(2)]


def place_in(stacks: str) -> str:
    """The place at which the watchdog ended a process, for people, from the stacks that it wrote; "" if
    the watchdog did not end it."""
    if "Timeout (" not in stacks:
        return ""
    # The main thread comes last, its innermost frame first.
    frame = re.search(
        r'File "([^"]*)", line (\d+) in (.*)', stacks[stacks.rfind("\nThread ") + 1 :]
    )
    if frame is None:
        return "it ran too long"
    return f"it ran too long, in {frame[3]} ({Path(frame[1]).name}:{frame[2]})"


@contextlib.contextmanager
def limited(seconds: float, what: str) -> Iterator[None]:
    """A context that ends after `seconds`, 0 for never. Raises TimeOver, whose message names `what`."""
    if not seconds:
        yield
        return

    def over(*details: object) -> None:
        raise TimeOver(f"{what} ran longer than {seconds:g} s")

    main = threading.current_thread() is threading.main_thread()
    in_time = hasattr(signal, "setitimer") and main
    if not _STACKS:
        write_stacks()
    before = signal.signal(signal.SIGALRM, over) if in_time else None
    # The watchdog needs no lock of the interpreter: a thread that holds the lock is ended, too.
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=_STACKS[0])
    if in_time:
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        if in_time:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        faulthandler.cancel_dump_traceback_later()


def how_it_ended(code: int) -> str:
    """The unexpected end of a process in words, by its exit code (below 0: the number of a signal)."""
    if -code in {*signal.Signals}:
        return f"died of {signal.Signals(-code).name}"
    if code < 0:  # most signals of Linux's second half have no name
        return f"died of signal {-code}"
    return f"ended with exit code {code}, unasked"


THREADED = ("jax", "keras", "mlx", "onnx", "onnxruntime", "openvino", "tensorflow", "torch")
"""Modules whose threads Python does not count."""


def can_fork() -> bool:
    """True if this process can be forked: it has one thread, and no framework is imported."""
    imported = any(name in sys.modules for name in THREADED)
    return hasattr(os, "fork") and threading.active_count() == 1 and not imported


@contextlib.contextmanager
def handled(handlers: Mapping[signal.Signals, Callable[..., object]]) -> Iterator[None]:
    """A context in which signals have other handlers."""
    before = {one: signal.signal(one, handler) for one, handler in handlers.items()}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def interrupting(leaving: Callable[[], object] = lambda: None) -> Callable[..., None]:
    """A handler that raises KeyboardInterrupt at the first interrupt. At a later one it calls `leaving`,
    and ends this process."""
    times: list[float] = []

    def interrupt(*details: object) -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            raise KeyboardInterrupt
        if times[-1] - times[0] > ONE_KEY:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            with contextlib.suppress(Exception):
                leaving()
            signal.raise_signal(signal.SIGINT)

    return interrupt


def supervised(work: Callable[[Board], int], advice: str = "") -> tuple[int, Fields]:
    """Do `work` in a fork of this process; returns the exit code and the facts on the fork's board.

    If the fork dies before it has a code, the code is `DIED`; after SIGINT or SIGTERM `INTERRUPTED`.
    Standard error and the fact `died` say how and at which cell the fork died, with an `advice` if its
    own code ended it; the fact `signal` is the number of the signal that ended the fork, or 0.
    """
    board, (written, stacks) = Board(), os.pipe()
    os.set_blocking(written, False)  # processes that the fork started may outlive it
    board.say(parent=os.getpid())
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, of which there is one
        child = os.fork()
    if not child:
        _work_and_leave(work, board, stacks)
    # The child says what becomes of the run.
    with handled(dict.fromkeys(HANDED_ON, lambda number, frame: os.kill(child, number))):
        _, status = os.waitpid(child, 0)
    said = board.read()
    os.close(stacks)
    try:
        late = place_in(os.read(written, Board.SIZE).decode(errors="replace"))
    except BlockingIOError:
        late = ""
    os.close(written)
    if late:
        what = f"a thread or an exit handler held the process for {EXIT_SECONDS:g} s after the run"
        print(f"\nWARNING: {what}, and was ended: {late}", file=sys.stderr, flush=True)
    if "code" in said:
        return said["code"], said
    ended = os.waitstatus_to_exitcode(status)
    death = _death(ended, said, "" if -ended in HANDED_ON else advice)
    print(f"\nERROR: {death}", file=sys.stderr, flush=True)
    code = INTERRUPTED if -ended in HANDED_ON else DIED
    return code, said | {"died": death, "signal": max(0, -ended)}


def orphaned(board: Board | None) -> bool:
    """True if the parent that supervises this process is gone."""
    return board is not None and os.getppid() != board.read().get("parent")


def _work_and_leave(work: Callable[[Board], int], board: Board, stacks: int) -> NoReturn:
    code = SUITE_BROKE
    signal.signal(signal.SIGINT, interrupting())
    try:
        code = work(board)
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        board.say(code=int(code))
        # Threads of frameworks end with their process; how long that takes changes no outcome.
        faulthandler.dump_traceback_later(EXIT_SECONDS, exit=True, file=stacks)
        atexit._run_exitfuncs()
        _flush()
        os._exit(int(code))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _death(code: int, said: Fields, advice: str) -> str:
    how = how_it_ended(code)
    if "cell" not in said:
        if said.get("death"):
            return f"{said['death']}: it {how}"
        return f"the process {how} before its first cell, as it imported frameworks and kernels"
    count = f"{said['judged']} of {said['owed']}" if "owed" in said else str(said["judged"])
    return (
        f"the process {how} while it judged {said['cell']}, after {count} cells; the run did not finish"
        f"{advice and f'. {advice}'}"
    )


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with other variables. The child can import packages beside the suite,
    as backends in a checkout."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}


def run_module(
    words: Sequence[str], folder: Path, variables: Mapping[str, str], seconds: float = 0.0
) -> tuple[int | None, str]:
    """Run `python -m WORDS` in a folder; returns its exit code (below 0: the number of a signal) and its
    output.

    A child that takes longer than `seconds`, 0 for no limit, is killed with its own children, and the
    code is None. The system kills a child whose parent died.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(os.getpid()), *words], cwd=folder,
        env=environment(variables), text=True, errors="replace", stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = child.communicate(timeout=seconds or None)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        said, _ = child.communicate()
        return None, said
    return child.returncode, said
