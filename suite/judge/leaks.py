"""Leaks: what a call leaves behind that another one can see.

Settings of the process and of the framework are put back after every cell, so that no cell hangs on
another one, and a cell whose call changed one has failed. Every cell begins with the same seeds; that
generators move is held against nobody. Threads that died and destructors that raised are failures of the
cell in which that is seen.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from backends.protocol import Backend, Setting
from suite.judge.verdict import Verdict, text_of

LEAKED, DIED = "leaked-state", "raised"


def folder() -> str:
    """The folder that relative paths begin at; "" where it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


COMMON = {"the folder": Setting(folder, lambda path: os.chdir(path) if path else None)}
"""Settings of every process."""


class Settings:
    """What is set as a cell begins; making it begins the cell: it seeds all generators."""

    def __init__(self, backend: Backend) -> None:
        self._settings = {**COMMON, **backend.settings}
        self._before = {name: setting.read() for name, setting in self._settings.items()}
        random.seed(0)
        np.random.seed(0)
        backend.begin_cell()
        backend.reseed()

    def restore(self) -> list[str]:
        """Put everything back; returns what had changed, for people."""
        left = []
        for name, setting in self._settings.items():
            before, now = self._before[name], setting.read()
            if now != before:
                setting.write(before)
                left.append(f"{name} at {now}, it was {before}")
        return left


_DIED: deque[str] = deque(maxlen=100)
"""What died since it was last asked."""


def watch() -> Callable[[], None]:
    """Remember threads that die and destructors that raise, and let nobody else hear of them; returns
    what ends that."""
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


def died() -> list[str]:
    """What died since this was last asked, each once, for people; nothing where nobody watches."""
    events = [_DIED.popleft() for _ in range(len(_DIED))]
    return list(dict.fromkeys(events))


def fail_for_leaks(verdict: Verdict, left: list[str], dead: list[str]) -> Verdict:
    """The verdict in the light of what a cell left behind: no pass. Another failure stays what it is, and
    says so."""
    if not left and not dead:
        return verdict
    changed = [f"the call left {'; '.join(left)}"] if left else []
    message = "; ".join([*changed, *dead])
    if verdict.status in ("pass", "unsupported"):
        return replace(verdict, status="fail", kind=LEAKED if left else DIED, message=message)
    return replace(verdict, message=f"{verdict.message} ({message})")


def _named(kind: type[BaseException], error: BaseException | None) -> str:
    text = "" if error is None else text_of(error).strip().partition("\n")[0]
    return f"{kind.__name__}: {text[:300]}"
