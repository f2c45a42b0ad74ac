"""A user's function with the signature of its framework's own attention, as an implementation.

A case is unsupported if the function lacks a parameter that the case needs. Features of
`suite.spec.features` are additional parameters with the names of the features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from backends.binder import Binder, Parameter, UnreadableSignature
from backends.claims import Claims
from backends.declared import TEXTBOOK_FEATURES, Declared
from backends.forbidden import watched
from backends.implementation import as_in_programs
from backends.masks import IS_CAUSAL, AttentionCall, Native, feature_array, split_native
from backends.prepared import PreparedCall, attention_call
from backends.protocol import Backend, Implementation, own_attention
from backends.sources import function_source
from suite.spec.features import FEATURES, Feature
from suite.spec.inputs import Inputs
from suite.spec.vocabulary import OPERANDS


def given(feature: Feature, call: AttentionCall) -> Any:
    """The argument of a call for a feature; None if the call does not need the feature.

    - a mask: what the reduction of the feature makes of the part of the mask
    - the log-sum-exp: True; the function then returns the pair of output and log-sum-exp, (B, H, Lq) or
      (B, Lq, H) in the output's order
    - others: the array or number
    """
    if feature.reduction.to == "mask":
        part, sizes = getattr(call.native, feature.name), call.inputs.sizes
        return None if part is None else feature.reduction.operand(part, sizes.Lq, sizes.Lk)
    return value_of(feature, call)


def value_of(feature: Feature, call: Any) -> Any:
    """The array or number of a feature for a call with a backend and inputs, or None."""
    if feature.axes:
        return feature_array(call.backend, call.inputs, feature.name)
    return call.inputs.feature(feature.name) if feature.asked_by(call.inputs.case) else None


def extra(feature: Feature, own: Iterable[Parameter[AttentionCall]]) -> Parameter[AttentionCall]:
    """The parameter of a feature besides the parameters `own` of the native signature.

    A part of the mask is passed as this argument instead of an array. Nothing is passed if the function
    takes an own parameter for the feature.
    """
    words = (feature.word, feature.name) if feature.reduction.to == "mask" else (feature.word,)
    unless = next((parameter.name for parameter in own if feature.word in parameter.features), "")
    return Parameter(feature.name, words, partial(given, feature), unless=unless)


def divided(inputs: Inputs, binder: Binder[AttentionCall]) -> Native:
    """The mask divided into the flags that a function takes, and the rest."""
    serves = binder.serves
    return split_native(inputs, causal=serves("native-causal"), window=serves("native-window"))


@dataclass(frozen=True)
class NativeSignature:
    """The signature of a framework's own attention.

    - `name`: the name of the attention function
    - `parameters`: the parameters that the suite passes besides query, key and value
    - `neutral`: values of parameters that change no answer
    - `divide`: divides a mask for a function, given its binder
    - `without_flag`: the arguments of a call whose causal flag is merged into the mask or bias beside it.
      A function is called so if it refuses both together. None without both, or if the framework's own
      attention always takes both
    - `passed_as`: the arguments of arrays that are passed with another name
    - `axis_order`: the order of operands and output
    - `merges_mask_into_bias`: see `Declared`
    """

    name: str
    parameters: tuple[Parameter[AttentionCall], ...]
    neutral: Mapping[str, Any] = field(default_factory=dict)
    divide: Callable[[Inputs, Binder[AttentionCall]], Native] = divided
    without_flag: Callable[[Mapping[str, Any]], dict[str, Any] | None] = lambda arguments: None
    passed_as: Callable[[Inputs], Mapping[str, str]] = lambda inputs: {}
    axis_order: str = "blhd"
    merges_mask_into_bias: bool = False

    def ways(self, names: Iterable[str], scale: float | None = None) -> dict[str, dict[str, Any]]:
        """Arguments that change no answer, by a description: the neutral values of the parameters
        `names`, and the explicit default `scale` unless it is None."""
        ways = {f"{n}={self.neutral[n]!r}": {n: self.neutral[n]} for n in names}
        return ways if scale is None else ways | {"scale written out": {"scale": scale}}

    def binder(self, function: Callable[..., Any], name: str) -> Binder[AttentionCall]:
        """The binder of a function with all or part of this signature. Raises TypeError."""
        own = [parameter.name for parameter in self.parameters]
        neutral = [name for name in self.neutral if name not in own]
        more = (extra(feature, self.parameters) for feature in FEATURES.values())
        table = (*self.parameters, *map(Parameter, neutral), *more)
        try:
            return Binder.of(function, name, table, OPERANDS, rest=own)
        except UnreadableSignature:
            if getattr(function, "__name__", "") != self.name.rpartition(".")[2]:
                raise
            # The framework's own function, written in C++.
            return Binder(table, frozenset([*own, *neutral]), arrays=OPERANDS)


SCALES: tuple[Parameter[Inputs], ...] = (
    Parameter("scale", ("scale",), lambda inputs: inputs.scale),
    Parameter("softmax_scale", ("scale",), lambda inputs: inputs.scale, unless="scale"),
)
"""The scale, for which libraries have two names."""


class UserCallable(Implementation):
    """A user's function, called directly.

    A kind of function has positional `arrays`, a `table` of parameters, and supported `features`. Raises
    TypeError if the signature does not fit, and UsageError if a parameter's name is similar to one in the
    table, unless `Claims.allow_unused`.
    """

    arrays: tuple[str, ...]
    table: tuple[Parameter[Any], ...] = ()
    features: frozenset[str]
    method_names: tuple[str, ...] = ()
    """The methods of an object that are called, if the object is not called itself."""
    methods: Mapping[str, Callable[..., Any]] = {}
    """The methods that the object has, by name."""

    def __init__(
        self, backend: Backend, function: Callable[..., Any], name: str, claims: Claims
    ) -> None:
        self.judged, self.binder = function, self.bound(function, name)
        if not claims.allow_unused:
            self.binder.check_names(name)
        super().__init__(backend, name, self.declaration(claims))
        self.called = watched(backend, function, claims.forbid)
        self.argument_names, self.remarks = self.binder.argument_names, self.binder.remarks
        self.declared = self.declared.refusing(self.observed())

    @cached_property
    def unwatched(self) -> Implementation:
        other = copy(self)
        other.called = self.judged
        return other

    def bound(self, function: Callable[..., Any], name: str) -> Binder[Any]:
        """The binder of the function."""
        return Binder.of(function, name, self.table, self.arrays)

    def declaration(self, claims: Claims) -> Declared:
        """The function's declaration, by its signature and claims."""
        return claims.declared(self.features, refusals=self.binder.lacking)

    def observed(self) -> dict[str, str]:
        """The features that the function lacks as a trial call shows, with the reason."""
        return {}

    @as_in_programs
    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.call_of(inputs)

    def call_of(self, inputs: Inputs) -> PreparedCall:
        """The call of the function."""
        raise NotImplementedError


