"""A backend and implementations in the parent process, whose calls the child makes.

`Remote` is the backend: its arrays, calls and contexts are handles of the child's objects. The child
sends facts about the framework before it imports the user's file. `remote_function` lets the child make
the calls of the user's function, and `RemoteNative` is an implementation of the framework. Checks and
judge use them like any backend, so a function in a child has to look like one. This process never
imports the framework."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from attention_conformance.backends import registry
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.implementation import Implementation
from attention_conformance.backends.prepared import PreparedCall, ProcessDied
from attention_conformance.backends.protocol import Ambient, Backend, ChildSettings, Setting
from attention_conformance.backends.registry import UsageError
from attention_conformance.backends.user.cached import METHODS
from attention_conformance.backends.user.function import UserFunction
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.verdict import WrongAnswer, first_line
from attention_conformance.suite.records.machine import ROOT
from attention_conformance.suite.run.isolation import wire
from attention_conformance.suite.run.isolation.description import (
    DescribedLayer,
    ImplementationDescription,
    Stub,
)
from attention_conformance.suite.run.isolation.link import (
    ChildPart,
    Handle,
    HostPath,
    Link,
    delegated,
)
from attention_conformance.suite.run.isolation.sandbox import Limits
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.claims import CLAIMS
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators import OPERATORS, computed_like
from attention_conformance.suite.spec.operators.cached import CACHED
from attention_conformance.suite.spec.text import printable
from attention_conformance.suite.spec.vocabulary import OPERANDS, REGISTERED

HIDDEN_PACKAGES = ("attention_conformance.references",)
"""Packages that an untrusted child cannot read: it would find the right answers there."""


@delegated(
    "vjp", "pullback", "jvp", "overwrite", "transpose", "view", "alias", "arranged_and_base", "operand",
    "compiled", "recomputed", "gradient_call", "threads", "at_once", "timed_step", "compilations",
)  # fmt: skip
class Remote(ChildPart, Backend):
    """A backend of the class `kind`, with a child that holds the arrays and makes the calls.

    Methods that are not delegated return facts that the child sent before it imported the user's file, or
    check the type of the answer.
    """

    path = ("backend",)

    def __init__(self, kind: type[Backend], link: Link) -> None:
        self.kind, self.link, self.description = kind, link, link.description
        facts = self.description
        self.name, self.native, self.rounding = facts.name, facts.native, facts.rounding
        self.devices, self.device = kind.devices, link.start["device"]
        self.validation_errors = tuple(link.error_types[name] for name in facts.validation_errors)
        self.has_strides, self.has_threads = facts.has_strides, facts.has_threads
        self.compilers, self.timed_compilers, self.layer_compilers = facts.compilers
        self.compiles_shapes, self.runs_models = facts.compiles_shapes, facts.runs_models
        self.ambient = facts.ambient
        self._count_at_end = -1

    @cached_property
    def without_user_code(self) -> Remote:
        """The same backend with another child, which never imports a user's file. The child starts at the
        first request."""
        folder = tempfile.mkdtemp(prefix="attention-child-")
        link = Link(self.link.start, replace(self.link.limits, folder=folder))
        link.store_description(self.description)
        atexit.register(link.close)
        return Remote(self.kind, link)

    @property
    def beside(self) -> Implementation | None:
        """The implementation with which the elections of a user's function are compared, or None."""
        implementation = self.description.beside
        return None if implementation is None else RemoteNative(self, implementation, ("beside",))

    @property
    def versions(self) -> dict[str, str]:
        return self.description.versions

    @property
    def expectations(self) -> Path:
        return Path(self.description.expectations)

    @property
    def refusals(self) -> dict[str, str]:
        return self.description.refusals

    def implementations(self) -> list[Implementation]:
        return [RemoteNative(self, one, ("natives", one.name)) for one in self.description.natives]

    def function(self, function: Callable[..., Any], name: str, claims: Claims) -> Implementation:
        return self.kind.function(self, function, name, claims)

    def array(self, values: np.ndarray, dtype: DType | None) -> Any:
        return self.ask("array", values, dtype)

    def to_numpy(self, array: Any) -> np.ndarray:
        raw = self.link.read(array)
        with self.link.killing_on_error():
            return wire.from_bytes(raw, array.dtype, array.shape)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, Handle) and value.is_array

    def dtype_name(self, array: Any) -> str:
        return array.dtype

    def device_name(self, array: Any) -> str:
        return array.device

    def compilers_of(self, implementation: Any) -> tuple[str, ...]:
        if not implementation.declared.is_user_code:
            return self.ask_typed(tuple[str, ...], "compilers_of", HostPath(implementation.path))
        return tuple(
            n for n in super().compilers_of(implementation) if n in self.description.lacking
        )

    def lacking_through(self, implementation: Any, compiler: str) -> dict[str, str]:
        if implementation.declared.is_user_code:
            return self.description.lacking[compiler]
        path = HostPath(implementation.path)
        return self.ask_typed(dict[str, str], "lacking_through", path, compiler)

    def raised_inside(self, error: BaseException) -> BaseException:
        return getattr(error, "inside", None) or error

    def kernels(self, prepared: PreparedCall) -> str:
        return self.ask_typed(str, "kernels", prepared)

    def peak_bytes(self, call: Any, prepared: PreparedCall) -> int | None:
        return self.ask_typed(int | None, "peak_bytes", call, prepared)

    def load(
        self, text: str, claims: Mapping[str, Any], like: str, untrusted: bool
    ) -> tuple[Implementation, Claims]:
        """Let the child import the user's file. Returns the function as an implementation, and the claims
        about it: `claims`, and the file's own claims unless it is `untrusted`. Raises UsageError."""
        name = text.rpartition(":")[2]
        try:
            facts = self.link.at("load")
            with self.link.killing_on_error():
                function = self.link.handle(facts.function)
            file_claims = {} if untrusted else self._claims(facts.claims, text)
            stub = Stub(function, printable(facts.name), facts.parameters)
            is_cache = like and computed_like(like) is CACHED
            for method in METHODS if is_cache else ():
                if method in facts.methods:
                    setattr(stub, method, Stub(stub, method, facts.methods[method]))
            # Calls are watched in the child; here nothing is called.
            all_claims = {**file_claims, **claims, "forbid": ()}
            if facts.layer is None:
                implementation, read_claims = registry.callable_implementation(
                    self, stub, name, all_claims, like, text
                )
            else:
                stub.layer, read_claims = facts.layer, Claims.of(stub, all_claims, like)
                implementation = DescribedLayer(self, stub, name, read_claims, like)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"function {text!r}: {printable(first_line(error))}") from error
        self.link.loaded = True
        remote_function(self, implementation, [REGISTERED] if facts.registered else [])
        return implementation, read_claims

    def _claims(self, stated: dict[str, Any], text: str) -> dict[str, Any]:
        """Returns the known claims that a user's file states. Paths of `expect` are resolved from the
        folder of the file."""
        folder = Path(text.rpartition(":")[0]).parent
        if "expect" in stated:
            paths = [stated["expect"]] if isinstance(stated["expect"], str) else stated["expect"]
            stated["expect"] = [str(folder / path) for path in paths]
        return {name: value for name, value in stated.items() if name in CLAIMS}

    # The settings are the child's: it compares and restores them. Here are their modes.

    @cached_property
    def settings(self) -> ChildSettings:
        def modes(name: str, values: Mapping[str, Any]) -> dict[str, Ambient]:
            paths = {mode: HostPath(("settings", name, "modes", mode, "within")) for mode in values}
            return {
                mode: Ambient(partial(self.link.ask, paths[mode]), *values[mode]) for mode in values
            }

        mode_facts = self.description.modes
        by_name = {name: modes(name, facts) for name, facts in mode_facts.items()}
        settings = {n: Setting(_in_child, _in_child, by_name[n]) for n in by_name}
        return ChildSettings(settings, self._begin)

    def _begin(self) -> Callable[[], list[str]]:
        """Begin a cell in the child, unless `_end` was the last request, which begins one. Returns the
        function that ends the cell."""
        if self.link.dead or self.link.count != self._count_at_end:
            self.link.at("begin")
        return self._end

    def _end(self) -> list[str]:
        """End the cell in the child. Returns the changes of settings as texts, and records background
        errors. [] if the child died."""
        if self.link.dead:  # in this cell, and its settings with it
            return []
        answer = self.link.at("next_cell")
        with self.link.killing_on_error():
            changes, errors = msgspec.convert(answer, tuple[list[str], list[str]])
        for error in errors:
            leaks.record_death(error)
        self._count_at_end = self.link.count
        return changes


