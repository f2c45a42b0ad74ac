"""The child of the isolated judge: `python -m ...suite.run.isolation.child DESCRIPTOR`.

The child limits itself, loads the backend, imports the user's file, and answers requests of its parent
through the socket DESCRIPTOR. It judges nothing. All answers are claims: the user's code shares its
memory and can change every line here. So this file serves honest code, and protects no verdict.
"""

from __future__ import annotations

import gc
import sys

from attention_conformance.suite.run.isolation import sandbox

if __name__ == "__main__":  # before NumPy and frameworks are imported, and before there are threads
    LIMITS = sandbox.Limits.from_words(sys.argv[2:])
    UNENFORCED = sandbox.enclose(LIMITS)
    gc.disable()  # what is imported stays; see `suite.run.plugin`

import contextlib
import inspect
import io
import os
import pickle
import socket
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any, BinaryIO, cast

import msgspec
import numpy as np
from msgspec import msgpack

from attention_conformance.backends import registry
from attention_conformance.backends.binder import signature_of, signature_of_instances
from attention_conformance.backends.claims import attached_claims
from attention_conformance.backends.prepared import PreparedCall, end_fork
from attention_conformance.backends.protocol import BackendUnavailable, ForwardOnly
from attention_conformance.backends.user.function import UserCallable
from attention_conformance.backends.user.layer import UserLayer
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.verdict import text_of
from attention_conformance.suite.run.isolation import wire
from attention_conformance.suite.run.process import YOUNG
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.operators import OPERATORS
from attention_conformance.suite.spec.text import printable
from attention_conformance.suite.spec.vocabulary import REGISTERED

MOST_CHARACTERS = 10_000
"""Characters of an error's text."""


