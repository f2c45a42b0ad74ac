"""The watchdog: what runs too long ends, whatever it does.

At the limit Python raises `TimeOver` in the main thread, which costs one cell. Code that never comes
back to Python's interpreter, or that holds its lock, hears nothing of that: a little later a thread
outside Python's own ends the process and writes where it stood. Who started the process notices that
(`supervision`, `workers`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NoReturn

from backends.protocol import TimeOver

GRACE = 3.0
"""Seconds between the exception and the end of the process."""

_PLACES: list[IO[str]] = []


def write_to(path: str = "") -> None:
    """Have the watchdog write where a process stood into a file, or to what is standard error now: while
    a cell is judged, pytest captures that."""
    _PLACES[:] = [open(path or os.dup(2), "w", encoding="utf-8")]  # noqa: SIM115


@contextlib.contextmanager
def limited(seconds: float, what: str) -> Iterator[None]:
    """A context that ends after `seconds`, 0 for never. Raises TimeOver, which names `what` ran."""
    if not seconds:
        yield
        return
    in_time = hasattr(signal, "setitimer") and _in_main_thread()

    def over(*details: object) -> NoReturn:
        raise TimeOver(f"{what} ran longer than {seconds:g} s")

    if not _PLACES:
        write_to()
    # Without the interpreter's lock, and even where another thread holds it.
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=_PLACES[0])
    before = signal.signal(signal.SIGALRM, over) if in_time else None
    if in_time:
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        if in_time:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        faulthandler.cancel_dump_traceback_later()


def where(path: str | Path) -> str:
    """Where the process stood that the watchdog ended and that wrote into `path`; "" where it ended
    none."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    if "Timeout" not in text:
        return ""
    # The main thread comes last, its innermost frame first.
    frame = re.search(r'File "([^"]*)", line (\d+) in (.*)', text[text.rfind("\nThread ") + 1 :])
    if frame is None:
        return "it ran too long"
    return f"it ran too long, in {frame[3]} ({Path(frame[1]).name}:{frame[2]})"


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
