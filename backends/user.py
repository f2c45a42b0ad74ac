"""A person's own function: what its signature accepts, and the function as an implementation.

A function has the signature of its framework's own attention, or a part of it: what it does not accept
makes the cases that need it unsupported. Five parameters that no framework's own attention has are
known, too (`EXTRA`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import chain
from typing import Any

from backends.claims import Claims
from backends.declared import TEXTBOOK_FEATURES, UsageError
from backends.masks import Native, feature_arrays
from backends.prepared import PreparedCall, attention_call
from backends.protocol import Backend, Implementation
from backends.sources import function_source
from suite.spec.features import FEATURES
from suite.spec.inputs import Inputs
from suite.spec.vocabulary import OPERANDS

EXTRA = {name: feature.word for name, feature in FEATURES.items()}
"""Parameters beyond the native signature, with the word for each: the features by their names (see
`suite.spec.features`). Numbers and arrays are passed as they are, and `lse` as True, for the pair of the
output and the log-sum-exp, (B, H, Lq) or (B, Lq, H) as the output is."""


@dataclass(frozen=True)
class NativeSignature:
    """The signature of a framework's own attention.

    `parameters` are those that the suite passes besides query, key and value; `neutral` are those that it
    has besides, each with a value that changes no answer. `features` names the parameters by feature: a
    function that has none of them lacks it.
    """

    name: str
    parameters: tuple[str, ...]
    features: Mapping[str, tuple[str, ...]]
    neutral: Mapping[str, Any] = field(default_factory=dict)

    @property
    def known(self) -> tuple[str, ...]:
        """Every parameter that a function can be passed by name."""
        return (*self.parameters, *EXTRA)

    def ways(self, names: Iterable[str], scale: float | None = None) -> dict[str, dict[str, Any]]:
        """Arguments that change no answer, by what they are called: the neutral values of the parameters
        `names`, and the default scale where it is given."""
        ways = {f"{name}={self.neutral[name]!r}": {name: self.neutral[name]} for name in names}
        return ways if scale is None else ways | {"scale written out": {"scale": scale}}

    def needed(self) -> dict[str, tuple[str, ...]]:
        """The parameters by feature, those beyond the signature with them."""
        needed = dict(self.features)
        for parameter, feature in EXTRA.items():
            needed[feature] = (*needed.get(feature, ()), parameter)
        return needed


@dataclass(frozen=True)
class Accepted:
    """What a function accepts: the parameters that it can be passed by name, those of them that are
    passed a neutral value alone, those that nobody passes, and the names of all that it has."""

    passed: frozenset[str]
    neutral: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, function: Callable[..., Any], native: NativeSignature) -> Accepted:
        """Read the signature of a function.

        Raises TypeError where it cannot take three arrays by their places, or asks for more.
        """
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            if getattr(function, "__name__", "") == native.name.rpartition(".")[2]:
                # The framework's own, written in C++.
                return cls(frozenset(native.parameters), tuple(native.neutral))
            raise TypeError(
                f"cannot read the signature of {function!r}: {error}; expected that of {native.name}: "
                "wrap it in a function that has one"
            ) from error
        parameters = list(signature.parameters.values())
        by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        many = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        rest = [*by_place[3:], *(p for p in parameters if p.kind is p.KEYWORD_ONLY)]
        requirements = [p.name for p in rest if p.default is p.empty and p.name not in native.known]
        unfit = [p for p in by_place[3:] if p.kind is p.POSITIONAL_ONLY or p.default is p.empty]
        if (len(by_place) < 3 and not many) or requirements or unfit:
            raise TypeError(
                f"{getattr(function, '__name__', function)}{signature} does not fit; expected the "
                f"signature of {native.name}: 3 arrays (query, key, value), then any of "
                f"{', '.join(native.known)} as keywords"
            )
        names = [p.name for p in rest]
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            passed = {*native.parameters, *(set(names) & set(EXTRA))}
        else:
            passed = set(names) & set(native.known)
        unused = [n for n in names if n not in (*native.known, *native.neutral)]
        neutral = [n for n in native.neutral if n in names]
        every = tuple(p.name for p in parameters)
        return cls(frozenset(passed), tuple(neutral), tuple(unused), every)

    def lacking(self, native: NativeSignature) -> dict[str, str]:
        """The features that a function lacks, with the reason."""
        reasons = {}
        for feature, parameters in native.needed().items():
            if not self.passed & {*parameters}:
                several = "neither " if len(parameters) > 1 else "no parameter "
                reasons[feature] = f"the function has {several}{' nor '.join(parameters)}"
        return reasons


@dataclass(frozen=True)
class Keywords:
    """Which keywords a function takes besides its arrays, which of its parameters nobody passes, and the
    names of all that it has."""

    taken: frozenset[str]
    unused: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(
        cls, function: Callable[..., Any], name: str, arrays: Sequence[str], keywords: Iterable[str]
    ) -> Keywords:
        """Read the signature of a function whose arrays come by their places.

        Raises TypeError where it takes fewer, or asks for more than the keywords.
        """
        known = tuple(keywords)
        parameters = list(inspect.signature(function).parameters.values())
        by_place = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        count = len(arrays)
        rest = [*by_place[count:], *(p for p in parameters if p.kind is p.KEYWORD_ONLY)]
        needed = [p.name for p in rest if p.default is p.empty and p.name not in known]
        if len(by_place) < count or needed:
            raise TypeError(
                f"{name}{inspect.signature(function)} does not fit; expected {name}("
                f"{', '.join([*arrays, *keyword_only(known)])})"
                f"{', any of the keywords' if known else ''}"
            )
        names = [p.name for p in rest]
        unused = tuple(n for n in names if n not in known)
        return cls(frozenset(names) & {*known}, unused, tuple(p.name for p in parameters))


def named_once(*names: Iterable[str]) -> tuple[str, ...]:
    """The names of arguments, each once, in their order."""
    return tuple(dict.fromkeys(chain(*names)))


def keyword_only(names: Sequence[str]) -> list[str]:
    """Keywords as a signature shows them."""
    return ["*", *(f"{name}=..." for name in names)] if names else []


def ends_in(thing: Callable[..., Any]) -> Callable[..., Any]:
    """What a call of a function or a module ends in: where its own signature takes anything, torch's
    `forward` or Keras' `call`, whichever says what it takes; else the thing itself."""
    if not _takes_anything(thing):
        return thing
    module = getattr(thing, "_orig_mod", thing)  # what torch.compile has compiled
    inner = (getattr(module, name, None) for name in ("forward", "call"))
    return next((f for f in inner if callable(f) and not _takes_anything(f)), thing)


