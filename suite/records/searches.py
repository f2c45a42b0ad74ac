"""Records of searches that a sweep makes: what each seed met, and what was found, each cause once.

FOLDER/search/NAME/seed-N-FIRST-END.json  what a part of the search with this seed met (`Searched`)
FOLDER/search/NAME/corpus-X.json          what problems gave there that are interesting elsewhere
FOLDER/search/findings/ID.json            a cause (`SearchFinding`), its case made small; ID.py, a script
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from suite.records.lines import CHANGED, BrokenLine

SEARCH, FINDINGS = "search", "findings"

Cause = tuple[str, ...]
"""What makes two failures one: implementation, check, kind, dtype, and the message without its
numbers."""


@dataclass(frozen=True)
class Hit:
    """A way of failing that a search met so many times, and the first case that failed so."""

    cause: Cause
    case: str
    status: str
    kind: str
    message: str
    times: int = 1


@dataclass(frozen=True)
class Near:
    """A case whose answer came near to its bound: max |error| / bound."""

    implementation: str
    check: str
    dtype: str
    case: str
    ratio: float


@dataclass(frozen=True)
class Searched:
    """What a part of a search met: cases judged, cells by status, failures, and the answers nearest to
    their bounds.

    It judged the cases `first` to `end` - 1 `of` so many that the search drew, whose ids have this
    digest. `corpus` is whether it drew nothing, and was asked these problems that others had met. `ended`
    says how processes ended as they judged, the last one, and at which cell; "" where none did. `options`
    are those of its table, `versions` those of the machine.
    """

    backends: tuple[str, ...]
    seed: int
    examples: int
    statuses: dict[str, int]
    seconds: float
    digest: str
    hits: tuple[Hit, ...] = ()
    near: tuple[Near, ...] = ()
    ended: str = ""
    corpus: tuple[str, ...] = ()
    first: int = 0
    of: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The number of the first case that it did not judge."""
        return self.first + self.examples


@dataclass(frozen=True)
class SearchFinding:
    """A cause, once: the case as it was drawn, and the smallest that fails in the same way.

    `repeats` is whether it failed when it was judged once more; `script` shows it without this project,
    or `no_script` says why there is none.
    """

    cause: Cause
    backends: tuple[str, ...]
    drawn: str
    case: str
    status: str
    kind: str
    message: str
    repeats: bool
    script: str = ""
    no_script: str = ""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """What its files are called."""
        return cause_id(self.cause)


def cause_id(cause: Cause) -> str:
    """A short name of a cause."""
    return hashlib.sha256(json.dumps(cause).encode()).hexdigest()[:12]


def encoded(record: Searched | SearchFinding) -> bytes:
    """A file of one record. Ratios that are no numbers are written as Python's JSON does."""
    return (json.dumps(asdict(record), indent=1) + "\n").encode()


def searched(folder: Path) -> Iterator[Searched]:
    """What searches below the folder of a sweep met. Raises BrokenLine."""
    for path in sorted((folder / SEARCH).glob("*/*.json")):
        if path.parent.name != FINDINGS:
            yield _read(path, Searched)


def findings(folder: Path) -> Iterator[SearchFinding]:
    """What was found below the folder of a sweep. Raises BrokenLine."""
    for path in sorted((folder / SEARCH / FINDINGS).glob("*.json")):
        yield _read(path, SearchFinding)


T = TypeVar("T")


def _read(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.convert(json.loads(path.read_text(encoding="utf-8")), kind)
    except (ValueError, OSError) as error:
        raise BrokenLine(f"{path}: {error}; {CHANGED}") from error
