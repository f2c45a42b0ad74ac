"""The declaration of an implementation: one frozen, validated `Declared`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from attention_conformance.backends.limits import ANY, Limits
from attention_conformance.suite.spec.dtypes import CODES, DTYPES, DType
from attention_conformance.suite.spec.elections import QUESTIONS
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.operators import WORDS
from attention_conformance.suite.spec.operators.layers import PARAMETERS
from attention_conformance.suite.spec.vocabulary import INVARIANT, NUMERICS

Election = str | Mapping[str, str]
"""An answer to an election question, or answers by short dtype name."""

Numerics = str | Mapping[str, str]
"""A numerics class, or classes by short dtype name."""

SINGLE_EAGER, SINGLE_FUSED = (
    {"f64": "single", **dict.fromkeys(("f32", "bf16", "f16"), kind)} for kind in ("eager", "fused")
)
"""Numerics classes of code that computes partly in float32 in every dtype, for example its softmax."""

LOWEST_IN_FLOAT32: dict[str, str] = {
    "f64": "uniform", "f32": "uniform", "bf16": "uniform", "f16": "unmasked",
}  # fmt: skip
"""Answers for a row whose bias is the lowest number everywhere, with scores in float32 or wider. The
lowest float16, -65504, does not absorb float32 scores."""

ADDED: dict[str, Election] = {
    "nan-in-masked-key": "leaks",
    "nan-in-masked-value": "leaks",
    "nan-in-attended-value": "reaches-them",
    "nan-in-query": "nan",
    "value-size": "accepted",
}
"""Elections of matmul, softmax, matmul, where the mask is added to the scores."""

FILLED: dict[str, Election] = ADDED | {"nan-in-masked-key": "blocked"}
"""Elections of matmul, softmax, matmul, where masked scores are set to another number."""

LEAKING_GRADIENTS: dict[str, Election] = {
    "nan-in-masked-key-gradient": "leaks", "nan-in-masked-value-gradient": "leaks",
}  # fmt: skip
"""Elections of the derivatives of matmul, softmax, matmul."""

LOWEST_FILL: dict[str, Election] = FILLED | LEAKING_GRADIENTS | {
    "fully-masked-row": "uniform",
    "fully-masked-row-gradient": "values",
    "minus-inf-row": "nan",
    "lowest-row": "uniform",
    "no-keys": "zeros",
    "integer-mask": "raises",
    "score-overflow": "nan",
}  # fmt: skip
"""Elections of matmul, softmax, matmul, where masked scores are set to the lowest number of their
dtype."""

ZEROS: dict[str, Election] = dict.fromkeys(("fully-masked-row", "minus-inf-row"), "zeros")
"""Elections of zeros for rows that attend nothing, by a mask or by a bias of -inf."""

NANS: dict[str, Election] = dict.fromkeys(ZEROS, "nan")
"""Elections of NaN for rows that attend nothing."""

UNFLUSHED: dict[str, Election] = {"subnormal-output": "kept", "score-overflow": "finite"}
"""Elections of a function that does not flush subnormals, and sums products in a wider type."""

INTERSECTED: dict[str, Election] = {"causal-alignment": "top-left", "causal-with-mask": "intersect"}
"""Elections of a causal flag that is top-left, and intersects with a mask."""

DROPOUT = ("", "elements", "shared")
"""Kinds of dropout: none, independent for each weight, or one pattern for all samples and heads."""

NO_DROPOUT = "has no dropout"

OF_BACKENDS = frozenset(
    {"strides", "strided-operands", "negative-views", "threads", "calls-at-once"}
)
"""Features of all implementations of a backend, unless `Backend.refusals` or the implementation refuses
them."""

ATTENTION_FEATURES = frozenset(
    {
        "mask", "causal", "window", "padding", "bias", "bias-with-mask", "scale", "softcap",
        "grouped-heads", "value-size", "empty-batch", "empty-queries", "inner-stride", "mask-array",
        "native-causal", "native-window", "other-shapes", "gradient", "gradient-of-bias",
    }
)  # fmt: skip
"""Features of plain scaled dot-product attention. Extensions, such as attention sinks, are declared by
name."""

TEXTBOOK_FEATURES = ATTENTION_FEATURES | {feature.word for feature in FEATURES.values()}
"""Features of textbook code, and of a user's function with parameters for all of them."""

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
"""Features of attention layers, without dropout (`Declared.dropout`)."""

