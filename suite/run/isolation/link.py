"""The link to the child: requests, and the values of answers.

Nothing in an answer is executed, unpickled, or printed unescaped. Objects stay in the child; the parent
has handles with facts that the child claims. Values are read as bytes.
"""

from __future__ import annotations

import atexit
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from operator import methodcaller
from types import MappingProxyType
from typing import Any, BinaryIO, TypeVar
from weakref import WeakValueDictionary

import msgspec
from msgspec import msgpack

from attention_conformance.backends.prepared import (
    ForbiddenCall,
    ForwardOnly,
    PreparedCall,
    ProcessDied,
)
from attention_conformance.backends.registry import BackendUnavailable, UsageError
from attention_conformance.suite.run.isolation import wire
from attention_conformance.suite.run.isolation.sandbox import Limits
from attention_conformance.suite.run.process import environment, how_it_ended
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.features import Feature
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.text import printable

MODULE = "attention_conformance.suite.run.isolation.child"

ANSWER_DECODER = msgpack.Decoder(wire.Answer)

MOST_DEATHS = 20
"""The number of children that are started after their predecessor died."""

CACHES = (
    "TMPDIR",
    "XDG_CACHE_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "MPLCONFIGDIR",
)
"""Environment variables of folders in which packages write caches."""


ERROR_TYPES = (
    *(e for e in vars(builtins).values() if isinstance(e, type) and issubclass(e, Exception)),
    SystemExit, ForbiddenCall, ForwardOnly, UsageError,
)  # fmt: skip
"""The types of errors that a child's answer can have; no interrupt is among them."""


class Handle:
    """The parent's stand-in for an object of the child. Calling it, or entering it as a context, does so
    in the child. Its class has the name of the object's type. All its facts are claims of the child."""

    is_array = False
    dtype = device = ""
    shape: tuple[int, ...]

    def __init__(self, link: Link, number: int) -> None:
        self.link, self.number = link, number

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.link.ask(self, *arguments, **keywords)

    def __enter__(self) -> None:
        self.link.ask(methodcaller("__enter__"), self)

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessDied):  # the child's death may have ended the context
            self.link.ask(methodcaller("__exit__", None, None, None), self)


class HostPath(tuple):
    """An object of the child by its path from the child's host."""


SHARED = {Operator: "operator", Feature: "feature", DType: "dtype"}
"""The kinds of objects that both processes have, by name."""


