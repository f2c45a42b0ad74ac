"""The link to the child: requests, and what is taken from the answers.

Nothing that the child says is executed, unpickled, or printed unescaped. Objects stay in the child; the
parent has handles with what the child claims of them. Values are read as bytes.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

import msgspec

from attention_conformance.backends.prepared import (
    ForbiddenCall,
    ForwardOnly,
    PreparedCall,
    ProcessDied,
)
from attention_conformance.backends.registry import BackendUnavailable, UsageError
from attention_conformance.suite.run.isolation import wire
from attention_conformance.suite.run.isolation.sandbox import Limits
from attention_conformance.suite.run.isolation.told import ToldBackend
from attention_conformance.suite.run.isolation.wire import Garbled, checked, checked_name
from attention_conformance.suite.run.process import environment, how_it_ended
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.features import Feature
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.text import printable

MODULE = "attention_conformance.suite.run.isolation.child"

MOST_DEATHS = 20
"""The number of children that are started after their predecessor died."""

MOST_TOGETHER = 16
"""The greatest number of arrays that are read besides the one that is needed."""

MOST_ERRORS = 8
"""The greatest number of errors inside errors."""

CACHES = ("TMPDIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MPLCONFIGDIR")
"""Variables that name folders to write to."""


KINDS = (
    *(e for e in vars(builtins).values() if isinstance(e, type) and issubclass(e, Exception)),
    SystemExit, ForbiddenCall, ForwardOnly, UsageError,
)  # fmt: skip
"""The errors that a child may tell of. No error of a child interrupts a run."""


class Handle:
    """An object of the child. Its attributes are what the child says of the object; the class has the
    name of the object's type."""

    def __init__(self, link: Link, number: int) -> None:
        self.link, self.number, self.times = link, number, 0
        self.generation = link.generation
        self.claims: dict[str, Any] = {}
        self.raw: tuple[int, bytes] | None = None

    def __del__(self) -> None:
        self.link.gone.append((self.generation, self.number, self.times))

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.link.ask(self, *arguments, **keywords)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.claims["shape"])


class Place(tuple):
    """An object of the child by its path from the child's host."""


class Context:
    """A context of the child, entered and left there."""

    def __init__(self, link: Link, make: Any, *arguments: Any) -> None:
        self.link, self.make, self.arguments = link, make, arguments

    def __enter__(self) -> None:
        self.number = self.link.at("enter", self.make, *self.arguments)

    def __exit__(self, *error: object) -> None:
        # What ended the context may be that the child died, which left it.
        with contextlib.suppress(KeyError, ProcessDied):
            self.link.at("leave", self.number)


class Within:
    """The context of a prepared call: each call makes a new one."""

    def __init__(self, make: Handle) -> None:
        self.make = make

    def __call__(self) -> Context:
        return Context(self.make.link, self.make)


SHARED = {Operator: "operator", Feature: "feature", DType: "dtype"}
"""The kinds of objects that both processes have, by name."""


