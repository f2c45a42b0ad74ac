"""Processes: time limits, crashes, and child processes.

A kernel can do anything to its process: hang outside Python, exit by C's own function, be killed. No
code in that process survives this, so another process watches.

- `time_limit` raises TimeOver at a time limit. Soon after, a watchdog outside Python's threads ends a
  process that did not react to the exception.
- A `Board` is memory that outlives a process. The process writes facts about its progress there.
- `run_in_fork` forks: the child does the work, the parent sees how the child ended.
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

FORWARDED_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals by which people end a run: a parent sends them on to the child that judges."""

SAME_INTERRUPT_SECONDS = 0.5
"""Seconds within which two interrupts count as one. Ctrl-C reaches every process of a terminal, and a
parent sends its own interrupt on to its child."""

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

CHILD_PROGRAM = """
import ctypes, os, runpy, signal, sys
prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux alone has it
PR_SET_PDEATHSIG = 1
if prctl:
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
_, parent, *sys.argv = sys.argv
if os.getppid() == int(parent):
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""The program of `run_module`: `python -m`, in a process that the system kills if its parent dies. The
child itself requests that: with threads no code may run between fork and exec."""


class Board:
    """Facts about a process by name, which it writes into memory that its parent can read."""

    SIZE = 1 << 16

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, self.SIZE)
        self._facts: Fields = {}

    def say(self, **facts: Any) -> None:
        """Add or change facts: numbers and short texts. Facts beyond `SIZE` bytes are not written."""
        self._facts |= facts
        text = json.dumps(self._facts).encode() + b"\n"
        if len(text) <= self.SIZE:
            self._memory[: len(text)] = text

    def read(self) -> Fields:
        """Returns all facts by name; {} if there is none, or if the process died while writing."""
        try:
            return json.loads(self._memory[:].partition(b"\n")[0])
        except ValueError:
            return {}


_STACKS_DESCRIPTOR: list[int] = []
"""The descriptor that the watchdog writes to; empty before `write_stacks`."""


def write_stacks(path: str = "") -> None:
    """Set the file to which the watchdog writes the stacks of this process. Without a path this is a copy
    of the present standard error, because pytest captures standard error while a cell is judged."""
    for descriptor in _STACKS_DESCRIPTOR:
        os.close(descriptor)
    _STACKS_DESCRIPTOR[:] = [
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if path else os.dup(2)
    ]


def place_in(stacks: str) -> str:
    """Returns a sentence that says where the watchdog ended a process; "" if it did not. `stacks`: the
    text that the watchdog wrote."""
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
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """A context that raises TimeOver after `seconds` (0: never). Its message begins with `what`. If the
    process does not react within `GRACE` seconds, the watchdog ends it. In threads other than the main
    one only the watchdog works."""
    if not seconds:
        yield
        return

    def raise_time_over(*details: object) -> None:
        raise TimeOver(f"{what} ran longer than {seconds:g} s")

    main = threading.current_thread() is threading.main_thread()
    has_timer = hasattr(signal, "setitimer") and main
    if not _STACKS_DESCRIPTOR:
        write_stacks()
    old_handler = signal.signal(signal.SIGALRM, raise_time_over) if has_timer else None
    # The watchdog needs no lock of the interpreter: a thread that holds the lock is ended, too.
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=_STACKS_DESCRIPTOR[0])
    if has_timer:
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        if has_timer:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old_handler)
        faulthandler.cancel_dump_traceback_later()


def how_it_ended(code: int) -> str:
    """Returns how a process ended unexpectedly, in words: "died of SIGKILL". `code`: its exit code, below
    0 minus the number of a signal."""
    if -code in {*signal.Signals}:
        return f"died of {signal.Signals(-code).name}"
    if code < 0:  # most signals of Linux's second half have no name
        return f"died of signal {-code}"
    return f"ended with exit code {code}, unasked"


THREADED_MODULES = ("jax", "keras", "mlx", "onnx", "onnxruntime", "openvino", "tensorflow", "torch")
"""Modules whose threads Python does not count."""


def can_fork() -> bool:
    """True if this process can be forked: it has one thread, and no framework is imported."""
    imported = any(name in sys.modules for name in THREADED_MODULES)
    return hasattr(os, "fork") and threading.active_count() == 1 and not imported


@contextlib.contextmanager
def signal_handlers(handlers: Mapping[signal.Signals, Callable[..., object]]) -> Iterator[None]:
    """A context in which the signals have these handlers. At its end the old handlers are restored."""
    old_handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


def interrupt_handler(before_exit: Callable[[], object] = lambda: None) -> Callable[..., None]:
    """Returns a signal handler. The first interrupt raises KeyboardInterrupt. Interrupts within
    `SAME_INTERRUPT_SECONDS` of the first are ignored. A later interrupt calls `before_exit` and ends this
    process."""
    times: list[float] = []

    def interrupt(*details: object) -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            raise KeyboardInterrupt
        if times[-1] - times[0] > SAME_INTERRUPT_SECONDS:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            with contextlib.suppress(Exception):
                before_exit()
            signal.raise_signal(signal.SIGINT)

    return interrupt


