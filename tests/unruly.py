"""Unruly implementations: the control, which does something to the process it runs in.

Each does it on cases of 17 keys and answers rightly all the same, where it still can.
`tests/test_runs.py` says how a run with it must end.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import io
import locale
import os
import random
import signal
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

from attention_conformance.backends._numpy.backend import NumpyBackend
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.inputs import Inputs
from tests.miniatures import Miniature, Miniatures, backend_of


class Unruly(Miniature):
    """The control; `act` is done after the answer is computed."""

    act: Callable[[], object]

    def __init__(self, backend: NumpyBackend) -> None:
        super().__init__(backend)
        self.name = type(self).__name__

    def prepare(self, inputs: Inputs) -> PreparedCall:
        plain = super().prepare(inputs)

        def call(**arguments: object) -> object:
            answer = plain.function(**arguments)
            type(self).act()
            return answer

        return PreparedCall(call, plain.arguments) if inputs.sizes.Lk == 17 else plain


class Nasty(Exception):
    """An exception whose text no terminal, no file and no other process should be given."""

    def __str__(self) -> str:
        return "\x1b[31mred\x00 \ud800 \x9b2J"


class Mute(Exception):
    """An exception that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Raises:
    """An object whose destructor raises; `own` refers to it where only a collection frees it."""

    own: Raises | None = None

    def __del__(self) -> None:
        raise ValueError("raised by a destructor")


def raising(error: BaseException) -> Callable[[], object]:
    """A function that raises."""

    def act() -> object:
        raise error

    return act


def dying_thread() -> None:
    """Start a thread that dies, and wait for it."""

    def die() -> None:
        raise ValueError("raised in a thread")

    thread = threading.Thread(target=die)
    thread.start()
    thread.join()


def leave_garbage() -> None:
    """Leave garbage behind whose destructor raises as soon as it is collected."""
    garbage = Raises()
    garbage.own = garbage


def hold_the_lock() -> None:
    """Wait in one call of C that holds the interpreter's lock, and that no signal ends."""
    mutex, lock = ctypes.create_string_buffer(64), ctypes.PyDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)  # for ever: it is its own


def closes(number: int) -> Callable[[], object]:
    """A function that closes a descriptor."""
    return lambda: os.close(number)


def traces(*details: object) -> None:
    """Trace nothing."""


LEAKS: dict[str, tuple[Callable[[], object], str]] = {
    "environment": (lambda: os.environ.update(HOME="/nowhere"), "the variable HOME at /nowhere"),
    "removed_variable": (lambda: os.environ.pop("HOME"), "the variable HOME at absent"),
    "builtin": (lambda: setattr(builtins, "sum", traces), "the built-in sum at <function traces>"),
    "umask": (lambda: os.umask(0o177), "the umask at 127"),
    "other_locale": (
        lambda: locale.setlocale(locale.LC_ALL, "C"), "the locale at C, it was LC_CTYPE=C.UTF-8",
    ),
    "handler": (
        lambda: signal.signal(signal.SIGALRM, traces),
        "the handler of SIGALRM at <function traces>, it was <function time_limit",
    ),
    "timer": (
        lambda: signal.setitimer(signal.ITIMER_PROF, 1000),
        "the timer ITIMER_PROF at set, it was not set",
    ),
    "closed_output": (closes(1), "descriptor 1 at closed"),
    "closed_error": (closes(2), "descriptor 2 at closed"),
    "replaced_output": (lambda: setattr(sys, "stdout", io.StringIO()), "sys.stdout at <_io.StringIO"),
    "hook": (lambda: setattr(threading, "excepthook", traces), "threading.excepthook at <function"),
    "trace": (lambda: sys.settrace(traces), "the trace function at <function traces>"),
    "profile": (lambda: sys.setprofile(traces), "the profile function at <function traces>"),
    "trace_of_threads": (lambda: threading.settrace(traces), "the trace function of threads at"),
    "no_collection": (gc.disable, "garbage collection at False"),
    "recursion": (lambda: sys.setrecursionlimit(500), "the recursion limit at 500"),
    "import_path": (lambda: sys.path.remove(sys.path[-1]), "the import path"),
    "numpy_errors": (lambda: np.seterr(divide="call"), "NumPy's answer to divide at call"),
    "fork": (os.fork, "a process that the call forked returned from the call"),
}  # fmt: skip
"""Acts that leave a setting of the process changed, and what is said of each."""


def reseed() -> None:
    """Seed the generators of the process."""
    random.seed(77)
    np.random.seed(77)


ACTS: dict[str, Callable[[], object]] = {
    "skips": lambda: pytest.skip("not today"),
    "expects_failure": lambda: pytest.xfail("it is known"),
    "ends_pytest": lambda: pytest.exit("enough", returncode=0),
    "exits": lambda: sys.exit(0),
    "leaves": lambda: os._exit(0),
    "leaves_in_c": lambda: ctypes.CDLL(None).exit(0),
    "aborts": lambda: os.abort(),
    "interrupts": raising(KeyboardInterrupt()),
    "nasty": raising(Nasty()),
    "mute": raising(Mute()),
    "hangs": lambda: threading.Event().wait(600),
    "holds_the_lock": hold_the_lock,
    "thread": dying_thread,
    "destructor": lambda: Raises() and None,
    "garbage": leave_garbage,
    "folder": lambda: os.chdir("/"),
    "reseeds": reseed,
    **{name: act for name, (act, _) in LEAKS.items()},
}


def unruly(act: Callable[[], object], name: str = "unruly") -> type[Unruly]:
    """The implementation that does this."""
    return type(name, (Unruly,), {"act": staticmethod(act)})


leaks = backend_of(*(unruly(act, name) for name, (act, _) in LEAKS.items()))
"""A backend with an implementation for each of `LEAKS`."""


def __getattr__(name: str) -> Callable[[str], Miniatures]:
    """A backend for each of `ACTS`, as `--backend=tests.unruly:name` takes it."""
    if name not in ACTS:
        raise AttributeError(name)
    return lambda device: Miniatures(device, unruly(ACTS[name]))
