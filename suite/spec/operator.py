"""An operator: one thing that implementations compute, and all that the suite must know to ask for it.

Every array has named axes, one letter each (`LETTERS`), so that checks can permute samples, keys or heads
of any operator without knowing it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from suite.spec.levels import Ask
from suite.spec.sizes import Sizes
from suite.spec.vocabulary import OPERANDS

if TYPE_CHECKING:
    from suite.spec.case import Case
    from suite.spec.inputs import Inputs

Axes = Mapping[str, str]
"""Arrays by name, with the letters of their axes."""

LETTERS = {
    "b": "samples",
    "h": "query heads",
    "g": "key/value heads",
    "q": "queries",
    "k": "keys",
    "d": "size of a query and a key",
    "v": "size of a value",
    "x": "features of the query",
    "y": "features of the key",
    "z": "features of the value",
    "o": "features of the output",
}
"""What the letters of axes mean; features are a layer's. The units of additive attention are d."""

UNLEARNED = (*OPERANDS, "bias")
"""Arrays that a layer is called with; it has learned all others."""

NUMBER = r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)"
"""A number in an id, as a group of a regular expression."""


@dataclass(frozen=True)
class Option:
    """Something a case may ask beyond sizes, dtype and mask: a token of its id, where it is not the
    default.

    `pattern` is the token as a regular expression whose first group is the value; `read` makes the value
    of it, `write` the token of the value. `values` are those that a random search asks for besides the
    default: any of them, and any number between numbers; none where a check of its own judges the option.
    An id with a number beyond `limits` is refused. Few interfaces have what is `rare`: a search that drew
    it as often as others would ask whoever lacks it little.
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
    """An option that is on where the id has `word`."""
    return Option(
        name, f"({word})", lambda text: True, lambda value: word, False, (True,), rare=rare
    )


def choice(name: str, words: Iterable[str], prefix: str = "") -> Option:
    """An option with one of `words`; the first one is the default and has no token."""
    default, *others = words
    pattern = f"{prefix.replace('.', chr(92) + '.')}({'|'.join(others)})"
    return Option(name, pattern, str, lambda value: f"{prefix}{value}", default, tuple(others))


def number(name: str, prefix: str, *values: float) -> Option:
    """An option with a number; None is the default. `values` are those that a random search asks for."""
    return Option(name, prefix + NUMBER, float, lambda value: f"{prefix}{value!r}", values=values)


@dataclass(frozen=True)
class Work:
    """What a call computes at least: pairs of a query and a key that attend, operations, bytes moved.

    P pairs, summed over samples and heads, cost attention 2 P (D + Dv) operations forward, and 2.5 times
    as many backward where the scores are computed again, as fused kernels do (Dao 2023, section 4: five
    products for two). Bytes are those of every operand and the output, once. Published figures follow
    other conventions (causal counted in full, or multiplications alone): they are not to be compared
    with these.
    """

    pairs: int
    flops: float
    bytes: int


def nothing(*_: Any) -> tuple[()]:
    """No cases."""
    return ()


@dataclass(frozen=True)
class Asks:
    """The cases of an operator (see `suite.spec.levels.Ask`), and what else is asked in their sizes.

    Values are judged in `cases`, and derivatives in `gradients`; `compiled` and `compiled_gradients` are
    the same for compilers. `plain` is the id, with {dt}, of a case without a mask whose sizes are asked
    anyway: checks of memory layouts and of state ask it. Patterns with `common_sizes` are asked in every
    dtype at standard.
    """

    cases: tuple[Ask, ...]
    gradients: tuple[Ask, ...] = ()
    compiled: tuple[Ask, ...] = ()
    compiled_gradients: tuple[Ask, ...] = ()
    plain: str = ""
    common_sizes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Questions:
    """The elections that implementations of an operator are asked for, and the ids that they start from.

    `probe` and `gradient_probe` are ids in which a mask and a dtype are filled in for {mask} and {dt}.
    `well_formed` is the id of the problem that malformed problems are made of. `trials` are ids, with
    {dt}, of sizes that most kernels take: a person's function is tried on them besides the probe.
    `large_scores(inputs)` gives inputs whose scores pass 65504, the largest number of float16, for the
    election large-scores. Ids of the questions and malformed problems in `unnamed` leave out the name of
    the operator.
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
    """The arrays that have no gradient, or another dtype than the case.

    `statistics` and `integers` have no gradient, and no dtype rounds `integers`. Arrays and outputs that
    are `wide` are float32 where the dtype of the case is a 16-bit one.
    """

    statistics: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()

    @property
    def constants(self) -> tuple[str, ...]:
        """The arrays without a gradient."""
        return (*self.statistics, *self.integers)


