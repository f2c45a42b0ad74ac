"""Backend and implementation in the parent, whose calls the child makes.

`Remote` is a backend: arrays, calls and contexts are handles of the child, and facts about the framework
are what the child says before it imports the user's file. `RemoteFunction` is the user's function as an
implementation, and `RemoteNative` one of the framework's own. Checks and judge know none of them. This
process never imports the framework.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance.backends import registry
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.implementation import Implementation
from attention_conformance.backends.prepared import PreparedCall, ProcessDied
from attention_conformance.backends.protocol import Ambient, Backend, Setting
from attention_conformance.backends.registry import UsageError
from attention_conformance.backends.user.function import UserFunction
from attention_conformance.backends.user.layer import UserLayer
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.verdict import Deviation, first_line
from attention_conformance.suite.records.machine import ROOT
from attention_conformance.suite.run.isolation import parts, wire
from attention_conformance.suite.run.isolation.link import Context, Handle, Link, Place
from attention_conformance.suite.run.isolation.sandbox import Limits
from attention_conformance.suite.run.isolation.told import Signature, ToldLayer, ToldNative
from attention_conformance.suite.run.isolation.wire import checked
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.spec.binding import Binding
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.claims import CLAIMS
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators import OPERATORS, computed_like
from attention_conformance.suite.spec.text import printable
from attention_conformance.suite.spec.vocabulary import OPERANDS, REGISTERED

OF_USERS = ("binding", "binder", "axes", "native", "choices", "parameters_found")
"""What trial calls find, or read, of a user's function or layer."""

HIDDEN = ("attention_conformance.references",)
"""Packages that an untrusted child cannot read: it would find the right answers there."""


class Told(str):
    """The text of a setting's value, and the child's number of the value: equal values have one."""

    number: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Told) and self.number == other.number

    __hash__ = str.__hash__

    @classmethod
    def of(cls, said: Any) -> Any:
        """The value, or the values by key, that the child tells. Raises Garbled."""
        if type(said) is dict:
            return {printable(n): cls.of(one) for n, one in said.items()}
        number, text = checked(said, list, "a setting")
        told = cls(checked(text, str, "a setting"))
        told.number = checked(number, int, "a number")
        return told


