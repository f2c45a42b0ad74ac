"""Operators: what implementations compute, and all that the suite must know to test it.

Every array axis has a letter (`LETTERS`), so checks can permute samples, keys or heads of any operator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from attention_conformance.suite.spec.ids import part
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import OPERANDS

if TYPE_CHECKING:
    from attention_conformance.suite.spec.case import Case
    from attention_conformance.suite.spec.inputs import Inputs

Axes = Mapping[str, str]
"""Axis letters of each array, by array name."""

LETTERS = {
    "b": "samples",
    "h": "query heads",
    "g": "key/value heads",
    "q": "queries",
    "k": "keys",
    "d": "size of a query and a key",
    "v": "size of a value",
    "p": "pages of a pool",
    "s": "slots of a page",
    "t": "entries of a page table for a sample",
    "x": "features of the query",
    "y": "features of the key",
    "z": "features of the value",
    "o": "features of the output",
    "r": "size of a latent",
    "m": "tiles of 128 of d",
    "n": "tiles of 128 of v",
    "l": "tiles of 128 of r",
    "e": "rotary size of a query and a key beside d",
}
"""Meaning of axis letters. Features belong to layers. d is also the units of additive attention."""

UNLEARNED = (*OPERANDS, "bias")
"""Arrays in the call of a layer. All other arrays are learned parameters."""

MODES = ("autocast", "wider-default-dtype", "other-default-device", "mapped", "traced")
"""The election questions about modes that surround a call."""

NUMBER = r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)"
"""A number in an id, as a group of a regular expression."""


@dataclass(frozen=True)
class Option:
    """A property of a case beyond sizes, dtype and mask; a token in the id unless it has its default
    value.

    - `pattern`: regular expression of the token; its first group is the value.
    - `read`, `write`: convert this group to the value, and the value to the token.
    - `values`: non-default values for random search (any of them, or any number between numbers). Empty
      if a separate check judges the option.
    - `limits`: smallest and largest number in an id.
    - `rare`: few interfaces have this option, so random search draws it less often.
    """

    name: str
    pattern: str
    read: Callable[[str], Any]
    write: Callable[[Any], str]
    default: Any = None
    values: tuple[Any, ...] = ()
    limits: tuple[float, float] | None = None
    rare: bool = False


def flag(name: str, word: str, rare: bool = False) -> Option:
    """Returns an option that is True if the id contains the token `word`, else False."""
    return Option(
        name, f"({word})", lambda text: True, lambda value: word, False, (True,), rare=rare
    )


def choice(name: str, words: Iterable[str], prefix: str = "") -> Option:
    """Returns an option with one of `words`. The first word is the default and has no token."""
    default, *tokens = words
    pattern = f"{prefix.replace('.', chr(92) + '.')}({'|'.join(tokens)})"
    return Option(name, pattern, str, lambda value: f"{prefix}{value}", default, tuple(tokens))


def number(name: str, prefix: str, *values: float) -> Option:
    """Returns an option with a number; the default is None. `values` are for random search."""
    return Option(name, prefix + NUMBER, float, lambda value: f"{prefix}{value!r}", values=values)


SCALE = number("scale", "scale", 0.3, 0.0, -0.2, 2.5, 1.0)
"""The scale of the scores."""

LEFT = Option("left", r"win(\d+)", int, lambda left: f"win{left}", None, (0, 1, 3, 8), rare=True)
"""A window of a causal mask, by the keys before a query's own."""


@dataclass(frozen=True)
class Work:
    """The least work of a call: operations and bytes moved.

    - P attending pairs of query and key of all samples and heads cost 2 P (D + Dv) operations forward.
    - Backward costs 2.5 times as many, with recomputed scores (Dao 2023, section 4: five products for
      two).
    - Bytes count every operand and the output once.

    Published figures use other conventions (full count for causal masks, multiplications only), so they
    are not comparable.
    """

    flops: float
    bytes: int


def nothing(*_: Any) -> tuple[()]:
    """Returns an empty tuple: the default of fields that are functions."""
    return ()


@dataclass(frozen=True)
class Asks:
    """The cases in which an operator is tested, as lists of ids (see `suite.spec.levels.Ask`). An id with
    {dt} in place of its dtype stands for a case in each dtype of its list.

    - `cases`: values are judged. `gradients`: derivatives are judged.
    - `compiled`, `compiled_gradients`: cases and gradients of compiled mode.
    - `pages`: ids with {dt} of cases with a page table; checks of pages use them, and an election the
      first one.
    - `plain`: id with {dt} of a case without a mask; checks of memory layouts and state use it.
    - `plain_kinds`: more ids like `plain`, of other kinds of the operator (`Operator.kinds`) and of sizes
      that people run, for checks of every operator.
    - `also_common`: more sizes, such as "b2h1q7k7d5v6", whose ids have every dtype at standard.
    """

    plain: str
    cases: tuple[Ask, ...]
    gradients: tuple[Ask, ...] = ()
    compiled: tuple[Ask, ...] = ()
    compiled_gradients: tuple[Ask, ...] = ()
    pages: tuple[str, ...] = ()
    plain_kinds: tuple[str, ...] = ()
    also_common: tuple[str, ...] = ()

    @property
    def common_sizes(self) -> tuple[str, ...]:
        """The tokens of the sizes whose patterns have every dtype at the level standard: the sizes of
        `plain`, and `also_common`."""
        return (part(self.plain, "SIZES"), *self.also_common)


