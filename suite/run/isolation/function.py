"""The user's function or layer in the parent, by the facts that the child sends."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from attention_conformance.backends import registry
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.implementation import Implementation
from attention_conformance.backends.registry import UsageError
from attention_conformance.backends.user.cached import METHODS
from attention_conformance.backends.user.construct import TIES
from attention_conformance.backends.user.layer import UserLayer
from attention_conformance.backends.user.observing import MASKS, NO_MASK, ObservedLayer
from attention_conformance.suite.judge.verdict import first_line
from attention_conformance.suite.run.isolation import wire
from attention_conformance.suite.run.isolation.link import called_in_child
from attention_conformance.suite.run.isolation.remote import Remote, RemoteCalls
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.claims import CLAIMS
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.operators import computed_like
from attention_conformance.suite.spec.operators.cached import CACHED
from attention_conformance.suite.spec.text import printable
from attention_conformance.suite.spec.vocabulary import REGISTERED

SETTLING_METHODS = ("rebind", "choose")
"""The methods by which trial calls set how a function is called, or how a layer is read."""


class Stub:
    """The parent's stand-in for the user's function: its name and its signature, and no calls. `layer`:
    the facts of the layer that the function makes."""

    layer: wire.Layer

    def __init__(self, name: str, parameters: wire.Parameters) -> None:
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
        raise NotImplementedError


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
            Stub("", layer.call), layer.switches, layer.takes_parameters,
            {names: printable(reason) for names, reason in layer.unread.items()},
            replace(
                facts,
                read=tuple(map(printable, facts.read)),
                found=tuple(map(printable, facts.found)),
            ),
        )  # fmt: skip


@contextmanager
def usage_errors(text: str) -> Iterator[None]:
    """A context in which every error of the child becomes a UsageError about the function `text`."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"function {text!r}: {printable(first_line(error))}") from error


def load(
    backend: Remote, text: str, claims: Mapping[str, Any], like: str, untrusted: bool
) -> tuple[Implementation, Claims]:
    """Let the child import the user's file. Returns the function as an implementation, and the claims
    about it: `claims`, and the file's own claims unless it is `untrusted`. Raises UsageError."""
    name = text.rpartition(":")[2]
    with usage_errors(text):
        facts = backend.link.at("load")
        file_claims = {} if untrusted else _claims(facts.claims, text)
        stub = Stub(printable(facts.name), facts.parameters)
        is_cache = like and computed_like(like) is CACHED
        for method in METHODS if is_cache else ():
            if method in facts.methods:
                setattr(stub, method, Stub(method, facts.methods[method]))
        # Calls are watched in the child; here nothing is called.
        all_claims = {**file_claims, **claims, "forbid": ()}
        if facts.layer is None:
            implementation, read_claims = registry.callable_implementation(
                backend, stub, name, all_claims, like, text
            )
        else:
            stub.layer, read_claims = facts.layer, Claims.of(stub, all_claims, like)
            implementation = DescribedLayer(backend, stub, name, read_claims, like)
    backend.link.loaded = True
    return called_as_bound(backend, implementation, facts.registered), read_claims


def _claims(stated: dict[str, Any], text: str) -> dict[str, Any]:
    """Returns the known claims that a user's file states. `text`: the function, as FILE:NAME. Paths of
    `expect` are resolved from the folder of the file, also in `stated`."""
    folder = Path(text.rpartition(":")[0]).parent
    if "expect" in stated:
        paths = [stated["expect"]] if isinstance(stated["expect"], str) else stated["expect"]
        stated["expect"] = [str(folder / path) for path in paths]
    return {name: value for name, value in stated.items() if name in CLAIMS}


def called_as_bound(backend: Remote, function: Any, is_registered: bool) -> Implementation:
    """Let the child make the calls of a user's function, and return it. Its binding and its declaration
    stay in this process. `SETTLING_METHODS` are called in both processes."""
    features = [REGISTERED] if is_registered else []

    def in_both_processes(method: Callable[..., None]) -> Callable[..., None]:
        def settle(function: Any, *arguments: Any) -> None:
            # A child that is started later repeats this call.
            function.link.start["settled"][method.__name__] = arguments
            function.ask(method.__name__, *arguments)
            method(function, *arguments)
            # The method may have made a new declaration, without these features.
            function.declared = function.declared.taking(*features)

        return settle

    kind = type(function)
    names = [name for name in SETTLING_METHODS if hasattr(kind, name)]
    methods = {name: in_both_processes(getattr(kind, name)) for name in names}
    function = called_in_child(
        RemoteCalls, function, backend.link, "implementation", members=methods
    )
    function.declared = function.declared.taking(*features)
    if function.beside is not None:
        # A drop-in function must give the answers of the framework's own attention.
        home = backend.without_user_code if function.declared.drop_in else backend
        function.beside = called_in_child(RemoteCalls, function.beside, home.link, "beside")
        function.beside.backend = home
    return function


def quickly(backend: Remote, function: Implementation, text: str) -> Implementation:
    """Returns the function `text` as the child calls it on its quick backend
    (`UserCallable.quickly`); the function itself if the child has no such form. Raises UsageError."""
    link = backend.link
    with usage_errors(text):
        is_quick = msgspec.convert(link.at("load_quick"), bool)
    if not is_quick:
        return function
    link.start["quick"] = True  # a child that is started later loads it, too
    quick = called_in_child(RemoteCalls, function, link, "quick")
    quick.backend = called_in_child(Remote, backend, link, "quick_backend")
    quick.optimized = function
    return quick
