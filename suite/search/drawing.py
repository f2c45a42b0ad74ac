"""Random cases: options, recipes, sizes and axis orders of every operator, and masks.

Sizes and masks are drawn from the covering arrays, and beyond them. A drawn case has a valid id and a
known right answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from attention_conformance.suite.spec.case import Case, Widths
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.masks import Mask, parse_mask, part_features
from attention_conformance.suite.spec.operator import Operator, Option
from attention_conformance.suite.spec.operators import sdpa_cases, sdpa_paths
from attention_conformance.suite.spec.recipes import FIXED_SCALE, recipes_of
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.smaller import well_posed, with_equal_axes
from attention_conformance.suite.spec.vocabulary import HIDING

PAIRS = sdpa_paths.SCORES
"""Greatest B x H x Lq x Lk of a case; a quarter of it in layers."""

SIZES: Mapping[str, list[Any]] = {
    axis: [size for sizes in classes.values() for size in sizes]
    for axis, classes in sdpa_paths.SIZES.items()
}
"""The sizes of the covering array by axis; `heads` are pairs (H, Hkv)."""

MASKS = tuple(dict.fromkeys((*sdpa_cases.MASKS[1:], *sum(sdpa_paths.MASKS.values(), ()), "tree12")))
"""The tokens of the covering arrays' masks, and of a tree; `mask_of` draws their numbers anew."""

ONE_TENSOR = {"bias": "none", "returned": "none", "squeezed": False, "self_attention": True}
"""Options of norm layers, which have one input and no attention weights."""


def one_in(number: int, random: Random) -> bool:
    """True with a probability of 1 / `number`."""
    return random.randrange(number) == 0


def value_of(option: Option, random: Random) -> Any:
    """Returns a random value of an option: mostly the default, more rarely another of its values or a
    number between them. An option without values has its default."""
    if not option.values or not one_in(8 if option.rare else 4, random):
        return option.default
    if option.read is float and one_in(2, random):
        return round(random.uniform(min(option.values), max(option.values)), 2)
    return random.choice(option.values)


def sizes_of(
    operator: Operator, options: Mapping[str, Any], random: Random
) -> tuple[Sizes, Widths | None]:
    """Returns random sizes with at most `PAIRS` query-key pairs, rarely up to 1025 queries or keys, and
    the widths of a layer, else None.

    Plain attention may have no samples or no queries. It always has keys: the answer without keys is
    implementation-defined.
    """
    is_layer, upto, choice = operator.is_layer, random.randint, random.choice

    def length() -> int:
        short = choice((upto(1, 9), upto(1, 40), choice(SIZES["Lk"])))
        return upto(1, 1025) if one_in(6, random) else short

    b = choice(SIZES["B"] if is_layer else [0, *SIZES["B"]]) if one_in(12, random) else upto(1, 4)
    h, g = choice(SIZES["heads"] if one_in(6, random) else sdpa_cases.HEADS)
    most_pairs = PAIRS // (4 if is_layer else 1) // max(1, b * h)
    k = min(length(), most_pairs)
    q = min(choice((k, length())), most_pairs // k)
    q = 0 if operator.is_default and one_in(30, random) else q
    d = choice((upto(1, 9), upto(1, 32) if is_layer else choice(SIZES["D"])))
    v = upto(1, 20) if one_in(5, random) else d
    n = {"b": b, "h": h, "g": g, "q": q, "k": k, "d": d, "v": v}
    n |= {letter: upto(1, 24) for letter in "xyzo" if is_layer}
    # The heads of most layers split one width.
    split_width = is_layer and not one_in(3, random)
    ties = (*operator.all_ties(options), *(("xyzo", "dv") if split_width else ()))
    n = with_equal_axes(n, ties)
    if n["q"] * n["k"] > most_pairs:
        n = with_equal_axes(n | dict.fromkeys("qk", int(most_pairs**0.5)), ties)
    n = with_equal_axes(n | {"x": n["h"] * n["d"]}, ties) if split_width else n
    widths = Widths(*(n[letter] for letter in "xyzo")) if is_layer else None
    return Sizes(*(n[letter] for letter in "bhgqkdv")), widths


def mask_of(most: int, random: Random) -> Mask | None:
    """Returns a random mask: None, or one or two of `MASKS`, joined by "and" or "or", in which the
    numbers are drawn anew, up to `most`. Raises ValueError if these numbers exclude each other."""

    def renumbered(match: re.Match[str]) -> str:
        # The digits of the axes of a boolean mask are no numbers.
        number = random.choice((random.randint(0, 4), random.randint(0, max(most, 1))))
        return match[0] if match[0].startswith("bool") else str(number)

    masks = random.sample(MASKS, random.choice((0, 1, 1, 2)))
    token = random.choice(("+", "or")).join(map(str, masks))
    return parse_mask(re.sub(r"bool\.\w+|\d+", renumbered, token) or "none")


def case_of(
    operator: Operator, dtypes: Sequence[DType], random: Random, size_random: Random
) -> Case | None:
    """Returns a random case of an operator in one of `dtypes`. None if the drawn options or numbers
    exclude each other, or if the right answer is implementation-defined. `size_random` draws sizes,
    `random` everything else."""
    options = {option.name: value_of(option, random) for option in operator.options}
    options |= ONE_TENSOR if operator.is_layer and not operator.has_keys else {}
    sizes, widths = sizes_of(operator, options, size_random)
    if operator.packing:
        numbers = [size_random.randint(0, 9) for _ in range(size_random.randint(2, 8))]
        sizes, packing_options = operator.packing.completed(sizes, numbers)
        options |= packing_options
    fmt = random.choice(dtypes)
    recipes, orders = recipes_of(operator.recipes, fmt), operator.array_kinds.axis_orders
    recipe, order = (random.choice(x) if one_in(3, random) else x[0] for x in (recipes, orders))
    options |= {"scale": FIXED_SCALE[recipe]} if recipe in FIXED_SCALE else {}
    # A mask and a bias of -inf may empty a row together, which belongs to two elections.
    takes_mask = operator.takes_masks and options.get("bias") not in HIDING
    try:
        mask = mask_of(max(sizes.Lq, sizes.Lk), random) if takes_mask else None
        has_native_form = mask is None or {*part_features(mask, "native")} != {"mask"}
        forms = ["native"] * has_native_form + ["dense"] * (mask is not None)
        case = Case.of(
            operator, sizes, fmt, mask, widths, recipe=recipe, axis_order=order,
            form=random.choice(forms), **options,
        )  # fmt: skip
    except ValueError:
        return None
    return case if well_posed(case) else None