class Host:
    """The child's objects. A request names an object by its path from the host (`find`), or by its number
    in `objects`. `start` is the parent's first message, see `remote.isolated`."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        self.start = start
        self.backend = registry.load(start["backend"], start["device"])
        self.settings = self.backend.settings
        self.natives = {i.name: i for i in registry.implementations(self.backend)}
        self.beside = getattr(registry.example(self.backend), "beside", None)
        self.types = {type(self.backend.array(np.zeros((1,)), fmt)) for fmt in DTYPES.values()}
        self.objects: dict[int, Any] = {}
        self.numbers: dict[int, int] = {}
        self.last_number = 0
        self.raw: bytes | memoryview = b""
        self.begin()

    def load(self) -> wire.Loaded:
        """Import the user's file. Returns the facts of its function, with the claims that the file
        states. Raises UsageError."""
        text, like, claims = self.start["function"], self.start["like"], self.start["claims"]
        if self.start["forbids_native"]:
            claims = {**claims, "forbid": registry.attention_names(self.backend)}
        for name in self.start["hidden"]:
            sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # imports of it raise
        function = registry.load_function(self.backend, text, claims)
        name = text.rpartition(":")[2]
        judged, _ = registry.callable_implementation(
            self.backend, function, name, claims, like, text
        )
        self.implementation = judged
        for method, arguments in self.start["settled"].items():
            getattr(judged, method)(*arguments)
        if self.start["quick"]:
            self.load_quick()
        observed = judged.observation if isinstance(judged, UserLayer) else None
        callables = judged.methods.items() if isinstance(judged, UserCallable) else ()
        return wire.Loaded(
            str(getattr(function, "__name__", "")),
            parameters(function, isinstance(function, type) and not like),
            {n: parameters(method) for n, method in callables},
            REGISTERED in judged.declared.features,
            wire.Layer(**vars(observed) | {"call": parameters(observed.call)}) if observed else None,
            msgspec.to_builtins(attached_claims(function), enc_hook=list),
        )  # fmt: skip

    def load_quick(self) -> bool:
        """Import the user's file again, for the quick backend: what a function stores while JAX traces it
        stays there. Returns True if `quick` is then the function on `quick_backend`, with the binding of
        trial calls; False if the function has no such form."""
        function, quick_backend = self.implementation, self.backend.quick()
        if quick_backend is None or not isinstance(function, UserCallable):
            return False
        text, like, claims = self.start["function"], self.start["like"], self.start["claims"]
        traced, _ = registry.function_implementation(quick_backend, text, claims, like)
        assert isinstance(traced, UserCallable)
        self.quick_backend, self.quick = quick_backend, function.quickly(traced)
        return self.quick is not function

    def find(self, path: tuple[Any, ...]) -> Any:
        """Returns the object at a path from this host. Each name of the path is an attribute, or a key of
        a mapping."""

        def step(value: Any, name: Any) -> Any:
            return value[name] if isinstance(value, Mapping) else getattr(value, name)

        return reduce(step, path, self)

    def begin(self) -> None:
        """Begin a cell: seed all random generators, and store the settings."""
        self.settings_before = leaks.Settings(self.backend)

    def next_cell(self) -> tuple[list[str], list[str]]:
        """Restore the settings and begin the next cell. Returns the changes of settings as texts, and the
        errors of background threads and processes."""
        changes, errors = self.settings_before.restore(), leaks.background_errors()
        self.begin()
        return changes, errors

    def read(self, array: Any) -> None:
        """Store the bytes of an array in `raw`, which is sent with the next answer. Raises the
        framework's errors."""
        name = self.backend.dtype_name(array)
        self.raw = wire.to_bytes(self.backend.to_numpy(array), name)

    def retain(self, used_numbers: Iterable[int]) -> None:
        """Delete all stored objects whose numbers are not in `used_numbers`: the parent has no handles of
        them."""
        self.objects = {number: self.objects[number] for number in used_numbers}
        self.numbers = {id(value): number for number, value in self.objects.items()}

    # Values of answers.

    def encoded(self, value: Any) -> wire.Value:
        """Returns a value in the types of `wire`: plain data, or a reference to an object of this
        process."""
        if value is None or type(value) in (bool, int, float, wire.Loaded):
            return value
        if type(value) is str:
            return printable(value)
        kind: Any = type(value)
        if kind in (tuple, list, dict):
            items = value.items() if kind is dict else value
            return wire.Items(tuple(map(self.encoded, items)), kind.__name__)
        if isinstance(value, BaseException):
            return self.error(value)
        if isinstance(value, PreparedCall):
            facts = vars(value).items()
            sent = (
                item for item in facts if item[0] not in UNSENT and item[1] != DEFAULTS[item[0]]
            )
            return wire.Items(tuple(map(self.encoded, sent)), "PreparedCall")
        return self.reference(value)

    def reference(self, value: Any) -> wire.Reference:
        """Store an object under a number. Returns a reference to it; of an array with dtype, device and
        shape."""
        number = self.numbers.get(id(value))
        if number is None:
            self.last_number = number = self.last_number + 1
            self.objects[number], self.numbers[id(value)] = value, number
        kind = type(value)
        reference = wire.Reference(number, (kind.__module__, kind.__qualname__))
        if self.backend.is_array(value):
            with contextlib.suppress(Exception):
                reference.dtype = self.backend.dtype_name(value)
                reference.device = self.backend.device_name(value)
                reference.shape = tuple(map(int, value.shape))
                reference.is_array = kind in self.types
        return reference

    def error(self, error: BaseException) -> wire.Error:
        """Returns an error as `wire.Error`: its types and text, and the error that a compiler wrapped in
        it, if there is one."""
        inside = self.backend.raised_inside(error)
        return wire.Error(
            tuple((kind.__module__, kind.__qualname__) for kind in type(error).__mro__),
            printable(text_of(error)[:MOST_CHARACTERS]),
            isinstance(error, ForwardOnly) and error.declared,
            None if inside is error else self.error(inside),
        )  # fmt: skip


