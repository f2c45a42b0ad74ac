"""What an implementation says of itself: one frozen `Declared`, whose words are checked."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from backends.limits import ANY, Limits
from suite.spec.dtypes import DTYPES, DType
from suite.spec.elections import QUESTIONS
from suite.spec.features import FEATURES, WORDS
from suite.spec.operators.layers import PARAMETERS
from suite.spec.vocabulary import NUMERICS

Election = str | Mapping[str, str]
"""An answer to a question, or one by short dtype name."""

LOWEST_IN_FLOAT32: dict[str, str] = {
    "f64": "uniform", "f32": "uniform", "bf16": "uniform", "f16": "unmasked",
}  # fmt: skip
"""What a row gives whose bias is the lowest number throughout where scores are float32, or wider: that of
float16, -65504, absorbs none of them there."""

DROPOUT = ("", "elements", "shared")
"""How dropout falls on weights: there is none, on each weight alone, or one pattern for all samples and
heads."""

NO_DROPOUT = "has no dropout"

OF_BACKENDS = frozenset({"strides", "strided-operands", "negative-views", "threads"})
"""Features that all implementations of a backend have or lack (see `Backend.refusals`); one of them may
refuse them by itself."""

ATTENTION_FEATURES = frozenset(
    {
        "mask", "causal", "window", "padding", "bias", "bias-with-mask", "scale", "softcap",
        "grouped-heads", "value-size", "empty-batch", "empty-queries", "inner-stride", "mask-array",
        "native-causal", "native-window", "other-shapes", "gradient", "gradient-of-bias",
    }
)  # fmt: skip
"""What scaled dot-product attention by itself can do. Whatever comes later (attention sinks were the
first) is not among them: an implementation names it."""

TEXTBOOK_FEATURES = ATTENTION_FEATURES | {feature.word for feature in FEATURES.values()}
"""What code that writes every step out can do besides, and what a person's function is asked where it
takes it."""

LAYER_FEATURES = frozenset(
    {
        "mask", "causal", "window", "padding", "bias", "bias-with-mask", "grouped-heads", "value-size",
        "mask-array", "native-causal", "other-shapes", "inner-stride", "gradient", "key-width",
        "value-width", "output-width", "head-width", "no-projection-bias", "cross", "average", "weights",
        "batch",
        "squeezed", "projection", "score-vector", "learned-scale", "odd-heads", "splits-width",
        "raw-mask", "causal-alone",
    }
)  # fmt: skip
"""What a layer around attention can do; dropout is declared for itself."""

ENCODER_FEATURES = frozenset(
    {
        "mask", "causal", "window", "padding", "mask-array", "native-causal", "other-shapes",
        "inner-stride", "gradient", "head-width", "batch", "squeezed", "odd-heads", "pre-norm", "gelu",
    }
)  # fmt: skip
"""What a layer of an encoder can do."""

ROTARY_FEATURES = frozenset(
    {
        "interleaved", "halves", "rotary-base", "partial-rotation", "positions", "gathered-positions",
        "rotary-scaling", "empty-batch", "empty-queries", "gradient", "inner-stride", "other-shapes",
    }
)  # fmt: skip
"""What a rotation can be asked."""

PACKED_FEATURES = frozenset(
    {
        "causal", "causal-bottom-right", "cross-lengths", "empty-segments", "scale", "grouped-heads",
        "value-size", "inner-stride", "gradient", "other-shapes",
    }
)  # fmt: skip
"""What packed attention can be asked."""

MERGE_FEATURES = frozenset(
    {
        "empty-parts", "several-parts", "empty-batch", "empty-queries", "inner-stride", "gradient",
        "other-shapes",
    }
)  # fmt: skip
"""What merging can be asked."""

THROUGH = "@"
"""Stands between the names of an implementation and of the compiler it goes through."""


class UsageError(Exception):
    """Something that was asked for by name does not exist or does not fit; lists what does."""


class DeclarationError(UsageError):
    """An adapter uses a word that the suite does not know; lists those it knows."""


def checked_name(what: str, name: str, more: str = "") -> str:
    """`name`, where it can be part of ids, files and command lines.

    Raises DeclarationError for anything but letters of ASCII, digits, "_", ".", "-" and `more`.
    """
    letters = rf"[A-Za-z0-9_.{re.escape(more)}-]+"
    if not isinstance(name, str) or not re.fullmatch(letters, name):
        raise DeclarationError(
            f"{name!r} cannot be the name of {what}: a name has one character or more, all of them "
            f"letters of ASCII, digits, '_', '.' or '-'{f' or {more!r}' if more else ''}"
        )
    return name


def checked_words(what: str, words: Iterable[str], valid: Collection[str]) -> None:
    """Raise DeclarationError, which lists the valid words, if one of `words` is not among them."""
    for word in words:
        if word not in valid:
            shown = ", ".join(sorted(valid) if isinstance(valid, frozenset) else valid) or "none"
            raise DeclarationError(f"unknown {what} {word!r}; valid: {shown}")


def _frozen(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(mapping))


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class DeclaredRounding:
    """Where an implementation, or a whole backend, rounds otherwise than its numerics class says, by
    short dtype name. Raises DeclarationError for an unknown dtype or parameter.

    - `exp_error`: the relative error of an approximated exponential.
    - `gradient_blocks`: the rows and the keys after which running sums of gradients are stored in the
      dtype.
    - `narrow_biases`: the canonical parameters whose gradients are sums in the dtype.
    - `narrow_reductions`: the dtypes in which all gradients over broadcast axes are such sums.
    - `narrow_statistics`: those in which a norm keeps mean and root for its backward pass.
    - `truncates_matmul`: those in which matrix products are truncated, not rounded, when they are stored.
    """

    exp_error: Mapping[str, float] = field(default_factory=_nothing)
    gradient_blocks: Mapping[str, tuple[int, int]] = field(default_factory=_nothing)
    narrow_biases: Mapping[str, tuple[str, ...]] = field(default_factory=_nothing)
    narrow_reductions: tuple[str, ...] = ()
    narrow_statistics: tuple[str, ...] = ()
    truncates_matmul: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            checked_words("dtype", value, DTYPES)
            if isinstance(value, Mapping):
                object.__setattr__(self, one.name, _frozen(value))
        for names in self.narrow_biases.values():
            checked_words("parameter", names, PARAMETERS)

    def joined(self, other: DeclaredRounding) -> DeclaredRounding:
        """What this declares or `other` does; `other` prevails for a dtype to which both give a value."""
        both: dict[str, Any] = {}
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            both[one.name] = {**mine, **theirs} if isinstance(mine, Mapping) else (*mine, *theirs)
        return DeclaredRounding(**both)


AS_CLASS = DeclaredRounding()
"""Nothing rounds otherwise than the numerics class says."""


@dataclass(frozen=True)
class Declared:
    """All that an implementation says of itself. Raises DeclarationError for a word nobody knows.

    `numerics`: the numerics class, or one by short dtype name. `features`: what it can be asked, an
    allow-list of words of `WORDS`: what is not named is unsupported. `refusals`: reasons by feature,
    shown to people; what is refused is no feature. `elections`: answers by question, each one answer or
    one by short dtype name; a question that is left out is observed, and not held. `dtypes`: short names.
    `deterministic`: two calls on the same inputs give the same bits. `rounding`: where it rounds
    otherwise than its class says.

    `merges_mask_into_bias`: a mask beside a bias is passed as -inf in the bias, so that rows that it
    empties follow the election minus-inf-row. `may_be_forward_only`: it need not be differentiable.
    `dropout`: one of `DROPOUT`; one that is not empty is the feature "dropout". `takes_parameters`: a
    layer computes with the parameters it is given.

    `limits`: the sizes and scales that it takes, or those by short dtype name. `is_user_code`: a
    person's own function or layer, which may refuse a call with NotImplementedError, and whose elections,
    as far as it declares none, are observed and must agree with each other (`suite.test_consistency`).
    `drop_in`: it stands in for the framework's own attention, and refuses malformed problems.
    """

    numerics: str | Mapping[str, str] = "eager"
    features: frozenset[str] = frozenset()
    refusals: Mapping[str, str] = field(default_factory=_nothing)
    elections: Mapping[str, Election] = field(default_factory=_nothing)
    dtypes: tuple[str, ...] = tuple(DTYPES)
    deterministic: bool = True
    rounding: DeclaredRounding = AS_CLASS
    merges_mask_into_bias: bool = False
    may_be_forward_only: bool = False
    dropout: str = ""
    takes_parameters: bool = True
    limits: Limits | Mapping[str, Limits] = ANY
    is_user_code: bool = False
    drop_in: bool = False

    def __post_init__(self) -> None:
        classes = self.numerics if isinstance(self.numerics, Mapping) else {"": self.numerics}
        checked_words("numerics class", classes.values(), NUMERICS)
        checked_words("dropout", [self.dropout], DROPOUT)
        checked_words("feature", [*self.features, *self.refusals], WORDS)
        by_dtype = (
            self.dtypes, classes.keys() - {""}, () if isinstance(self.limits, Limits) else self.limits
        )  # fmt: skip
        for names in by_dtype:
            checked_words("dtype", names, DTYPES)
        if isinstance(self.numerics, Mapping):
            checked_words("dtype without a numerics class", self.dtypes, self.numerics)
        checked_words("question", self.elections, QUESTIONS)
        for question, election in self.elections.items():
            answers = {"": election} if isinstance(election, str) else election
            checked_words("dtype", answers.keys() - {""}, DTYPES)
            checked_words(f"answer to {question}", answers.values(), QUESTIONS[question].options)
        refusals = dict(self.refusals)
        if not self.dropout:
            refusals.setdefault("dropout", NO_DROPOUT)
        elif refusals.get("dropout") == NO_DROPOUT:
            del refusals["dropout"]  # a variation of what had none
        features = {*self.features, *(["dropout"] if self.dropout else [])} - refusals.keys()
        own: dict[str, Any] = {
            "features": frozenset(features), "refusals": _frozen(refusals),
            "elections": _frozen(self.elections),
        }  # fmt: skip
        if not isinstance(self.limits, Limits):
            own["limits"] = _frozen(self.limits)
        for name, value in own.items():
            object.__setattr__(self, name, value)

    @property
    def validates(self) -> bool:
        """Whether malformed problems are asked: of a person's function only where it stands in for the
        framework's own attention."""
        return self.drop_in or not self.is_user_code

    def numerics_for(self, dtype: DType) -> str:
        """The numerics class in a dtype; "" where none is declared, since the dtype is not supported."""
        return (
            self.numerics if isinstance(self.numerics, str) else self.numerics.get(dtype.name, "")
        )

    def limits_for(self, dtype: DType) -> Limits:
        """The limits in a dtype."""
        return self.limits if isinstance(self.limits, Limits) else self.limits.get(dtype.name, ANY)

    def but(self, **changes: Any) -> Declared:
        """The same with other values of some fields."""
        return replace(self, **changes)

    def refusing(self, refusals: Mapping[str, str]) -> Declared:
        """The same without some features: reasons by feature."""
        return replace(self, refusals={**self.refusals, **refusals})

    def taking(self, *features: str) -> Declared:
        """The same with more features, whether they were refused or not named."""
        refusals = {n: reason for n, reason in self.refusals.items() if n not in features}
        return replace(self, features=self.features | {*features}, refusals=refusals)

    def electing(self, elections: Mapping[str, Election]) -> Declared:
        """The same with other answers to some questions."""
        return replace(self, elections={**self.elections, **elections})

    def on(self, device: str) -> Declared:
        """What holds on a device: answers, and where it rounds, were verified on the CPU alone. What a
        person claims holds everywhere."""
        if device == "cpu" or self.is_user_code:
            return self
        return replace(self, elections={}, rounding=AS_CLASS)
