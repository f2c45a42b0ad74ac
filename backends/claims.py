"""Claims about a user's function: by options, by attributes of the function, or by default."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_origin

import msgspec

from attention_conformance.backends.declared import (
    AS_CLASS,
    Declared,
    DeclaredRounding,
    Election,
    UsageError,
)
from attention_conformance.backends.limits import ANY, Limits
from attention_conformance.suite.spec.binding import Binding
from attention_conformance.suite.spec.claims import CLAIMS, MARK
from attention_conformance.suite.spec.dtypes import DTYPES, dtype
from attention_conformance.suite.spec.elections import QUESTIONS
from attention_conformance.suite.spec.vocabulary import NUMERICS

DEFAULT_NUMERICS = "stepwise"
"""The default numerics class of a user's function: the widest class with accurate sums. If the
framework's own attention declares a wider class, that class is the default."""

REFUSED = {
    "contiguous": ("strided-operands", "inner-stride", "negative-views"),
    "forward_only": ("gradient", "gradient-of-bias"),
    "threads": ("calls-at-once",),
}
"""By claim: the features that a function with this claim lacks."""

ROUNDING = tuple(one.name for one in fields(DeclaredRounding) if one.name in CLAIMS)
"""The claims about rounding. They hold in every claimed dtype."""

BY_OPTION = {
    "elections": "promised with --elect QUESTION=ANSWER",
    "parameters": "bound with --parameter NAME=WORD",
}
"""Claims that have an option of their own, with the option."""

ORDER = ("f32", "bf16", "f16", "f64")
"""The dtypes, by descending number of cases."""


@dataclass(frozen=True)
class Claims:
    """The claims about one function, converted and checked.

    - `values`: the claimed values, by the names of `suite.spec.claims.CLAIMS`
    - `dtypes`: the claimed dtypes, or all
    - `elections`: the claimed answers to election questions
    - `limits`: the claimed sizes and scales, or limits by short dtype name
    - `expect`: manifests of expected failures
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = tuple(DTYPES)
    elections: Mapping[str, Election] = field(default_factory=dict)
    limits: Limits | Mapping[str, Limits] = ANY
    expect: tuple[Path, ...] = ()

    @classmethod
    def of(cls, function: Any, option_claims: Mapping[str, Any], operator: str = "") -> Claims:
        """Returns the claims about a function: those of options (`option_claims`) override those attached
        to the function.

        Elections and manifests of both are joined. Raises UsageError for an invalid claim, and for a
        claim that functions of `operator` cannot have.
        """
        try:
            by_function, by_options = (
                {name: claim_value(name, value) for name, value in source.items()}
                for source in (attached_claims(function), option_claims)
            )
            values = {**by_function, **by_options}
            folder = Path(getattr(inspect.getmodule(function), "__file__", None) or ".").parent
            manifests = [folder / path for path in by_function.get("expect", ())]
            expect = (*manifests, *by_options.get("expect", ()))
            elections = {**by_function.get("elections", {}), **by_options.get("elections", {})}
            claimed_dtypes = {dtype(name).name for name in values.get("dtypes", DTYPES)}
            names = tuple(name for name in ORDER if name in claimed_dtypes)
            claims = cls(values, names, elections, _limits(values, names), expect)
            claims.declared()
        except (TypeError, ValueError) as error:
            raise UsageError(f"a claim cannot be used: {error}") from error
        for name in values if operator else ():
            if CLAIMS[name].operator not in ("", operator):
                raise UsageError(f"{name}: only functions of {CLAIMS[name].operator} claim it")
        return claims

    @property
    def parameters(self) -> Mapping[str, str]:
        """The claim `parameters`: by name of a parameter, the word that it is bound to (see
        `backends.user.names`)."""
        return self.values.get("parameters", {})

    @property
    def binding(self) -> Binding:
        """The binding of the function: the claims about axes, masks and log-sum-exp."""
        names = ("axes", "output_axes", "lse_base", "masks")
        return Binding(**{name: self.values.get(name, "") for name in names})

    @property
    def forbid(self) -> tuple[str, ...]:
        """The functions that must not be called."""
        return self.values.get("forbid", ())

    @property
    def allow_unused(self) -> bool:
        """True if the function may have parameters whose names resemble those of passed parameters."""
        return self.values.get("allow_unused", False)

    def declared(
        self, features: Iterable[str] = (), native: Declared | None = None, **fields: Any
    ) -> Declared:
        """Returns the declaration of the function's implementation. `native` is the declaration of the
        framework's own attention, `fields` are further fields. Raises DeclarationError."""
        claimed, numerics = self.values, self.values.get("numerics", {})
        if not isinstance(numerics, str):
            defaults = {name: _default(name, native) for name in self.dtypes}
            numerics = {**defaults, **numerics}
        refusals = {
            feature: f"claims {name}" if claimed[name] is True else f"claims {name}={claimed[name]}"
            for name, features_lacking in REFUSED.items()
            for feature in features_lacking
            if claimed.get(name)
        }
        fields["refusals"] = {**fields.get("refusals", {}), **refusals}
        reruns = ("rerun",) if claimed.get("deterministic", True) else ()
        return Declared(
            numerics=numerics, features=frozenset(features), elections=self.elections,
            dtypes=self.dtypes, limits=self.limits, drop_in=claimed.get("drop_in", False),
            is_user_code=True, bitwise=(*reruns, *claimed.get("bitwise", ())), rounding=self._rounding(),
            **fields,
        )  # fmt: skip

    def _rounding(self) -> DeclaredRounding:
        """Returns the claims about rounding, in every claimed dtype."""
        claimed: dict[str, Any] = {}
        for name in ROUNDING:
            value = self.values.get(name)
            if isinstance(getattr(AS_CLASS, name), Mapping) and value is not None:
                claimed[name] = dict.fromkeys(self.dtypes, value)
            elif value:
                claimed[name] = self.dtypes
        return DeclaredRounding(**claimed)


