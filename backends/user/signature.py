"""How a person's function is called: its parameters by the names that people use, and a `Binding`.

A parameter that has no name of the framework's own attention is bound by `GIVEN`, the published table of
names (docs/signatures.md), or by the claim `parameters`. What names do not tell, such as the order of
axes, a trial call finds (`suite.judge.fitting`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from backends.binder import BY_PLACE, Binder, Parameter, shown, signature_of, signature_of_instances
from backends.declared import UsageError
from backends.masks import AttentionCall, dense_of, rank4
from suite.spec.binding import ADDING, HIDING, MASK_WORDS, NAMING
from suite.spec.features import FEATURES
from suite.spec.masks import Causal, Mask
from suite.spec.vocabulary import OPERANDS

if TYPE_CHECKING:
    from backends.protocol import Backend


Value = Callable[[AttentionCall, Any], Any]


@dataclass(frozen=True)
class Given:
    """What a parameter is given.

    - `names`: the names that people use, the word of the claim `parameters` first
    - `value(call, default)`: the argument, in the form of the parameter's default; None if the call does
      not need the parameter
    - `neutral(call)`: the argument of a parameter without a default in a call that does not need it
    """

    names: tuple[str, ...]
    features: tuple[str, ...] = ()
    value: Value = lambda call, default: None
    neutral: Callable[[AttentionCall], Any] = lambda call: None


def feature(name: str) -> Value:
    """The value of a feature that is a number or a flag; None if the call does not need the feature."""

    def value(call: AttentionCall, default: Any) -> Any:
        inputs = call.inputs
        return inputs.feature(name) if FEATURES[name].asked_by(inputs.case) else None

    return value


def window(call: AttentionCall, default: Any) -> Any:
    """(left, right) of a window; -1 for a side without limit."""
    part = call.native.window
    return None if part is None else tuple(-1 if n is None else n for n in (part.left, part.right))


def lengths(call: AttentionCall, default: Any) -> Any:
    """The numbers of keys (B,), int64."""
    part, inputs = call.native.lengths, call.inputs
    if part is None:
        return None
    return call.backend.array(part.lengths(inputs.sizes, inputs.seed), None)


def dropout(call: AttentionCall, default: Any) -> Any:
    """The rate of dropout in training; for the default None a function that drops weights."""
    rate = call.inputs.rate if call.inputs.training else 0.0
    return dropping(call.backend, rate, default) if rate else None


def dropping(backend: Backend, rate: float, default: Any) -> Any:
    """The argument that drops weights at a rate, for a parameter with this default."""
    return rate if default is not None else backend.dropping(rate)


GIVEN = (
    Given(("attn_mask", "mask", "attention_mask")),
    Given(("causal_mask",)),
    Given(("padding_mask",)),
    Given(("bias", "attn_bias")),
    Given(("lengths", "valid_lens", "valid_len"), ("padding",), lengths),
    Given(
        ("is_causal", "causal", "use_causal_mask"),
        ("causal", "native-causal"),
        lambda call, default: call.native.causal or None,
        lambda call: False,
    ),
    Given(
        ("scale", "softmax_scale", "sm_scale", "scaling"),
        ("scale",),
        lambda call, default: call.inputs.scale,
        lambda call: call.inputs.effective_scale,
    ),
    Given(("dropout", "dropout_p", "dropout_rate", "p"), ("dropout",), dropout, lambda call: 0.0),
    Given(("window", "window_size"), ("window", "native-window"), window, lambda call: (-1, -1)),
    Given(("softcap", "logits_soft_cap"), ("softcap",), feature("softcap"), lambda call: 0.0),
    Given(
        ("lse", "return_lse", "return_softmax_lse"), ("lse",), feature("lse"), lambda call: False
    ),
    Given(("nothing", "module")),
)
"""What parameters are given besides query, key and value; `nothing` is None."""

UNASKED = ("window_left",)
"""Parameters of well-known kernels that nothing is given, although their names are similar to others."""

ROWS = {given.names[0]: given for given in GIVEN}

OPERAND_NAMES = {
    "query": ("query", "q", "queries"),
    "key": ("key", "k", "keys"),
    "value": ("value", "v", "values"),
}
"""The names of query, key and value that people use, in small or capital letters."""

WORD_OF = {
    name: names[0]
    for names in (*OPERAND_NAMES.values(), *(given.names for given in GIVEN))
    for name in names
}
"""What a parameter of a name is given."""

PARTS: Mapping[str, Callable[[Mask], bool]] = {
    "all": lambda part: True,
    "causal": lambda part: isinstance(part, Causal),
    "rest": lambda part: not isinstance(part, Causal),
    "none": lambda part: False,
}
"""Parts of a mask."""

SERVED = {"all": HIDING, "causal": ("causal",), "rest": HIDING[:-1], "none": ()}
"""The features that parts of a mask serve."""


def parts_for(word: str, words: Collection[str]) -> str:
    """The parts of a mask that the argument `word` is given in a function with arguments `words`."""
    masks = [one for one in MASK_WORDS if one in words]
    if word == "bias":
        return "none" if masks else "all"
    if "causal_mask" not in masks or len(masks) == 1:
        return "all"
    return "causal" if word == "causal_mask" else "rest"


def pair_argument(
    name: str, word: str, words: Collection[str], kind: str, required: bool
) -> Parameter[AttentionCall]:
    """The row of a parameter with axes of queries and keys: a mask of a `kind` of
    `suite.spec.claims.MASKS`, or a bias."""
    parts = parts_for(word, words)
    own_bias = word == "bias"
    biased = own_bias or (
        word == "attn_mask" and "bias" not in words and kind in ("either", "additive")
    )

    def value(call: AttentionCall) -> Any:
        inputs = call.inputs
        rest = tuple(part for part in call.native.rest if PARTS[parts](part))
        whole = parts in ("all", "rest") or inputs.mask_array is None
        mask = dense_of(inputs, rest) if whole and parts != "none" else None
        return written(
            call, mask, inputs.bias if biased else None, "additive" if own_bias else kind
        )

    return Parameter(name, (*SERVED[parts], *(ADDING if biased else ())), value, told=required)


def written(
    call: AttentionCall, mask: np.ndarray | None, bias: np.ndarray | None, kind: str
) -> Any:
    """The array of rank 4 of a mask of a `kind`, or of a bias with -inf where the mask hides; None
    without both."""
    backend, dtype = call.backend, call.inputs.dtype
    if mask is None:
        return None if bias is None else backend.array(rank4(bias), dtype)
    if bias is not None or kind == "additive":
        added = np.where(mask, np.zeros(()) if bias is None else bias, -np.inf)
        return backend.array(rank4(added), dtype)
    seen = rank4(~mask if kind.endswith("hides") else mask)
    if kind.startswith("binary"):
        return backend.array(seen.astype(np.float64), dtype)
    return backend.array(seen, None)


@dataclass(frozen=True)
class CallBinder(Binder[AttentionCall]):
    """The binder of a function of attention.

    - `words`: what each parameter is given, by name; the framework's own parameters included
    - `bound`: the part of `words` that people's names and the claim `parameters` tell
    - `operands`: the names of query, key and value
    - `places`: the parameters that are passed by position, with their defaults
    - `defaults`: the defaults of all parameters
    - `layout`: the default of a parameter for the layout, "" for none
    """

    words: Mapping[str, str] = field(default_factory=dict)
    bound: Mapping[str, str] = field(default_factory=dict)
    operands: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    layout: str = ""
    ways_out: ClassVar[str] = (
        "rename it, bind it with --parameter NAME=WORD (docs/signatures.md), or use --allow-unused"
    )

    def check_names(self, who: str) -> None:
        knobs = tuple(name for name in self.knobs if name not in UNASKED)
        Binder.check_names(replace(self, knobs=knobs), who)

    def name_of(self, word: str) -> str:
        """The parameter that is given this; "" for none."""
        return next((name for name, given in self.words.items() if given == word), "")

    def serving(self, feature: str) -> tuple[str, ...]:
        """The parameters of the function that serve a feature."""
        rows = (row for row in self.table if row.name in self.taken)
        return tuple(row.name for row in rows if feature in row.features)

    def dropout(self, backend: Backend, rate: float) -> Any:
        """The argument that drops weights at a rate."""
        return dropping(backend, rate, self.defaults[self.name_of("dropout")])

    @property
    def pairs(self) -> tuple[str, ...]:
        """The parameters with axes of queries and keys."""
        return tuple(n for n, word in self.words.items() if word in (*MASK_WORDS, "bias"))

    @property
    def is_plain(self) -> bool:
        """True if query, key and value are passed by position, and all others by name."""
        return [*self.places] in ([], [*self.operands.values()])

    def spread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which is then called with query, key, value and the rest by name."""
        if not self.operands:
            return lambda query, key, value, **rest: function(query, key, value, **rest)

        def call(query: Any, key: Any, value: Any, **rest: Any) -> Any:
            arrays = zip(OPERANDS, (query, key, value), strict=True)
            given = {self.operands[word]: array for word, array in arrays} | rest
            places = [given.pop(name, default) for name, default in self.places.items()]
            return function(*places, **given)

        return call


