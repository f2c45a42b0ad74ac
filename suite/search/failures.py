"""Failures that a search found, similar failures that a manifest knows, and the summary."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.records.expectations import Manifest
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES

Key = tuple[str, str, str, str, str]


def failure_key(cell: Cell, verdict: Verdict) -> Key:
    """The key that equal failures share: implementation, check, kind, dtype (only of wrong values), and
    message without numbers."""
    text = re.split(r"element \(", verdict.message, maxsplit=1)
    said = text[0] + ("element" if len(text) > 1 else "")
    said = re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "N", said)
    of_dtype = cell.case.dtype.name if verdict.kind in ("value", "non-finite") else ""
    return str(cell.implementation), cell.check.name, verdict.kind, of_dtype, said


@dataclass
class Failure:
    """A failure: the drawn case, and the minimal case."""

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
    """Failures like those of a manifest entry, in cases that the entry's patterns do not match."""

    source: str
    cause: str
    case: Case
    implementation: str
    times: int = 1


@dataclass
class Summary:
    """The counts and failures of a search."""

    seed: int
    examples: int = 0
    """Distinct cases drawn and judged."""
    shrinking: int = 0
    """Cells judged while shrinking."""
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    """Cells by status: the suite's statuses and "like known"."""
    axes: dict[str, Counter[str]] = field(default_factory=dict)
    """Number of cases by axis (options by name) and value."""
    failures: list[Failure] = field(default_factory=list)
    alike: dict[str, KnownAlike] = field(default_factory=dict)
    digest: str = ""
    """Digest of the examples' ids, in order."""


def values_of(case: Case) -> Iterator[tuple[str, str]]:
    """The axes of the search, and the case's value on each."""
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
    """Source and cause of a manifest entry that has this failure in any case of the operator and dtype;
    else None. Entries name only sizes of the catalogue; drawn cases have any size.
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
    """The dtype in a pattern of case ids; "*" if the pattern has no dtype."""
    named = set(pattern.split("/")) & set(DTYPES)
    return named.pop() if len(named) == 1 else "*"