def claim_value(name: str, value: Any) -> Any:
    """Convert the value of the claim `name` to the claim's type. A mapping by dtype is converted value by
    value, and gets short dtype names.

    Text for a tuple is split at commas; a single value becomes a tuple. Raises ValueError if the value
    cannot be converted, or is a whole number below 1.
    """
    claim = CLAIMS[name]
    if claim.by_dtype and isinstance(value, Mapping):
        return {dtype(place).name: claim_value(name, item) for place, item in value.items()}
    if get_origin(claim.type) is tuple:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",")]
        value = list(value) if isinstance(value, Iterable) else [value]
    elif value == "" and claim.type is bool:
        value = True
    try:
        converted = msgspec.convert(
            value, claim.type, strict=False, dec_hook=lambda kind, item: kind(item)
        )
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {error}; {claim.text}") from error
    if claim.type is int and converted < 1:
        raise ValueError(
            f"{name}: expected a whole number from 1 on, got {converted}; without a limit, "
            "leave the claim out"
        )
    return converted


def read_claims(texts: Iterable[str]) -> dict[str, Any]:
    """Returns claims by name from texts such as "head_sizes=64,128", "f16.max_length=512" and
    "equal_lengths". The value of a claim that may differ by dtype is a dictionary by short dtype name.

    Raises UsageError with the valid names.
    """
    claims: dict[str, Any] = {}
    for text in texts:
        words, _, value = text.partition("=")
        place, _, name = words.rpartition(".")
        claim = CLAIMS.get(name)
        if claim is None or (place and not claim.by_dtype):
            raise UsageError(
                f"unknown claim {words!r}; expected NAME=VALUE, or DTYPE.NAME=VALUE if the claim may "
                f"differ by dtype; valid: {', '.join(CLAIMS)}"
            )
        if not value and claim.type is not bool:
            raise UsageError(f"{text}: expected a value, as in --claim {words}=VALUE")
        if name in BY_OPTION:
            raise UsageError(f"{text}: {name} are {BY_OPTION[name]}")
        try:
            places = [dtype(place).name] if place else DTYPES
            claimed = claim_value(name, value)
        except ValueError as error:
            raise UsageError(f"{text}: {error}") from error
        if claim.by_dtype:
            claimed = {**claims.get(name, {}), **dict.fromkeys(places, claimed)}
        claims[name] = claimed
    return claims


