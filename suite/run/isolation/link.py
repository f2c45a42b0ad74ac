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
from types import MappingProxyType
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

from msgspec import msgpack

from attention_conformance.backends.prepared import (
    ForbiddenCall,
    ForwardOnly,
    PreparedCall,
    ProcessDied,
)
from attention_conformance.backends.registry import BackendUnavailable, UsageError
from attention_conformance.suite.run.isolation import wire
from attention_conformance.suite.run.isolation.description import BackendDescription, Hello
from attention_conformance.suite.run.isolation.sandbox import Limits
from attention_conformance.suite.run.process import environment, how_it_ended
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.features import Feature
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.text import printable

MODULE = "attention_conformance.suite.run.isolation.child"

ANSWERS = msgpack.Decoder(wire.Answer)

MOST_DEATHS = 20
"""The number of children that are started after their predecessor died."""

CACHES = ("TMPDIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "MPLCONFIGDIR")
"""Variables that name folders to write to."""


KINDS = (
    *(e for e in vars(builtins).values() if isinstance(e, type) and issubclass(e, Exception)),
    SystemExit, ForbiddenCall, ForwardOnly, UsageError,
)  # fmt: skip
"""The errors that a child may tell of. No error of a child interrupts a run."""


class Handle:
    """An object of the child. Its attributes are what the child says of the object; the class has the
    name of the object's type. A context is entered and left in the child."""

    array = False
    dtype = device = ""
    shape: tuple[int, ...]

    def __init__(self, link: Link, number: int) -> None:
        self.link, self.number = link, number

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.link.ask(self, *arguments, **keywords)

    def __enter__(self) -> None:
        self.link.at("enter", self)

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessDied):  # which may be what ended the context
            self.link.at("leave", self)


class Place(tuple):
    """An object of the child by its path from the child's host."""


SHARED = {Operator: "operator", Feature: "feature", DType: "dtype"}
"""The kinds of objects that both processes have, by name."""


class Writer(pickle.Pickler):
    """A request: handles, paths, and the objects that both processes have, travel as names."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Handle):
            if value.link.handles.get(value.number) is not value:
                raise ProcessDied("the process of the function died, and its arrays with it")
            return wire.found, ("handle", value.number)
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

    home: BackendDescription

    def __init__(self, start: Mapping[str, Any], limits: Limits) -> None:
        self.start, self.limits = dict(start), limits
        self.kinds = {(kind.__module__, kind.__qualname__): kind for kind in KINDS}
        self.deaths = self.count = 0
        self.open: tuple[str, ...] = ()
        self.handles: WeakValueDictionary[int, Handle] = WeakValueDictionary()
        self.loaded, self.raw = False, b""
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
        self.handles = WeakValueDictionary()
        with self.living():
            wire.send(channel, pickle.dumps(self.start))
            said = msgpack.decode(wire.receive(channel)[0], type=Hello)
            self.open = tuple(map(printable, said.open))
            if said.home is not None and not hasattr(self, "home"):
                self.at_home(said.home)
        if said.unavailable:
            self.kill(True)
            raise BackendUnavailable(printable(said.unavailable))

    def at_home(self, home: BackendDescription) -> None:
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
            text = io.BytesIO()
            Writer(text).dump((target, arguments, keywords))
            rest = pickle.dumps((0 if main else threading.get_ident(), [*self.handles]))
            with self.living():
                assert self._channel is not None
                wire.send(self._channel, text.getvalue(), rest)
                self.count += 1
                said, self.raw = wire.receive(self._channel)
                answer = ANSWERS.decode(said)
                error = None if answer.raised is None else self.error(answer.raised)
                value = self.value(answer.value)
        if error is not None:
            raise error
        return value

    def read(self, handle: Handle) -> bytes:
        """The values of an array."""
        with self._lock:
            self.at("read", handle)
            return self.raw

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

    def value(self, said: wire.Value) -> Any:
        """The value of an answer. Raises Garbled."""
        match said:
            case str():
                return printable(said)
            case wire.Several():
                values = [self.value(one) for one in said.values]
                return values if said.is_list else tuple(values)
            case wire.Pairs():
                return {self.value(n): self.value(one) for n, one in said.values}
            case wire.Error():
                return self.error(said)
            case wire.Call():
                return self.call(said)
            case wire.Reference():
                return self.handle(said)
        return said

    def handle(self, said: wire.Reference) -> Handle:
        """The object that the child holds by this number, with what the child says of an array."""
        known = self.handles.get(said.number)
        if known is None:
            known = self.type_of(said.kind, Handle)(self, said.number)
            self.handles[said.number] = known
        if said.shape is not None:
            known.array, known.dtype, known.device = said.array, said.dtype, said.device
            known.shape = said.shape
        return known

    def type_of(self, name: tuple[str, str], base: type) -> type:
        """A subclass with the name that the child tells."""
        if name not in self._types:
            module, qualname = name
            facts = {"__module__": module, "__qualname__": qualname}
            self._types[name] = type(qualname.rpartition(".")[2], (base,), facts)
        return self._types[name]

    def call(self, said: wire.Call) -> PreparedCall:
        """A call whose function, and whose context, are the child's."""
        facts = {name: self.value(one) for name, one in said.fields.items()}
        handles = (facts["function"], facts.get("within"))
        if any(not isinstance(one, Handle | None) for one in handles):
            raise wire.Garbled("a call without a function")
        if type(facts.get("arguments", {})) is not dict:
            raise wire.Garbled("a call without arguments")
        return PreparedCall(**{name: one for name, one in facts.items() if one is not None})

    def error(self, said: wire.Error) -> BaseException:
        """The error that the child tells of: an instance of the first known type, with the type's
        name."""
        known = next((self.kinds[kind] for kind in said.kinds if kind in self.kinds), Exception)
        if known is ForwardOnly:
            return ForwardOnly(said.text, said.declared)
        module, qualname = said.kinds[0]
        facts = {"__module__": module, "__qualname__": qualname, "__str__": lambda error: said.text}
        error = type(qualname.rpartition(".")[2], (known,), facts)(said.text)
        error.inside = None if said.inside is None else self.error(said.inside)
        return error
