"""The child of the isolated judge: `python -m ...suite.run.isolation.child DESCRIPTOR`.

The child limits itself, loads the backend, imports the user's file, and answers requests of its parent
through the socket DESCRIPTOR. It judges nothing. All that it says is a claim: the user's code shares its
memory and can change every line here. So this file serves honest code, and protects no verdict.
"""

from __future__ import annotations

import gc
import sys

from attention_conformance.suite.run.isolation import sandbox

if __name__ == "__main__":  # before NumPy and frameworks are imported, and before there are threads
    LIMITS = sandbox.Limits.of_words(sys.argv[2:])
    OPEN = sandbox.enclose(LIMITS)
    gc.disable()  # what is imported stays; see `suite.run.plugin`

import contextlib
import io
import json
import os
import pickle
import random
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import reduce
from itertools import islice
from typing import Any, BinaryIO

import numpy as np

from attention_conformance.backends import registry
from attention_conformance.backends.claims import stated
from attention_conformance.backends.prepared import PreparedCall, end_fork
from attention_conformance.backends.protocol import Backend, BackendUnavailable, ForwardOnly
from attention_conformance.backends.user.function import UserCallable, UserFunction
from attention_conformance.backends.user.layer import UserLayer
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.process_settings import PROCESS
from attention_conformance.suite.judge.verdict import text_of
from attention_conformance.suite.run.isolation.told import ToldBackend, signature
from attention_conformance.suite.run.isolation.wire import (
    CARRIERS,
    as_file,
    found,
    receive,
    send,
    to_bytes,
)
from attention_conformance.suite.run.process import YOUNG
from attention_conformance.suite.spec.binding import Binding
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.operators import OPERATORS
from attention_conformance.suite.spec.vocabulary import REGISTERED

MOST_TEXT = 10_000
"""Characters of an error's text."""

MOST_TOGETHER, SMALL = 16, 1 << 14
"""The number of arrays whose values are sent unasked, and the greatest number of their elements."""


@dataclass
class Handles:
    """The objects that the parent holds by number, each as long as the parent holds it."""

    objects: dict[int, Any] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    last: int = 0

    def hold(self, value: Any) -> int:
        """The number of an object, held once more."""
        number = self.numbers.get(id(value))
        if number is None:
            self.last = number = self.last + 1
            self.objects[number], self.numbers[id(value)], self.held[number] = value, number, 0
        self.held[number] += 1
        return number

    def release(self, number: int, times: int) -> None:
        """Take back that an object is held so many times."""
        self.held[number] -= times
        if not self.held[number]:
            value = self.objects.pop(number)
            del self.numbers[id(value)], self.held[number]


class Settings:
    """Settings of this process and of the framework, as the parent compares and restores them."""

    def __init__(self, backend: Backend) -> None:
        self.settings = {**PROCESS, **backend.settings}
        self.seen: dict[tuple[str, Any], list[Any]] = {}
        self.last: dict[str, Any] = {}
        self.own = os.getpid()

    def sweep(self) -> tuple[dict[str, Any], list[str]]:
        """The settings that differ from the last sweep, by name, and the threads that died.

        A value is its number among the values of the setting, and its text. Of a mapping each entry is
        a value.
        """
        changed: dict[str, Any] = {}
        for name, setting in self.settings.items():
            value = setting.read()
            if name in self.last and value == self.last[name]:
                continue
            self.last[name] = value
            if isinstance(value, Mapping):
                changed[name] = {str(n): self._told(name, n, one) for n, one in value.items()}
            else:
                changed[name] = self._told(name, None, value)
        leaks.await_forks()
        return changed, leaks.died()

    def _told(self, name: str, key: Any, value: Any) -> list[Any]:
        seen = self.seen.setdefault((name, str(key)), [])
        number = next((n for n, one in enumerate(seen) if one[1] == value), len(seen))
        if number == len(seen):
            seen.append((key, value))
        itself = name == "the process" and value == self.own
        return [number, leaks.shown("itself" if itself else value)]

    def restore(self, name: str, before: Any) -> None:
        """Write the value with a number, or the values with numbers by key."""
        if isinstance(before, Mapping):
            self.settings[name].write(dict(self.seen[name, key][n] for key, n in before.items()))
        else:
            self.settings[name].write(self.seen[name, "None"][before][1])