class Remote(parts.Asking, Backend):
    """A backend of the class `kind`, with a child that holds the arrays and makes the calls."""

    place = ("backend",)

    def __init__(self, kind: type[Backend], link: Link) -> None:
        self.kind, self.link, self.home = kind, link, link.home
        self.name, self.native, self.rounding = self.home.name, self.home.native, self.home.rounding
        self.devices, self.device = kind.devices, link.start["device"]
        self.validation_errors = tuple(link.kinds[name] for name in self.home.validation_errors)
        self.memory, self.compilers = (
            parts.RemoteMemory(self, link),
            parts.RemoteCompilers(self, link),
        )
        self.profiler = parts.RemoteProfiler(self, link)
        self._told: dict[str, Any] = {}
        self._after_death, self._looked = False, -1
        self._settings = {
            name: Setting(
                partial(self._read, name), partial(self._restore, name), self._modes(name)
            )
            for name in {**leaks.PROCESS, **self.home.modes}
        }

    @cached_property
    def apart(self) -> Remote:
        """The backend with another child, which never imports a user's file, and is started at the first
        request."""
        folder = tempfile.mkdtemp(prefix="attention-child-")
        link = Link(self.link.start, replace(self.link.limits, folder=folder))
        link.at_home(self.home)
        atexit.register(link.close)
        return Remote(self.kind, link)

    @property
    def beside(self) -> Implementation | None:
        """What the elections of a user's function are compared with."""
        said = self.home.beside
        return None if said is None else RemoteNative(self, said, ("beside",))

    @property
    def versions(self) -> dict[str, str]:
        return self.home.versions

    @property
    def expectations(self) -> Path:
        return Path(self.home.expectations)

    @property
    def refusals(self) -> dict[str, str]:
        return self.home.refusals

    def implementations(self) -> list[Implementation]:
        return [RemoteNative(self, one, ("natives", one.name)) for one in self.home.natives]

    def function(self, function: Callable[..., Any], name: str, claims: Claims) -> Implementation:
        return self.kind.function(self, function, name, claims)

    def array(self, values: np.ndarray, dtype: DType | None) -> Any:
        return self._ask("array", values, dtype)

    def to_numpy(self, array: Any) -> np.ndarray:
        return wire.from_bytes(self.link.read(array), array.claims["dtype"], array.shape)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, Handle) and value.claims.get("array", False)

    def dtype_name(self, array: Any) -> str:
        return array.claims["dtype"]

    def device_name(self, array: Any) -> str:
        return array.claims["device"]

    def vjp(
        self, prepared: PreparedCall, wrt: Sequence[str], cotangent: Any
    ) -> tuple[Any, dict[str, Any]]:
        output, gradients = self._ask("vjp", prepared, [*wrt], cotangent)
        return output, gradients

    def pullback(
        self, prepared: PreparedCall, wrt: Sequence[str]
    ) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
        output, pull = self._ask("pullback", prepared, [*wrt])
        return output, pull

    def jvp(self, prepared: PreparedCall, tangents: Mapping[str, Any]) -> Any:
        return self._ask("jvp", prepared, dict(tangents))

    def load(
        self, text: str, said: Mapping[str, Any], like: str, untrusted: bool
    ) -> tuple[Implementation, Claims]:
        """Let the child import the user's file; returns the function, and the claims about it.

        The file's own claims are taken unless it is `untrusted`. Raises UsageError.
        """
        name = text.rpartition(":")[2]
        try:
            facts = self.link.at("load")
            own = {} if untrusted else self._claims(facts["claims"], text)
            stub = Signature(facts["function"], facts["name"], facts["signature"])
            methods = checked(facts["methods"], dict, "methods")
            kind = registry.OWN.get(computed_like(like)) if like else None
            for method in kind.method_names if kind else ():
                if method in methods:
                    setattr(stub, method, Signature(stub, method, methods[method]))
            # Calls are watched in the child; here nothing is called.
            all_said = {**own, **said, "forbid": ()}
            if facts["layer"] is None:
                told, claims = registry.callable_implementation(
                    self, stub, name, all_said, like, text
                )
            else:
                stub.layer, claims = facts["layer"], Claims.of(stub, all_said, like)
                told = ToldLayer(self, stub, name, claims, like)
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"function {text!r}: {printable(first_line(error))}") from error
        self.link.loaded = True
        return RemoteFunction(self, told, checked(facts["registered"], bool, "a claim")), claims

    def _claims(self, said: str, text: str) -> dict[str, Any]:
        own = json.loads(said)
        folder = Path(text.rpartition(":")[0]).parent
        if "expect" in own:
            paths = [own["expect"]] if isinstance(own["expect"], str) else own["expect"]
            own["expect"] = [str(folder / path) for path in paths]
        return {name: value for name, value in own.items() if name in CLAIMS}

    # Settings of the child's process and framework.

    @property
    def settings(self) -> Mapping[str, Setting]:
        return self._settings

    def reseed(self, seed: int = 0) -> None:
        if self.link.dead or self.link.count != self._looked:  # a sweep seeds, too
            self.link.at("begin")

    def _modes(self, name: str) -> dict[str, Ambient]:
        place = ("settings", name, "modes")
        return {
            mode: Ambient(partial(Context, self.link, Place((*place, mode, "within"))), *facts)
            for mode, facts in self.home.modes.get(name, {}).items()
        }

    def _read(self, name: str) -> Any:
        """The value of a setting in the last sweep. The first setting begins a sweep."""
        if name == next(iter(self._settings)):
            self._look()
        return self._told[name]

    def _look(self) -> None:
        """Read the settings that changed. None did if the child was asked nothing since the last look, or
        died in this cell."""
        link = self.link
        if link.dead and link.generation and not self._after_death:
            self._after_death = True
            return
        self._after_death = False
        if link.dead:
            self._told = {}
        elif link.count == self._looked:
            return
        swept = link.at("sweep")
        with link.living():
            changed, died = swept
            for event in died:
                leaks.hear(printable(checked(event, str, "an event")))
            self._told |= {name: Told.of(value) for name, value in changed.items()}
        self._looked = link.count

    def _restore(self, name: str, before: Any) -> None:
        several = isinstance(before, dict)
        numbers = {n: one.number for n, one in before.items()} if several else before.number
        self.link.at("restore", name, numbers)
        self._look()  # one write may restore what several settings read


