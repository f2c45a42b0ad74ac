"""Badges: small pictures with the verdict, the precision and the coverage of runs, for a README."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from attention_conformance.suite.records.cells import Run
from attention_conformance.suite.records.coverage import percent, shortfalls, verdict_word
from attention_conformance.suite.records.files import new_folder, write_new
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.report.conformance import UNSUPPORTED
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.vocabulary import GRADES, VALUES

COLOURS = {
    "right": "#3c7d3c",
    "wrong": "#b3261e",
    "broken": "#7a3db8",
    "not judged enough": "#8a5a00",
}
"""The colour of a verdict; white text on each has a contrast of at least 4.5."""

FACT = "#1f5f99"
"""The colour of a badge that is no verdict."""

LETTER, MARGIN = 7, 10
"""Width of a letter and of the margins of a half, in pixels."""


def badges(runs: Sequence[Run]) -> dict[str, str]:
    """Returns the SVG texts of badges by name, of all runs together: "attention" (verdict with numbers),
    "right" (verdict), "precision" and "coverage".

    Raises RecordError if a filter left cells of a run out, or a run did not finish.
    """
    for run in runs:
        if run.header.partial or not run.complete:
            raise RecordError(f"{run.source}: a badge needs a whole run, and this one is partial")
    totals = sum((run.totals for run in runs), Counter[str]())
    cells, judged = totals.total(), totals.total() - totals[UNSUPPORTED]
    verdict = verdict_word(totals, [reason for run in runs for reason in _shortfalls(run)]).lower()
    share = percent(judged / cells) if cells else "0%"
    return {
        "attention": badge_svg(
            "attention", f"{verdict}, {judged} of {cells} judged", COLOURS[verdict]
        ),
        "right": badge_svg("attention", verdict, COLOURS[verdict]),
        "precision": badge_svg("precision", precision(runs)),
        "coverage": badge_svg("coverage", f"{share} of {cells} cells"),
    }


def _shortfalls(run: Run) -> list[str]:
    """Returns the reasons why the run judged too little; [] if it judged enough."""
    options = run.header.options
    functions = {cell.implementation for cell in run.cells} if options.get("function") else set()
    return shortfalls(run.cells, functions, allow_refusals=bool(options.get("allow_refusals")))


def precision(runs: Sequence[Run]) -> str:
    """Returns the widest grade of the right answers to the check `VALUES`, by dtype: "f32 exact, bf16
    fused"."""
    grades: dict[str, list[str]] = {}
    for cell in (cell for run in runs for cell in run.cells):
        if cell.check == VALUES and cell.status == "pass" and cell.grade in GRADES:
            grades.setdefault(cell.dtype, []).append(cell.grade)
    widest = {dtype: max(names, key=GRADES.index) for dtype, names in grades.items()}
    grades_in_order = [f"{dtype} {widest[dtype]}" for dtype in DTYPES if dtype in widest]
    return ", ".join(grades_in_order) or "not measured"


def write_badges(runs: Sequence[Run], path: Path | None, folder: Path | None) -> None:
    """Write the badge "attention" to a new file, and every other badge as NAME.svg into a new or empty
    folder.

    Raises FileExistsError if the file exists or the folder is not empty, and the errors of `badges`.
    """
    texts_by_name = badges(runs)
    attention = texts_by_name.pop("attention")
    if path:
        write_new(path, attention)
    if folder:
        new_folder(folder)
        for name, badge in texts_by_name.items():
            write_new(folder / f"{name}.svg", badge)


def badge_svg(label: str, text: str, colour: str = FACT) -> str:
    """Returns the SVG of a badge: `label` in the left half, `text` in the right half."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    template = Path(__file__).with_name("badge.svg.jinja").read_text("utf-8")
    left_width, right_width = (len(half) * LETTER + MARGIN for half in (label, text))
    return environment.from_string(template).render(
        label=label, text=text, left=left_width, right=right_width, colour=colour
    )
