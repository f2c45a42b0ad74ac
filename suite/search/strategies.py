"""Hypothesis strategies for cases: options, recipes, sizes and axis orders of every operator, and masks.

The first alternative of a strategy is the simplest, so failures shrink to small sizes, no mask and
default options. A drawn case has an id that can be parsed and a known right answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis
from hypothesis import strategies as st

from attention_conformance.suite.run.smaller import tied, well_posed
from attention_conformance.suite.spec.case import Case, Widths
from attention_conformance.suite.spec.dtypes import DTYPES, DType
from attention_conformance.suite.spec.masks import Mask, parse_mask, part_features
from attention_conformance.suite.spec.operator import Operator, Option
from attention_conformance.suite.spec.operators.sdpa_cases import MASKS
from attention_conformance.suite.spec.recipes import FIXED_SCALE, recipes_of
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import HIDING

PAIRS, LAYER_PAIRS = 16_384, 4_096
"""Greatest B x H x Lq x Lk of a case."""

EVERY_DTYPE = tuple(DTYPES[name] for name in ("f32", "bf16", "f16", "f64"))

TAILS = (31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129)
FAR = (129, 255, 256, 257, 511, 512, 513, 767, 1025)
HEAD_SIZES = (10, 15, 16, 17, 20, 24, 31, 32, 33, 40, 63, 64, 65, 80, 96, 128, 256)
GROUPS = (1, 1, 1, 2, 2, 3, 4, 5, 7, 8)
"""Query heads per key head."""

ATOMS = tuple(dict.fromkeys(re.split(r"\+|or", "+".join([*MASKS[1:], "tree12"]))))
"""The masks of the covering array one by one, and a tree. Their numbers are drawn anew."""

OF_WEIGHTS = ("bias", "returned", "squeezed")
"""Options that norms lack, although they are options of all layers."""


@st.composite
def rarely(draw: st.DrawFn, common: st.SearchStrategy, rare: st.SearchStrategy, one_in: int) -> Any:
    """`rare` once in `one_in` draws, otherwise `common`, which shrinks by leaving `rare` out."""
    usual = draw(common)
    return draw(rare) if draw(st.integers(1, one_in)) == one_in else usual


def values(option: Option) -> st.SearchStrategy:
    """The default of an option, and more rarely its other values or a number between them."""
    others = st.sampled_from(option.values)
    if option.read is float:
        between = st.floats(min(option.values), max(option.values))
        others |= between.map(lambda number: round(number, 2))
    return rarely(st.just(option.default), others, 8 if option.rare else 4)


@st.composite
def options_of(draw: st.DrawFn, operator: Operator) -> dict[str, Any]:
    """The options of an operator. An option without values is judged by a check of its own."""
    options = {o.name: draw(values(o)) if o.values else o.default for o in operator.options}
    if operator.is_layer and not operator.has_keys:
        # A norm has one tensor, and no weights.
        plain = {o.name: o.default for o in operator.options if o.name in OF_WEIGHTS}
        options |= plain | {"self_attention": True}
    return options


@st.composite
def sizes_of(
    draw: st.DrawFn, operator: Operator, options: Mapping[str, Any]
) -> tuple[Sizes, Widths | None]:
    """Sizes with at most `PAIRS` pairs, or `LAYER_PAIRS`, and the widths of a layer.

    Plain attention may have no samples or no queries. It always has keys: the answer without keys is
    implementation-defined.
    """
    layer = operator.is_layer
    near = st.one_of(st.integers(1, 9), st.integers(1, 40), st.sampled_from(TAILS))
    length = rarely(near, st.sampled_from(FAR), 6)
    q, k = draw(length), draw(length)
    g, group = draw(st.integers(1, 4)), draw(st.sampled_from(GROUPS))
    d = draw(st.one_of(st.integers(1, 9), st.sampled_from(HEAD_SIZES[:8] if layer else HEAD_SIZES)))
    n = {
        "b": draw(rarely(st.integers(1, 4), st.sampled_from((5, 9) if layer else (0, 5, 9)), 12)),
        "h": g * group, "g": g,
        "q": draw(rarely(st.sampled_from((q, k)), st.just(0 if operator.is_default else q), 30)), "k": k,
        "d": d, "v": draw(rarely(st.just(d), st.integers(1, 20), 5)),
    }  # fmt: skip
    n |= {letter: draw(st.integers(1, 24)) for letter in "xyzo" if layer}
    # The heads of most layers split one width.
    split = layer and draw(st.integers(1, 3)) < 3
    ties = (*operator.tied(options), *(("xyzo", "dv") if split else ()))
    n = tied(n, ties)
    most = (LAYER_PAIRS if layer else PAIRS) // max(1, n["b"] * n["h"])
    n["k"] = min(n["k"], most)
    n = tied(n | {"q": min(n["q"], most // n["k"])}, ties)
    n = tied(n | {"x": n["h"] * n["d"]}, ties) if split else n
    widths = Widths(*(n[letter] for letter in "xyzo")) if layer else None
    return Sizes(*(n[letter] for letter in "bhgqkdv")), widths


@st.composite
def masks(draw: st.DrawFn, reach: int) -> Mask | None:
    """No mask, or up to three of `ATOMS`, joined by "and" or "or", with numbers up to `reach`."""
    number = st.one_of(st.integers(0, 4), st.integers(0, max(reach, 1)))
    token = ""
    for _ in range(draw(st.sampled_from((0, 1, 1, 1, 2, 3)))):
        atom = draw(st.sampled_from(ATOMS))
        if not atom.startswith("bool"):  # the digits of its axes are no numbers
            atom = re.sub(r"\d+", lambda match: str(draw(number)), atom)
        if atom not in re.split(r"\+|or", token):
            token += (token and draw(st.sampled_from(("+", "or")))) + atom
    return parse_mask(token or "none")


@st.composite
def cases_of(
    draw: st.DrawFn,
    operator: Operator,
    dtypes: Sequence[DType] = EVERY_DTYPE,
    pool: Sequence[Case] = (),
) -> Case:
    """A case of an operator in one of `dtypes`, with the sizes of a case of `pool` if there is one."""
    options = draw(options_of(operator))
    if pool:
        base = draw(st.sampled_from(list(pool)))
        sizes, widths = base.sizes, base.widths
        if operator.packing or operator.tied(options) != base.ties:
            options |= {name: base.option(name) for name in options if name != "bias"}
    else:
        sizes, widths = draw(sizes_of(operator, options))
        if operator.packing:
            numbers = draw(st.lists(st.integers(0, 9), min_size=2, max_size=8))
            sizes, more = operator.packing.completed(sizes, numbers)
            options |= more
    fmt = draw(st.sampled_from(list(dtypes)))
    recipes, orders = recipes_of(operator.recipes, fmt), operator.array_kinds.axis_orders
    recipe = draw(rarely(st.just(recipes[0]), st.sampled_from(recipes), 3))
    axis_order = draw(rarely(st.just(orders[0]), st.sampled_from(orders), 3))
    options |= {"scale": FIXED_SCALE[recipe]} if recipe in FIXED_SCALE else {}
    # A mask and a bias of -inf may empty a row together, which belongs to two elections.
    masked = operator.takes_masks and options.get("bias") not in HIDING
    try:
        mask = draw(masks(max(sizes.Lq, sizes.Lk))) if masked else None
        flag = mask is None or {*part_features(mask, "native")} != {"mask"}
        forms = ["native"] * flag + ["dense"] * (mask is not None)
        case = Case.of(
            operator, sizes, fmt, mask, widths, recipe=recipe, axis_order=axis_order,
            form=draw(st.sampled_from(forms)), **options,
        )  # fmt: skip
    except ValueError:
        hypothesis.reject()  # numbers or options that exclude each other
    hypothesis.assume(well_posed(case))
    return case


def cases(
    operators: Sequence[Operator], dtypes: Sequence[DType], pools: Mapping[str, Sequence[Case]]
) -> st.SearchStrategy[Case]:
    """Cases of the operators, half of them plain attention. `pools` holds cases by operator name."""
    kinds = [[o for o in operators if o.is_default == plain] for plain in (True, False)]

    @st.composite
    def cases_of_these(draw: st.DrawFn) -> Case:  # no arguments: Hypothesis would print them
        operator = draw(st.sampled_from(draw(st.sampled_from([kind for kind in kinds if kind]))))
        return draw(cases_of(operator, dtypes, pools.get(operator.name, ())))

    return cases_of_these()
