"""What is claimed of a person's function: by options, by attributes of the function, or by default."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from backends.declared import Declared, Election, UsageError
from backends.limits import ANY, Limits
from suite.spec.claims import BY_DTYPE, CLAIMS
from suite.spec.dtypes import DTYPES, dtype
from suite.spec.elections import QUESTIONS
from suite.spec.vocabulary import NUMERICS

DEFAULT_NUMERICS = "stepwise"
"""The class a person's function is held to unless it declares one: the widest in which sums are right.
Where the framework's own attention declares a wider one, as in float64 what is computed in float32, it is
that one."""

ORDER = ("f32", "bf16", "f16", "f64")
"""The dtypes, those that most cases are asked in first."""

_LIMITS = tuple(limit.name for limit in fields(Limits))
_SWITCHES = ("equal_lengths", "equal_heads", "drop_in", "allow_unused")


@dataclass(frozen=True)
class Claims:
    """The claims of one function, read and checked; see `suite.spec.claims.CLAIMS`."""

    numerics: str | Mapping[str, str] = field(default_factory=dict)
    dtypes: tuple[str, ...] = tuple(DTYPES)
    limits: Limits | Mapping[str, Limits] = ANY
    elections: Mapping[str, Election] = field(default_factory=lambda: MappingProxyType({}))
    drop_in: bool = False
    allow_unused: bool = False
    expect: tuple[Path, ...] = ()

    @classmethod
    def of(cls, function: Any, said: Mapping[str, Any]) -> Claims:
        """What `said` (by options) and the attributes of the function claim; options go before.

        Elections are joined, and so are manifests. Raises UsageError.
        """
        own = _attributes(function)
        try:
            elections = {**own.get("elections", {}), **said.get("elections", {})}
            folder = Path(getattr(inspect.getmodule(function), "__file__", None) or ".").parent
            expect = [folder / path for path in _several(own.get("expect", ()))]
            values = {**own, **said}
            taken = {dtype(name).name for name in _several(values.get("dtypes", DTYPES))}
            names = tuple(name for name in ORDER if name in taken)
            claims = cls(
                numerics=_numerics(values.get("numerics", {})),
                dtypes=names,
                limits=_limits(values, names),
                elections=elections,
                drop_in=bool(values.get("drop_in")),
                allow_unused=bool(values.get("allow_unused")),
                expect=(*expect, *(Path(path) for path in _several(said.get("expect", ())))),
            )
            claims.declared()
        except (TypeError, ValueError) as error:
            raise UsageError(f"a claim cannot be used: {error}") from error
        return claims

    def declared(
        self, features: Iterable[str] = (), beside: Declared | None = None, **more: Any
    ) -> Declared:
        """The declaration of an implementation around the function; `beside` is that of the framework's
        own attention. Raises DeclarationError."""
        numerics = self.numerics
        if not isinstance(numerics, str):
            widest = {name: _default(name, beside) for name in self.dtypes}
            numerics = {**widest, **numerics}
        return Declared(
            numerics=numerics, features=frozenset(features), elections=self.elections,
            dtypes=self.dtypes, limits=self.limits, drop_in=self.drop_in, is_user_code=True, **more,
        )  # fmt: skip


def read_claims(texts: Iterable[str]) -> dict[str, Any]:
    """The claims of texts such as "head_sizes=64,128", "f16.max_length=512" and "equal_lengths".

    Raises UsageError that lists the valid names.
    """
    claims: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        place, _, rest = name.rpartition(".")
        if rest not in CLAIMS or (place and rest not in BY_DTYPE):
            raise UsageError(
                f"unknown claim {name!r}; expected NAME=VALUE, or DTYPE.NAME=VALUE where it differs "
                f"by dtype; valid: {', '.join(CLAIMS)}"
            )
        try:
            read = _read(rest, value)
            dtypes = [dtype(place).name] if place else []
        except ValueError as error:
            raise UsageError(f"{text}: {error}") from error
        if dtypes:
            claims.setdefault(rest, {})[dtypes[0]] = read
        else:
            claims[rest] = read
    return claims


def read_elections(texts: Iterable[str]) -> dict[str, Election]:
    """The elections of texts such as "minus-inf-row=nan" and "minus-inf-row=f16:zeros".

    Raises UsageError that lists the valid questions, or the valid answers.
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


def _read(name: str, text: str) -> Any:
    if name in _SWITCHES:
        if text.lower() not in ("", "true", "false"):
            raise ValueError(f"expected true or false, got {text!r}")
        return text.lower() != "false"
    if name == "elections":
        raise ValueError("elections are promised with --elect QUESTION=ANSWER")
    if not text:
        raise ValueError("expected a value")
    parts = [part.strip() for part in text.split(",")]
    if name in ("queries", "max_length"):
        return int(text)
    if name in ("head_sizes", "value_sizes"):
        return tuple(int(part) for part in parts)
    if name == "scales":
        low, high = (float(part) for part in parts)
        return low, high
    return text if name == "numerics" else tuple(parts)


def _attributes(function: Any) -> dict[str, Any]:
    """The claims that the function has as attributes.

    Raises UsageError for an attribute that is nearly called like one.
    """
    for name in getattr(function, "__dict__", {}):
        near = get_close_matches(name, CLAIMS, 1, 0.8)
        if near and name not in CLAIMS and not name.startswith("_"):
            raise UsageError(
                f"the function has an attribute {name!r}, which claims nothing; did you mean "
                f"{near[0]!r}? Valid: {', '.join(CLAIMS)}"
            )
    return stated(function)


def stated(function: Any) -> dict[str, Any]:
    """The claims among the attributes of a function or a module, as they are."""
    return {name: getattr(function, name) for name in CLAIMS if _has(function, name)}


def _has(function: Any, name: str) -> bool:
    """Whether an attribute was set, and is no method or parameter of a layer."""
    value = getattr(function, name, None)
    return value is not None and not callable(value)


def _several(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, str | Path) else tuple(value)


def _numerics(value: Any) -> str | dict[str, str]:
    if isinstance(value, str):
        return value
    return {dtype(name).name: numerics for name, numerics in value.items()}


def _default(name: str, beside: Declared | None) -> str:
    """The class where none is declared in the dtype of this short name."""
    if beside is None or name not in beside.dtypes:
        return DEFAULT_NUMERICS
    return max(DEFAULT_NUMERICS, beside.numerics_for(DTYPES[name]), key=NUMERICS.index)


def _limits(values: Mapping[str, Any], names: Iterable[str]) -> Limits | dict[str, Limits]:
    limits = {name: values[name] for name in _LIMITS if name in values}
    if not any(isinstance(value, Mapping) for value in limits.values()):
        return _limit(limits)
    by_dtype = {}
    for short in names:
        chosen: dict[str, Any] = {}
        for name, value in limits.items():
            if not isinstance(value, Mapping):
                chosen[name] = value
            else:
                of_dtypes = {dtype(place).name: one for place, one in value.items()}
                chosen |= {name: of_dtypes[short]} if short in of_dtypes else {}
        by_dtype[short] = _limit(chosen)
    return by_dtype


def _limit(values: Mapping[str, Any]) -> Limits:
    read: dict[str, Any] = {}
    for name, value in values.items():
        one = isinstance(value, int) and name.endswith("_sizes")
        read[name] = (value,) if one else tuple(value) if isinstance(value, list) else value
    return Limits(**read)
