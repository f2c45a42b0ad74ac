"""The cases of an operator, drawn by pairs of the values of its axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain, combinations

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.covering import Covering, Row, pairs_of
from attention_conformance.suite.spec.dtypes import DTYPES


def drawn(
    operator: str,
    axes: Mapping[str, Sequence[str]],
    sizes_of: Callable[[Row], str] = lambda row: str(row["sizes"]),
    joined: Sequence[str] = ("sizes",),
    left_out: Callable[[Row], bool] = lambda row: False,
    more: Sequence[tuple[str, ...]] = (),
) -> Covering:
    """A covering array of the ids of an operator: of pairs, at full of triples.

    The values of axes are tokens of ids, "" for none. A tuple of values is drawn if some id has it in
    which all other axes, or all but one, have their first values. `sizes_of` makes the heads, the sizes
    and what belongs to them of the axes `joined`, as in "gqa2/b2h4q3k17d8": a value of the axis `sizes`
    joins lengths, heads and head sizes, so that a pair with it is a tuple of all of them. `left_out`
    says of which values nothing is asked, though an id is valid. `more` are axes that are joined in
    threes at standard, too.
    """
    axes = {"dtype": tuple(DTYPES), **axes}
    first: Row = {name: values[0] for name, values in axes.items()}
    tokens = [name for name in axes if name not in ("dtype", "mask", *joined)]

    def text_of(row: Row) -> str:
        row = first | row
        heads, sizes, *own = sizes_of(row).split("/")
        mask, *form = str(row.get("mask", "none")).split("/")
        words = [str(row[name]) for name in tokens if row[name]]
        return "/".join([operator, mask, heads, str(row["dtype"]), sizes, *own, *form, *words])

    @cache
    def id_of(text: str) -> str:
        """The id with its options in their order; "" if it is invalid."""
        try:
            return Case.read(text).id
        except ValueError:
            return ""

    def valid(row: Row) -> bool:
        others = (row | {n: value} for n in axes if n not in row for value in axes[n])
        # An id is valid in every dtype or in none.
        return any(
            not left_out(one) and id_of(text_of(one | {"dtype": first["dtype"]}))
            for one in chain([row], others)
        )

    return Covering(
        axes,
        valid,
        ("dtype", *joined),
        lambda row: id_of(text_of(row)),
        [*pairs_of(axes), *more],
        at_full=list(combinations(axes, 3)),
    )
