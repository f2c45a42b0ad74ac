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

from attention_conformance.backends.protocol import FORK_RETURNED, Backend
from attention_conformance.suite.judge.process_settings import FORK_SECONDS, FORKS, PROCESS
from attention_conformance.suite.judge.verdict import Verdict, text_of

LEAKED, DIED = "leaked-state", "raised"


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """A context in which warnings are ignored. A kernel's verdict must not depend on whether warnings are
    errors. Filters of warnings that are changed inside are restored."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Settings:
    """The settings of process and framework as a cell begins. The constructor also seeds all
    generators."""

    def __init__(self, backend: Backend) -> None:
        FORKS.clear()
        self._restore_child = backend.begin_cell()
        self._settings = {} if self._restore_child else {**PROCESS, **backend.settings}
        self._before = {name: setting.read() for name, setting in self._settings.items()}
        random.seed(0)
        np.random.seed(0)
        backend.reseed()

    def restore(self) -> list[str]:
        """Restore all settings. Returns the changes since the cell began, as texts; [] for none."""
        changes = self._restore_child() if self._restore_child else []
        for name, setting in self._settings.items():
            before, now = self._before[name], setting.read()
            if setting_changes := _changes(name, before, now):
                setting.write(before)
                changes += setting_changes
        await_forks()
        return changes


@contextlib.contextmanager
def restored_settings(backend: Backend) -> Iterator[None]:
    """A context without warnings, for calls that belong to no cell. At its end settings are restored, and
    recorded deaths are dropped."""
    with without_warnings():
        settings = Settings(backend)
        try:
            yield
        finally:
            settings.restore()
            background_errors()


def _changes(name: str, before: Any, now: Any) -> list[str]:
    """Returns the changes of a setting as texts; [] for none. Of a mapping only the entries of `before`
    are compared."""
    if now == before:
        return []
    if not isinstance(before, Mapping):
        return [f"{name} at {value_text(now)}, it was {value_text(before)}"]
    return [
        change
        for key, value in before.items()
        for change in _changes(f"{name} {key}", value, now.get(key, "absent"))
    ]


def value_text(value: Any) -> str:
    """Returns the text of a value, without the address of an object."""
    return re.sub(r" at 0x[0-9a-f]+", "", text_of(value))[:100]


def await_forks() -> None:
    """If the process has forked, wait up to `FORK_SECONDS` for a fork that returns from its call. Clears
    `FORKS`."""
    end = time.monotonic() + FORK_SECONDS
    while FORKS and not FORK_RETURNED[0] and time.monotonic() < end:
        time.sleep(0.001)
    FORKS.clear()


_DIED: deque[str] = deque(maxlen=100)
"""The deaths (threads that died, destructors that raised) since the last call of `background_errors`."""


def record_deaths() -> Callable[[], None]:
    """Record threads that die and destructors that raise, in place of Python's own reports of them.
    Returns the function that ends the recording."""
    hooks: tuple[Any, Any] = (threading.excepthook, sys.unraisablehook)

    def record_thread(event: threading.ExceptHookArgs) -> None:
        if event.exc_type is not SystemExit:
            _DIED.append(f"a thread died of {_error_text(event.exc_type, event.exc_value)}")

    def record_unraisable(event: sys.UnraisableHookArgs) -> None:
        name = getattr(event.object, "__qualname__", type(event.object).__qualname__)
        _DIED.append(f"{name} raised {_error_text(event.exc_type, event.exc_value)}, unheard")

    threading.excepthook, sys.unraisablehook = record_thread, record_unraisable

    def stop_recording() -> None:
        threading.excepthook, sys.unraisablehook = hooks

    return stop_recording


def record_death(event: str) -> None:
    """Record a death that another process reports."""
    _DIED.append(event)


def background_errors() -> list[str]:
    """Remove and return the recorded deaths as texts, each once, and a fork that returned from its call.
    Without `record_deaths` only such forks are found."""
    events = [_DIED.popleft() for _ in range(len(_DIED))]
    if FORK_RETURNED[0]:
        FORK_RETURNED[0] = 0
        events.append("a process that the call forked returned from the call")
    return list(dict.fromkeys(events))


def fail_for_leaks(
    verdict: Verdict, changed_settings: list[str], background_errors: list[str]
) -> Verdict:
    """Returns the verdict with the leaks of its cell. With leaks a pass or an unsupported cell becomes a
    failure. Any other verdict keeps its status, and its message names the leaks."""
    if not changed_settings and not background_errors:
        return verdict
    changes = [f"the call left {'; '.join(changed_settings)}"] if changed_settings else []
    message = "; ".join([*changes, *background_errors])
    if verdict.status in ("pass", "unsupported"):
        return replace(verdict, status="fail", kind=LEAKED if changes else DIED, message=message)
    return replace(verdict, message=f"{verdict.message} ({message})")


def _error_text(kind: type[BaseException], error: BaseException | None) -> str:
    text = "" if error is None else text_of(error).strip().partition("\n")[0]
    return f"{kind.__name__}: {text[:300]}"
