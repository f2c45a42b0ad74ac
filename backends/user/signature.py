"""The signature of a user's function, read by common names of parameters, and its call with all axes of
the suite's operands, whatever axes and outputs the function has.

A parameter whose name the framework's own attention lacks is bound by the table of `backends.user.names`,
or by the claim `parameters`. A trial call finds what names do not tell, such as the axis order
(`suite.judge.fitting`).
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
    CALL_METHODS,
    Binder,
    Parameter,
    required,
    signature_of,
    signature_of_instances,
    signature_text,
)
from attention_conformance.backends.declared import UsageError
from attention_conformance.backends.masks import AttentionCall
from attention_conformance.backends.protocol import Backend
from attention_conformance.backends.user.names import (
    ROWS,
    dropout_argument,
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
    """The binder of a function of attention. A word is a name of `KNOWN` or of a row of the framework's
    attention; it stands for an argument.

    - `bound`: by name, the word of each parameter that common names or the claim `parameters` bind
    - `operands`: by "query", "key" and "value", the function's names of them
    - `positional`: the parameters that are passed by position, with their defaults
    - `defaults`: the defaults of all parameters
    - `layout`: the default of a parameter for the layout; "" for none
    """

    bound: Mapping[str, str] = field(default_factory=dict)
    operands: Mapping[str, str] = field(default_factory=dict)
    positional: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    layout: str = ""
    ways_out: ClassVar[str] = (
        "rename it, bind it with --parameter NAME=WORD (docs/signatures.md), or use --allow-unused"
    )

    def dropout(self, backend: Backend, rate: float) -> Any:
        """Returns the argument that drops weights at `rate`."""
        return dropout_argument(backend, rate, self.defaults[self.name_of("dropout")])

    @property
    def pair_arguments(self) -> tuple[str, ...]:
        """The parameters for masks and biases, whose arguments have axes of queries and keys."""
        return tuple(row.name for row in self.table if row.word in (*MASK_WORDS, "bias"))

    @property
    def has_plain_places(self) -> bool:
        """True if at most query, key and value, in this order, are passed by position."""
        return [*self.positional] in ([], [*self.operands.values()])

    def with_operands_first(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function of query, key, value and keywords that calls `function` with its own names
        and places of parameters."""
        if not self.operands:
            return lambda query, key, value, **further: function(query, key, value, **further)

        def call(query: Any, key: Any, value: Any, **further: Any) -> Any:
            arrays = zip(OPERANDS, (query, key, value), strict=True)
            keywords = {self.operands[word]: array for word, array in arrays} | further
            arguments = [keywords.pop(name, default) for name, default in self.positional.items()]
            return function(*arguments, **keywords)

        return call


FLAGS = ("is_causal", "window", "window_left", "softcap")
"""Words whose argument is passed in every call if the parameter's default is not neutral."""


