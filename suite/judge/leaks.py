"""Leaks: changes that a call leaves behind for later calls.

- Settings of the process and of the framework are restored after every cell, so that cells do not depend
  on each other. A cell whose call changed a setting fails.
- Every cell begins with the same seeds. A call may move random generators.
- Threads that died, destructors that raised, and forks that returned from a call fail the cell during
  which they are noticed.
"""

from __future__ import annotations

import contextlib
import random
import re
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import FORK_RETURNED, Backend, ChildSettings
from attention_conformance.suite.judge.process_settings import FORK_SECONDS, FORKS, PROCESS
from attention_conformance.suite.judge.verdict import Verdict, text_of

LEAKED, DIED = "leaked-state", "raised"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A context without warnings: whether a warning is an error is no property of a kernel. Filters of
    warnings that are changed inside are restored."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Settings:
    """The settings as a cell begins. The constructor begins the cell: it seeds all generators."""

    def __init__(self, backend: Backend) -> None:
        FORKS.clear()
        own = backend.settings
        self._restore_child = own.begin() if isinstance(own, ChildSettings) else None
        self._settings = {} if self._restore_child else {**PROCESS, **own}
        self._before = {name: setting.read() for name, setting in self._settings.items()}
        random.seed(0)
        np.random.seed(0)
        backend.reseed()

    def restore(self) -> list[str]:
        """Restore all settings; returns the changes, for people."""
        left = self._restore_child() if self._restore_child else []
        for name, setting in self._settings.items():
            before, now = self._before[name], setting.read()
            changes = _changes(name, before, now)
            if changes:
                setting.write(before)
                left += changes
        await_forks()
        return left


@contextlib.contextmanager
def undone(backend: Backend) -> Iterator[None]:
    """A context without warnings, after which the settings are as before, and deaths are forgotten:
    nothing inside is a cell, and cells report these."""
    with quiet():
        settings = Settings(backend)
        try:
            yield
        finally:
            settings.restore()
            died()


def _changes(name: str, before: Any, now: Any) -> list[str]:
    """The changes of a setting, for people. Of a mapping each entry that was there is compared."""
    if now == before:
        return []
    if not isinstance(before, Mapping):
        return [f"{name} at {readable(now)}, it was {readable(before)}"]
    return [
        change
        for key, value in before.items()
        for change in _changes(f"{name} {key}", value, now.get(key, "absent"))
    ]


def readable(value: Any) -> str:
    """A value for people, without the address of an object."""
    return re.sub(r" at 0x[0-9a-f]+", "", text_of(value))[:100]


def await_forks() -> None:
    """If the process has forked, wait shortly for a fork that returns from its call. Other forks never
    return."""
    end = time.monotonic() + FORK_SECONDS
    while FORKS and not FORK_RETURNED[0] and time.monotonic() < end:
        time.sleep(0.001)
    FORKS.clear()


_DIED: deque[str] = deque(maxlen=100)
"""The deaths since `died` was last called."""


def watch() -> Callable[[], None]:
    """Record threads that die and destructors that raise, and report them to nobody else. Returns the
    function that ends this."""
    before: tuple[Any, Any] = (threading.excepthook, sys.unraisablehook)

    def thread(died: threading.ExceptHookArgs) -> None:
        if died.exc_type is not SystemExit:
            _DIED.append(f"a thread died of {_named(died.exc_type, died.exc_value)}")

    def unraisable(event: sys.UnraisableHookArgs) -> None:
        what = getattr(event.object, "__qualname__", type(event.object).__qualname__)
        _DIED.append(f"{what} raised {_named(event.exc_type, event.exc_value)}, unheard")

    threading.excepthook, sys.unraisablehook = thread, unraisable

    def end() -> None:
        threading.excepthook, sys.unraisablehook = before

    return end


def hear(event: str) -> None:
    """Record a death that another process tells of."""
    _DIED.append(event)


def died() -> list[str]:
    """The deaths since the last call, each once, for people. Without `watch` forks alone are seen."""
    events = [_DIED.popleft() for _ in range(len(_DIED))]
    if FORK_RETURNED[0]:
        FORK_RETURNED[0] = 0
        events.append("a process that the call forked returned from the call")
    return list(dict.fromkeys(events))


def fail_for_leaks(
    verdict: Verdict, changed_settings: list[str], background_errors: list[str]
) -> Verdict:
    """The verdict with the leaks of its cell. A pass or an unsupported cell becomes a failure; any other
    verdict stays, and its message names the leaks."""
    if not changed_settings and not background_errors:
        return verdict
    left = [f"the call left {'; '.join(changed_settings)}"] if changed_settings else []
    message = "; ".join([*left, *background_errors])
    if verdict.status in ("pass", "unsupported"):
        return replace(verdict, status="fail", kind=LEAKED if left else DIED, message=message)
    return replace(verdict, message=f"{verdict.message} ({message})")


def _named(kind: type[BaseException], error: BaseException | None) -> str:
    text = "" if error is None else text_of(error).strip().partition("\n")[0]
    return f"{kind.__name__}: {text[:300]}"
