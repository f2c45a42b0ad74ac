"""Signals by which people end a run."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

HANDED_ON = (signal.SIGINT, signal.SIGTERM)
"""Signals by which people end a run: a parent hands them on to the child that judges."""

ONE_KEY = 0.5
"""Seconds within which two interrupts are one. Ctrl-C reaches every process of a terminal, and a parent
hands its own interrupt on to its child."""


@contextmanager
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
            with suppress(Exception):
                leaving()
            signal.raise_signal(signal.SIGINT)

    return interrupt
