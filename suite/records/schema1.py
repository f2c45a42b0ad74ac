"""Files of the first schema, read as if they were of the second.

What is a column now was read out of ids and sentences then: the operator, the election question and
what a case needs out of the case's id, error ratios by operand and the kernels that ran out of
`observed`. Layers had checks of their own, whose names are those of all operators now. Nothing else
reads an id.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from suite.spec.vocabulary import CHECK_ALIASES, canonical_check

if TYPE_CHECKING:
    from suite.records.cells import CellRecord
    from suite.records.speed import SpeedRecord

DEFAULT = "sdpa"
"""The operator whose elections and bad problems do not name it."""

_RATIO = r"(\w+) (\d[\d.e+-]*|inf|nan)"
_RATIOS = re.compile(f"{_RATIO}(?:, {_RATIO})*")
_VALUE_SIZE = re.compile(r"b\d+h\d+q\d+k\d+d\d+v\d+")
_KEYS = re.compile(r"/b\d+h\d+q\d+k(\d+)d\d+")
_OPTIONS = {"average": "average", "head": "weights", "single": "squeezed"}
"""Options of a layer's id, and the features they stand for."""

_FORMER = {name: former for former, name in CHECK_ALIASES.items()}


def cell(record: CellRecord) -> CellRecord:
    """A record of a cell with the columns of the second schema."""
    tokens = record.case.split("/")
    probe = tokens[0] in ("elect", "bad")
    operator = tokens[0]
    if probe:
        operator = tokens[1] if len(tokens) > 3 else DEFAULT
    check = canonical_check(record.check)
    observed, kernels, ratios = record.observed, "", {}
    if check == "values":
        observed, kernels = "", observed
    elif _RATIOS.fullmatch(observed):
        ratios = {name: float(text) for name, text in re.findall(_RATIO, observed)}
        observed = ""
    return replace(
        record,
        check=check,
        operator=operator,
        question=tokens[-2] if tokens[0] == "elect" and len(tokens) > 2 else "",
        features=() if probe else _features(tokens),
        observed=observed,
        kernels=kernels,
        ratios=ratios,
    )


def key(record: CellRecord) -> tuple:
    """The key that the first schema gave a cell, under its check's name of then."""
    if record.operator == DEFAULT:
        return record.key
    return replace(record, check=_FORMER.get(record.check, record.check)).key


def speed(record: SpeedRecord) -> SpeedRecord:
    """A record of a time with the columns of the second schema."""
    keys = _KEYS.search(record.case)
    return replace(
        record,
        operator=record.case.partition("/")[0],
        keys=int(keys[1]) if keys else 0,
        swept=record.workload.startswith("sweep-"),
    )


def _features(tokens: list[str]) -> tuple[str, ...]:
    """What the tables of a report ask of a case's needs, as far as an id says it."""
    features = [_OPTIONS[token] for token in tokens if token in _OPTIONS]
    if any(_VALUE_SIZE.fullmatch(token) for token in tokens):
        features.append("value-size")
    return tuple(features)