@delegated("timed", "refusing", "refused")
class RemoteCalls(Implementation, ChildPart):
    """An implementation in this process, whose calls the child makes."""

    backend: Remote
    path: tuple[str, ...] = ("implementation",)

    @property
    def unwatched(self) -> Implementation:
        unwatched = copy(self)
        unwatched.path = (*self.path, "unwatched")
        return unwatched

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.ask("prepare", inputs)

    def differentiable(self, inputs: Inputs) -> PreparedCall:
        """Returns the differentiable call. Raises WrongAnswer "no-gradient" if an operand of plain
        attention is missing in its arguments: its gradient would not be tested."""
        prepared = self.ask("differentiable", inputs)
        for name in OPERANDS if self.operator.is_default else ():
            if prepared.argument(name) not in prepared.arguments:
                raise WrongAnswer("no-gradient", f"the call has no argument for the {name}")
        return prepared

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        problems = self.problems(inputs) if isinstance(self, UserFunction) else {}
        calls = self.ask("paths", inputs)
        return {n: replace(one, problem=problems.get(n)) for n, one in calls.items()}

    def broken_rules(self, inputs: Inputs) -> Mapping[str, str]:
        return self.ask_typed(dict[str, str], "broken_rules", inputs)


SETTLING_METHODS = ("rebind", "choose")
"""The methods by which trial calls set how a function is called, or how a layer is read."""