def _takes_anything(thing: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return True
    return all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def check_unused(
    name: str, unused: Iterable[str], known: Iterable[str], taken: Iterable[str]
) -> None:
    """Raise UsageError that names the parameters nobody passes, with those that may be meant."""
    unused, known = list(unused), list(known)
    if not unused:
        return
    free = [n for n in known if n not in set(taken)]
    near = [match for n in unused for match in get_close_matches(n, free, 1)]
    meant = f"; did you mean {', '.join(dict.fromkeys(near))}?" if near else "."
    raise UsageError(
        f"{name} has parameters that are never passed: {', '.join(unused)}{meant} Passed are "
        f"{', '.join(known)}, by name. What nobody passes is not judged: rename it, or say "
        "--allow-unused"
    )


class UserFunction(Implementation):
    """A person's own function with the signature of its framework's own attention, called as it is.

    Subclasses say which signature that is, and prepare the arguments. Raises TypeError where the function
    does not fit, and UsageError where it has parameters that nobody passes, unless the claims allow it.
    """

    native: NativeSignature
    merges_mask_into_bias = False

    def __init__(
        self, backend: Backend, function: Callable[..., Any], name: str, claims: Claims
    ) -> None:
        self.judged, self.accepted = function, Accepted.of(function, self.native)
        if not claims.allow_unused:
            known, taken = self.native.known, self.accepted.passed
            check_unused(f"function {name}", self.accepted.unused, known, taken)
        beside = backend.own_attention()
        declared = claims.declared(
            TEXTBOOK_FEATURES,
            None if beside is None else beside.declared,
            refusals=self.accepted.lacking(self.native),
            may_be_forward_only=True,
            merges_mask_into_bias=self.merges_mask_into_bias,
        )
        super().__init__(backend, name, declared)
        self.argument_names = named_once(
            OPERANDS, self.accepted.names, sorted(self.accepted.passed)
        )
        self.beside = beside
        passed = ", ".join(self.native.ways(self.accepted.neutral))
        if passed:
            self.remarks = (f"{passed} is all that is passed of these parameters",)

    def takes(self, name: str) -> bool:
        """Whether the function accepts the parameter."""
        return name in self.accepted.passed

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        """The call with each neutral value of a parameter written out."""
        return self.prepare(inputs).written_out(self.native.ways(self.accepted.neutral))

    def extra(self, inputs: Inputs, native: Native) -> dict[str, Any]:
        """The arguments for `EXTRA`, of inputs whose mask is divided by flags."""
        arguments: dict[str, Any] = {}
        if native.window is not None:
            arguments["window"] = (native.window.left, native.window.right)
        for name, feature in FEATURES.items():
            if feature.asked_by(inputs.case) and not feature.axes:
                arguments[name] = inputs.feature(name)
        return arguments | feature_arrays(self.backend, inputs)

    def called(self, arguments: dict[str, Any], **more: Any) -> PreparedCall:
        """The function's call: query, key and value by their places, the rest by name."""
        function = self.judged

        def call(query: Any, key: Any, value: Any, **rest: Any) -> Any:
            return function(query, key, value, **rest)

        plain = not any(name in EXTRA for name in arguments)
        source = function_source(function, self.name, arguments) if plain else ""
        lse = "lse" in arguments
        return attention_call(call, arguments, lse, source=source, constants=(), **more)


__all__ = ["EXTRA", "Accepted", "NativeSignature", "UserFunction", "check_unused", "ends_in"]
