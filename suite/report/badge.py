"""A badge: one small picture with the verdict of a run, for the README of a kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from suite.records.cells import Run
from suite.records.coverage import shortfalls
from suite.records.files import new_file
from suite.records.lines import RecordError
from suite.report.conformance import UNSUPPORTED
from suite.report.summary import word

COLOURS = {
    "right": "#3c7d3c",
    "wrong": "#b3261e",
    "broken": "#7a3db8",
    "not judged enough": "#8a5a00",
}
"""The colour of a verdict; white text on each has a contrast of at least 4.5."""

LEFT = "attention"
"""The text of the left half."""

LETTER, MARGIN = 7, 10
"""Width of a letter and of the margins of a half, in pixels."""


def right_half(runs: Sequence[Run]) -> tuple[str, str]:
    """The verdict of all runs together and the text of the right half: "right, 503 of 777 judged".

    Raises RecordError if a filter left cells of a run out, or a run did not finish.
    """
    for run in runs:
        if run.header.partial or not run.complete:
            raise RecordError(f"{run.source}: a badge needs a whole run, and this one is partial")
    totals = sum((run.totals for run in runs), Counter[str]())
    cells = totals.total()
    verdict = word(totals, [reason for run in runs for reason in _shortfalls(run)]).lower()
    return verdict, f"{verdict}, {cells - totals[UNSUPPORTED]} of {cells} judged"


def _shortfalls(run: Run) -> list[str]:
    """Why the run judged too little."""
    options = run.header.options
    own = {cell.implementation for cell in run.cells} if options.get("function") else set()
    return shortfalls(run.cells, own, allow_refusals=bool(options.get("allow_refusals")))


def draw(runs: Sequence[Run], path: Path) -> None:
    """Write the badge of all runs together, an SVG, to a new file.

    Raises FileExistsError if the file exists, and RecordError if a run is partial.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined)
    template = Path(__file__).with_name("badge.svg.jinja").read_text("utf-8")
    verdict, text = right_half(runs)
    left, right = (len(half) * LETTER + MARGIN for half in (LEFT, text))
    picture = environment.from_string(template).render(
        label=LEFT, text=text, left=left, right=right, colour=COLOURS[verdict]
    )
    with new_file(path) as file:
        file.write(picture + "\n")
