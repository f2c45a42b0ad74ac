"""Facts that a child sends about its backend, function or layer, and their stand-ins in the parent."""

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

TYPES = {**get_type_hints(Declared), "limits": dict[str, Limits]}
"""The types in which the fields of a declaration are sent. In `limits` the key "" means every dtype."""


@dataclass(frozen=True)
class ImplementationDescription:
    """The facts of an implementation; `declaration` has the fields of its `Declared` as plain data."""

    name: str
    operator: str
    textbook: bool
    axis_order: str
    postponed: frozenset[str]
    declaration: dict[str, Any]

    @classmethod
    def describe(cls, native: Implementation) -> ImplementationDescription:
        """Returns the description of an implementation of the framework. Called in the child."""
        limits = native.declared.limits
        by_dtype = limits if isinstance(limits, Mapping) else {"": limits}
        return cls(
            native.name, native.operator.name, native.textbook, native.axis_order, native.postponed,
            {**vars(native.declared), "limits": by_dtype},
        )  # fmt: skip

    @property
    def declared(self) -> Declared:
        """The declaration, validated. Raises msgspec.ValidationError, and DeclarationError."""
        plain = self.declaration
        facts = {name: msgspec.convert(plain[name], kind) for name, kind in TYPES.items()}
        return Declared(**facts | {"limits": facts["limits"].get("", facts["limits"])})


@dataclass(frozen=True)
class BackendDescription:
    """The facts of a backend, which a child sends before it imports the user's file.

    - `compilers`: `compilers`, `timed_compilers` and `layer_compilers` of the backend
    - `lacking`: for each compiler of a user's function the features that the compiler lacks, with reasons
    - `modes`: dtype, question and `forward_only` of each mode, by setting
    - `beside`: the implementation with which the elections of a user's function are compared
    - other fields: as in `Backend`
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
    def describe(
        cls, backend: Backend, natives: Mapping[str, Implementation], example: Implementation | None
    ) -> Any:
        """Returns the description as plain data. `example` is an implementation of some user's function,
        or None. Called in the child."""
        beside = None if example is None else example.beside
        lacking = {
            name: {} if example is None else backend.lacking_through(example, name)
            for name in (backend.compilers if example is None else backend.compilers_of(example))
        }
        description = cls(
            backend.name, backend.native, {n: str(text) for n, text in backend.versions.items()},
            str(backend.expectations), backend.refusals, backend.rounding,
            tuple((kind.__module__, kind.__qualname__) for kind in backend.validation_errors),
            backend.has_strides, backend.has_threads,
            (backend.compilers, backend.timed_compilers, backend.layer_compilers),
            backend.compiles_shapes, backend.runs_models, dict(backend.ambient), lacking,
            {
                name: {mode: ambient[1:] for mode, ambient in setting.modes.items()}
                for name, setting in backend.settings.items()
            },
            tuple(map(ImplementationDescription.describe, natives.values())),
            None if beside is None else ImplementationDescription.describe(beside),
        )  # fmt: skip
        return msgspec.to_builtins(description, enc_hook=dict)


class Hello(Struct):
    """The first message of a child: the reason why its backend is `unavailable`, or the limits that this
    system does not enforce, as sentences, and the description of the backend."""

    unavailable: str = ""
    unenforced: tuple[str, ...] = ()
    backend: BackendDescription | None = None


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


def layer(observed: ObservedLayer) -> wire.Layer:
    """Returns the facts of a user's layer. Called in the child."""
    unread = tuple((tuple(sorted(names)), reason) for names, reason in observed.unread.items())
    return wire.Layer(
        parameters(observed.call), observed.switches, observed.takes_parameters, unread,
        observed.facts,
    )  # fmt: skip


class Stub:
    """The parent's stand-in for the user's function, with its name and signature. Calls go to `function`,
    the handle. `layer`: the facts of the layer that the function makes."""

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
    """A user's layer in the parent, with the facts that the child sent."""

    def observed(self, case: Case) -> ObservedLayer:
        layer: wire.Layer = self.judged.layer
        facts = layer.facts
        if (
            facts.tie not in TIES
            or facts.mask_kind not in (*MASKS, NO_MASK)
            or facts.mask_axes not in (3, 4)
            or {*facts.dtypes} - {*DTYPES}
        ):
            raise wire.Garbled("facts have unknown words")
        return ObservedLayer(
            Stub(self.judged, "", layer.call), layer.switches, layer.takes_parameters,
            {frozenset(names): printable(reason) for names, reason in layer.unread},
            replace(
                facts,
                read=tuple(map(printable, facts.read)),
                found=tuple(map(printable, facts.found)),
            ),
        )  # fmt: skip