def word_of(name: str) -> str:
    """What a parameter is given by its name; "" if nobody knows."""
    return WORD_OF.get(name) or WORD_OF.get(name.lower(), "")


@dataclass(frozen=True)
class Reading:
    """The parameters of a function, and the rows of a framework's attention.

    - `own`: the rows of the framework's attention; `known`: these and rows of features, by name
    - `claimed`: the claim `parameters`; `masks`: see `Binding`
    - `merges`: the framework's mask takes biases, too
    """

    signature: inspect.Signature
    own: Mapping[str, Parameter[AttentionCall]]
    known: Mapping[str, Parameter[AttentionCall]]
    claimed: Mapping[str, str]
    masks: str
    merges: bool

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters with names."""
        named = self.signature.parameters.items()
        return {n: p for n, p in named if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}

    def has(self, kind: inspect._ParameterKind) -> bool:
        """True if a parameter is of this kind."""
        return any(p.kind is kind for p in self.signature.parameters.values())

    @cached_property
    def all_words(self) -> dict[str, str]:
        """What each parameter is given, by name; no two are given the same."""
        words = {n: word_of(n) or n for n in self.parameters if n in self.known} | {**self.claimed}
        drops = any("dropout" in row.features for row in self.own.values())
        for name, parameter in self.parameters.items():
            word = word_of(name)
            idle = word == "dropout" and not drops and parameter.default is not parameter.empty
            if word and not idle and name not in words and word not in words.values():
                words[name] = word
        return words

    @cached_property
    def operands(self) -> dict[str, str]:
        """The names of query, key and value: those that the names tell, or else the first three
        parameters; {} if there are fewer."""
        by_word = {word: name for name, word in self.all_words.items()}
        if all(word in by_word for word in OPERANDS):
            return {word: by_word[word] for word in OPERANDS}
        places = [n for n, p in self.parameters.items() if p.kind in BY_PLACE]
        free = [n for n in places if self.all_words.get(n, "query") in OPERANDS]
        return dict(zip(OPERANDS, free, strict=False)) if len(free) >= len(OPERANDS) else {}

    @cached_property
    def words(self) -> dict[str, str]:
        """What each parameter besides query, key and value is given, by name."""
        operands = self.operands.values()
        return {
            name: word
            for name, word in self.all_words.items()
            if name not in operands and word not in OPERANDS
        }

    def row(self, name: str) -> Parameter[AttentionCall]:
        """The row of a parameter that is given something."""
        parameter, word = self.parameters[name], self.words[name]
        native = self.known.get(name if name not in self.claimed else word)
        required = parameter.default is parameter.empty
        merged = word == "attn_mask" and "bias" in self.words.values() and "bias" not in self.own
        if word in (*MASK_WORDS, "bias") and (native is None or self.masks or merged):
            kind = self.masks or ("either" if self.merges else "boolean")
            return pair_argument(name, word, [*self.words.values()], kind, required)
        given = ROWS.get(word)
        is_neutral = given is None or word in (*MASK_WORDS, "bias")  # None is passed
        if native is None or (required and not is_neutral):
            assert given is not None
            native = self._given(name, given, parameter.default, required)
        return replace(native, name=name, told=native.told or required)

    def _given(
        self, name: str, given: Given, default: Any, required: bool
    ) -> Parameter[AttentionCall]:
        served = {feature for row in self.known.values() for feature in row.features}
        features = tuple(one for one in given.features if one != "dropout" or one in served)

        def value(call: AttentionCall) -> Any:
            argument = given.value(call, default) if features else None
            return given.neutral(call) if argument is None and required else argument

        return Parameter(name, features, value)

    @cached_property
    def missing(self) -> list[str]:
        """The parameters without a default that are given nothing."""
        given = (*self.words, *self.operands.values())
        return [n for n, p in self.parameters.items() if p.default is p.empty and n not in given]

    @cached_property
    def places(self) -> dict[str, Any]:
        """The parameters that are passed by position, with their defaults: all up to the last one that
        has no default or no name for callers."""
        places = [n for n, p in self.parameters.items() if p.kind in BY_PLACE]
        by_place = [
            n
            for n in places
            if self.parameters[n].kind is inspect.Parameter.POSITIONAL_ONLY
            or self.parameters[n].default is inspect.Parameter.empty
            or n in self.operands.values()
        ]
        last = places.index(by_place[-1]) + 1 if by_place else 0
        return {n: self.parameters[n].default for n in places[:last]}


def bind(
    function: Callable[..., Any],
    name: str,
    own: Iterable[Parameter[AttentionCall]],
    more: Iterable[Parameter[AttentionCall]],
    claimed: Mapping[str, str],
    masks: str = "",
    merges: bool = False,
) -> CallBinder:
    """The binder of a function, or of instances of a class, with parameters `own` of a framework's
    attention, `more` parameters, and parameters that the names of `GIVEN` or the claim `parameters`
    (`claimed`) tell.

    `masks` is what a parameter for a mask is given, "" for what the framework's own attention is given:
    booleans, and with `merges` also biases. Raises TypeError if the function takes fewer arrays or
    requires an unknown parameter, and UsageError for a claim that does not fit.
    """
    rows = {row.name: row for row in own}
    known = rows | {row.name: row for row in more}
    signature = (
        signature_of_instances(function) if isinstance(function, type) else signature_of(function)
    )
    reading = Reading(signature, rows, known, claimed, masks, merges)
    _check_claimed(reading)
    any_place = reading.has(inspect.Parameter.VAR_POSITIONAL) and not reading.operands
    if reading.missing or not (reading.operands or any_place):
        raise TypeError(_misfit(name, reading))
    words = reading.words
    bound = {n: word for n, word in words.items() if n not in known or n in claimed}
    any_name = reading.has(inspect.Parameter.VAR_KEYWORD) and not bound
    given = (*words, *reading.operands.values())
    return CallBinder(
        (*map(reading.row, words), *(row for n, row in known.items() if n not in words)),
        frozenset([*words, *(n for n in rows if any_name)]),
        knobs=tuple(n for n in reading.parameters if n not in given),
        names=tuple(reading.signature.parameters),
        arrays=OPERANDS,
        words=words,
        bound=bound,
        operands=reading.operands,
        places=reading.places,
        defaults={n: p.default for n, p in reading.parameters.items()},
        layout=next((str(p.default) for n, p in reading.parameters.items() if n in NAMING), ""),
    )


def _check_claimed(reading: Reading) -> None:
    """Raise UsageError for a claim of a parameter that the function does not have, or of a word that
    nothing is given for."""
    valid = [*dict.fromkeys((*OPERANDS, *ROWS, *reading.known))]
    for name, word in reading.claimed.items():
        if name not in reading.parameters:
            raise UsageError(
                f"parameters: the function has no parameter {name!r}; it has "
                f"{', '.join(reading.parameters)}"
            )
        if word not in valid:
            raise UsageError(
                f"parameters: {name!r} cannot be given {word!r}; valid: {', '.join(valid)}"
            )


def _misfit(name: str, reading: Reading) -> str:
    """The message about a signature that does not fit."""
    expected = f"{name}({shown(OPERANDS, [*reading.known])}), any of the keywords"
    ways = "".join(
        f"; nobody knows what {one!r} is given: give it a default, a name of docs/signatures.md, or "
        f"--parameter {one}=WORD, WORD one of {', '.join(ROWS)}"
        for one in reading.missing[:1]
    )
    return f"{name}{reading.signature} does not fit; expected {expected}{ways}"