@dataclass(frozen=True)
class SignatureReading:
    """A function's parameters and the words that they stand for.

    - `native_rows`: the rows of the framework's attention, by name; `known_rows`: also those of features
    - `claimed`: the claim `parameters`; `mask_kind`: see `Binding`
    - `native_merges`: the framework's own mask argument also takes biases
    """

    signature: inspect.Signature
    native_rows: Mapping[str, Parameter[AttentionCall]]
    known_rows: Mapping[str, Parameter[AttentionCall]]
    claimed: Mapping[str, str]
    mask_kind: str
    native_merges: bool

    @cached_property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters by name, without `*args` and `**kwargs`."""
        named = self.signature.parameters.items()
        return {n: p for n, p in named if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}

    def has_kind(self, kind: inspect._ParameterKind) -> bool:
        """True if any parameter is of this kind."""
        return any(p.kind is kind for p in self.signature.parameters.values())

    @cached_property
    def all_words(self) -> dict[str, str]:
        """The word of each parameter that has one, by name. No two parameters have the same word."""
        words = {n: word_of(n) or n for n in self.parameters if n in self.known_rows}
        words |= self.claimed
        native_drops = any("dropout" in row.features for row in self.native_rows.values())
        for name, parameter in self.parameters.items():
            word = word_of(name)
            if word == "dropout" and not native_drops and not required(parameter):
                continue
            if word and name not in words and word not in words.values():
                words[name] = word
        return words

    @cached_property
    def operands(self) -> dict[str, str]:
        """By "query", "key" and "value": the name of the parameter for it. Parameters are found by common
        names (`all_words`). If one is missing, the first three count that are passed by place and have
        no other meaning; {} if there are fewer."""
        by_word = {word: name for name, word in self.all_words.items()}
        if all(word in by_word for word in OPERANDS):
            return {word: by_word[word] for word in OPERANDS}
        positional = [n for n, p in self.parameters.items() if p.kind in BY_PLACE]
        names = [n for n in positional if self.all_words.get(n, "query") in OPERANDS]
        return dict(zip(OPERANDS, names, strict=False)) if len(names) >= len(OPERANDS) else {}

    @cached_property
    def words(self) -> dict[str, str]:
        """By name of a parameter besides query, key and value: the suite's word for its argument, such as
        "window" for `window_size` (see `backends.user.names.WORD_OF`)."""
        operands = self.operands.values()
        return {
            name: word
            for name, word in self.all_words.items()
            if name not in operands and word not in OPERANDS
        }

    def row(self, name: str) -> Parameter[AttentionCall]:
        """Returns the row that passes the parameter `name` the argument of its word."""
        parameter, word = self.parameters[name], self.words[name]
        row = self.known_rows.get(name if name not in self.claimed else word)
        is_required = required(parameter)
        has_bias = "bias" in self.words.values() and "bias" not in self.native_rows
        merged = word == "attn_mask" and has_bias
        if word in (*MASK_WORDS, "bias") and (row is None or self.mask_kind or merged):
            kind = self.mask_kind or ("either" if self.native_merges else "boolean")
            return pair_argument(name, word, [*self.words.values()], kind, is_required)
        published_row = ROWS.get(word)
        passes_none = published_row is None or word in (*MASK_WORDS, "bias")
        is_always_passed = is_required or (word in FLAGS and not is_neutral(parameter.default))
        takes_pair = word == "window" and isinstance(parameter.default, tuple | list)
        if row is None or takes_pair or (is_always_passed and not passes_none):
            assert published_row is not None
            row = self._row_with_value(name, published_row, parameter.default, is_always_passed)
        return replace(row.under(name, is_required), word=word)

    def _row_with_value(
        self, name: str, row: Parameter[AttentionCall], default: Any, is_always_passed: bool
    ) -> Parameter[AttentionCall]:
        """Returns `row` for the parameter `name`. `is_always_passed`: calls that do not need the argument
        pass its neutral value."""
        drops = any("dropout" in known.features for known in self.known_rows.values())
        features = tuple(feature for feature in row.features if feature != "dropout" or drops)

        def value(call: AttentionCall) -> Any:
            argument = row.value(call) if features else None
            if argument is not None and row.name == "dropout":
                return dropout_argument(call.backend, argument, default)
            return row.neutral(call) if argument is None and is_always_passed else argument

        return Parameter(name, features, value)

    @cached_property
    def unbound_parameters(self) -> list[str]:
        """The names of required parameters that no known argument is bound to."""
        bound = (*self.words, *self.operands.values())
        return [n for n, p in self.parameters.items() if required(p) and n not in bound]

    @cached_property
    def positional(self) -> dict[str, Any]:
        """The parameters that are passed by position, with their defaults: all up to the last one that is
        an operand, has no default, or is positional-only."""
        positional = [n for n, p in self.parameters.items() if p.kind in BY_PLACE]
        must_be_positional = [
            n
            for n in positional
            if self.parameters[n].kind is inspect.Parameter.POSITIONAL_ONLY
            or required(self.parameters[n])
            or n in self.operands.values()
        ]
        last = positional.index(must_be_positional[-1]) + 1 if must_be_positional else 0
        return {n: self.parameters[n].default for n in positional[:last]}


def bind(
    function: Callable[..., Any],
    name: str,
    native_rows: Iterable[Parameter[AttentionCall]],
    further_rows: Iterable[Parameter[AttentionCall]],
    claimed: Mapping[str, str],
    mask_kind: str = "",
    native_merges: bool = False,
) -> CallBinder:
    """Returns the binder of a function, or of instances of a class.

    - `native_rows`, `further_rows`: the parameters of the framework's attention, and others that are
      known
    - `claimed`: the claim `parameters`, words by the names of parameters
    - `mask_kind`: the kind of masks that the function takes. "" is the kind of the framework's own
      attention: booleans, and with `native_merges` also biases

    Raises TypeError if the function takes fewer arrays or requires an unknown parameter. Raises
    UsageError for a claim that does not fit.
    """
    native_by_name = {row.name: row for row in native_rows}
    known_rows = native_by_name | {row.name: row for row in further_rows}
    signature = (
        signature_of_instances(function) if isinstance(function, type) else signature_of(function)
    )
    reading = SignatureReading(
        signature, native_by_name, known_rows, claimed, mask_kind, native_merges
    )
    _check_claimed(reading)
    any_place = reading.has_kind(inspect.Parameter.VAR_POSITIONAL) and not reading.operands
    if reading.unbound_parameters or not (reading.operands or any_place):
        raise TypeError(_misfit(name, reading))
    words = reading.words
    bound = {n: word for n, word in words.items() if n not in known_rows or n in claimed}
    any_name = reading.has_kind(inspect.Parameter.VAR_KEYWORD) and not bound
    bound_names = (*words, *reading.operands.values())
    return CallBinder(
        (*map(reading.row, words), *(row for n, row in known_rows.items() if n not in words)),
        frozenset([*words, *(n for n in native_by_name if any_name)]),
        knobs=tuple(n for n in reading.parameters if n not in bound_names),
        names=tuple(reading.signature.parameters),
        arrays=OPERANDS,
        bound=bound,
        operands=reading.operands,
        positional=reading.positional,
        defaults={n: p.default for n, p in reading.parameters.items()},
        layout=next((str(p.default) for n, p in reading.parameters.items() if n in NAMING), ""),
    )


def _check_claimed(reading: SignatureReading) -> None:
    """Raise UsageError if the claim `parameters` has an unknown parameter or an unknown word."""
    valid = [*dict.fromkeys((*OPERANDS, *ROWS, *reading.known_rows))]
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
    """Returns the message about a signature that does not fit."""
    expected = f"{name}({signature_text(OPERANDS, [*reading.known_rows])}), any of the keywords"
    advice = "".join(
        f"; nobody knows what {p!r} is given: give it a default, a name of docs/signatures.md, or "
        f'--parameter {p}=WORD or @claims(parameters={{"{p}": WORD}}), WORD one of '
        f"{', '.join(ROWS)}"
        for p in reading.unbound_parameters[:1]
    )
    if len(reading.parameters) == 1:
        advice = "; one array is taken by layers, classes that make projections: --like=multi-head"
        advice += " ... (docs/layers.md)"
    return f"{name}{reading.signature} does not fit; expected {expected}{advice}"


def called_by(instance: Any) -> Callable[..., Any]:
    """Returns the callable of an instance: the instance itself, or its method `forward` or `call`."""
    if callable(instance):
        return instance
    function: Callable[..., Any] = next(
        getattr(instance, name) for name in CALL_METHODS if hasattr(instance, name)
    )
    return function


@dataclass(frozen=True)
class Adapted:
    """A user's function, called with arrays that have all axes of the suite, in the order `axes.order`.

    Axes that the function lacks are removed from its arguments, and added to its outputs with size 1.

    - `pair_arguments`: its arguments for masks and biases
    - `output_index`: the index of the output in the returned tuple; with 1 returned weights are the
      output
    """

    backend: Backend
    function: Callable[..., Any]
    binding: Binding
    axes: Axes
    pair_arguments: tuple[str, ...]
    inputs: Inputs
    output_index: int = 0

    def __call__(self, **arguments: Any) -> Any:
        """Returns the function's outputs. If `binding.returns` is set, the function always returns more
        than the case asks for, and only the output is returned."""
        if self.axes.index:
            for name in (*OPERANDS, *self.pair_arguments):
                array = arguments.get(name)
                if array is not None and len(array.shape) == 4:
                    arguments[name] = array[self.axes.index]
        answer = self.function(**arguments)
        if not isinstance(answer, tuple | list) or not answer:
            return self.output(answer)
        if self.output_index and len(answer) > self.output_index:
            return self.weights(answer[self.output_index])
        if self.inputs.case.option("lse") and len(answer) > 1:
            return (self.output(answer[0]), self.lse(answer[1]), *answer[2:])
        output = self.output(answer[0])
        return output if self.binding.returns else (output, *answer[1:])

    def with_full_axes(self, array: Any) -> Any:
        """Returns an array of the function with all axes of the suite. Axes that the function lacks get
        size 1. A value without a shape is returned unchanged."""
        axes = self.axes.restore
        return array[axes] if axes and hasattr(array, "shape") else array

    def output(self, array: Any) -> Any:
        """Returns the output in the axis order of the operands."""
        output = self.with_full_axes(array)
        if not self.binding.output_axes or len(getattr(output, "shape", ())) != 4:
            return output
        return self.backend.transpose(output, 0, 2, 1, 3)

    def lse(self, array: Any) -> Any:
        """Returns the natural log-sum-exp in the axis order of the operands."""
        lse, binding = self.with_full_axes(array), self.binding
        if len(getattr(lse, "shape", ())) != 3:
            return lse
        if binding.lse_axes:
            lse = self.backend.transpose(lse, 0, 2, 1)
        return lse * math.log(2) if binding.lse_base else lse

    def weights(self, array: Any) -> Any:
        """Returns weights (B, H, Lq, Lk) as an output: in the dtype of the case and the axis order of the
        operands. A value that is no array is returned unchanged."""
        backend, dtype = self.backend, self.inputs.dtype
        if not backend.is_array(array):
            return array
        weights = self.with_full_axes(array)
        if backend.dtype_name(weights) != dtype.long_name:
            weights = backend.array(round_to(backend.to_numpy(weights), dtype), dtype)
        swaps = self.axes.order == "blhd" and len(weights.shape) == 4
        return backend.transpose(weights, 0, 2, 1, 3) if swaps else weights
