"""Hypothesis strategies for the cases of every operator: its tied axes, options, recipes and axis orders.

Every drawn case can be judged: its id can be parsed, and the right answer is known. The first alternative
is the simplest, so that failures shrink to small sizes without mask and options.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis
from hypothesis import strategies as st

from attention_conformance.suite.run.smaller import tied, well_posed
from attention_conformance.suite.spec.case import Case, Widths
from attention_conformance.suite.spec.dtypes import DTYPES, DType
from attention_conformance.suite.spec.masks import (
    And,
    Boolean,
    Causal,
    Mask,
    Or,
    Padding,
    Prefix,
    Segments,
    Tree,
    Window,
    part_features,
)
from attention_conformance.suite.spec.operator import Operator, Option
from attention_conformance.suite.spec.operators import OPERATORS
from attention_conformance.suite.spec.recipes import FIXED_SCALE, recipes_of
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import HIDING

PAIRS = 16_384
"""Greatest B x H x Lq x Lk of a case; its oracles take about ten milliseconds."""

LAYER_PAIRS = 4_096
"""Greatest B x H x Lq x Lk of a layer, whose oracles are slower."""

EVERY_DTYPE = tuple(DTYPES[name] for name in ("f32", "bf16", "f16", "f64"))

TAILS = (31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129)
FAR = (129, 255, 256, 257, 511, 512, 513, 600, 767, 1025)

HEAD_SIZES = (10, 15, 16, 17, 20, 24, 31, 32, 33, 40, 63, 64, 65, 80, 96, 128, 256)
GROUPS = (1, 1, 1, 2, 2, 3, 4, 5, 7, 8)
FEW_GROUPS = (1, 1, 1, 1, 1, 2, 3)
"""Query heads per key head of layers, mostly one."""

OPTION_ONE_IN, RARE_ONE_IN, TIE_ONE_IN = 4, 8, 3
"""One in so many draws gives an option, a rare option, and an option that ties axes another value than
its default."""

WITH_KEYS_ALONE = ("bias", "returned", "squeezed")
"""Options that apply only to operators with keys."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a case and the options that tie axes. A program is compiled for one shape."""

    sizes: Sizes
    widths: Widths | None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def token(self) -> str:
        """The sizes as part of a case id."""
        widths = [] if self.widths is None else [self.widths.token]
        return "/".join([self.sizes.token, *widths])


@st.composite
def rarely(draw: st.DrawFn, common: st.SearchStrategy, rare: st.SearchStrategy, one_in: int) -> Any:
    """`rare` once in `one_in` draws, otherwise `common`. `common` is always drawn, so that shrinking only
    has to drop `rare`."""
    usual = draw(common)
    return draw(rare) if draw(st.integers(1, one_in)) == one_in else usual


def lengths() -> st.SearchStrategy[int]:
    """Numbers of queries or keys, at least 1."""
    near = st.one_of(st.integers(1, 9), st.integers(1, 40), st.sampled_from(TAILS))
    return rarely(near, st.sampled_from(FAR), 8)


def alternatives(option: Option, without: Sequence[Any] = ()) -> st.SearchStrategy:
    """Values of an option besides its default: its named values, and numbers between them."""
    named = st.sampled_from([value for value in option.values if value not in without])
    if option.read is not float:
        return named
    low, high = (math.ceil(100 * min(option.values)), math.floor(100 * max(option.values)))
    return st.one_of(named, st.integers(low, high).map(lambda n: n / 100))


def binding(operator: Operator) -> list[Option]:
    """The options that tie axes."""
    plain = {option.name: option.default for option in operator.options}
    return [
        option
        for option in operator.options
        if any(
            operator.tied(plain | {option.name: value}) != operator.tied(plain)
            for value in option.values
        )
        if operator.has_keys or option.name not in WITH_KEYS_ALONE
    ]


