"""The terminal: what a run says to the person who started it.

After a run come the tables of the summary, then why cells fail, then at most `MOST` failures in full; of
the others pytest's own short summary has a line each. `-v` shows all of them in full.
"""

from __future__ import annotations

import shlex
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from backends.registry import REGISTRY
from suite.front.options import Options
from suite.records.cells import CellRecord, Run
from suite.search.command import CHECKS as SEARCHED

if TYPE_CHECKING:
    from suite.report.explanation import Group

MOST = 10
"""How many failures, and groups of failures, are shown in full."""


def again(node: str, options: Options) -> str:
    """The one-line command that judges just this cell."""
    return shlex.join(["pytest", node, *options.words()])


def go_on(cell: CellRecord, options: Options) -> str:
    """The command that searches on from a failing cell and saves its script; "" where the search does not
    judge the check, or not with these values."""
    if cell.check not in SEARCHED or options.seed != Options.seed:
        return ""
    named = (cell.backend,) if "all" in options.backend and cell.backend in REGISTRY else ()
    asked = replace(
        options, backend=named or options.backend, mode=cell.mode, level=Options.level, audit=False
    )
    words = asked.words()
    if not options.function or options.implementation:
        words.append(f"--implementation={cell.implementation}")
    script = f"{cell.check}-{cell.implementation}.py".replace("@", "-")
    words += [f"--case={cell.case}", f"--script={script}"]
    return shlex.join(["python", "-m", "suite", "search", *words])


def failure_text(cell: CellRecord, node: str, options: Options) -> str:
    """One failing cell in full."""
    worst = "" if cell.error_ratio is None else f"\n  error ratio {cell.error_ratio:.3g}"
    return (
        f"{cell.status}: {cell.kind}\n"
        f"  case   {cell.case}\n"
        f"  check  {cell.check}, in {cell.backend}:{cell.implementation} "
        f"({cell.mode}, {cell.device}, numerics {cell.numerics}){worst}\n"
        f"  {cell.message}\n"
        f"  again: {again(node, options)}"
    )


class Listing:
    """The part of pytest's summary that lists failures; a plugin of its own, so that it stands around
    pytest's part.

    `nodes` are the ids of the tests by the keys of their cells.
    """

    def __init__(self, options: Options, run: Run, nodes: Mapping[tuple, str], all_of_them: bool) -> None:
        from suite.report import explanation, frames

        self.options, self.run, self.nodes = options, run, nodes
        self.most = len(run.cells) if all_of_them else MOST
        self.groups = explanation.groups(frames.cells(run))
        rows = explanation.in_full(self.groups, self.most)
        self.in_full = [self.nodes[run.cells[row].key] for row in rows]
        self.failed: list[Any] = []

    def explanation(self) -> Iterator[str]:
        """Why cells fail, as lines; none where none fails."""
        if not self.groups:
            return
        yield from ("", "Why cells fail", "--------------")
        for number, group in enumerate(self.groups[: self.most], 1):
            yield from self._in_full(number, group)
        for group in self.groups[self.most :]:
            yield f"    {_head(group)}; {group.separation}"

    def _in_full(self, number: int, group: Group) -> Iterator[str]:
        smallest = self.run.cells[group.cells[0]]
        yield f"{number:3} {_head(group)}"
        yield f"    {group.separation}"
        yield f"    smallest  {smallest.case}"
        yield f"              {' '.join(smallest.message.split())}"
        yield f"    again     {again(self.nodes[smallest.key], self.options)}"
        if command := go_on(smallest, self.options):
            yield f"    go on     {command}"
