"""Cases of an operator that together contain every pair of values of its axes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.covering import Covering, Row, pairs_of
from attention_conformance.suite.spec.dtypes import DTYPES

WIDE = re.compile(r"d(6[4-9]|[7-9]\d|\d{3,})|r(257|512)")
"""The heads of models, 64 components and more, and their latents."""


def has_wide_heads(row: Row) -> bool:
    """Returns True for a row with heads or latents of models (`WIDE`)."""
    return any(WIDE.search(str(row.get(name, ""))) for name in ("sizes", "heads", "widths"))


def is_wide_in_float64(row: Row) -> bool:
    """Returns True for heads and latents of models in float64. Nobody runs these, and their bounds cost
    most."""
    return row.get("dtype") == "f64" and has_wide_heads(row)


def covering_of(
    operator: str,
    axes: Mapping[str, Sequence[str]],
    sizes_of: Callable[[Row], str] = lambda row: str(row["sizes"]),
    size_axes: Sequence[str] = ("sizes",),
    is_excluded: Callable[[Row], bool] = lambda row: False,
    triples: Sequence[tuple[str, ...]] = (),
) -> Covering:
    """Returns a covering array of the ids of an operator: of pairs of axes, at the level full of triples.

    The values of axes are tokens of ids, "" for none. A tuple of values is covered if it has a valid id
    in which all other axes, or all but one, have their first values.
    - `sizes_of`: from a row to heads, sizes and further tokens, such as "gqa2/b2h4q3k17d8"; it reads the
      axes `size_axes`. By default one value of the axis "sizes" has all lengths, heads and head sizes.
    - `is_excluded`: True for rows that are left out although their ids are valid.
    - `triples`: three axes each, which all levels cover together.
    """
    axes = {"dtype": tuple(DTYPES), **axes}
    defaults: Row = {name: values[0] for name, values in axes.items()}
    tokens = [name for name in axes if name not in ("dtype", "mask", *size_axes)]

    def text_of(row: Row) -> str:
        """Returns an id of a row, with its options in any order. Axes that the row lacks have their first
        values."""
        row = defaults | row
        heads, sizes, *further = sizes_of(row).split("/")
        mask, *form = str(row.get("mask", "none")).split("/")
        words = [str(row[name]) for name in tokens if row[name]]
        parts = (operator, mask, heads, str(row["dtype"]), sizes)
        return "/".join([*parts, *further, *form, *words])

    @cache
    def case_of(text: str) -> Case | None:
        """Returns the case of an id with its options in any order; None if it is invalid."""
        try:
            return Case.read(text)
        except ValueError:
            return None

    def id_of(row: Row) -> str:
        """Returns the id of a row, with its options in the operator's order; "" if it is invalid."""
        case = case_of(text_of(row))
        return "" if case is None else case.id

    def has_id(row: Row) -> bool:
        """Returns True if the id of the row is valid, in any dtype: an id is valid in all or in none."""
        return (
            not is_excluded(row)
            and case_of(text_of(row | {"dtype": defaults["dtype"]})) is not None
        )

    @cache
    def has_longer_id(*values: tuple[str, object]) -> bool:
        """Returns True if the id of a row of these (axis, value), with a value of one more axis, is
        valid."""
        row = dict(values)
        return any(has_id(row | {n: value}) for n in axes if n not in row for value in axes[n])

    def valid(row: Row) -> bool:
        """Returns True if the id of the row is valid, or that of the row with a value of one more axis.
        Most rows without an id have two values that exclude each other, which takes few ids to see."""
        if has_id(row):
            return True
        *earlier, last = row.items()
        pairs = (dict([one, last]) for one in earlier)
        are_possible = all(has_id(pair) or has_longer_id(*pair.items()) for pair in pairs)
        return are_possible and has_longer_id(*row.items())

    return Covering(
        axes,
        valid,
        ("dtype", *size_axes),
        id_of,
        [*pairs_of(axes), *triples],
    )