THROUGH = "@"
"""Separates the names of an implementation and its compiler."""


class UsageError(Exception):
    """A name does not exist, or a value does not fit; the message lists what is valid."""


class DeclarationError(UsageError):
    """An adapter uses an unknown word; the message lists the valid words."""


def checked_name(what: str, name: str, extra: str = "") -> str:
    """Returns `name` if it is valid in ids, file names and command lines.

    Raises DeclarationError for characters other than ASCII letters, digits, "_", ".", "-" and `extra`.
    """
    letters = rf"[A-Za-z0-9_.{re.escape(extra)}-]+"
    if not isinstance(name, str) or not re.fullmatch(letters, name):
        raise DeclarationError(
            f"{name!r} cannot be the name of {what}: a name has one character or more, all of them "
            f"ASCII letters, digits, '_', '.' or '-'{f' or {extra!r}' if extra else ''}"
        )
    return name


def checked_words(what: str, words: Iterable[str], valid: Collection[str]) -> None:
    """Raise DeclarationError, with the valid words, if any of `words` is not in `valid`."""
    for word in words:
        if word not in valid:
            valid_text = (
                ", ".join(sorted(valid) if isinstance(valid, frozenset) else valid) or "none"
            )
            raise DeclarationError(f"unknown {what} {word!r}; valid: {valid_text}")


def _read_only(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(mapping))


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True)
class DeclaredRounding:
    """Rounding of an implementation or backend that differs from its numerics class, by short dtype name.
    Raises DeclarationError for an unknown dtype or parameter.

    - `absorbs`: True if latent attention attends the latents themselves; unknown for a dtype left out
    - `centred_keys`: the dtypes in which a constant, such as their mean, is subtracted from the keys of
      scaled dot-product attention
    - `codes`: the format of `suite.spec.dtypes.CODES` in which a cache stores keys and values, with a
      scale for every token and head
    - `exp_error`: the relative error of an approximated exponential
    - `gradient_blocks`: (queries, keys), the sizes of the blocks after which running sums of gradients
      are stored in the dtype
    - `narrow_biases`: the canonical parameters whose gradients are summed in the dtype
    - `narrow_reductions`: the dtypes in which all gradients are summed over broadcast axes
    - `narrow_statistics`: the dtypes in which a norm stores mean and root for its backward pass
    - `stored_parts`: the dtypes in which answers over parts of the keys are stored before they are merged
    - `truncates_matmul`: the dtypes in which stored matrix products are truncated, not rounded
    """

    exp_error: Mapping[str, float] = field(default_factory=_empty)
    gradient_blocks: Mapping[str, tuple[int, int]] = field(default_factory=_empty)
    narrow_biases: Mapping[str, tuple[str, ...]] = field(default_factory=_empty)
    narrow_reductions: tuple[str, ...] = ()
    narrow_statistics: tuple[str, ...] = ()
    stored_parts: tuple[str, ...] = ()
    truncates_matmul: tuple[str, ...] = ()
    centred_keys: tuple[str, ...] = ()
    absorbs: Mapping[str, bool] = field(default_factory=_empty)
    codes: Mapping[str, str] = field(default_factory=_empty)

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            checked_words("dtype", value, DTYPES)
            if isinstance(value, Mapping):
                object.__setattr__(self, f.name, _read_only(value))
        for names in self.narrow_biases.values():
            checked_words("parameter", names, PARAMETERS)
        checked_words("format of codes", self.codes.values(), CODES)

    def in_dtype(self, dtype: str) -> dict[str, Any]:
        """Returns the declaration for one dtype, by the names of the fields. Of a field that maps dtypes
        to values it is the value, and the field is left out if it has none for the dtype. Of a field that
        is a tuple of dtypes it is True or False: whether the dtype is in it."""
        declared = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            name: value[dtype] if isinstance(value, Mapping) else dtype in value
            for name, value in declared.items()
            if dtype in value or not isinstance(value, Mapping)
        }

    def joined(self, other: DeclaredRounding) -> DeclaredRounding:
        """Returns the rounding of both declarations. If both have a value for a dtype, that of `other`
        counts."""
        joined: dict[str, Any] = {}
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            joined[f.name] = {**mine, **theirs} if isinstance(mine, Mapping) else (*mine, *theirs)
        return DeclaredRounding(**joined)


AS_CLASS = DeclaredRounding()
"""Rounding exactly as the numerics class says."""


