"""Topics: the columns of the matrix on the first screen of a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pandas as pd

from attention_conformance.suite.spec.operators import OPERATORS


@dataclass(frozen=True)
class Topic:
    """A question that people ask of an implementation, as a column of the matrix.

    A cell belongs to the topic if its case needs one of `features`, is in one of `groups` of the default
    operator, is of one of `operators` or of `mode`, or if its check matches one of `checks`.
    """

    name: str
    text: str
    features: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    mode: str = ""

    def contains(self, columns: Mapping[str, tuple[np.ndarray, Any]]) -> np.ndarray:
        """Returns a boolean array, True for cells that belong to the topic. `columns`: the columns of the
        cells by name, each as codes and values from `pd.factorize`."""

        def where(column: str, condition: Callable[[Any], bool]) -> np.ndarray:
            """Returns a boolean array, True for cells whose value in the column meets the condition."""
            codes, values = columns[column]
            return np.array([condition(value) for value in values], dtype=bool)[codes]

        own_features = frozenset(self.features)
        return (
            where("features", lambda needed: not own_features.isdisjoint(needed))
            | where("check", lambda name: any(fnmatchcase(name, p) for p in self.checks))
            | where("operator", self.operators.__contains__)
            | where("operator", _DEFAULT.__contains__) & where("group", self.groups.__contains__)
            | where("mode", self.mode.__eq__)
        )


def topic_members(cells: pd.DataFrame) -> pd.DataFrame:
    """Returns a boolean column for each topic that has cells, `ALL` first: True for the cells of the
    topic."""
    names = ("features", "check", "operator", "group", "mode")
    columns = {name: pd.factorize(cells[name]) for name in names}
    topics = {ALL.name: np.full(len(cells), True)} | {t.name: t.contains(columns) for t in TOPICS}
    return pd.DataFrame({n: rows for n, rows in topics.items() if rows.any()}, cells.index)


_DEFAULT = tuple(name for name, operator in OPERATORS.items() if operator.is_default)


def _operators_by_topic() -> dict[tuple[str, str], list[str]]:
    """Returns the names of operators other than plain attention, by topic (name and text)."""
    topics: dict[tuple[str, str], list[str]] = {}
    for name, operator in OPERATORS.items():
        if not operator.is_default:
            topics.setdefault(operator.topic, []).append(name)
    return topics


ALL = Topic("all", "every question")

TOPICS = (
    Topic("plain", "no mask, bias or other feature", groups=("none",)),
    Topic("masks", "boolean masks and padding", features=("padding", "mask-array", "raw-mask"),
          groups=("bool", "prefix", "seg")),
    Topic("causal", "causal masks of every alignment", features=("causal", "native-causal")),
    Topic("window", "sliding windows", features=("window",)),
    Topic("grouped", "fewer key heads than query heads", features=("grouped-heads",)),
    Topic("bias", "an additive bias", features=("bias",)),
    Topic("softcap", "tanh-capped scores", features=("softcap",)),
    Topic("sinks", "a learned sink per head", features=("sinks",)),
    Topic("lse", "the log-sum-exp as second output", features=("lse",)),
    Topic("ALiBi", "slopes by distance", features=("alibi-slopes",)),
    Topic("dropout", "dropout of the weights", features=("dropout",), checks=("dropout*",)),
    Topic("gradients", "derivatives of every kind", checks=("*gradient*", "tangents")),
    Topic("hidden", "no influence of hidden or future keys, NaN included",
          checks=("hidden", "future", "poison", "nan", "segments_apart")),
    Topic("long rows", "a thousand keys and more", checks=("long_rows",)),
    Topic("layouts", "strides, gaps and views", checks=("*layouts", "*arrangements")),
    Topic("calls", "purity, state between calls, ambient modes",
          checks=("contract", "stateless", "remembered", "kept_answers", "*_memory", "ambient*")),
    Topic("batch", "the same answer in every batch", checks=("invariant_*", "*_independence")),
    Topic("refusals", "malformed problems are refused", checks=("bad_*",)),
    Topic("compiled", "through the framework's compilers", mode="compiled"),
    *(Topic(*topic, operators=tuple(names)) for topic, names in _operators_by_topic().items()),
)  # fmt: skip
"""The columns of the matrix, in order."""