def limited(letters: Mapping[str, int], ties: Iterable[str], pairs: int) -> dict[str, int]:
    """The sizes of axes, reduced if they have more than `pairs` pairs of a query and a key."""
    n, ties = tied(letters, ties), tuple(ties)
    steps = (
        lambda: {"b": min(n["b"], 2), "h": n["g"] * min(n["h"] // n["g"], 4)},
        lambda: {"g": min(n["g"], 2), "h": min(n["g"], 2) * min(n["h"] // n["g"], 2)},
        lambda: {"b": min(n["b"], 1)},
        lambda: {"q": max(1, pairs // (n["b"] * n["h"] * n["k"]))},
    )
    for step in steps:
        if n["b"] * n["h"] * n["q"] * n["k"] > pairs:
            n = tied(n | step(), ties)
    return n


@st.composite
def shapes(draw: st.DrawFn, operator: Operator, pairs: int = 0) -> Shape:
    """Sizes of an operator with at most `pairs` pairs (0: `PAIRS`, for layers `LAYER_PAIRS`), and values
    of the options that tie axes.

    Plain attention may have zero samples or queries, but always has keys: the answer without keys is an
    election.
    """
    layer = operator.is_layer
    pairs = pairs or (LAYER_PAIRS if layer else PAIRS)
    options = {option.name: option.default for option in operator.options}
    chosen = {
        option.name: draw(rarely(st.just(option.default), alternatives(option), TIE_ONE_IN))
        for option in binding(operator)
    }
    if not operator.has_keys and operator.option("self_attention"):
        chosen["self_attention"] = True  # an operator without keys has one tensor
    ties = operator.tied(options | chosen)
    several_heads = not any({"1", "h"} <= set(tie) for tie in ties)

    q, k = draw(lengths()), draw(lengths())
    if draw(st.integers(1, 4)) == 4:
        q = k
    b = draw(rarely(st.integers(1, 4), st.sampled_from((5, 9) if layer else (0, 5, 9)), 12))
    group, g = draw(st.sampled_from(FEW_GROUPS if layer else GROUPS)), draw(st.integers(1, 4))
    head_sizes = HEAD_SIZES[:8] if layer and several_heads else HEAD_SIZES
    d = draw(st.one_of(st.integers(1, 9), st.sampled_from(head_sizes)))
    v = draw(rarely(st.just(d), st.integers(1, 20), 5))
    q = q if layer else draw(rarely(st.just(q), st.just(0), 30))
    letters = {"b": b, "h": group * g, "g": g, "q": q, "k": k, "d": d, "v": v}
    if layer:
        letters |= {letter: draw(st.integers(1, 24)) for letter in "xyzo"}
        if draw(st.integers(1, 3)) < 3:
            # Every library's layers support one width, which the heads split.
            ties = (*ties, "xyzo", "dv")
            n = tied(letters, ties)
            letters["x"] = n["h"] * n["d"]
    n = limited(letters, ties, pairs)
    if layer and "xyzo" in ties:
        n = tied(n | {"x": n["h"] * n["d"]}, ties)
    widths = Widths(n["x"], n["y"], n["z"], n["o"]) if layer else None
    sizes = Sizes(*(n[letter] for letter in "bhgqkdv"))
    if operator.packing is not None:
        numbers = draw(st.lists(st.integers(0, 9), min_size=2, max_size=8))
        sizes, more = operator.packing.completed(sizes, numbers)
        chosen |= more
    return Shape(sizes, widths, tuple(chosen.items()))


def atoms(reach: int) -> st.SearchStrategy[Mask]:
    """Masks of one part; windows and prefixes have lengths up to `reach`."""
    side = st.one_of(st.integers(0, 4), st.integers(0, max(reach, 1)), st.none())
    return st.one_of(
        usual_atoms(),
        st.just(Causal(bottom_right=True)),
        st.builds(Window, side, side),
        st.builds(Prefix, st.integers(0, max(reach, 1))),
        st.builds(Segments, st.integers(1, 5)),
        st.builds(Tree, st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple)),
    )


def usual_atoms() -> st.SearchStrategy[Mask]:
    """The masks that layers have parameters for."""
    return st.one_of(
        st.just(Causal()),
        st.builds(Padding, st.booleans(), st.booleans()),
        st.builds(Boolean, st.sampled_from(Boolean.AXES), st.booleans()),
    )


@st.composite
def masks(draw: st.DrawFn, reach: int, usual: bool = False) -> Mask | None:
    """No mask, one atom, an Or of two atoms, or an And of up to three of these. With `usual` most atoms
    are `usual_atoms`."""
    if draw(st.integers(0, 4)) == 0:
        return None
    every = rarely(usual_atoms(), atoms(reach), 4) if usual else atoms(reach)
    count = draw(rarely(st.just(1), st.integers(2, 3), 3))
    parts: list[Mask] = []
    for _ in range(count):
        one, other = draw(every), draw(rarely(st.none(), every, 6))
        parts.append(one if other in (None, one) else Or((one, other)))
    parts = list(dict.fromkeys(parts))
    return parts[0] if len(parts) == 1 else And(tuple(parts))


@st.composite
def cases_of(
    draw: st.DrawFn,
    operator: Operator,
    dtypes: Sequence[DType] = EVERY_DTYPE,
    pool: Sequence[Shape] = (),
) -> Case:
    """A case of an operator in one of `dtypes`, with a shape of `pool` unless `pool` is empty."""
    shape = draw(st.sampled_from(list(pool)) if pool else shapes(operator))
    fmt = draw(st.sampled_from(list(dtypes)))
    recipes = recipes_of(operator.recipes, fmt)
    recipe = draw(rarely(st.just(recipes[0]), st.sampled_from(recipes), 3))
    reach = max(shape.sizes.Lq, shape.sizes.Lk)
    mask = draw(masks(reach, operator.is_layer)) if operator.takes_masks else None
    options = dict(shape.options)
    for option in operator.options:
        meant = operator.has_keys or option.name not in WITH_KEYS_ALONE
        if option.name in options or not option.values or not meant:
            continue
        # A mask and a hiding bias together may empty a row, which then depends on two elections.
        others = alternatives(option, without=[] if mask is None else HIDING)
        one_in = RARE_ONE_IN if option.rare else OPTION_ONE_IN
        options[option.name] = draw(rarely(st.just(option.default), others, one_in))
    if recipe in FIXED_SCALE:
        options["scale"] = FIXED_SCALE[recipe]
    orders = operator.array_kinds.axis_orders
    axis_order = draw(rarely(st.just(orders[0]), st.sampled_from(orders), 3))
    form = "native"
    if mask is not None:
        flags = set(part_features(mask, "native")) - {"mask"}
        form = draw(st.sampled_from(("native", "dense"))) if flags else "dense"
    try:
        case = Case.of(
            operator, shape.sizes, fmt, mask, shape.widths,
            recipe=recipe, axis_order=axis_order, form=form, **options,
        )  # fmt: skip
    except ValueError:
        hypothesis.reject()  # options that exclude each other
    hypothesis.assume(well_posed(case))
    return case


def cases(
    operators: Sequence[Operator] = tuple(OPERATORS.values()),
    dtypes: Sequence[DType] = EVERY_DTYPE,
    pools: Mapping[str, Sequence[Shape]] | None = None,
) -> st.SearchStrategy[Case]:
    """Cases of the operators: half of the draws are attention, half other operators.

    `pools`: shapes to draw from, by operator name. An operator without a pool has any shape.
    """
    attention = [operator for operator in operators if operator.is_default]
    around = [operator for operator in operators if not operator.is_default]
    kinds = [kind for kind in (attention, around) if kind]

    @st.composite
    def cases_of_these(draw: st.DrawFn) -> Case:  # no arguments: Hypothesis would print them
        operator = draw(st.sampled_from(draw(st.sampled_from(kinds))))
        return draw(cases_of(operator, dtypes, (pools or {}).get(operator.name, ())))

    return cases_of_these()
