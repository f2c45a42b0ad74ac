"""Separation: properties that all failing cells have and no passing cell has.

An axis is a column of `axes`: the dtype, a feature, a fact of the case, or a comparison of sizes. A
condition holds for every failing cell on one axis: a threshold of numbers, or one of a few words. Words
come first, since kernels branch by mask, feature and dtype. Sizes separate a few cells by chance: a
condition on sizes needs `ENOUGH` failures and `ENOUGH` passes without the property.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from attention_conformance.suite.report.frames import expanded

COMPARED = (("Lq", "Lk"), ("Hkv", "H"), ("Dv", "D"))
"""Pairs of sizes that kernels confuse. Which one is larger is an axis."""

BLOCKED = ("Lq", "Lk", "D")
BLOCKS = (16, 64)
"""Common block sizes of kernels. Whether a block divides a size is an axis."""

SIZES = ("B", "H", "Hkv", "Lq", "Lk", "D", "Dv")

OF_SIZES = (
    *(f"{one} : {other}" for one, other in COMPARED),
    *(f"{name} % {block}" for name in BLOCKED for block in BLOCKS),
)
"""The axes of words that concern sizes."""

WORDS_AT_MOST = 3
"""The largest number of words in a condition."""

PAIRED_FROM = 3
"""The smallest number of failures for a pair of conditions; fewer failures are always separated by some
pair."""

ENOUGH = 4
"""The smallest number of failures, and of passes on the other side, for a condition on sizes."""


@dataclass(frozen=True, eq=False)
class Condition:
    """A property of every failing cell.

    - `text`: the property in words
    - `shared`: a flag for every passing cell, True if the cell has the property, too
    - `rank`: 0 for properties that are least likely by chance
    - `values`: the number of different values among the failures
    - `sizes`: whether the property concerns sizes
    """

    text: str
    shared: np.ndarray
    rank: int
    values: int
    sizes: bool = False


def axes(cells: pd.DataFrame) -> pd.DataFrame:
    """The facts of every case, a column per axis: integers (Int64) or words (category); index case.

    Missing facts are NA.
    """
    cases = cells.drop_duplicates("case").set_index("case")
    facts = expanded(cases["facts"])
    numbers = facts.select_dtypes("Int64")
    words: dict[str, Any] = {}
    if "mask" in facts:
        words["mask"] = [_worded("mask", value) for value in facts["mask"]]
    for name in dict.fromkeys(name for needs in cases["features"] for name in needs):
        words[f"feature {name}"] = [
            f"feature {name}" if name in needs else f"no feature {name}"
            for needs in cases["features"]
        ]
    words["dtype"] = "dtype " + cases["dtype"]
    for name in facts.columns.drop([*numbers.columns, *words.keys() & {"mask"}]):
        words[name] = [_worded(name, value) for value in facts[name]]
    for one, other in COMPARED:
        if {one, other} <= set(numbers):
            signs = {
                sign: f"{one} {word} {other}" for sign, word in ((-1, "<"), (0, "="), (1, ">"))
            }
            words[f"{one} : {other}"] = (numbers[one] - numbers[other]).clip(-1, 1).map(signs)
    for name in BLOCKED:
        for block in BLOCKS if name in numbers else ():
            divides = {
                True: f"{name} a multiple of {block}",
                False: f"{name} no multiple of {block}",
            }
            words[f"{name} % {block}"] = (numbers[name] % block == 0).map(divides)
    return pd.DataFrame(words, index=cases.index, dtype="category").join(numbers)


def _worded(name: str, value: Any) -> str:
    """A fact in words: "mask causal", "lse on", "no bias"."""
    if pd.isna(value):
        return f"no {name}"
    if isinstance(value, bool):
        return f"{name} {'on' if value else 'off'}"
    return f"{name} {value}".replace("_", " ")


def separation(failing: pd.DataFrame, passing: pd.DataFrame) -> str:
    """One sentence on the difference between failing and passing cells, both rows of `axes`; "" if no
    axis separates them.

    `failing` must not be empty. Passing cells without elements are left out if every failing cell has
    elements: they pass whatever the function computes.
    """
    full = _has_elements(passing)
    if _has_elements(failing).all() and not full.all():
        passing = passing[full]
        if passing.empty:
            return "no cell of the check that has elements passes"
    if passing.empty:
        return "no cell of the check passes"
    count, passed = len(failing), len(passing)
    all_have = f"all {count} failures have"
    all_have = {1: "the only failure has", 2: "both failures have"}.get(count, all_have)
    none_has = "the only pass has not" if passed == 1 else f"none of {passed} passes has"
    conditions = sorted(_conditions(failing, passing), key=lambda c: (c.rank, -c.values))
    apart = [condition for condition in conditions if not condition.shared.any()]
    if apart:
        first, *others = apart
        same = [
            c.text for c in others if c.sizes and (c.rank, c.values) == (first.rank, first.values)
        ]
        also = f"; so with {same[0]}" if first.sizes and same else ""
        return f"{all_have} {first.text}, {none_has}{also}"
    if count >= PAIRED_FROM and (pair := _pair(conditions)):
        return f"{all_have} {pair[0].text} and {pair[1].text}, {none_has} both"
    nearest = min(conditions, key=lambda c: c.shared.sum(), default=None)
    if nearest and (common := int(nearest.shared.sum())) <= passed / 2:
        have = "has" if common == 1 else "have"
        return f"{all_have} {nearest.text}, as {have} {common} of {passed} passes"
    return ""


def _has_elements(cells: pd.DataFrame) -> pd.Series:
    """A flag for every cell: False if a size is 0."""
    return ~(cells[[n for n in SIZES if n in cells]] == 0).fillna(False).any(axis=1)


def _conditions(failing: pd.DataFrame, passing: pd.DataFrame) -> Iterator[Condition]:
    """The conditions that hold for every failing cell, axis by axis."""
    for name in failing.columns[failing.notna().all()]:
        whole = pd.api.types.is_integer_dtype(failing[name])
        for condition in (_of_numbers if whole else _of_words)(failing[name], passing[name]):
            beside = len(passing) - condition.shared.sum()
            if not condition.sizes or min(len(failing), beside) >= ENOUGH:
                yield condition


def _of_numbers(failing: pd.Series, passing: pd.Series) -> Iterator[Condition]:
    """Conditions on numbers: a threshold, or one number.

    A single value lies beyond all others by chance more often than several values do.
    """
    values, least, most = failing.nunique(), int(failing.min()), int(failing.max())
    others = passing.astype("float64").to_numpy()
    of = partial(Condition, rank={1: 5, 2: 3}.get(values, 1), values=values, sizes=True)
    yield of(f"{failing.name} >= {least}", others >= least)
    yield of(f"{failing.name} <= {most}", others <= most)
    if values == 1:
        yield of(f"{failing.name} = {least}", others == least)


def _of_words(failing: pd.Series, passing: pd.Series) -> Iterator[Condition]:
    words = list(failing.unique())
    if len(words) <= WORDS_AT_MOST:
        shared = passing.isin(words).to_numpy()
        of_sizes = str(failing.name) in OF_SIZES
        rank = (2 if of_sizes else 0) if len(words) == 1 else 4
        yield Condition(" or ".join(words), shared, rank, len(words), of_sizes)


def _pair(conditions: list[Condition]) -> tuple[Condition, Condition] | None:
    """The first two conditions that hold together for no passing cell."""
    shared = np.array([condition.shared for condition in conditions], dtype=np.int64)
    apart = np.argwhere(np.triu(shared @ shared.T == 0, 1))
    if not len(apart):
        return None
    first, second = apart[apart.sum(axis=1).argmin()]
    return conditions[first], conditions[second]
