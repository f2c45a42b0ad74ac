"""A backend and implementations in the parent process, whose calls the child makes.

The parent has the backend's own object, made without its framework, with its own implementations: names,
declarations, limits and reasons are theirs. `Remote` and `RemoteCalls` let the child make every call;
arrays, calls and contexts are handles of the child's objects. What only the framework knows the child
sends before it imports the user's file (`wire.Hello`). This process never imports the framework."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from attention_conformance.backends import registry
from attention_conformance.backends.engine import Engine
from attention_conformance.backends.implementation import Implementation
from attention_conformance.backends.prepared import PreparedCall, ProcessDied
from attention_conformance.backends.protocol import Backend, Setting
from attention_conformance.backends.registry import UsageError
from attention_conformance.backends.user.function import UserFunction
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.verdict import WrongAnswer
from attention_conformance.suite.records.machine import ROOT
from attention_conformance.suite.run.isolation import wire
from attention_conformance.suite.run.isolation.link import (
    ChildPart,
    Handle,
    HostPath,
    Link,
    called_in_child,
    delegated,
)
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS

HIDDEN_PACKAGES = ("attention_conformance.references",)
"""Packages that an untrusted child cannot read: it would find the right answers there."""


class Absent:
    """A framework that this process does not import, and everything in it. Calls raise RuntimeError."""

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError("this process does not import the framework")


@delegated(
    "array", "vjp", "pullback", "jvp", "overwrite", "transpose", "view", "alias", "arranged_and_base",
    "operand", "compiled", "recomputed", "gradient_call", "threads", "at_once", "timed_step",
    "compilations", kernels=str, peak_bytes=int | None,
)  # fmt: skip
class Remote(Backend, ChildPart):
    """A backend without its framework. The child holds the arrays and makes the calls."""

    # Nothing is computed here.
    reseed, sync, surroundings, as_program = (
        Engine.reseed, Engine.sync, Engine.surroundings, Engine.as_program
    )  # fmt: skip
    quick, only_compiled, window = Engine.quick, Engine.only_compiled, Engine.window

    def __getattr__(self, name: str) -> Any:
        return getattr(Absent(), name)

    @cached_property
    def without_user_code(self) -> Remote:
        """The same backend with another child, which never imports a user's file. The child starts at the
        first request."""
        link = Link(self.link.start, self.link.limits.hidden, self.link.limits.memory)
        link.error_types = self.link.error_types
        return called_in_child(Remote, self, link, *self.path)

    def implementations(self) -> list[Implementation]:
        natives = super().implementations()  # type: ignore[safe-super]
        return [called_in_child(RemoteCalls, i, self.link, "natives", i.name) for i in natives]

    def to_numpy(self, array: Any) -> np.ndarray:
        if not array.dtype:  # no array of the framework, such as one of NumPy
            name = f"{type(array).__module__}.{type(array).__qualname__}"
            raise WrongAnswer("type", f"expected an array of {self.name}, got {name}")
        raw = self.link.read(array)
        with self.link.killing_on_error():
            return wire.from_bytes(raw, array.dtype, array.shape)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, Handle) and value.is_array

    def dtype_name(self, array: Any) -> str:
        return array.dtype

    def device_name(self, array: Any) -> str:
        return array.device

    def raised_inside(self, error: BaseException) -> BaseException:
        return getattr(error, "inside", None) or error

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The settings, whose modes are entered in the child. The child reads and writes the settings."""
        return {
            name: setting._replace(modes={
                mode: ambient._replace(within=partial(
                    self.link.ask, HostPath(("settings", name, "modes", mode, "within"))
                ))
                for mode, ambient in setting.modes.items()
            })
            for name, setting in super().settings.items()
        }  # fmt: skip

    def begin_cell(self) -> Callable[[], list[str]]:
        """Begin a cell in the child, unless the end of a cell was the last request, which begins one.
        Returns the function that ends the cell."""
        link = self.link
        if link.dead or link.count != link.count_at_end:
            link.at("begin")
        return self._end_cell

    def _end_cell(self) -> list[str]:
        """End the cell in the child. Returns the changes of settings as texts, and records background
        errors. [] if the child died."""
        link = self.link
        if link.dead:  # in this cell, and its settings with it
            return []
        answer = link.at("next_cell")
        with link.killing_on_error():
            changes, errors = msgspec.convert(answer, tuple[list[str], list[str]])
        for error in errors:
            leaks.record_death(error)
        link.count_at_end = link.count
        return changes


@delegated("prepare", "timed", "refusing", "refused", broken_rules=dict[str, str])
class RemoteCalls(Implementation, ChildPart):
    """An implementation in this process, whose calls the child makes."""

    backend: Remote

    begin_cell = Implementation.begin_cell

    @property
    def unwatched(self) -> Implementation:
        unwatched = copy(self)
        unwatched.path = (*self.path, "unwatched")
        return unwatched

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


def forbids_native(options: Options) -> bool:
    """True if an untrusted user function must not call the framework's own attention: unless --forbid or
    --like is given, or the function is judged in compiled form only."""
    exempt = options.forbid or options.like or options.mode == "compiled"
    return options.untrusted and not exempt


def isolated(options: Options, text: str) -> Remote:
    """Starts a child process for the user's function called `text`. Returns the backend of the options,
    whose calls this child makes. Raises UsageError if no child can be started, and BackendUnavailable."""
    name = options.backends[0]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    import_folders = {ROOT, *(Path(folder or ".").resolve() for folder in sys.path)}
    folders = [folder / n.replace(".", "/") for folder in import_folders for n in HIDDEN_PACKAGES]
    hidden = tuple(str(one) for one in folders if one.is_dir()) if options.untrusted else ()
    backend = registry.without_framework(name, options.device)
    start = {
        "backend": name, "device": options.device, "function": text,
        "claims": options.claims, "like": options.like,
        "hidden": HIDDEN_PACKAGES if options.untrusted else (),
        "forbids_native": forbids_native(options), "settled": {}, "quick": False,
    }  # fmt: skip
    link = Link(start, hidden, memory)
    try:
        hello = link.run()
    except ProcessDied as error:
        raise UsageError(f"function {text!r} cannot be isolated: {error}") from error
    for error_name in hello.validation_errors:
        link.error_types.setdefault(error_name, link.type_of(error_name, Exception))
    errors = tuple(link.error_types[error_name] for error_name in hello.validation_errors)
    facts = {
        "versions": hello.versions, "rounding": hello.rounding, "validation_errors": errors
    }  # fmt: skip
    return called_in_child(Remote, backend, link, "backend", members=facts)