class UserFunction(UserCallable):
    """A user's function with a framework's native signature. Its elections are compared with those of
    `beside`, by default the framework's own attention."""

    def __init__(
        self,
        backend: Backend,
        function: Callable[..., Any],
        name: str,
        claims: Claims,
        native: NativeSignature,
        beside: Implementation | None = None,
    ) -> None:
        self.native, self.beside = native, beside or own_attention(backend)
        self.axis_order = native.axis_order
        super().__init__(backend, function, name, claims)
        self.ways = native.ways(n for n in native.neutral if n in self.binder.taken)
        asked = {parameter.name for parameter in native.parameters}
        only = [name for name, way in self.ways.items() if not way.keys() & asked]
        if only:
            passed = f"{', '.join(only)} is all that is passed of these parameters"
            self.remarks = (passed, *self.remarks)

    def bound(self, function: Callable[..., Any], name: str) -> Binder[Any]:
        return self.native.binder(function, name)

    def declaration(self, claims: Claims) -> Declared:
        drops = any(
            "dropout" in parameter.features and parameter.name in self.binder.taken
            for parameter in self.native.parameters
        )
        return claims.declared(
            TEXTBOOK_FEATURES,
            None if self.beside is None else self.beside.declared,
            refusals=self.binder.lacking,
            may_be_forward_only=True,
            merges_mask_into_bias=self.native.merges_mask_into_bias,
            dropout="elements" if drops else "",
        )

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        """The call with each neutral value as an explicit argument, if it has no other value."""
        plain = self.prepare(inputs)
        ways = {n: way for n, way in self.ways.items() if not way.keys() & plain.arguments.keys()}
        return plain.written_out(ways)

    def call_of(self, inputs: Inputs) -> PreparedCall:
        """The function's call: query, key and value by position, the rest by keyword."""
        backend, native, function = self.backend, self.native, self.called
        call = AttentionCall(backend, inputs, native.divide(inputs, self.binder))
        operands = dict(
            zip(OPERANDS, backend.memory.operands(inputs, native.axis_order), strict=True)
        )
        arguments = operands | self.binder.bind(call, inputs.needs)

        drops = bool(inputs.training and inputs.rate)

        def once(query: Any, key: Any, value: Any, **rest: Any) -> Any:
            if drops:
                backend.reseed(inputs.dropout_seed)
            return function(query, key, value, **rest)

        def called(**arguments: Any) -> Any:
            try:
                return once(**arguments)
            except Exception as error:
                if inputs.form == "flag-and-mask" or IS_CAUSAL.name not in str(error):
                    raise
                merged = native.without_flag(arguments)
                if merged is None:
                    raise
            return once(**merged)

        plain = not arguments.keys() & FEATURES.keys()
        return attention_call(
            called,
            arguments,
            inputs,
            axis_order=native.axis_order,
            operands=native.passed_as(inputs),
            source=function_source(function, self.name, arguments) if plain else "",
            constants=(),
        )


__all__ = ["NativeSignature", "UserCallable", "UserFunction"]
