"""Separation: properties that all failing cells have and no passing cell has.

An axis is a column of `Axes`: the dtype, a feature, a fact of the case, or a comparison of sizes. A
condition holds for every failing cell on one axis: a threshold of numbers, or one of a few words. Words
come first, since kernels branch by mask, feature and dtype. Sizes separate a few cells by chance: a
condition on sizes needs `MIN_CELLS` failures and `MIN_CELLS` passes without the property.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from attention_conformance.suite.report.frames import dict_columns

COMPARED = (("Lq", "Lk"), ("Hkv", "H"), ("Dv", "D"))
"""Pairs of sizes that kernels confuse. The comparison of each pair is an axis."""

BLOCKED = ("Lq", "Lk", "D")
BLOCKS = (16, 64)
"""Common block sizes of kernels. Divisibility of a size by a block is an axis."""

SIZES = ("B", "H", "Hkv", "Lq", "Lk", "D", "Dv")

SIZE_AXES = (
    *(f"{one} : {other}" for one, other in COMPARED),
    *(f"{name} % {block}" for name in BLOCKED for block in BLOCKS),
)
"""The axes of words whose property is one of sizes."""

MAX_WORDS = 3
"""The largest number of words in a condition."""

MIN_FAILURES_OF_PAIR = 3
"""The smallest number of failures for a pair of conditions: some pair always separates fewer failures."""

MIN_CELLS = 4
"""The smallest number of failures, and of passes on the other side, for a condition on sizes."""


MISSING = np.iinfo(np.int64).min
"""The number of a missing fact."""


@dataclass(frozen=True, eq=False)
class Axes:
    """The facts of cases: in `table` a row per case and a column per axis.

    Entries are numbers, or places in the `words` of the axis, which are empty for an axis of numbers.
    `full` is False for cases without elements.
    """

    names: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]
    table: np.ndarray
    full: np.ndarray


@dataclass(frozen=True, eq=False)
class Condition:
    """A property of every failing cell.

    - `text`: the property in words
    - `shared`: a flag for every passing cell, True if the cell has the property, too
    - `common`: the number of these cells
    - `rank`: 0 for properties that are least likely by chance
    - `values`: the number of different values among the failures
    - `sizes`: whether the property concerns sizes
    """

    text: str
    shared: np.ndarray
    common: int
    rank: int
    values: int
    sizes: bool


def axes(cells: pd.DataFrame) -> Axes:
    """Returns the facts of every case as axes. Cases are in the order of occurrence. Axes of words come
    first (mask, features, dtype, other facts, `SIZE_AXES`), then axes of numbers."""
    cases = cells.drop_duplicates("case")
    facts = dict_columns(cases["facts"])
    numbers = facts.select_dtypes("Int64")
    words: dict[str, Any] = {}
    if "mask" in facts:
        words["mask"] = [_fact_in_words("mask", value) for value in facts["mask"]]
    for name in dict.fromkeys(name for needs in cases["features"] for name in needs):
        words[f"feature {name}"] = [
            f"feature {name}" if name in needs else f"no feature {name}"
            for needs in cases["features"]
        ]
    words["dtype"] = "dtype " + cases["dtype"]
    for name in facts.columns.drop([*numbers.columns, *words.keys() & {"mask"}]):
        words[name] = [_fact_in_words(name, value) for value in facts[name]]
    words |= _words_of_sizes(numbers)
    columns = pd.DataFrame(words, index=cases.index, dtype="category")
    codes = [columns[name].cat.codes.astype("int64").replace(-1, MISSING) for name in columns]
    texts = [tuple(columns[name].cat.categories) for name in columns]
    return Axes(
        (*words, *numbers),
        (*texts, *([()] * len(numbers.columns))),
        np.column_stack([*codes, *(numbers[n].fillna(MISSING).astype("int64") for n in numbers)]),
        ~(numbers.filter(SIZES) == 0).fillna(False).any(axis=1).to_numpy(bool),
    )


def _words_of_sizes(numbers: pd.DataFrame) -> dict[str, pd.Series]:
    """Returns the axes `SIZE_AXES` by name, with a text for each case. `numbers` has a row per case."""
    words = {}
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
    return words


def _fact_in_words(name: str, value: Any) -> str:
    """Returns a fact in words: "mask causal", "lse on", "no bias"."""
    if pd.isna(value):
        return f"no {name}"
    if isinstance(value, bool):
        return f"{name} {'on' if value else 'off'}"
    return f"{name} {value}".replace("_", " ")


def separation(axes: Axes, failing: np.ndarray, passing: np.ndarray) -> str:
    """Returns one sentence on the difference between failing and passing cells; "" if no axis separates
    them. `failing` and `passing` are row numbers of `axes.table`.

    `failing` must not be empty. If every failing case has elements, passing cases without elements are
    left out, because they always pass."""
    has_elements = axes.full[passing]
    if axes.full[failing].all() and not has_elements.all():
        passing = passing[has_elements]
        if not len(passing):
            return "no cell of the check that has elements passes"
    if not len(passing):
        return "no cell of the check passes"
    failure_count, pass_count = len(failing), len(passing)
    all_have = f"all {failure_count} failures have"
    all_have = {1: "the only failure has", 2: "both failures have"}.get(failure_count, all_have)
    none_has = "the only pass has not" if pass_count == 1 else f"none of {pass_count} passes has"
    conditions_found = _conditions(axes, axes.table[failing], axes.table[passing])
    conditions = sorted(conditions_found, key=lambda c: (c.rank, -c.values))
    separating = [condition for condition in conditions if not condition.common]
    if separating:
        first, *further = separating
        equivalent = [
            c.text for c in further if c.sizes and (c.rank, c.values) == (first.rank, first.values)
        ]
        suffix = f"; so with {equivalent[0]}" if first.sizes and equivalent else ""
        return f"{all_have} {first.text}, {none_has}{suffix}"
    if failure_count >= MIN_FAILURES_OF_PAIR and (pair := _pair(conditions)):
        return f"{all_have} {pair[0].text} and {pair[1].text}, {none_has} both"
    nearest = min(conditions, key=lambda c: c.common, default=None)
    if nearest and nearest.common <= pass_count / 2:
        verb = "has" if nearest.common == 1 else "have"
        return f"{all_have} {nearest.text}, as {verb} {nearest.common} of {pass_count} passes"
    return ""


def _conditions(axes: Axes, failing: np.ndarray, passing: np.ndarray) -> Iterator[Condition]:
    """Yields the conditions that hold for every failing cell, axis by axis: a threshold, one number, or a
    few words. `failing` and `passing` are the rows of these cells in `axes.table`.

    Conditions of one or two different numbers have a worse rank: they separate by chance more often.
    """
    ordered = np.sort(failing, axis=0)
    smallest, largest = ordered[0], ordered[-1]
    values = 1 + (np.diff(ordered, axis=0) != 0).sum(axis=0)
    from_least, to_most = passing >= smallest, (passing <= largest) & (passing != MISSING)
    equal = passing == smallest
    for axis in np.flatnonzero(smallest != MISSING):
        name, words, value_count = axes.names[axis], axes.words[axis], int(values[axis])
        candidates: list[tuple[str, np.ndarray]] = []
        if not words:
            rank, sizes = {1: 5, 2: 3}.get(value_count, 1), True
            candidates = [
                (f"{name} >= {smallest[axis]}", from_least[:, axis]),
                (f"{name} <= {largest[axis]}", to_most[:, axis]),
                *([(f"{name} = {smallest[axis]}", equal[:, axis])] if value_count == 1 else []),
            ]
        elif value_count <= MAX_WORDS:
            sizes = name in SIZE_AXES
            rank = 4 if value_count > 1 else 2 if sizes else 0
            codes = [*dict.fromkeys(failing[:, axis].tolist())]
            shared = equal[:, axis] if value_count == 1 else np.isin(passing[:, axis], codes)
            candidates = [(" or ".join(words[code] for code in codes), shared)]
        for text, shared in candidates:
            common = int(np.count_nonzero(shared))
            if not sizes or min(len(failing), len(passing) - common) >= MIN_CELLS:
                yield Condition(text, shared, common, rank, value_count, sizes)


def _pair(conditions: list[Condition]) -> tuple[Condition, Condition] | None:
    """Returns the first two conditions that hold together for no passing cell."""
    shared = np.array([condition.shared for condition in conditions], dtype=np.float32)
    separating_pairs = np.argwhere(np.triu(shared @ shared.T == 0, 1))
    if not len(separating_pairs):
        return None
    first, second = separating_pairs[separating_pairs.sum(axis=1).argmin()]
    return conditions[first], conditions[second]
