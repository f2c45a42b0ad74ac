"""What a worker has loaded: the plan of the runs of a series, and their cells in order.

A process serves one series, as a plain run does one command: which frameworks are imported changes no
verdict. They are imported once.
"""

from __future__ import annotations

import gc
import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from suite.checks import all_checks
from suite.front import plan as front
from suite.front.jax_caches import forget, keep_compilations
from suite.front.options import Options
from suite.front.order import Order
from suite.front.plan import Plan, cell_name
from suite.judge import leaks
from suite.judge.cell import Cell
from suite.records.cells import CellRecord, Header


@dataclass(frozen=True)
class Survey:
    """What the runs of a series are, but for their seeds.

    `keys` are those of the cells' records, but for the seed at their end, in the order in which cells are
    judged; `places` say which neighbours share an oracle, or programs. `order` identifies that order.
    `compiles` says that seeds share programs; `stale` lists expectations that match nothing.
    """

    keys: tuple[tuple[str, ...], ...]
    places: tuple[tuple[int, int], ...]
    order: str
    versions: dict[str, str]
    unavailable: dict[str, str]
    failed_imports: tuple[str, ...]
    notes: tuple[str, ...]
    stale: tuple[str, ...]
    owes_answers: bool
    compiles: bool

    def identity(self, digest: str) -> dict[str, Any]:
        """What headers say of a run whose cells have this digest."""
        return {"digest": digest, "cells": len(self.keys), "versions": self.versions}


class Loaded:
    """The plan of a series, whose options have any seed, and its cells."""

    def __init__(self, options: Options) -> None:
        self.plan = Plan.make(options)
        order = Order()
        placed = [
            (order.place(cell), cell) for check in all_checks() for cell in self.plan.cells(check)
        ]
        placed.sort(key=lambda each: each[0])
        self.places = [place for place, _ in placed]
        self.cells = [cell for _, cell in placed]
        names = "\n".join(f"{cell.check.name} {cell_name(cell)}" for cell in self.cells)
        self.order = hashlib.sha256(names.encode()).hexdigest()[:16]
        self._judged = 0

    def survey(self) -> Survey:
        """What the runs are."""
        plan = self.plan
        return Survey(
            keys=tuple(front.record_key(cell)[:-1] for cell in self.cells),
            places=tuple(self.places),
            order=self.order,
            versions=plan.versions,
            unavailable=plan.unavailable,
            failed_imports=tuple(plan.failed_imports),
            notes=tuple(plan.notes),
            stale=tuple(plan.stale_expectations()),
            owes_answers=plan.answerable(),
            compiles=any(
                i.mode == "compiled" or i.backend.compiles_shapes for i in plan.implementations
            ),
        )

    def judge(self, position: int, seed: int, last: bool = False) -> CellRecord:
        """Judge one cell with values of a seed; `last` holds against it what is found dead after it."""
        one = self.cells[position]
        cell = Cell(one.check, one.case, one.implementation, seed)
        verdict = self.plan.judge(cell)
        if last:
            gc.collect()
            verdict = leaks.held_against(verdict, [], leaks.died())
        self._judged += 1
        forget(self._judged)
        return front.record(cell, verdict)

    def header(self, seed: int, identity: Mapping[str, Any], **more: Any) -> Header:
        """The header of one of the runs, as this machine writes it; `more` are fields of it."""
        release = more.pop("release")
        options = replace(self.plan.options, seed=seed)
        return replace(front.header(options, identity, release=release), **more)


@lru_cache(maxsize=1)
def loaded(options: Options) -> Loaded:
    """The plan of a series; the same one in later tasks of the process. Raises UsageError."""
    return Loaded(options)


def begin_process() -> None:
    """Make this process one that judges and does nothing else, before anything is imported."""
    leaks.watch()
    keep_compilations(Path(tempfile.gettempdir()) / "attention-conformance-jax")