@dataclass(frozen=True)
class Packing:
    """How samples are chosen and drawn where arrays have no axis of samples.

    `choose(inputs, order)` gives inputs with some of their samples, in an order. `completed(sizes,
    numbers)` gives a random search the sizes and options of a case, made of two whole numbers or more.
    """

    choose: Callable[[Inputs, Sequence[int] | np.ndarray], Inputs]
    completed: Callable[[Sizes, Sequence[int]], tuple[Sizes, Mapping[str, Any]]]


@dataclass(frozen=True, eq=False)
class Operator:
    """What can be asked of an implementation.

    `axes` gives the arrays of a case by name, `draw` their values before they are rounded to the
    case's dtype, both in the order in which they are drawn. `outputs` gives what a case returns. Both
    may hang on the case's options.

    `needs(case, arrays, sizes, widths)` says which features an implementation must have to be asked the
    case, or a variation of it with other arrays and sizes, besides those of masks and biases.

    `ties(options)` says which axes have one size under options, by name: a tie is their letters, with
    "1" among them where the size is 1. `validate` raises ValueError for a case that makes no sense
    for another reason. `group` is the row of the conformance table a case is counted in.

    `is_layer`: it takes sequences (B, L, width), and parameters. `has_keys`: its queries attend keys.
    `squeezed_axis` is the axis that the option `squeezed` leaves out, "b" or "q". `packing` is None if
    samples are an axis of the arrays. `work` counts operations and bytes of a direction; None if nobody
    has counted them.
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
    ties: Callable[[Mapping[str, Any]], tuple[str, ...]] = nothing
    validate: Callable[[Case], object] = nothing
    group: Callable[[Case], str] | None = None
    recipes: tuple[str, ...] = ("normal",)
    axis_orders: tuple[str, ...] = ("bhld",)
    array_kinds: ArrayKinds = ArrayKinds()
    is_layer: bool = False
    has_keys: bool = True
    squeezed_axis: str = "b"
    packing: Packing | None = None
    work: Callable[[Inputs, str], Work] | None = None

    def option(self, name: str) -> Option | None:
        """The option called `name`; None where the operator has none of that name."""
        return next((option for option in self.options if option.name == name), None)

    @property
    def takes_masks(self) -> bool:
        """Whether a mask, or a bias, says which keys a query attends. Not where there are no keys, nor
        where samples are no axis, as in packed attention: there lengths say it."""
        return self.has_keys and self.packing is None

    @property
    def is_default(self) -> bool:
        """Whether it is plain attention, which the others lie around.

        Ids of its questions and malformed problems leave its name out, a mask of several parts is one
        array, since flags may exclude each other, and a random search draws it as often as all others
        together.
        """
        return self.name == "sdpa"

    def qualified(self, name: str) -> str:
        """What one of its questions or malformed problems is called in ids: behind the operator's name,
        or by itself (see `is_default` and `Questions.unnamed`)."""
        return name if self.is_default or name in self.questions.unnamed else f"{self.name}/{name}"

    def learned(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of its arrays that are parameters: a layer has learned them, and nothing else has any."""
        return tuple(name for name in names if self.is_layer and name not in UNLEARNED)

    def tied(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """All ties under these options: the operator's, and the axis that `squeezed` leaves out."""
        left_out = (f"1{self.squeezed_axis}",) if options.get("squeezed") else ()
        return (*self.ties(options), *left_out)

    @property
    def module(self) -> str:
        """The name of the operator as a Python name."""
        return self.name.replace("-", "_")

    def __str__(self) -> str:
        return self.name