class Writer(pickle.Pickler):
    """A request: handles, paths, and the objects that both processes have, travel as names."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Handle):
            if value.generation != value.link.generation:
                raise ProcessDied("the process of the function died, and its arrays with it")
            return wire.found, ("handle", value.number)
        if isinstance(value, Within):
            return wire.found, ("handle", value.make.number)
        if type(value) is Place:
            return wire.found, ("path", tuple(value))
        if type(value) in SHARED:
            return wire.found, (SHARED[type(value)], value.name)
        if isinstance(value, PreparedCall) and value.problem is not None:
            return PreparedCall, tuple({**vars(value), "problem": None}.values())
        if isinstance(value, MappingProxyType):
            return dict, (dict(value),)
        return NotImplemented


class Link:
    """The child, and the requests to it.

    A child that dies, or that answers what its program does not answer, is killed; the next request
    starts another one. Requests raise ProcessDied, and what the child's call raised. `home` is what the
    first child says of its backend.
    """

    home: ToldBackend

    def __init__(self, start: Mapping[str, Any], limits: Limits) -> None:
        self.start, self.limits = dict(start), limits
        self.kinds = {(kind.__module__, kind.__qualname__): kind for kind in KINDS}
        self.generation = self.deaths = 0
        self.gone: list[tuple[int, int, int]] = []
        self.handles: WeakValueDictionary[int, Handle] = WeakValueDictionary()
        self.count, self.open = 0, list[str]()
        self.loaded = False
        self._types: dict[tuple[str, str], type] = {}
        self._lock = threading.RLock()
        self._child: subprocess.Popen[bytes] | None = None
        self._channel: BinaryIO | None = None

    def run(self) -> None:
        """Start a child, and let it load the backend. Raises ProcessDied and BackendUnavailable."""
        if self.deaths > MOST_DEATHS:
            raise ProcessDied(f"the process of the function died {self.deaths} times")
        own, others = socket.socketpair()
        variables = {n: v for n, v in environment({}).items() if not n.startswith("PYTEST")}
        variables |= dict.fromkeys(CACHES, self.limits.folder)
        # The user's code may check its arguments by assertions.
        variables.pop("PYTHONOPTIMIZE", None)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._child = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(others.fileno()), *self.limits.words],
            stdin=subprocess.DEVNULL, stdout=self.errors, stderr=self.errors, env=variables,
            pass_fds=[others.fileno()], start_new_session=True,
        )  # fmt: skip
        others.close()
        self._channel = channel = wire.as_file(own)
        self.generation += 1
        self.handles, self.gone = WeakValueDictionary(), []
        with self.living():
            wire.send(channel, pickle.dumps(self.start))
            said = wire.parsed(wire.receive(channel, (wire.MOST_JSON, 0))[0])
            if "unavailable" not in said:
                left = checked(said.get("open"), list, "what is open")
                self.open = [printable(checked(one, str, "a sentence")) for one in left]
                if not hasattr(self, "home"):
                    self.at_home(msgspec.convert(said.get("home"), ToldBackend))
                return
        self.kill(True)
        raise BackendUnavailable(printable(str(said["unavailable"])))

    def at_home(self, home: ToldBackend) -> None:
        """Take what a child says of the backend."""
        self.home = home
        for name in home.validation_errors:
            self.kinds.setdefault(name, self.type_of(name, Exception))

    @property
    def dead(self) -> bool:
        """True if there is no child."""
        return self._child is None

    def at(self, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of the child's host, the first argument."""
        name, *rest = arguments
        return self.ask(Place((name,)), *rest, **keywords)

    def ask(self, target: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call an object of the child. Raises ProcessDied, and the error of the call."""
        with self._lock:
            if self.dead:
                self.run()
                if self.loaded:
                    self.ask(Place(("load",)))
            main = threading.current_thread() is threading.main_thread()
            gone = [(n, times) for age, n, times in self._let_go() if age == self.generation]
            text = io.BytesIO()
            Writer(text).dump((target, arguments, keywords))
            rest = pickle.dumps((0 if main else threading.get_ident(), gone))
            with self.living():
                assert self._channel is not None
                wire.send(self._channel, text.getvalue(), rest)
                most = (wire.MOST_JSON, wire.MOST_BYTES)
                said, raw = wire.receive(self._channel, most)
                self.count += 1
                answer = wire.parsed(said)
                value = error = None
                if "raised" in answer:
                    error = self.error(answer["raised"])
                else:
                    value = self.value(answer.get("value"))
                    self._keep(checked(answer["read"], list, "what was read"), raw)
        if error is not None:
            raise error
        return value

    def read(self, handle: Handle) -> bytes:
        """The values of an array. Those that the last answer brought are taken from there. Otherwise the
        arrays that the child told of next are read, too: they are probably asked for next."""
        if handle.raw is None or handle.raw[0] != self.count:
            living = [*self.handles.values()]
            later = (one for one in living if one.claims and one.number > handle.number)
            self.at("read", handle, *islice(later, MOST_TOGETHER))
        if handle.raw is None or handle.raw[0] != self.count:
            self.kill(False)
            raise ProcessDied("the process of the function died: it sent no values of an array")
        return handle.raw[1]

    def _keep(self, read: list[Any], raw: bytes) -> None:
        """Give values to the handles of arrays: each has so many of the bytes."""
        place = 0
        for number, length in read:
            handle = self.handles.get(number)
            if handle is not None:
                handle.raw = (self.count, raw[place : place + checked(length, int, "a length")])
            place += length

    def _let_go(self) -> list[tuple[int, int, int]]:
        gone, self.gone = self.gone, []
        return gone

    @contextlib.contextmanager
    def living(self) -> Iterator[None]:
        """A context that kills the child if it does not answer, or is not let answer. Raises
        ProcessDied."""
        try:
            yield
        except Exception as error:
            late = isinstance(error, EOFError | OSError)
            how = self.kill(late)
            why = f"it {how}" if late else f"it answered what is no answer: {error}"
            raise ProcessDied(printable(f"the process of the function died: {why}")) from error
        except BaseException:
            self.kill(False)
            raise

    def kill(self, ends: bool) -> str:
        """End the child and all that it started; returns how it ended. `ends`: the child ends by
        itself."""
        child, self._child = self._child, None
        if child is None:
            return "is gone"
        self.deaths += 1
        assert self._channel is not None
        self._channel.close()
        if ends:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
        self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - 4096))
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        self.errors.close()
        return how_it_ended(code) + (f": {lines[-1][:300]}" if lines else "")

    def close(self) -> None:
        """End the child, and remove its folder."""
        self.kill(False)
        shutil.rmtree(self.limits.folder, ignore_errors=True)

    # What the child answers.

    def value(self, said: Any) -> Any:
        """The value of an answer. Raises Garbled."""
        if said is None or type(said) in (bool, int, float, str):
            return said
        ((kind, of),) = checked(said, dict, "a value").items()
        if kind in ("tuple", "list"):
            values = [self.value(one) for one in checked(of, list, kind)]
            return tuple(values) if kind == "tuple" else values
        if kind == "dict":
            return {self.value(n): self.value(one) for n, one in checked(of, list, kind)}
        if kind == "error":
            return self.error(of)
        if kind == "call":
            return self.call(checked(of, dict, kind))
        if kind == "handle":
            return self.handle(checked(of, dict, kind))
        raise Garbled(f"a value of the kind {kind!r}")

    def handle(self, of: dict[str, Any]) -> Handle:
        number = checked(of["number"], int, "a number")
        known = self.handles.get(number)
        if known is None:
            known = self.type_of(of["type"], Handle)(self, number)
            self.handles[number] = known
        known.times += 1
        if "shape" in of:
            known.claims = {
                "array": checked(of["array"], bool, "a claim"),
                "shape": wire.checked_shape(of["shape"]),
                "dtype": checked_name(of["dtype"], "a dtype"),
                "device": checked_name(of["device"], "a device"),
            }
        return known

    def type_of(self, name: Any, base: type) -> type:
        """A subclass with the name that the child tells."""
        module, qualname = (checked_name(one, "a type") for one in name)
        if (module, qualname) not in self._types:
            facts = {"__module__": module, "__qualname__": qualname}
            self._types[module, qualname] = type(qualname.rpartition(".")[2], (base,), facts)
        return self._types[module, qualname]

    def call(self, of: dict[str, Any]) -> PreparedCall:
        facts = {name: self.value(one) for name, one in of.items()}
        if (
            not isinstance(facts["function"], Handle)
            or type(facts.get("arguments", {})) is not dict
        ):
            raise Garbled("a call without a function")
        if "within" in facts:
            facts["within"] = Within(facts["within"])
        return PreparedCall(**facts)

    def error(self, of: Any, depth: int = 0) -> BaseException:
        """The error that the child tells of: an instance of the first known type, with the type's
        name."""
        if depth > MOST_ERRORS:
            raise Garbled("an endless error")
        kinds = [tuple(one) for one in checked(of["kinds"], list, "the types of an error")]
        text = checked(of["text"], str, "a text")
        known = next((self.kinds[kind] for kind in kinds if kind in self.kinds), Exception)
        if known is ForwardOnly:
            return ForwardOnly(text, checked(of["declared"], bool, "a claim"))
        module, qualname = (checked_name(one, "a type") for one in kinds[0])
        facts = {"__module__": module, "__qualname__": qualname, "__str__": lambda error: text}
        error = type(qualname.rpartition(".")[2], (known,), facts)(text)
        inside = of["inside"]
        error.inside = None if inside is None else self.error(inside, depth + 1)
        return error