def remote_function(backend: Remote, function: Implementation, features: Iterable[str]) -> None:
    """Change the class of a user's function in this process, so that the child makes its calls. The
    function's binding and declaration stay in this process; `features` are added to the declaration.
    `SETTLING_METHODS` are called in both processes."""

    def in_both_processes(method: Callable[..., None]) -> Callable[..., None]:
        def settle(function: Any, *arguments: Any) -> None:
            function.link.start["settled"][method.__name__] = arguments  # a new child begins so
            function.ask(method.__name__, *arguments)
            method(function, *arguments)
            function.declared = function.declared.taking(*features)

        return settle

    kind = type(function)
    names = [name for name in SETTLING_METHODS if hasattr(kind, name)]
    methods = {name: in_both_processes(getattr(kind, name)) for name in names}
    function.__class__ = type(kind.__name__, (RemoteCalls, kind), methods)
    vars(function)["link"] = backend.link
    function.declared = function.declared.taking(*features)
    if function.beside is not None:
        # A drop-in function must give the answers of the framework's own attention.
        home = backend.without_user_code if function.declared.drop_in else backend
        function.beside = home.beside


class RemoteNative(RemoteCalls):
    """An implementation of the framework in the child."""

    def __init__(
        self, backend: Remote, description: ImplementationDescription, path: tuple[str, ...]
    ) -> None:
        self.link, self.path = backend.link, path
        self.operator, self.textbook = OPERATORS[description.operator], description.textbook
        self.axis_order, self._postponed = description.axis_order, description.postponed
        Implementation.__init__(self, backend, description.name, description.declared)

    @property
    def postponed(self) -> frozenset[str]:
        return self._postponed

    def unsupported(self, case: AnyCase) -> str | None:
        if not isinstance(case, Case):
            return Implementation.unsupported(self, case)
        return self.ask_typed(str | None, "unsupported", case)


def _in_child(*value: Any) -> None:
    """The reader and writer of a setting, never called here: the child reads and writes settings."""
    raise NotImplementedError


def forbids_native(options: Options) -> bool:
    """True if an untrusted user function must not call the framework's own attention: unless --forbid or
    --like is given, or the function is judged in compiled form only."""
    exempt = options.forbid or options.like or options.mode == "compiled"
    return options.untrusted and not exempt


def isolated(options: Options, text: str) -> Remote:
    """Starts a child process for the user's function called `text`. Returns the backend of the options,
    whose calls this child makes. Raises UsageError if no child can be started, and BackendUnavailable."""
    name = options.backends[0]
    kind = registry.kind_of(name, options.device)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    import_folders = {ROOT, *(Path(folder or ".").resolve() for folder in sys.path)}
    folders = [folder / n.replace(".", "/") for folder in import_folders for n in HIDDEN_PACKAGES]
    hidden = tuple(str(one) for one in folders if one.is_dir()) if options.untrusted else ()
    limits = Limits(tempfile.mkdtemp(prefix="attention-child-"), hidden, memory)
    start = {
        "backend": name, "device": options.device, "function": text,
        "claims": options.claims, "like": options.like,
        "hidden": HIDDEN_PACKAGES if options.untrusted else (),
        "forbids_native": forbids_native(options), "settled": {},
    }  # fmt: skip
    link = Link(start, limits)
    atexit.register(link.close)
    try:
        link.run()
    except ProcessDied as error:
        raise UsageError(f"function {text!r} cannot be isolated: {error}") from error
    return Remote(kind, link)
