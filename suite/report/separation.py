"""Separation: properties that all failing cells have and no passing cell has.

An axis is a column of `axes`: the dtype, a feature, a fact of the case, or a comparison of sizes. A
condition holds for every failing cell on one axis: a threshold of numbers, or one of a few words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from suite.report.frames import expanded

COMPARED = (("Lq", "Lk"), ("Hkv", "H"), ("Dv", "D"))
"""Pairs of sizes that kernels confuse. Which one is larger is an axis."""

BLOCKED = ("Lq", "Lk", "D")
BLOCKS = (16, 64)
"""Common block sizes of kernels. Whether a block divides a size is an axis."""

WORDS_AT_MOST = 3
"""The largest number of words in a condition."""

PAIRED_FROM = 3
"""The smallest number of failures for a pair of conditions; fewer failures are always separated by some
pair."""


@dataclass(frozen=True, eq=False)
class Condition:
    """A property of every failing cell.

    - `text`: the property in words
    - `shared`: a flag for every passing cell, True if the cell has the property, too
    - `rank`: 0 for properties that are least likely by chance
    - `values`: the number of different values among the failures
    - `numbers`: whether the property concerns a size
    """

    text: str
    shared: np.ndarray
    rank: int
    values: int
    numbers: bool = False


def axes(cells: pd.DataFrame) -> pd.DataFrame:
    """The facts of every case, a column per axis: integers (Int64) or words (category); index case.

    Missing facts are NA.
    """
    cases = cells.drop_duplicates("case").set_index("case")
    facts = expanded(cases["facts"])
    numbers = facts.select_dtypes("Int64")
    words: dict[str, Any] = {"dtype": "dtype " + cases["dtype"]}
    for name in dict.fromkeys(name for needs in cases["features"] for name in needs):
        words[f"feature {name}"] = [
            f"feature {name}" if name in needs else f"no feature {name}"
            for needs in cases["features"]
        ]
    for name in facts.columns.drop(numbers.columns):
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
    """One sentence on the difference between failing and passing cells, both rows of `axes`.

    `failing` must not be empty.
    """
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
            c.text for c in others if c.numbers and (c.rank, c.values) == (first.rank, first.values)
        ]
        also = f"; so with {same[0]}" if first.numbers and same else ""
        return f"{all_have} {first.text}, {none_has}{also}"
    if count >= PAIRED_FROM and (pair := _pair(conditions)):
        return f"{all_have} {pair[0].text} and {pair[1].text}, {none_has} both"
    nearest = min(conditions, key=lambda c: c.shared.sum(), default=None)
    if nearest and (common := int(nearest.shared.sum())) <= passed / 2:
        have = "has" if common == 1 else "have"
        return f"{all_have} {nearest.text}, as {have} {common} of {passed} passes"
    failures = "the failure" if count == 1 else f"the {count} failures"
    return f"no axis separates {failures} from {passed} passes"


def _conditions(failing: pd.DataFrame, passing: pd.DataFrame) -> Iterator[Condition]:
    """The conditions that hold for every failing cell, axis by axis."""
    for name in failing.columns[failing.notna().all()]:
        whole = pd.api.types.is_integer_dtype(failing[name])
        yield from (_of_numbers if whole else _of_words)(failing[name], passing[name])


def _of_numbers(failing: pd.Series, passing: pd.Series) -> Iterator[Condition]:
    """Conditions on numbers: a threshold, or one number.

    A single value lies beyond all others by chance more often than several values do.
    """
    values, least, most = failing.nunique(), int(failing.min()), int(failing.max())
    others = passing.astype("float64").to_numpy()
    of = partial(Condition, rank={1: 4, 2: 2}.get(values, 0), values=values, numbers=True)
    yield of(f"{failing.name} >= {least}", others >= least)
    yield of(f"{failing.name} <= {most}", others <= most)
    if values == 1:
        yield of(f"{failing.name} = {least}", others == least)


def _of_words(failing: pd.Series, passing: pd.Series) -> Iterator[Condition]:
    words = list(failing.unique())
    if len(words) <= WORDS_AT_MOST:
        shared = passing.isin(words).to_numpy()
        yield Condition(" or ".join(words), shared, 1 if len(words) == 1 else 3, len(words))


def _pair(conditions: list[Condition]) -> tuple[Condition, Condition] | None:
    """The first two conditions that hold together for no passing cell."""
    shared = np.array([condition.shared for condition in conditions], dtype=np.int64)
    apart = np.argwhere(np.triu(shared @ shared.T == 0, 1))
    if not len(apart):
        return None
    first, second = apart[apart.sum(axis=1).argmin()]
    return conditions[first], conditions[second]
