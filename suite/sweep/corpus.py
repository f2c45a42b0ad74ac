"""The corpus: the problems that searches of a sweep found interesting, few of them.

A problem is interesting because it fails, or because an answer comes near to its bound. Of each cause
one problem is kept, the one with the shortest id; of each implementation and check so many causes
(`CAUSES`), those with the shortest ids; and so many problems near their bounds (`Nearest`). What is kept
hangs on what was met, and not on the order in which it was.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from suite.records import sweeps
from suite.records.searches import SEARCH, Cause, Hit, Searched, cause_id
from suite.sweep.searching import Nearest

CAUSES = 16
"""Causes of an implementation and check of which the corpus has a problem."""


class Corpus:
    """The corpus of the searches in a folder, and its file `search/corpus.jsonl`, a line a problem."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / SEARCH / "corpus.jsonl"
        self._of: dict[str, _OfTable] = defaultdict(_OfTable)
        self._written = b""

    def take(self, met: Searched) -> None:
        """Take in what was met, and write down what is interesting now; what the corpus itself gave
        in other tables adds nothing to it. Raises OSError."""
        if met.corpus:
            return
        table = self._of[table_of(met.options)]
        for hit in met.hits:
            table.meet(hit)
        for near in met.near:
            table.nearest.take(near)
        lines = {json.dumps(entry): None for _, of in sorted(self._of.items()) for entry in of}
        data = "".join(f"{line}\n" for line in lines).encode()
        if data != self._written:
            sweeps.write(self.path, data, anew=True)
            self._written = data

    def of_others(self, table: str) -> set[str]:
        """The cases that are interesting in other tables than this one (`table_of`), and that end no
        process."""
        others = [of for name, of in self._of.items() if name != table]
        return {case for of in others for case in of.cases()}


def table_of(options: dict[str, Any]) -> str:
    """What identifies the table whose searches have these options."""
    return json.dumps(options, sort_keys=True)


class _OfTable:
    """What is interesting in the searches of a table; iterates over entries of the file."""

    def __init__(self) -> None:
        self.nearest = Nearest()
        self._causes: dict[tuple[str, ...], dict[Cause, Hit]] = defaultdict(dict)

    def meet(self, hit: Hit) -> None:
        """Keep a failure, where it is among those that are kept."""
        kept = self._causes[hit.cause[:2]]
        kept[hit.cause] = min(hit, kept.get(hit.cause, hit), key=_length)
        if len(kept) > CAUSES:
            del kept[max(kept, key=lambda cause: (_length(kept[cause]), cause))]

    def cases(self) -> Iterator[str]:
        """The cases that end no process."""
        yield from (hit.case for hit in self._hits() if hit.status != "crash")
        yield from (near.case for near in self.nearest.entries())

    def _hits(self) -> Iterator[Hit]:
        for _, kept in sorted(self._causes.items()):
            yield from (hit for _, hit in sorted(kept.items()))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for hit in self._hits():
            implementation, check, *_ = hit.cause
            yield {"case": hit.case, "why": hit.kind, "of": implementation, "check": check,
                   "cause": cause_id(hit.cause)}  # fmt: skip
        for near in self.nearest.entries():
            yield {"case": near.case, "why": "near its bound", "of": near.implementation,
                   "check": near.check, "ratio": near.ratio}  # fmt: skip


def _length(hit: Hit) -> tuple[int, str]:
    return len(hit.case), hit.case