class Writer(pickle.Pickler):
    """Pickles a request. Handles, paths, and objects that both processes have are pickled as calls of
    `wire.resolve_object`."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Handle):
            if value.link.handles.get(value.number) is not value:
                raise ProcessDied("the process of the function died, and its arrays with it")
            return wire.resolve_object, ("handle", value.number)
        if type(value) is HostPath:
            return wire.resolve_object, ("path", tuple(value))
        if type(value) in SHARED:
            return wire.resolve_object, (SHARED[type(value)], value.name)
        if isinstance(value, PreparedCall) and value.problem is not None:
            return PreparedCall, tuple({**vars(value), "problem": None}.values())
        if isinstance(value, MappingProxyType):
            return dict, (dict(value),)
        return NotImplemented


class Link:
    """The child process, and the requests to it.

    A child that dies or sends an invalid answer is killed, and the next request starts a new child.
    Requests raise ProcessDied, and the error of the child's call. `count`: the number of requests, and
    `count_at_end` their number at the end of the last cell. Other arguments: as in `Limits`.
    """

    def __init__(
        self, start: Mapping[str, Any], hidden: tuple[str, ...] = (), memory: int = 0
    ) -> None:
        self.start = dict(start)
        self.limits = Limits(tempfile.mkdtemp(prefix="attention-child-"), hidden, memory)
        atexit.register(self.close)
        self.error_types = {(kind.__module__, kind.__qualname__): kind for kind in ERROR_TYPES}
        self.deaths = self.count = 0
        self.count_at_end = -1
        self.unenforced: tuple[str, ...] = ()
        self.handles: WeakValueDictionary[int, Handle] = WeakValueDictionary()
        self.loaded, self.array_bytes = False, b""
        self._types: dict[tuple[str, str], type] = {}
        self._lock = threading.RLock()
        self._child: subprocess.Popen[bytes] | None = None
        self._channel: BinaryIO | None = None

    def run(self) -> wire.Hello:
        """Start a child, which loads the backend. Returns its first message. Raises ProcessDied and
        BackendUnavailable."""
        if self.deaths > MOST_DEATHS:
            raise ProcessDied(f"the process of the function died {self.deaths} times")
        parent_end, child_end = socket.socketpair()
        variables = {n: v for n, v in environment({}).items() if not n.startswith("PYTEST")}
        variables |= dict.fromkeys(CACHES, self.limits.folder)
        # The user's code may check its arguments by assertions.
        variables.pop("PYTHONOPTIMIZE", None)
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._child = subprocess.Popen(
            [sys.executable, "-m", MODULE, str(child_end.fileno()), *self.limits.words],
            stdin=subprocess.DEVNULL, stdout=self.errors, stderr=self.errors, env=variables,
            pass_fds=[child_end.fileno()], start_new_session=True,
        )  # fmt: skip
        child_end.close()
        self._channel = channel = wire.as_file(parent_end)
        self.handles = WeakValueDictionary()
        with self.killing_on_error():
            wire.send(channel, pickle.dumps(self.start))
            hello = msgpack.decode(wire.receive(channel)[0], type=wire.Hello)
            self.unenforced = tuple(map(printable, hello.unenforced))
        if hello.unavailable:
            self.kill(True)
            raise BackendUnavailable(printable(hello.unavailable))
        return hello

    @property
    def dead(self) -> bool:
        """True if there is no child."""
        return self._child is None

    def at(self, *arguments: Any, **keywords: Any) -> Any:
        """Call a method of the child's host. The first argument is its name, the rest are its arguments.
        Raises as `ask`."""
        method, *operands = arguments
        return self.ask(HostPath((method,)), *operands, **keywords)

    def ask(self, target: Any, *arguments: Any, **keywords: Any) -> Any:
        """Call an object of the child, and return the value of the answer. A dead child is replaced by a
        new one. For each thread of this process the child calls in a separate thread. Raises ProcessDied,
        and the error of the call."""
        with self._lock:
            if self.dead:
                self.run()
                if self.loaded:
                    self.ask(HostPath(("load",)))
            main = threading.current_thread() is threading.main_thread()
            text = io.BytesIO()
            Writer(text).dump((target, arguments, keywords))
            context = pickle.dumps((0 if main else threading.get_ident(), [*self.handles]))
            with self.killing_on_error():
                assert self._channel is not None
                wire.send(self._channel, text.getvalue(), context)
                self.count += 1
                message, self.array_bytes = wire.receive(self._channel)
                answer = ANSWER_DECODER.decode(message)
                error = None if answer.raised is None else self.error(answer.raised)
                value = self.value(answer.value)
        if error is not None:
            raise error
        return value

    def read(self, handle: Handle) -> bytes:
        """Returns the values of an array as bytes, see `wire.to_bytes`."""
        with self._lock:
            self.at("read", handle)
            return self.array_bytes

    @contextlib.contextmanager
    def killing_on_error(self) -> Iterator[None]:
        """A context that kills the child if an exception is raised inside. An Exception becomes
        ProcessDied: the child died, or its answer is invalid. Any other exception, such as an interrupt,
        is raised again."""
        try:
            yield
        except Exception as error:
            has_ended = isinstance(error, EOFError | OSError)
            ending = self.kill(has_ended)
            reason = f"it {ending}" if has_ended else f"it answered what is no answer: {error}"
            raise ProcessDied(printable(f"the process of the function died: {reason}")) from error
        except BaseException:
            self.kill(False)
            raise

    def kill(self, ends_itself: bool) -> str:
        """Kill the child and its process group. Returns a text that says how it ended. With `ends_itself`
        the child first has two seconds to end."""
        child, self._child = self._child, None
        if child is None:
            return "is gone"
        self.deaths += 1
        assert self._channel is not None
        self._channel.close()
        if ends_itself:
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

    # Values of answers.

    def value(self, answer: wire.Value) -> Any:
        """Returns the Python value of an answer: plain data, an error, a call, or a handle. Raises
        Garbled."""
        match answer:
            case str():
                return printable(answer)
            case wire.Items():
                kinds: Any = {"tuple": tuple, "list": list, "dict": dict, "PreparedCall": self.call}
                return kinds[answer.kind](map(self.value, answer.values))
            case wire.Error():
                return self.error(answer)
            case wire.Reference():
                return self.handle(answer)
        return answer

    def handle(self, claim: wire.Reference) -> Handle:
        """Returns the handle of the object with this number, and sets its facts to those that the child
        claims."""
        handle = self.handles.get(claim.number)
        if handle is None:
            handle = self.type_of(claim.kind, Handle)(self, claim.number)
            self.handles[claim.number] = handle
        if claim.shape is not None:
            handle.is_array, handle.dtype, handle.device = (
                claim.is_array,
                claim.dtype,
                claim.device,
            )
            handle.shape = claim.shape
        return handle

    def type_of(self, name: tuple[str, str], base: type) -> type:
        """Returns a subclass of `base` with the module and name in `name`, which the child claims. Each
        is created once."""
        if name not in self._types:
            module, qualname = name
            attributes = {"__module__": module, "__qualname__": qualname}
            self._types[name] = type(qualname.rpartition(".")[2], (base,), attributes)
        return self._types[name]

    def call(self, items: Iterable[tuple[str, Any]]) -> PreparedCall:
        """Returns a prepared call whose function and context are handles. Raises Garbled if they are not,
        or if its arguments are no dictionary."""
        fields = dict(items)
        handles = (fields["function"], fields.get("within"))
        if any(not isinstance(value, Handle | None) for value in handles):
            raise wire.Garbled("a call without a function")
        if type(fields.get("arguments", {})) is not dict:
            raise wire.Garbled("a call without arguments")
        return PreparedCall(**{name: value for name, value in fields.items() if value is not None})

    def error(self, claim: wire.Error) -> BaseException:
        """Returns the error in an answer. Its class has the name that the child claims, and as its base
        the first claimed type that is in `error_types`, or else Exception."""
        types = (self.error_types[kind] for kind in claim.kinds if kind in self.error_types)
        base = next(types, Exception)
        if base is ForwardOnly:
            return ForwardOnly(claim.text, claim.declared)
        module, qualname = claim.kinds[0]
        members = {
            "__module__": module,
            "__qualname__": qualname,
            # A base such as UnicodeDecodeError takes arguments that no message gives.
            "__init__": lambda error, text: None,
            "__str__": lambda error: claim.text,
        }
        error = type(qualname.rpartition(".")[2], (base,), members)(claim.text)
        error.inside = None if claim.inside is None else self.error(claim.inside)
        return error


Part = TypeVar("Part", bound="ChildPart")


class ChildPart:
    """An object whose calls the child makes: those of its own object at `path` from its host. All that
    needs no call stays in this process."""

    link: Link
    path: tuple[str, ...]

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a method of the child's object, and return its value. Raises as `Link.ask`."""
        return self.link.ask(HostPath((*self.path, name)), *arguments)


def called_in_child(
    part: Any, item: Any, link: Link, *path: str, members: Mapping[str, Any] = {}
) -> Any:
    """Returns a copy of an object, whose calls the child makes. Its class begins with `part`, a class of
    `ChildPart`, and has `members`."""
    item, kind = copy(item), type(item)
    if not issubclass(kind, part):
        members = {"__module__": kind.__module__, **members}
        item.__class__ = type(kind.__name__, (part, kind), members)
    item.link, item.path = link, path
    return item


def delegated(*names: str, **kinds: Any) -> Callable[[type[Part]], type[Part]]:
    """Returns a class decorator that adds methods of these names. Each method calls the method of the
    same name in the child. Methods in `kinds` raise msgspec.ValidationError for an answer of another
    type."""

    def method_of(name: str, kind: Any) -> Callable[..., Any]:
        def method(part: Any, *arguments: Any) -> Any:
            answer = part.ask(name, *arguments)
            return answer if kind is Any else msgspec.convert(answer, kind)

        return method

    def add_methods(part: type[Part]) -> type[Part]:
        for name, kind in {**dict.fromkeys(names, Any), **kinds}.items():
            setattr(part, name, method_of(name, kind))
        return part

    return add_methods