def read_parameters(texts: Iterable[str]) -> dict[str, str]:
    """Returns words by the names of parameters, from texts such as "m=attn_mask". Raises UsageError."""
    bound: dict[str, str] = {}
    for text in texts:
        name, _, word = text.partition("=")
        if not (name and word):
            raise UsageError(f"expected --parameter NAME=WORD, got {text!r}")
        bound[name] = word
    return bound


def read_elections(texts: Iterable[str]) -> dict[str, Election]:
    """Returns answers by question from texts such as "minus-inf-row=nan" and "minus-inf-row=f16:zeros".
    Answers for single dtypes are a dictionary by short dtype name.

    Raises UsageError with the valid questions or answers.
    """
    elections: dict[str, Any] = {}
    for text in texts:
        question, _, answer = text.partition("=")
        place, _, word = answer.rpartition(":")
        if question not in QUESTIONS:
            raise UsageError(f"unknown question {question!r}; valid: {', '.join(QUESTIONS)}")
        if word not in QUESTIONS[question].options:
            raise UsageError(
                f"unknown answer {word!r} to {question}; valid: "
                f"{', '.join(QUESTIONS[question].options)}, or DTYPE:ANSWER for one dtype"
            )
        if not place:
            elections[question] = word
            continue
        try:
            by_dtype = elections.get(question)
            by_dtype = by_dtype if isinstance(by_dtype, dict) else {}
            elections[question] = {**by_dtype, dtype(place).name: word}
        except ValueError as error:
            raise UsageError(f"{text}: {error}") from error
    return elections


def attached_claims(function: Any) -> dict[str, Any]:
    """Returns the claims of the decorator `claims`, and those in attributes of the function with the
    names of claims.

    Of a class only the decorator is read. An attribute of a module or another callable object is a claim
    only if its value has the claim's type. Raises UsageError if a function has an attribute whose name is
    similar to that of a claim.
    """
    claims = dict(getattr(function, MARK, {}))
    if isinstance(function, type):
        return claims
    is_function = inspect.isfunction(function)
    for name in vars(function) if is_function else ():
        near = get_close_matches(name, CLAIMS, 1, 0.8)
        if near and name not in CLAIMS and not name.startswith("_"):
            raise UsageError(
                f"the function has an attribute {name!r}, which claims nothing; did you mean "
                f"{near[0]!r}? Valid: {', '.join(CLAIMS)}"
            )
    values = {name: getattr(function, name, None) for name in CLAIMS}
    present = {n: v for n, v in values.items() if v is not None}
    return claims | {n: v for n, v in present.items() if is_function or _fits(n, v)}


def _fits(name: str, value: Any) -> bool:
    """True if a value has the type of the claim `name`."""
    try:
        claim_value(name, value)
    except Exception:
        return False  # for example an array, which cannot be compared
    return True


def _default(dtype_name: str, native: Declared | None) -> str:
    """Returns the default numerics class in a dtype: `DEFAULT_NUMERICS`, or the class of `native` if that
    is wider."""
    if native is None or dtype_name not in native.dtypes:
        return DEFAULT_NUMERICS
    return max(DEFAULT_NUMERICS, native.numerics_for(DTYPES[dtype_name]), key=NUMERICS.index)


def _limits(values: Mapping[str, Any], dtypes: Iterable[str]) -> Limits | dict[str, Limits]:
    """Returns the limits among the claims, by short dtype name if one of them differs by dtype."""
    limits = {f.name: values[f.name] for f in fields(Limits) if f.name in values}
    if not any(isinstance(value, Mapping) for value in limits.values()):
        return Limits(**limits)
    return {
        short: Limits(**{
            name: value.get(short, getattr(ANY, name)) if isinstance(value, Mapping) else value
            for name, value in limits.items()
        })
        for short in dtypes
    }  # fmt: skip