def run_in_fork(work: Callable[[Board], int], advice: str = "") -> tuple[int, Fields]:
    """Do `work` in a fork of this process. Returns the exit code and the facts on the fork's board.

    `work` gets the board, and returns the exit code. If the fork dies before, the code is `DIED`;
    `INTERRUPTED` after SIGINT or SIGTERM. Then a sentence about the death is printed to standard error,
    with `advice` unless the fork was interrupted. The facts contain this sentence as `died`, as `kind`
    "timeout" if the watchdog ended the fork, else "crash", and as `signal` the number of the signal that
    ended the fork, or 0.
    """
    board, (stacks_reader, stacks_writer) = Board(), os.pipe()
    os.set_blocking(stacks_reader, False)  # processes that the fork started may outlive it
    os.set_blocking(stacks_writer, False)  # nobody reads before the fork ends
    board.say(parent=os.getpid())
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads, of which there is one
        child = os.fork()
    if not child:
        _work_and_exit(work, board, stacks_writer)
    forwarding = dict.fromkeys(FORWARDED_SIGNALS, lambda number, frame: os.kill(child, number))
    with signal_handlers(forwarding):
        _, status = os.waitpid(child, 0)
    facts = board.read()
    os.close(stacks_writer)
    text = ""
    with contextlib.suppress(BlockingIOError):
        text = os.read(stacks_reader, Board.SIZE).decode(errors="replace")
    os.close(stacks_reader)
    place = place_in(text)
    if "code" in facts:
        if place:
            delay = (
                f"a thread or an exit handler held the process for {EXIT_SECONDS:g} s after the run"
            )
            print(f"\nWARNING: {delay}, and was ended: {place}", file=sys.stderr, flush=True)
        return facts["code"], facts
    exit_code = os.waitstatus_to_exitcode(status)
    ending = place.removeprefix("it ") or how_it_ended(exit_code)
    death = _death_sentence(ending, facts, "" if -exit_code in FORWARDED_SIGNALS else advice)
    print(f"{text}\nERROR: {death}", file=sys.stderr, flush=True)
    code = INTERRUPTED if -exit_code in FORWARDED_SIGNALS else DIED
    kind = "timeout" if place else "crash"
    return code, facts | {"died": death, "kind": kind, "signal": max(0, -exit_code)}


def is_orphaned(board: Board | None) -> bool:
    """True if the parent that supervises this process is gone; False without a board."""
    return board is not None and os.getppid() != board.read().get("parent")


def _work_and_exit(work: Callable[[Board], int], board: Board, stacks: int) -> NoReturn:
    """In the fork: do `work`, put its exit code on the board (`SUITE_BROKE` if it raised), and exit. The
    watchdog writes to the descriptor `stacks`."""
    code = SUITE_BROKE
    _STACKS_DESCRIPTOR[:] = [stacks]
    signal.signal(signal.SIGINT, interrupt_handler())
    try:
        code = work(board)
    except BaseException:
        traceback.print_exc()
    finally:
        _flush_output()
        board.say(code=int(code))
        # Threads of frameworks end with their process; how long that takes changes no outcome.
        faulthandler.dump_traceback_later(EXIT_SECONDS, exit=True, file=stacks)
        atexit._run_exitfuncs()
        _flush_output()
        os._exit(int(code))


def _flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _death_sentence(ending: str, facts: Fields, advice: str) -> str:
    """Returns a sentence for people: how a fork died (`ending`), and at which cell, from the `facts` on
    its board. `advice` is appended if it died at a cell."""
    if "cell" not in facts:
        if facts.get("death"):
            return f"{facts['death']}: it {ending}"
        return f"the process {ending} before its first cell, as it imported frameworks and kernels"
    count = f"{facts['judged']} of {facts['owed']}" if "owed" in facts else str(facts["judged"])
    return (
        f"the process {ending} while it judged {facts['cell']}, after {count} cells; the run did not "
        f"finish{advice and f'. {advice}'}"
    )


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns this process's environment with `variables` added, and with this checkout on PYTHONPATH."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}


def run_module(
    words: Sequence[str], folder: Path, variables: Mapping[str, str], seconds: float = 0.0
) -> tuple[int | None, str]:
    """Run `python -m WORDS` in a folder, with `variables` added to the environment. Returns its exit code
    (below 0: minus the number of a signal), and standard output and error as text.

    A child that takes longer than `seconds` (0: no limit) is killed with its own children; then the code
    is None. The system kills the child if this process dies.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD_PROGRAM, str(os.getpid()), *words], cwd=folder,
        env=environment(variables), text=True, errors="replace", stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = child.communicate(timeout=seconds or None)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output, _ = child.communicate()
        return None, output
    return child.returncode, output