@dataclass(frozen=True)
class Questions:
    """The elections of an operator, and the ids they start from.

    - `probe`, `gradient_probe`: ids with {mask} and {dt} for mask and dtype.
    - `well_formed`: id of the well-formed problem that malformed problems change.
    - `trials`: ids with {dt} of sizes that most kernels accept; user functions are tried on them, too.
    - `large_scores(inputs)`: inputs with scores above 65504 (largest float16) for the election
      large-scores.
    - `unnamed`: questions and malformed problems whose ids leave out the operator's name.
    """

    elections: tuple[str, ...] = ()
    probe: str = ""
    gradient_probe: str = ""
    well_formed: str = ""
    trials: tuple[str, ...] = ()
    large_scores: Callable[[Inputs], Inputs] | None = None
    unnamed: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArrayKinds:
    """Arrays that checks vary, arrays without a gradient, and arrays with another dtype than the case.

    - `operands`: the arrays whose memory, values and gradients checks vary.
    - `axis_orders`: the orders of their axes in memory.
    - `letters(case)`: sizes of axes beside those of `Sizes`, by letter.
    - `statistics`, `integers`: no gradient. `integers` are not rounded to a dtype.
    - `wide`: arrays and outputs that are float32 beside 16-bit operands.
    - `codes`: arrays without a gradient, and outputs, in the format that the option `codes` names.
    """

    operands: tuple[str, ...] = OPERANDS
    axis_orders: tuple[str, ...] = ("bhld",)
    letters: Callable[[Case], Mapping[str, int]] = lambda case: {}
    statistics: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()

    @property
    def constants(self) -> tuple[str, ...]:
        """The arrays without a gradient."""
        return (*self.statistics, *self.integers, *self.codes)


@dataclass(frozen=True)
class Packing:
    """How samples are selected and drawn if options say where their tokens are: segments, pages, steps.

    - `choose(inputs, order)`: inputs with some of their samples, in an order.
    - `completed(sizes, numbers)`: sizes and options of a random case, made of two or more whole numbers.
    - `attends(case)`: boolean (B, Lq, Lk), the attending pairs; or None. Rows without a pair are padding.
    """

    choose: Callable[[Inputs, Sequence[int] | np.ndarray], Inputs]
    completed: Callable[[Sizes, Sequence[int]], tuple[Sizes, Mapping[str, Any]]]
    attends: Callable[[Case], np.ndarray] | None = None


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator that implementations compute, described as data.

    - `words`: the features that only cases of this operator need, with their meanings.
    - `axes`: the arrays of a case by name; `draw`: their values before rounding to the case's dtype, in
      the same order; `outputs`: the outputs of a case. All may depend on the options.
    - `needs(case, arrays, sizes, widths)`: the required features, except masks and biases, of a case or a
      variation of it.
    - `ties(options)`: axes of equal size under these options, as strings of letters; "1" means size 1.
    - `validate`: raises ValueError for a case that is invalid for another reason.
    - `topic`: the column of the matrix that counts its cells, and what the column is about.
    - `is_layer`: takes sequences (B, L, width) and has parameters.
    - `has_keys`: queries attend keys.
    - `squeezed_axis`: the axis that the option `squeezed` leaves out, "b" or "q".
    - `packing`: set if options say where the tokens of samples are; masks then say nothing.
    - `work`: operations and bytes of a direction; None if unknown.
    """

    name: str
    text: str
    axes: Callable[[Case], Axes]
    draw: Callable[[Case, np.random.Generator, int], dict[str, np.ndarray]]
    outputs: Callable[[Case], Axes]
    needs: Callable[[Case, Collection[str], Sizes, Any], Mapping[str, bool]]
    asks: Asks
    questions: Questions = Questions()
    options: tuple[Option, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    ties: Callable[[Mapping[str, Any]], tuple[str, ...]] = nothing
    validate: Callable[[Case], object] = nothing
    topic: tuple[str, str] = ("layers", "attention layers and norms")
    recipes: tuple[str, ...] = ("normal",)
    array_kinds: ArrayKinds = ArrayKinds()
    is_layer: bool = False
    has_keys: bool = True
    squeezed_axis: str = "b"
    packing: Packing | None = None
    work: Callable[[Inputs, str], Work] | None = None

    def option(self, name: str) -> Option | None:
        """Returns the option `name`, or None."""
        return next((option for option in self.options if option.name == name), None)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of `--like` for the operator: its own, or the values of its option `kind`."""
        kind = self.option("kind")
        return (self.name, *(kind.values if kind else ()))

    @property
    def takes_masks(self) -> bool:
        """True if a mask or bias says which keys a query attends; False if options (lengths, pages,
        scripts) say so, and for operators without keys."""
        return self.has_keys and self.packing is None

    @property
    def is_default(self) -> bool:
        """True for plain attention (sdpa), which has special rules:

        - Ids of its questions and malformed problems leave out its name.
        - Its features, biases and masks have rows of the conformance table, and columns of the matrix.
        - A mask of several parts is passed as one array, because flags may exclude each other.
        - Random search draws it as often as all other operators together.
        """
        return self.name == "sdpa"

    def qualified(self, name: str) -> str:
        """Returns the name of a question or malformed problem in an id: OPERATOR/name, or only `name` for
        the default operator and for `Questions.unnamed`."""
        return name if self.is_default or name in self.questions.unnamed else f"{self.name}/{name}"

    def learned(self, names: Iterable[str]) -> tuple[str, ...]:
        """Returns the names that are learned parameters of a layer; () for other operators."""
        return tuple(name for name in names if self.is_layer and name not in UNLEARNED)

    def all_ties(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns the ties under these options; with the option `squeezed` its axis is one of size 1."""
        left_out = (f"1{self.squeezed_axis}",) if options.get("squeezed") else ()
        return (*self.ties(options), *left_out)

    @property
    def module(self) -> str:
        """The name of the operator's module in `references`."""
        return "norms" if self.name.endswith("-norm") else self.name.replace("-", "_")

    def __str__(self) -> str:
        return self.name