class Host:
    """The objects of the child that requests name by a path, and the answers to requests."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        self.start = start
        self.backend = registry.load(start["backend"], start["device"])
        self.settings = self.backend.settings
        self.natives = {i.name: i for i in registry.implementations(self.backend)}
        example = registry.example(self.backend)
        self.beside = None if example is None else example.beside
        self.told = ToldBackend.of(self.backend, self.natives, example)
        state = Settings(self.backend)
        self.settings_seen, self.restore = state.sweep, state.restore
        self.handles = Handles()
        self.contexts: dict[int, Any] = {}
        self.raw: dict[int, bytes] = {}
        self.outputs: list[Any] = []
        self.exact = {type(self.backend.array(np.zeros((1,)), fmt)) for fmt in DTYPES.values()}

    def load(self) -> dict[str, Any]:
        """Import the user's file; returns the signature of the function and its own claims."""
        text, like, said = self.start["function"], self.start["like"], self.start["said"]
        if self.start["forbids_own"]:
            said = {**said, "forbid": registry.own_attention(self.backend)}
        for name in self.start["hidden"]:
            sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # imports of it raise
        function = registry.load_function(self.backend, text, said)
        name = text.rpartition(":")[2]
        self.implementation, _ = registry.callable_implementation(
            self.backend, function, name, said, like, text
        )
        if self.start["binding"]:
            self.rebind(self.start["binding"])
        layer, methods = None, {}
        if isinstance(self.implementation, UserLayer):
            if self.start["choice"]:
                self.implementation.choose(*self.start["choice"])
            seen = self.implementation.seen
            unread = [[sorted(names), reason] for names, reason in seen.unread.items()]
            facts = asdict(seen.facts)
            layer = [signature(seen.call), seen.switches, seen.takes_parameters, unread, facts]
        elif isinstance(self.implementation, UserCallable):
            methods = {n: signature(x) for n, x in self.implementation.methods.items()}
        return {
            "function": function,
            "signature": signature(function, isinstance(function, type) and not like),
            "name": getattr(function, "__name__", ""), "layer": layer,
            "registered": REGISTERED in self.implementation.declared.features,
            "methods": methods, "claims": json.dumps(stated(function), default=list),
        }  # fmt: skip

    def rebind(self, binding: Mapping[str, str]) -> None:
        """Call the user's function in another way."""
        assert isinstance(self.implementation, UserFunction)
        self.implementation.rebind(Binding(**binding))

    def find(self, path: tuple[Any, ...]) -> Any:
        """The object at a path from this host: attributes, and keys of mappings."""

        def step(thing: Any, name: Any) -> Any:
            return thing[name] if isinstance(thing, Mapping) else getattr(thing, name)

        return reduce(step, path, self)

    def sweep(self) -> tuple[dict[str, Any], list[str]]:
        """`Settings.sweep` at the end of a cell, and the beginning of the next one."""
        seen = self.settings_seen()
        self.begin()
        return seen

    def begin(self) -> None:
        """Seed all generators, as every cell begins."""
        random.seed(0)
        np.random.seed(0)
        self.backend.reseed()

    def read(self, array: Any, *others: Any) -> None:
        """Send the values of an array, and those of the `others` that can be read."""
        self.add(array)
        self.add_those(others)

    def add(self, array: Any) -> None:
        """Add the values of an array to the answer. Raises what reading raises."""
        name = self.backend.dtype_name(array)
        if name not in CARRIERS:
            raise TypeError(f"arrays of {name} are not read from another process")
        values = to_bytes(self.backend.to_numpy(array), name)
        self.raw[self.handles.numbers[id(array)]] = values

    def add_those(self, arrays: Iterable[Any]) -> None:
        """Add the values of small arrays that the parent will probably read."""
        for array in islice(arrays, MOST_TOGETHER):
            with contextlib.suppress(Exception):
                if np.prod(array.shape) <= SMALL:
                    self.add(array)

    def enter(self, make: Callable[..., Any], *arguments: Any) -> int:
        """Enter a context, and return its number."""
        context = make(*arguments)
        context.__enter__()
        number = max(self.contexts, default=0) + 1
        self.contexts[number] = context
        return number

    def leave(self, number: int) -> None:
        """Leave a context."""
        self.contexts.pop(number).__exit__(None, None, None)

    # What is answered.

    def shown(self, value: Any) -> Any:
        """A value as JSON: plain data, or a handle with claims."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if type(value) in (tuple, list):
            return {type(value).__name__: [self.shown(one) for one in value]}
        if type(value) is dict:
            return {"dict": [[self.shown(n), self.shown(one)] for n, one in value.items()]}
        if isinstance(value, BaseException):
            return {"error": self.error(value)}
        if isinstance(value, PreparedCall):
            return {"call": self.call(value)}
        return {"handle": self.handle(value)}

    def call(self, value: PreparedCall) -> dict[str, Any]:
        facts = vars(value).items()
        return {n: self.shown(one) for n, one in facts if n not in UNSHOWN and one != PLAIN[n]}

    def handle(self, value: Any) -> dict[str, Any]:
        kind = type(value)
        of = {"number": self.handles.hold(value), "type": [kind.__module__, kind.__qualname__]}
        if not self.backend.is_array(value):
            return of
        with contextlib.suppress(Exception):
            of |= {
                "array": kind in self.exact, "shape": [*map(int, value.shape)],
                "dtype": self.backend.dtype_name(value), "device": self.backend.device_name(value),
            }  # fmt: skip
        self.outputs.append(value)
        return of

    def error(self, error: BaseException) -> dict[str, Any]:
        inside = self.backend.compilers.raised_inside(error)
        kinds = [[kind.__module__, kind.__qualname__] for kind in type(error).__mro__]
        declared = isinstance(error, ForwardOnly) and error.declared
        return {
            "kinds": kinds, "text": text_of(error)[:MOST_TEXT], "declared": declared,
            "inside": None if inside is error else self.error(inside),
        }  # fmt: skip


UNSHOWN = ("problem", "source", "through")
"""The fields of a call that stay in the child: the parent knows the problem, and prints no text of it."""

PLAIN = vars(PreparedCall(PreparedCall))
"""The fields of a call by default, which the parent has, too."""


SHARED: dict[str, Mapping[str, Any]] = {
    "operator": OPERATORS, "feature": FEATURES, "dtype": DTYPES
}  # fmt: skip
"""The objects that both processes have, by name."""


class Request(pickle.Unpickler):
    """A request of the parent, in which names stand for objects (see `wire.found`)."""

    def __init__(self, text: bytes, host: Host) -> None:
        super().__init__(io.BytesIO(text))
        self.host = host

    def find_class(self, module: str, name: str) -> Any:
        return self.found if name == found.__name__ else super().find_class(module, name)

    def found(self, kind: str, name: Any) -> Any:
        if kind == "path":
            return self.host.find(name)
        return self.host.handles.objects[name] if kind == "handle" else SHARED[kind][name]


def answer(host: Host, text: bytes) -> dict[str, Any]:
    """The answer to a request: {"value": ...}, or {"raised": ...} with an error."""
    host.raw, host.outputs = {}, []
    try:
        target, arguments, keywords = Request(text, host).load()
        value = target(*arguments, **keywords)
        shown = {"value": host.shown(value)}
        if not host.contexts:
            host.add_those(host.outputs)
        return shown
    except BaseException as error:
        return {"raised": host.error(error)}


def serve(channel: BinaryIO, host: Host) -> None:
    """Answer requests until the parent is gone.

    A request has a pickle of a target with its arguments, and a pickle of the thread in which to make the
    call, and of the handles that the parent has let go.
    """
    threads: dict[int, ThreadPoolExecutor] = {}
    own = os.getpid()
    while True:
        text, rest = receive(channel)
        thread, gone = pickle.loads(rest)
        for number, times in gone:
            host.handles.release(number, times)
        if not thread:
            said = answer(host, text)
        else:
            pool = threads.setdefault(thread, ThreadPoolExecutor(1))
            said = pool.submit(answer, host, text).result()
        if os.getpid() != own:  # a fork that returned from a call
            end_fork()
        said["read"] = [[number, len(raw)] for number, raw in host.raw.items()]
        send(channel, json.dumps(said).encode(), b"".join(host.raw.values()))


def main() -> None:
    parent = socket.socket(fileno=int(sys.argv[1]))
    parent.set_inheritable(False)
    channel = as_file(parent)
    start, _ = receive(channel)
    leaks.watch()
    with leaks.quiet():
        try:
            host = Host(pickle.loads(start))
        except BackendUnavailable as error:
            send(channel, json.dumps({"unavailable": str(error)}).encode())
            return
        gc.freeze()
        gc.enable()
        gc.set_threshold(YOUNG)
        send(channel, json.dumps({"open": OPEN, "home": host.told}).encode())
        with contextlib.suppress(EOFError):
            serve(channel, host)
    os._exit(0)  # threads and exit handlers of the user's code have nobody to answer


if __name__ == "__main__":
    threading.main_thread().name = "the judged thread"
    main()