@dataclass(frozen=True)
class Declared:
    """The declaration of an implementation. Raises DeclarationError for an unknown word.

    - `numerics`: the numerics class, or classes by short dtype name
    - `features`: the supported words of `WORDS`; all others are unsupported
    - `refusals`: reasons by unsupported feature, shown in reports
    - `elections`: answers by question, or by question and short dtype name; undeclared answers are
      observed
    - `dtypes`: supported dtypes, short names
    - `bitwise`: the words of `INVARIANT` for which two answers have equal bits; else they are equal
      within their bounds
    - `rounding`: rounding that differs from the numerics class
    - `merges_mask_into_bias`: with a bias, the mask is passed as -inf in the bias; fully masked rows then
      follow the election minus-inf-row
    - `may_be_forward_only`: the output need not be differentiable
    - `dropout`: one of `DROPOUT`; any but "" adds the feature "dropout"
    - `takes_parameters`: a layer computes with the given parameters
    - `limits`: supported sizes and scales, or limits by short dtype name
    - `is_user_code`: a user's function or layer. A call may refuse a case with NotImplementedError.
      Undeclared elections must be consistent (`suite.test_consistency`)
    - `drop_in`: user code that replaces the framework's attention and must refuse malformed inputs
    """

    numerics: Numerics = "eager"
    features: frozenset[str] = frozenset()
    refusals: Mapping[str, str] = field(default_factory=_empty)
    elections: Mapping[str, Election] = field(default_factory=_empty)
    dtypes: tuple[str, ...] = tuple(DTYPES)
    bitwise: tuple[str, ...] = ("rerun",)
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
        checked_words("invariance", self.bitwise, INVARIANT)
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
            del refusals["dropout"]  # changed from a declaration without dropout
        features = {*self.features, *(["dropout"] if self.dropout else [])} - refusals.keys()
        checked_fields: dict[str, Any] = {
            "features": frozenset(features), "refusals": _read_only(refusals),
            "elections": _read_only(self.elections),
        }  # fmt: skip
        if not isinstance(self.limits, Limits):
            checked_fields["limits"] = _read_only(self.limits)
        for name, value in checked_fields.items():
            object.__setattr__(self, name, value)

    @property
    def deterministic(self) -> bool:
        """True if two calls with equal inputs give equal bits."""
        return "rerun" in self.bitwise

    @property
    def validates(self) -> bool:
        """True if malformed inputs must be refused: always for a framework, for user code only with
        `drop_in`."""
        return self.drop_in or not self.is_user_code

    def numerics_for(self, dtype: DType) -> str:
        """Returns the numerics class in a dtype; "" for an unsupported dtype without a declared class."""
        return (
            self.numerics if isinstance(self.numerics, str) else self.numerics.get(dtype.name, "")
        )

    def limits_for(self, dtype: DType) -> Limits:
        """Returns the limits in a dtype."""
        return self.limits if isinstance(self.limits, Limits) else self.limits.get(dtype.name, ANY)

    def but(self, **changes: Any) -> Declared:
        """Returns the declaration with some fields replaced."""
        return replace(self, **changes)

    def refusing(self, refusals: Mapping[str, str]) -> Declared:
        """Returns the declaration without some features; `refusals` are reasons by feature."""
        return replace(self, refusals={**self.refusals, **refusals})

    def taking(self, *features: str) -> Declared:
        """Returns the declaration with further features, which are not refused any more."""
        refusals = {n: reason for n, reason in self.refusals.items() if n not in features}
        return replace(self, features=self.features | {*features}, refusals=refusals)

    def electing(self, elections: Mapping[str, Election]) -> Declared:
        """Returns the declaration with other answers to some questions."""
        return replace(self, elections={**self.elections, **elections})

    def without_axes(self, samples: int, heads: int) -> Declared:
        """Returns the declaration with `Limits.samples` and `Limits.heads` in every dtype."""

        def with_axes(limits: Limits) -> Limits:
            return replace(limits, samples=samples, heads=heads)

        if isinstance(self.limits, Limits):
            return replace(self, limits=with_axes(self.limits))
        return replace(self, limits={n: with_axes(limits) for n, limits in self.limits.items()})

    def on(self, device: str) -> Declared:
        """Returns the declaration on a device. A framework's elections and rounding were verified only on
        the CPU and are dropped elsewhere. The claims of user code hold on every device."""
        if device == "cpu" or self.is_user_code:
            return self
        return replace(self, elections={}, rounding=AS_CLASS)
