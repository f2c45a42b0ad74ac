"""A backend, and a user's function or layer, in the parent, by what the child says of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_type_hints

import msgspec

from attention_conformance.backends.binder import signature_of, signature_of_instances
from attention_conformance.backends.declared import Declared, DeclaredRounding
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.backends.user.layer import UserLayer
from attention_conformance.backends.user.observing import MASKS, NO_MASK, TIES, Facts, ObservedLayer
from attention_conformance.suite.run.isolation.wire import Garbled, checked, checked_name
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.text import printable

KINDS = {**get_type_hints(Declared), "limits": dict[str, Limits]}
"""The types of a declaration's fields as they travel; the key "" stands for every dtype."""


@dataclass(frozen=True)
class ToldNative:
    """An implementation of the framework; `plain` is its declaration as plain data."""

    name: str
    operator: str
    textbook: bool
    axis_order: str
    later: frozenset[str]
    plain: dict[str, Any]

    @classmethod
    def of(cls, native: Implementation) -> ToldNative:
        """What a child says of an implementation."""
        limits = native.declared.limits
        by_dtype = limits if isinstance(limits, Mapping) else {"": limits}
        return cls(
            native.name, native.operator.name, native.textbook, native.axis_order, native.later,
            {**vars(native.declared), "limits": by_dtype},
        )  # fmt: skip

    @property
    def declared(self) -> Declared:
        """The declaration. Raises msgspec.ValidationError, and DeclarationError."""
        facts = {name: msgspec.convert(self.plain[name], kind) for name, kind in KINDS.items()}
        return Declared(**facts | {"limits": facts["limits"].get("", facts["limits"])})


@dataclass(frozen=True)
class ToldBackend:
    """What a child says of its backend before it imports the user's file.

    - `compilers`: names, timed ones, and those of layers (see `Compilers`)
    - `lacking`: what a user's function lacks in each of its compilers
    - `modes`: dtype, question and `forward_only` of each mode, by setting
    - `beside`: what the elections of a user's function are compared with
    - others: see `Backend`
    """

    name: str
    native: str
    versions: dict[str, str]
    expectations: str
    refusals: dict[str, str]
    rounding: DeclaredRounding
    validation_errors: tuple[tuple[str, str], ...]
    has_strides: bool
    has_threads: bool
    compilers: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    compiles_shapes: bool
    runs_models: bool
    ambient: dict[str, str]
    lacking: dict[str, dict[str, str]]
    modes: dict[str, dict[str, tuple[str, str, bool]]]
    natives: tuple[ToldNative, ...]
    beside: ToldNative | None

    @classmethod
    def of(
        cls, home: Backend, natives: Mapping[str, Implementation], example: Implementation | None
    ) -> Any:
        """What a child says, as plain data; `example` is any user's function."""
        through, beside = home.compilers, None if example is None else example.beside
        lacking = {
            name: {} if example is None else through.lacking(example, name)
            for name in (through.names if example is None else through.of(example))
        }
        told = cls(
            home.name, home.native, {n: str(text) for n, text in home.versions.items()},
            str(home.expectations), home.refusals, home.rounding,
            tuple((kind.__module__, kind.__qualname__) for kind in home.validation_errors),
            home.memory.has_strides, home.profiler.has_threads,
            (through.names, through.timed, through.layers), through.compiles_shapes,
            through.runs_models, dict(through.ambient), lacking,
            {
                name: {mode: ambient[1:] for mode, ambient in setting.modes.items()}
                for name, setting in home.settings.items()
            },
            tuple(map(ToldNative.of, natives.values())),
            None if beside is None else ToldNative.of(beside),
        )  # fmt: skip
        return msgspec.to_builtins(told, enc_hook=dict)


def signature(function: Any, as_instances: bool = False) -> list[list[Any]] | None:
    """Name, kind, and the default in a list (none without a default), of each parameter; None if nobody
    can tell. With `as_instances` of the call of a class's instances. Of defaults that are not plain data
    only their existence is told."""
    try:
        read = signature_of_instances if as_instances else signature_of
        parameters = read(function).parameters.values()
    except (TypeError, ValueError):
        return None
    plain = (bool, int, float, str)
    return [
        [
            p.name,
            p.kind.name,
            [p.default if type(p.default) in plain else None][: p.default is not p.empty],
        ]
        for p in parameters
    ]


class Signature:
    """A function in this process that has a signature and a name, and is never called. `layer` is what
    the child says of a layer that the function makes."""

    layer: Any = None

    def __init__(self, function: Any, name: str, parameters: Any) -> None:
        self._function = function
        self.__name__ = name
        if parameters is not None:
            kinds = inspect._ParameterKind.__members__
            self.__signature__ = inspect.Signature(
                [
                    inspect.Parameter(
                        checked_name(n, "a parameter"), kinds[checked_name(kind, "a kind")],
                        default=next(iter(checked(default, list, "a default")), inspect.Parameter.empty),
                    )
                    for n, kind, default in parameters
                ]
            )  # fmt: skip

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._function(*arguments, **keywords)


class ToldLayer(UserLayer):
    """A user's layer in the child, by what the child says of it."""

    def observed(self, case: Case) -> ObservedLayer:
        call, switches, takes_parameters, unread, facts = checked(
            self.judged.layer, list, "a layer"
        )
        errors = {
            frozenset(checked_name(n, "a parameter") for n in checked(names, list, "names")):
                printable(checked(reason, str, "a reason"))
            for names, reason in checked(unread, list, "errors")
        }  # fmt: skip
        return ObservedLayer(
            Signature(self.judged, "", call), checked(switches, bool, "a claim"),
            checked(takes_parameters, bool, "a claim"), errors, told_facts(facts),
        )  # fmt: skip


def told_facts(said: Any) -> Facts:
    """What the child says of how a layer is made and called. Raises Garbled."""
    try:
        facts = msgspec.convert(checked(said, dict, "facts"), Facts)
    except msgspec.ValidationError as error:
        raise Garbled(f"facts: {error}") from error
    if (
        facts.tie not in TIES
        or facts.mask_kind not in (*MASKS, NO_MASK)
        or facts.mask_axes not in (3, 4)
        or {*facts.dtypes} - {*DTYPES}
    ):
        raise Garbled("facts have unknown words")
    return replace(
        facts,
        read=tuple(checked_name(name, "a parameter") for name in facts.read),
        found=tuple(map(printable, facts.found)),
    )
