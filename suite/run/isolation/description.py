"""A backend, and a user's function or layer, in the parent, by what the child says of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast, get_type_hints

import msgspec
from msgspec import Struct

from attention_conformance.backends.binder import signature_of, signature_of_instances
from attention_conformance.backends.declared import Declared, DeclaredRounding
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.backends.user.layer import UserLayer
from attention_conformance.backends.user.observing import MASKS, NO_MASK, TIES, ObservedLayer
from attention_conformance.suite.run.isolation import wire
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.text import printable

KINDS = {**get_type_hints(Declared), "limits": dict[str, Limits]}
"""The types of a declaration's fields as they travel; the key "" stands for every dtype."""


@dataclass(frozen=True)
class ImplementationDescription:
    """An implementation of the framework; `plain` is its declaration as plain data."""

    name: str
    operator: str
    textbook: bool
    axis_order: str
    later: frozenset[str]
    plain: dict[str, Any]

    @classmethod
    def of(cls, native: Implementation) -> ImplementationDescription:
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
class BackendDescription:
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
    natives: tuple[ImplementationDescription, ...]
    beside: ImplementationDescription | None

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
        description = cls(
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
            tuple(map(ImplementationDescription.of, natives.values())),
            None if beside is None else ImplementationDescription.of(beside),
        )  # fmt: skip
        return msgspec.to_builtins(description, enc_hook=dict)


class Hello(Struct):
    """The first message of a child: why its backend cannot be loaded, or the limits that this system does
    not enforce, as sentences, and what the child says of its backend."""

    unavailable: str = ""
    open: tuple[str, ...] = ()
    home: BackendDescription | None = None


def parameters(function: Any, as_instances: bool = False) -> wire.Parameters:
    """The parameters of a callable. With `as_instances` those of the call of a class's instances. Of
    defaults that are not plain data only their existence is said."""
    try:
        read = signature_of_instances if as_instances else signature_of
        found = read(function).parameters.values()
    except (TypeError, ValueError):
        return None
    plain = (bool, int, float, str)

    def default(p: inspect.Parameter) -> tuple[Any, ...]:
        return () if p.default is p.empty else (p.default if type(p.default) in plain else None,)

    return tuple((p.name, cast(wire.Kind, p.kind.name), default(p)) for p in found)


def layer(seen: ObservedLayer) -> wire.Layer:
    """What a child says of a user's layer."""
    unread = tuple((tuple(sorted(names)), reason) for names, reason in seen.unread.items())
    return wire.Layer(
        parameters(seen.call), seen.switches, seen.takes_parameters, unread, seen.facts
    )


class Stub:
    """A function in this process that has a signature and a name, and calls nothing here. `layer` is what
    the child says of a layer that the function makes."""

    layer: wire.Layer

    def __init__(self, function: Any, name: str, parameters: wire.Parameters) -> None:
        self._function = function
        self.__name__ = name
        if parameters is not None:
            kinds, none = inspect._ParameterKind.__members__, (inspect.Parameter.empty,)
            self.__signature__ = inspect.Signature(
                [
                    inspect.Parameter(name, kinds[kind], default=(default or none)[0])
                    for name, kind, default in parameters
                ]
            )

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._function(*arguments, **keywords)


class DescribedLayer(UserLayer):
    """A user's layer in the child, by what the child says of it."""

    def observed(self, case: Case) -> ObservedLayer:
        description: wire.Layer = self.judged.layer
        facts = description.facts
        if (
            facts.tie not in TIES
            or facts.mask_kind not in (*MASKS, NO_MASK)
            or facts.mask_axes not in (3, 4)
            or {*facts.dtypes} - {*DTYPES}
        ):
            raise wire.Garbled("facts have unknown words")
        return ObservedLayer(
            Stub(self.judged, "", description.call), description.switches, description.takes_parameters,
            {frozenset(names): printable(reason) for names, reason in description.unread},
            replace(
                facts,
                read=tuple(map(printable, facts.read)),
                found=tuple(map(printable, facts.found)),
            ),
        )  # fmt: skip