def parameters(function: Any, as_instances: bool = False) -> wire.Parameters:
    """Returns the parameters of a callable; None if Python cannot read its signature. With `as_instances`
    the callable is a class, and the parameters are those of calls of its instances. A default that is no
    plain data becomes None."""
    try:
        signature = (signature_of_instances if as_instances else signature_of)(function)
    except (TypeError, ValueError):
        return None
    plain = (bool, int, float, str)

    def default(p: inspect.Parameter) -> tuple[Any, ...]:
        return () if p.default is p.empty else (p.default if type(p.default) in plain else None,)

    return tuple(
        (p.name, cast(wire.Kind, p.kind.name), default(p)) for p in signature.parameters.values()
    )


UNSENT = ("problem", "source", "through")
"""The fields of a call that are not sent: the parent knows the problem, and shows no source text."""

DEFAULTS = vars(PreparedCall(PreparedCall))
"""The default values of a call's fields, which are not sent."""


SHARED: dict[str, Mapping[str, Any]] = {
    "operator": OPERATORS, "feature": FEATURES, "dtype": DTYPES
}  # fmt: skip
"""The objects that both processes have, by name."""


class Request(pickle.Unpickler):
    """Unpickles a request. Calls of `wire.resolve_object` in the pickle become objects of the child."""

    def __init__(self, text: bytes, host: Host) -> None:
        super().__init__(io.BytesIO(text))
        self.host = host

    def find_class(self, module: str, name: str) -> Any:
        return (
            self.resolve_object
            if name == wire.resolve_object.__name__
            else super().find_class(module, name)
        )

    def resolve_object(self, kind: str, name: Any) -> Any:
        if kind == "path":
            return self.host.find(name)
        return self.host.objects[name] if kind == "handle" else SHARED[kind][name]


def answer(host: Host, text: bytes) -> wire.Answer:
    """Makes the call of a request, a pickle. Returns the answer: a value, or the error that was
    raised."""
    host.raw = b""
    try:
        target, arguments, keywords = Request(text, host).load()
        return wire.Answer(host.encoded(target(*arguments, **keywords)))
    except BaseException as error:
        return wire.Answer(raised=host.error(error))


def serve(channel: BinaryIO, host: Host) -> None:
    """Answer requests until the channel closes (EOFError).

    A request has two pickles: (1) the target with its arguments; (2) the number of the parent's thread
    (0: main thread) and the numbers of the objects that the parent still uses. Each other thread of the
    parent has its own thread in this process.
    """
    threads: dict[int, ThreadPoolExecutor] = {}
    own_pid = os.getpid()
    while True:
        text, context = wire.receive(channel, (sys.maxsize, sys.maxsize))
        thread, used_numbers = pickle.loads(context)
        host.retain(used_numbers)
        if not thread:
            reply = answer(host, text)
        else:
            pool = threads.setdefault(thread, ThreadPoolExecutor(1))
            reply = pool.submit(answer, host, text).result()
        if os.getpid() != own_pid:  # a fork that returned from a call
            end_fork()
        wire.send(channel, msgpack.encode(reply), host.raw)


def main() -> None:
    parent = socket.socket(fileno=int(sys.argv[1]))
    parent.set_inheritable(False)
    channel = wire.as_file(parent)
    start, _ = wire.receive(channel, (sys.maxsize, 0))
    leaks.record_deaths()
    with leaks.without_warnings():
        try:
            host = Host(pickle.loads(start))
        except BackendUnavailable as error:
            wire.send(channel, msgpack.encode(wire.Hello(str(error))))
            return
        gc.freeze()
        gc.enable()
        gc.set_threshold(YOUNG)
        versions = {name: str(text) for name, text in host.backend.versions.items()}
        errors = tuple((e.__module__, e.__qualname__) for e in host.backend.validation_errors)
        hello = wire.Hello("", tuple(UNENFORCED), versions, host.backend.rounding, errors)
        wire.send(channel, msgpack.encode(hello, enc_hook=dict))
        with contextlib.suppress(EOFError):
            serve(channel, host)
    os._exit(0)  # threads and exit handlers of the user's code have nobody to answer


if __name__ == "__main__":
    threading.main_thread().name = "the judged thread"
    main()
