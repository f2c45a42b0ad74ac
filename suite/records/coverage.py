"""Coverage: how many of its cells an implementation was judged on, and whether that is enough."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.spec.vocabulary import BROKEN, REFUSED, VALUES

MIN_JUDGED_SHARE = 0.5
"""A user function must answer this share of the cells that its signature and claims allow."""

NOT_JUDGED_ENOUGH = 6
"""The exit code of a run without failures that judged too few cells. pytest uses 0 to 5."""


def verdict_word(totals: Counter[str], shortfalls: Sequence[str] = ()) -> str:
    """Returns the verdict of a run. `totals`: the numbers of cells by status.

    - WRONG if a cell fails
    - BROKEN if only the suite or an adapter broke
    - NOT JUDGED ENOUGH if there are `shortfalls`, or no cell passed
    - RIGHT otherwise
    """
    if any(totals[status] for status in BROKEN):
        return "WRONG" if totals["fail"] or totals["crash"] else "BROKEN"
    return "RIGHT" if totals["pass"] and not shortfalls else "NOT JUDGED ENOUGH"


def percent(share: float) -> str:
    """Returns a share, 0 to 1, in percent as text, rounded down: only a share of 1 gives 100.00%."""
    return f"{math.floor(share * 10000) / 100:.2f}%"


def score_text(passed: int, judged: int, cells: int) -> str:
    """Returns a score with its coverage: "98.50% of the 200 of 483 cells that were judged"."""
    if not judged:
        return f"none of the {cells} cells was judged"
    return f"{percent(passed / judged)} of the {judged} of {cells} cells that were judged"


@dataclass(frozen=True)
class Coverage:
    """The cells of one user function, or of all other implementations of a backend."""

    name: str
    cells: tuple[CellRecord, ...]
    is_function: bool

    @cached_property
    def judged(self) -> list[CellRecord]:
        """The cells that were answered, correctly or not."""
        return [cell for cell in self.cells if cell.status != "unsupported"]

    @cached_property
    def refused(self) -> list[CellRecord]:
        """The cells that a user function refused."""
        return [cell for cell in self.cells if cell.kind == REFUSED]

    @property
    def score(self) -> str:
        """The score with its coverage."""
        passed = sum(cell.status == "pass" for cell in self.judged)
        return score_text(passed, len(self.judged), len(self.cells))

    def values_shortfall(self, is_shard: bool) -> str:
        """Returns a sentence if no cell of the check `values` was judged, else "".

        For a shard there is a sentence only if values were refused: another shard may have judged values.
        """
        values = [cell for cell in self.cells if cell.check == VALUES and cell.mode == "eager"]
        unsupported = [cell for cell in values if cell.status == "unsupported"]
        refused = any(cell.kind == REFUSED for cell in values)
        if not values or len(unsupported) < len(values) or (is_shard and not refused):
            return ""
        ((reason, _),) = Counter(cell.message for cell in unsupported).most_common(1)
        return (
            f"None of its {len(values)} cells of the check {VALUES} was judged; most frequent reason: "
            f"{reason}."
        )

    def refusal_shortfall(self) -> str:
        """Returns sentences if a user function refused so many cells that less than `MIN_JUDGED_SHARE` of
        them were judged, else ""."""
        judged, refused = len(self.judged), len(self.refused)
        if not refused or judged >= MIN_JUDGED_SHARE * (judged + refused):
            return ""
        return (
            f"It refused {refused} of the {judged + refused} cells that its signature and its claims "
            f"allow, and {percent(MIN_JUDGED_SHARE)} must be judged. {self.claim_advice()}or say "
            "--allow-refusals."
        )

    def claim_advice(self) -> str:
        """Returns the claim that would explain the refusals, as the beginning of a sentence that ends
        with "or"."""
        judged_lengths, refused_lengths = (
            {cell.facts["Lq"] for cell in cells if "Lq" in cell.facts}
            for cells in (self.judged, self.refused)
        )
        if judged_lengths == {1} and refused_lengths - {1}:
            return (
                "It refused every case of more than one query: claim queries=1 to be judged on "
                "decoding, "
            )
        return "Claim what the function supports, then only that is tested, "


def coverages(cells: Iterable[CellRecord], functions: Collection[str]) -> Iterator[Coverage]:
    """Yields the coverage of each user function in `functions`, and of each backend's other
    implementations."""
    groups: dict[tuple[str, bool], list[CellRecord]] = {}
    for cell in cells:
        is_function = cell.implementation in functions
        name = cell.name if is_function else cell.backend
        groups.setdefault((name, is_function), []).append(cell)
    for (name, is_function), group in groups.items():
        yield Coverage(name, tuple(group), is_function)


def shortfalls(
    cells: Iterable[CellRecord],
    functions: Collection[str],
    *,
    part: bool = False,
    filtered: bool = False,
    allow_refusals: bool = False,
) -> list[str]:
    """Returns the reasons why a run judged too little, a text for each function or backend; [] if it
    judged enough.

    It judged too little in two cases:

    - No cell of the check `values` was judged. For a backend this counts only if nothing is `filtered`.
    - A user function refused too many cells (`MIN_JUDGED_SHARE`), and `allow_refusals` is False.

    `part` is True if the cells are a shard of a run.
    """
    reasons = []
    for coverage in coverages(cells, functions):
        needs_values = coverage.is_function or not (part or filtered)
        sentences = [coverage.values_shortfall(part)] if needs_values else []
        sentences += [] if allow_refusals else [coverage.refusal_shortfall()]
        if any(sentences):
            text = " ".join(filter(None, sentences))
            reasons.append(f"{coverage.name}: {coverage.score}. {text}")
    return reasons
