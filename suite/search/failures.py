"""What a search finds: failures, what is known of them elsewhere, and the summary of all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from backends.protocol import Implementation
from suite.judge.cell import Cell
from suite.judge.check import Check
from suite.judge.verdict import Verdict
from suite.records.expectations import Manifest
from suite.spec.case import Case
from suite.spec.dtypes import DTYPES

Key = tuple[str, str, str, str, str]


def failure_key(cell: Cell, verdict: Verdict) -> Key:
    """What makes two failures one: implementation, check, kind, the message without its numbers, and
    of wrong numbers the dtype."""
    text = re.split(r"element \(", verdict.message, maxsplit=1)
    said = text[0] + ("element" if len(text) > 1 else "")
    said = re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "N", said)
    of_dtype = cell.case.dtype.name if verdict.kind in ("value", "non-finite") else ""
    return str(cell.implementation), cell.check.name, verdict.kind, of_dtype, said


@dataclass
class Failure:
    """A way of failing that was found: the case as it was drawn, and the minimal one."""

    key: Key
    implementation: Implementation
    check: Check
    drawn: Case
    case: Case
    verdict: Verdict
    example: int
    shrunk: bool = False
    repeats: bool = True
    times: int = 1


@dataclass
class KnownAlike:
    """Failures like those of an entry of a manifest, in cases that its patterns do not name."""

    source: str
    cause: str
    case: Case
    implementation: str
    times: int = 1


@dataclass
class Summary:
    """What a search did."""

    seed: int
    examples: int = 0
    """Distinct cases drawn and judged."""
    shrinking: int = 0
    """Cells judged on the way to minimal cases."""
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    """Cells by status; `like known` beside those of the suite."""
    axes: dict[str, Counter[str]] = field(default_factory=dict)
    """Cases by the values of every axis they were drawn along, options by their names."""
    failures: list[Failure] = field(default_factory=list)
    alike: dict[str, KnownAlike] = field(default_factory=dict)
    digest: str = ""
    """Of the ids of the examples, in order."""


def values_of(case: Case) -> Iterator[tuple[str, str]]:
    """The axes of the search with the values they have in a case."""
    yield "operators", case.operator.name
    yield "masks", re.sub(r"\d+", "N", case.mask_token)
    yield "dtypes", case.dtype.name
    yield "heads", case.sizes.heads
    yield "sizes", "/".join([case.sizes.token, *([case.widths.token] if case.widths else [])])
    yield "recipes", case.recipe
    yield "axis orders", case.axis_order
    yield "forms", case.form
    for option in case.operator.options:
        yield option.name, str(case.option(option.name))


def alike(manifest: Manifest, cell: Cell, verdict: Verdict) -> tuple[str, str] | None:
    """Source and cause of the entry that knows this failure in other cases of the operator and the dtype,
    or None.

    Entries name cells of the catalogue, whose sizes are few; drawn cases have any.
    """
    for entry in manifest.entries:
        of_case = any(
            _dtype_of(p) in ("*", cell.case.dtype.name)
            and fnmatchcase(cell.case.operator.name, p.partition("/")[0])
            for p in entry.case
        )
        named = cell.implementation.name in entry.implementation
        of_check = {"*", cell.check.name} & set(entry.check)
        meant = named and of_check and of_case and verdict.kind == entry.kind
        if meant and re.search(entry.message, verdict.message):
            return entry.source, entry.cause
    return None


def _dtype_of(pattern: str) -> str:
    """The dtype that a pattern of case ids names, "*" where it names none."""
    named = set(pattern.split("/")) & set(DTYPES)
    return named.pop() if len(named) == 1 else "*"
