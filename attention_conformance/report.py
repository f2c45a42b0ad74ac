"""The report of a judged function."""

from __future__ import annotations

from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from attention_conformance.suite.records.cells import Run
from attention_conformance.suite.records.coverage import score_text
from attention_conformance.suite.report import diagnoses
from attention_conformance.suite.spec.text import printable
from attention_conformance.suite.spec.vocabulary import BROKEN, STATUSES

if TYPE_CHECKING:
    import pandas as pd

GROUPS_SHOWN = 10
"""The number of groups of failures that the text lists."""


class AttentionFailure(AssertionError):
    """A judged function failed. `report` has every cell."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


class Report:
    """The verdicts of all cells. `str` explains groups of failures, each with its smallest case.

    - `run`: the records
    - `notes`: further remarks
    - `shortfalls`: the reasons if too little was judged
    """

    def __init__(
        self, run: Run, notes: tuple[str, ...] = (), shortfalls: tuple[str, ...] = ()
    ) -> None:
        self.run, self.notes, self.shortfalls = run, notes, shortfalls

    @property
    def passed(self) -> bool:
        """True if no cell failed, at least one passed, and enough was judged."""
        totals = self.run.totals
        failed = any(totals[status] for status in BROKEN)
        return bool(totals["pass"]) and not failed and not self.shortfalls

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per cell, with the fields of `suite.records.cells.CellRecord`."""
        from attention_conformance.suite.report import frames

        return frames.cells(self.run)

    @cached_property
    def failures(self) -> pd.DataFrame:
        """One row per group of failures: how it differs from passing cells, and its smallest case."""
        from attention_conformance.suite.report import explanation

        return explanation.failure_table(self.table)

    @cached_property
    def diagnoses(self) -> pd.DataFrame:
        """One row per diagnosis, the best first: a sentence on the fault, with its evidence (the fields
        of `suite.records.diagnoses.DiagnosisRecord`)."""
        from attention_conformance.suite.report import frames

        return frames.diagnoses(self.run)

    @cached_property
    def elections(self) -> pd.DataFrame:
        """One row per election question: the function's answer and that of the framework's own attention.
        Different answers are marked."""
        from attention_conformance.suite.report.semantics import BY_QUESTION

        return BY_QUESTION.make(self.table)

    def save(self, path: str | Path) -> Path:
        """Write the records as `pytest suite --results` does, for the commands `report` and `diff`.
        Returns the path.

        Raises FileExistsError.
        """
        return self.run.save(path)

    def __str__(self) -> str:
        return printable("\n".join(self._lines()))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Returns the page of `attention-conformance report --format=html`, for notebooks."""
        from attention_conformance.suite.report.kinds import CONFORMANCE, conformance_frames
        from attention_conformance.suite.report.overview import overview
        from attention_conformance.suite.report.render import as_html

        frames = conformance_frames(self.run)
        tables = CONFORMANCE.make(frames)
        page = as_html(tables, CONFORMANCE.title, overview(frames, tables))
        return f'<iframe srcdoc="{escape(page)}" style="width:100%;height:40rem;border:0"></iframe>'

    def _lines(self) -> list[str]:
        """Returns the text of the report, line by line."""
        totals, options = self.run.totals, self.run.header.options
        counts = ", ".join(f"{totals[status]} {status}" for status in STATUSES if totals[status])
        names = ", ".join(dict.fromkeys(cell.implementation for cell in self.run.cells))
        backend = ", ".join(options["backend"])
        cells = len(self.run.cells)
        score = score_text(totals["pass"], cells - totals["unsupported"], cells)
        lines = [
            f"{names or 'no cell'} on {backend}, level {options['level']}: {score} ({counts or 'none'})"
        ]
        lines += diagnoses.lines(self.run.diagnoses)
        lines += ["", "Failures by group"] if self.run.diagnoses else []
        for number, row in enumerate(self.failures.head(GROUPS_SHOWN).to_dict("records"), 1):
            cells = row["failures"] + row["passes"]
            lines += [
                f"{number:2}. {row['check']} of {row['implementation']}: fails in {row['failures']} of "
                f"{cells} cells, {row['kind']}",
                *([f"    {row['separation']}"] if row["separation"] else []),
                f"    smallest  {row['case']}",
                f"              {' '.join(row['message'].split())}",
            ]
        further_groups = len(self.failures) - GROUPS_SHOWN
        if further_groups > 0:
            lines.append(f"and {further_groups} groups more: see .failures")
        if not totals["pass"]:
            lines.append("no cell passed")
        if any(cell.inherited for cell in self.run.cells):
            from attention_conformance.suite.report import summary

            lines += summary.inherited_failures(self.run.cells)
        lines += [f"not judged enough: {text}" for text in self.shortfalls]
        return [*lines, *self.notes]
