"""Settings of the process that a call may change, and that affect later calls.

The value of a setting is a plain value, or a mapping of which each entry counts as a setting. Entries
that a call adds to a mapping stay: frameworks add variables to the environment, and functions add folders
to the import path.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import locale
import os
import signal
import sys
import threading
from collections.abc import Mapping, MutableMapping
from functools import lru_cache, partial
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import Setting, end_fork

CLOSED = "closed"
"""The identity of a closed descriptor."""

FORK_SECONDS = 0.2
"""The longest wait, in seconds, for a fork that returns from the call in which it was made."""

RECURSION = sys.getrecursionlimit()
"""The recursion limit as the process began."""

SIGNALS = tuple((each.name, each.value) for each in signal.Signals)

TIMERS = tuple(
    (name, getattr(signal, name))
    for name in ("ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF")
    if hasattr(signal, name)
)

FORKS: list[bool] = []
"""An entry for each fork since the list was last cleared."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lambda: FORKS.append(True))


def _folder() -> str:
    """Returns the current folder; "" if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _read_umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _mapping_setting(mapping: MutableMapping[Any, Any]) -> Setting:
    return Setting(lambda: dict(mapping), mapping.update)


def _attribute_setting(owner: Any, name: str) -> Setting:
    return Setting(lambda: getattr(owner, name), partial(setattr, owner, name))


def _handlers() -> dict[str, Any]:
    """Returns the signal handlers by the names of signals, without handlers that Python cannot
    restore."""
    all_handlers = ((name, signal.getsignal(number)) for name, number in SIGNALS)
    return {name: handler for name, handler in all_handlers if handler is not None}


def _set_handlers(handlers: Mapping[str, Any]) -> None:
    """Set the handlers that have changed. Does nothing outside the main thread."""
    for name, handler in handlers.items():
        if signal.getsignal(signal.Signals[name]) != handler:
            with contextlib.suppress(ValueError):
                signal.signal(signal.Signals[name], handler)


def _timers() -> dict[str, str]:
    """Returns "set" or "not set" by the name of a timer. ITIMER_REAL is left out while its signal has a
    handler, because the suite's own time limit uses this timer."""
    ends_cells = TIMERS and signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL
    return {
        name: "set" if signal.getitimer(timer)[0] else "not set"
        for name, timer in TIMERS
        if not (ends_cells and name == "ITIMER_REAL")
    }


def _stop_timers(timers: Mapping[str, str]) -> None:
    """Stop the timers whose state in `timers` is "not set"."""
    for name, timer in TIMERS:
        if timers.get(name) == "not set":
            signal.setitimer(timer, 0)


def _descriptors() -> dict[int, str]:
    """Returns the device and inode of standard output (1) and standard error (2), as text."""
    return {descriptor: _file_identity(descriptor) for descriptor in (1, 2)}


def _file_identity(number: int) -> str:
    """Returns the device and inode of a descriptor's file as text, or `CLOSED`. Also duplicates the
    descriptor, so that it can be restored."""
    try:
        status = os.fstat(number)
    except OSError:
        return CLOSED
    identity = f"file {status.st_dev}:{status.st_ino}"
    _descriptor_copy(number, identity)
    return identity


@lru_cache(maxsize=64)
def _descriptor_copy(number: int, identity: str) -> int:
    """Returns a duplicate of a descriptor, from which the descriptor can be restored. One duplicate is
    cached for each number and `identity`."""
    return os.dup(number)


def _restore_descriptors(descriptors: Mapping[int, str]) -> None:
    for number, identity in descriptors.items():
        if identity != CLOSED:
            os.dup2(_descriptor_copy(number, identity), number)
        elif _file_identity(number) != CLOSED:
            os.close(number)


def _recursion_limit() -> int:
    """Returns the recursion limit, at most `RECURSION`. Compilers raise the limit, which counts as no
    change."""
    return min(sys.getrecursionlimit(), RECURSION)


def _put_first(folders: Mapping[str, str]) -> None:
    """Put the former folders of the import path before the added ones. Only the keys of `folders` are
    used."""
    sys.path[:] = [*folders, *(folder for folder in sys.path if folder not in folders)]


PROCESS = {
    "the process": Setting(os.getpid, lambda parent: end_fork()),  # first: a fork ends here
    "the folder": Setting(_folder, lambda path: os.chdir(path) if path else None),
    "the variable": _mapping_setting(os.environ),
    "the built-in": _mapping_setting(vars(builtins)),
    "the umask": Setting(_read_umask, os.umask),
    "the locale": Setting(
        partial(locale.setlocale, locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL)
    ),
    "the handler of": Setting(_handlers, _set_handlers),
    "the timer": Setting(_timers, _stop_timers),
    "descriptor": Setting(_descriptors, _restore_descriptors),
    "sys.stdout": _attribute_setting(sys, "stdout"),
    "sys.stderr": _attribute_setting(sys, "stderr"),
    "sys.excepthook": _attribute_setting(sys, "excepthook"),
    "sys.unraisablehook": _attribute_setting(sys, "unraisablehook"),
    "threading.excepthook": _attribute_setting(threading, "excepthook"),
    "the trace function": Setting(sys.gettrace, sys.settrace),
    "the profile function": Setting(sys.getprofile, sys.setprofile),
    "the trace function of threads": Setting(threading.gettrace, threading.settrace),
    "the profile function of threads": Setting(threading.getprofile, threading.setprofile),
    "garbage collection": Setting(gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "the recursion limit": Setting(_recursion_limit, sys.setrecursionlimit),
    "the import path": Setting(lambda: dict.fromkeys(sys.path, "present"), _put_first),
    "NumPy's answer to": Setting(np.geterr, lambda answers: np.seterr(**answers)),
}
"""The settings by name. A name is completed by the key of an entry, as "the variable HOME"."""