class RemoteFunction(parts.Asking, Implementation):
    """The user's function in the child. `told` is the same function in this process, by its signature and
    its claims: what the implementation declares, and how arguments are bound."""

    backend: Remote
    place: tuple[str, ...] = ("implementation",)

    def __init__(self, backend: Remote, told: Implementation, registered: bool) -> None:
        self.backend, self.link, self.name, self.told = backend, backend.link, told.name, told
        self.operator, self.registered = told.operator, (REGISTERED,) if registered else ()
        if told.beside is not None:
            # A function that stands in for the framework's own attention is held to its answers.
            self.beside = (backend.apart if told.declared.drop_in else backend).beside
        self._take(told)

    def _take(self, told: Any) -> None:
        """Take the facts about the function, which hang on its binding, but for its registration."""
        told.declared = told.declared.taking(*self.registered)
        self.declared, self.axis_order = told.declared, told.axis_order
        self.argument_names, self.remarks = told.argument_names, told.remarks
        if isinstance(told, UserFunction):
            self.rebind = self._rebind
        for name in OF_USERS:
            if hasattr(told, name):
                setattr(self, name, getattr(told, name))

    def _rebind(self, binding: Binding) -> None:
        """As `UserFunction.rebind`, here and in the child; a new child begins with the binding."""
        assert isinstance(self.told, UserFunction)
        self.link.start["binding"] = asdict(binding)
        self.link.at("rebind", asdict(binding))
        self.told.rebind(binding)
        self._take(self.told)

    def choose(self, number: int, right: bool = True) -> None:
        """As `UserLayer.choose`, here and in the child; a new child begins with the choice."""
        self.link.start["choice"] = (number, right)
        self._ask("choose", number, right)
        assert isinstance(self.told, UserLayer)
        self.told.choose(number, right)
        self._take(self.told)

    @property
    def unwatched(self) -> Implementation:
        other = copy(self)
        other.place = (*self.place, "unwatched")
        return other

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self._ask("prepare", inputs)

    def timed(self, inputs: Inputs) -> PreparedCall:
        return self._ask("timed", inputs)

    def refusing(self, inputs: Inputs) -> PreparedCall | None:
        return self._ask("refusing", inputs)

    def differentiable(self, inputs: Inputs) -> PreparedCall:
        return self._with_operands(self._ask("differentiable", inputs))

    def _with_operands(self, prepared: PreparedCall) -> PreparedCall:
        """The call. Raises Deviation if an operand of plain attention is none of its arguments: no
        derivative by this operand would be asked."""
        for name in OPERANDS if self.operator.is_default else ():
            if prepared.argument(name) not in prepared.arguments:
                raise Deviation("no-gradient", f"the call has no argument for the {name}")
        return prepared

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        calls = self._ask("paths", inputs)
        problems = self.told.problems(inputs) if isinstance(self.told, UserFunction) else {}
        return {n: replace(one, problem=problems.get(n)) for n, one in calls.items()}

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        return self._ask("refused", inputs)

    def broken_rules(self, inputs: Inputs) -> Mapping[str, str]:
        said = checked(self._ask("broken_rules", inputs), dict, "rules")
        return {printable(n): printable(checked(one, str, "a reason")) for n, one in said.items()}

    def unsupported(self, case: AnyCase) -> str | None:
        return self.told.unsupported(case)

    def nearest_supported(self, case: AnyCase) -> Case | None:
        return self.told.nearest_supported(case)


class RemoteNative(RemoteFunction):
    """An implementation of the framework in the child."""

    def __init__(self, backend: Remote, said: ToldNative, place: tuple[str, ...]) -> None:
        self.link, self.place = backend.link, place
        self.operator, self.textbook = OPERATORS[said.operator], said.textbook
        self.axis_order, self._later = said.axis_order, said.later
        Implementation.__init__(self, backend, said.name, said.declared)

    @property
    def later(self) -> frozenset[str]:
        return self._later

    def unsupported(self, case: AnyCase) -> str | None:
        if not isinstance(case, Case):
            return Implementation.unsupported(self, case)
        said = self._ask("unsupported", case)
        return None if said is None else printable(checked(said, str, "a reason"))

    def nearest_supported(self, case: AnyCase) -> Case | None:
        return Implementation.nearest_supported(self, case)


def forbids_own(options: Options) -> bool:
    """True if a user function must not call the framework's own attention, because it is untrusted."""
    exempt = options.forbid or options.like or options.mode == "compiled"
    return options.untrusted and not exempt


def isolated(options: Options, text: str) -> Remote:
    """The backend of the options with a child that can import the user's file. Raises UsageError if no
    child can be started, and BackendUnavailable."""
    name = options.backends[0]
    kind = registry.kind_of(name, options.device)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    places = {ROOT, *(Path(place or ".").resolve() for place in sys.path)}
    folders = [place / name.replace(".", "/") for place in places for name in HIDDEN]
    hidden = tuple(str(one) for one in folders if one.is_dir()) if options.untrusted else ()
    limits = Limits(tempfile.mkdtemp(prefix="attention-child-"), hidden, memory)
    start = {
        "backend": name, "device": options.device, "function": text,
        "said": options.claims, "like": options.like, "hidden": HIDDEN if options.untrusted else (),
        "forbids_own": forbids_own(options), "binding": {}, "choice": (),
    }  # fmt: skip
    link = Link(start, limits)
    atexit.register(link.close)
    try:
        link.run()
    except ProcessDied as error:
        raise UsageError(f"function {text!r} cannot be isolated: {error}") from error
    return Remote(kind, link)
