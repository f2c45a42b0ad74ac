"""The signature of a person's function, read by the names that people use, and its call with all axes,
whatever axes and outputs the function has.

A parameter that has no name of the framework's own attention is bound by the table of
`backends.user.names`, or by the claim `parameters`. What names do not tell, such as the order of axes, a
trial call finds (`suite.judge.fitting`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from attention_conformance.backends.binder import (
    BY_PLACE,
    CALLED,
    Binder,
    Parameter,
    signature_of,
    signature_of_instances,
    signature_text,
)
from attention_conformance.backends.declared import UsageError
from attention_conformance.backends.masks import AttentionCall
from attention_conformance.backends.protocol import Backend
from attention_conformance.backends.user.names import (
    ROWS,
    dropping,
    is_neutral,
    pair_argument,
    word_of,
)
from attention_conformance.suite.spec.binding import MASK_WORDS, NAMING, Axes, Binding
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS

if TYPE_CHECKING:
    from attention_conformance.backends.protocol import Backend


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


FLAGS = ("is_causal", "window", "window_left", "softcap")
"""What is passed in every call if its default is another value than a neutral one."""


@dataclass(frozen=True)
class SignatureReading:
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
        passes_none = given is None or word in (*MASK_WORDS, "bias")
        always = required or (word in FLAGS and not is_neutral(parameter.default))
        counts = word == "window" and isinstance(parameter.default, tuple | list)
        if native is None or counts or (always and not passes_none):
            assert given is not None
            native = self._given(name, given, parameter.default, always)
        return replace(native, name=name, passes_none=native.passes_none or required)

    def _given(
        self, name: str, given: Parameter[AttentionCall], default: Any, always: bool
    ) -> Parameter[AttentionCall]:
        """The row of a parameter; `always`: calls that do not need it pass its neutral value."""
        served = {feature for row in self.known.values() for feature in row.features}
        features = tuple(one for one in given.features if one != "dropout" or one in served)

        def value(call: AttentionCall) -> Any:
            argument = given.value(call) if features else None
            if argument is not None and given.name == "dropout":
                return dropping(call.backend, argument, default)
            return given.neutral(call) if argument is None and always else argument

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
    attention, `more` parameters, and parameters that the names of `KNOWN` or the claim `parameters`
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
    reading = SignatureReading(signature, rows, known, claimed, masks, merges)
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


def _check_claimed(reading: SignatureReading) -> None:
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


def _misfit(name: str, reading: SignatureReading) -> str:
    """The message about a signature that does not fit."""
    expected = f"{name}({signature_text(OPERANDS, [*reading.known])}), any of the keywords"
    ways = "".join(
        f"; nobody knows what {one!r} is given: give it a default, a name of docs/signatures.md, or "
        f'--parameter {one}=WORD or @claims(parameters={{"{one}": WORD}}), WORD one of '
        f"{', '.join(ROWS)}"
        for one in reading.missing[:1]
    )
    if len(reading.parameters) == 1:
        ways = "; one array is taken by layers, classes that make projections: --like=multi-head"
        ways += " ... (docs/layers.md)"
    return f"{name}{reading.signature} does not fit; expected {expected}{ways}"


def called_by(instance: Any) -> Callable[..., Any]:
    """How an instance is called: itself, or by its method `forward` or `call`."""
    if callable(instance):
        return instance
    function: Callable[..., Any] = next(
        getattr(instance, name) for name in CALLED if hasattr(instance, name)
    )
    return function


@dataclass(frozen=True)
class Adapted:
    """A function that is called with all axes, and returns all axes in the order of its operands.

    - `pairs`: its arguments with axes of queries and keys
    - `returned`: the part of a returned pair that is the output
    """

    backend: Backend
    function: Callable[..., Any]
    binding: Binding
    axes: Axes
    pairs: tuple[str, ...]
    inputs: Inputs
    returned: int = 0

    def __call__(self, **arguments: Any) -> Any:
        index, pairs = self.axes.index, self.pairs
        if index:
            for name in (*OPERANDS, *pairs):
                array = arguments.get(name)
                if array is not None and len(array.shape) == 4:
                    arguments[name] = array[index]
        answer = self.function(**arguments)
        if not isinstance(answer, tuple | list) or not answer:
            return self.output(answer)
        binding, lse = self.binding, bool(self.inputs.case.option("lse"))
        if self.returned and len(answer) > self.returned:
            return self.weights(answer[self.returned])
        if lse and len(answer) > 1:
            return (self.output(answer[0]), self.lse(answer[1]), *answer[2:])
        return self.output(answer[0]) if binding.returns else (self.output(answer[0]), *answer[1:])

    def restored(self, array: Any) -> Any:
        """The array with the axes that the function does not have."""
        axes = self.axes.restore
        return array[axes] if axes and hasattr(array, "shape") else array

    def output(self, array: Any) -> Any:
        """The output in the order of the operands."""
        whole = self.restored(array)
        if not self.binding.output_axes or len(getattr(whole, "shape", ())) != 4:
            return whole
        return self.backend.memory.transpose(whole, 0, 2, 1, 3)

    def lse(self, array: Any) -> Any:
        """The natural log-sum-exp in the order of the operands."""
        whole, binding = self.restored(array), self.binding
        if len(getattr(whole, "shape", ())) != 3:
            return whole
        if binding.lse_axes:
            whole = self.backend.memory.transpose(whole, 0, 2, 1)
        return whole * math.log(2) if binding.lse_base else whole

    def weights(self, array: Any) -> Any:
        """Weights (B, H, Lq, Lk) as an output in the dtype of the case, and in the order of the
        operands."""
        backend, dtype = self.backend, self.inputs.dtype
        if not backend.is_array(array):
            return array
        whole = self.restored(array)
        if backend.dtype_name(whole) != dtype.long_name:
            whole = backend.array(round_to(backend.to_numpy(whole), dtype), dtype)
        swaps = self.axes.order == "blhd" and len(whole.shape) == 4
        return backend.memory.transpose(whole, 0, 2, 1, 3) if swaps else whole
