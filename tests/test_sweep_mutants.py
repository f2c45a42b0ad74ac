"""Mutants of sweeps: each is judged once, and what becomes of processes that die."""

from __future__ import annotations

import itertools
import re
from dataclasses import asdict, replace
from glob import glob
from pathlib import Path
from typing import Any

import pytest

from suite.__main__ import main
from suite.mutation.changes import Change
from suite.mutation.run import Mutant
from suite.mutation.targets import Target
from suite.records import faults
from suite.records.faults import FaultRecord
from suite.report import sweeps as tables
from suite.report.swept import Swept
from suite.sweep.mutating import DrawnMutants, DrawTask, LimitTask, MutantTask, NoMemoryMutant
from suite.sweep.plan import plan_of
from suite.sweep.run import GREEN
from suite.sweep.tasks import SweepError, Task
from tests.sweeps_by_hand import NO_MEMORY, Here, kinds, sweep

TARGET = Target("torch", "torch", "torch.x", ("f",), "torch", ("sdpa",))
CHANGES = [Change("torch.x", "f", n, "number", n, n + 1, "1", "2") for n in range(3)]
MUTANTS = {"frameworks": ["torch"], "count": 3, "level": "smoke"}


class Judged(Here):
    """An engine whose mutants are killed without a run of the suite."""

    def carry_out(self, task: Task[Any]) -> Any:
        if isinstance(task, DrawTask):
            return DrawnMutants(
                tuple(Mutant(TARGET, change) for change in CHANGES), {"torch": "2.13.0"}
            )
        if isinstance(task, LimitTask):
            return 90.0
        assert isinstance(task, MutantTask)
        assert task.limit == 90.0
        change = {n: v for n, v in asdict(task.mutant.change).items() if n not in ("kind", "end")}
        return FaultRecord(
            "torch",
            "2.13.0",
            change=task.mutant.change.kind,
            level="smoke",
            status="killed",
            **change,
        )


def test_mutants_are_judged_once_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of({"mutants": [MUTANTS]})
    count = itertools.count()

    def gone(task: Task[Any]) -> BaseException | None:
        return KeyboardInterrupt() if isinstance(task, MutantTask) and next(count) == 2 else None

    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, plan, Judged(gone))
    code, engine = sweep(tmp_path, plan, Judged())
    assert code == GREEN
    assert kinds(engine) == [DrawTask, LimitTask, MutantTask]
    loaded = [faults.load(path, partial=True) for path in sorted(tmp_path.glob("mutants/*.jsonl"))]
    assert [len(content.records) for content in loaded] == [2, 1]
    assert [content.complete for content in loaded] == [False, True]
    assert {record.start for content in loaded for record in content.records} == {0, 1, 2}
    assert loaded[0].header.versions == {"torch": "2.13.0"}
    said = capsys.readouterr().out
    assert "mutants of torch smoke: 1 killed" in said
    report, words = re.findall(r"^tables: python -m suite (.*)$", said, re.MULTILINE)
    assert report == f"report {tmp_path}"
    *words, pattern = words.split()
    assert main([*words, *sorted(glob(pattern))]) == 0, "the command makes the page"
    assert "| torch |" in capsys.readouterr().out
    assert kinds(sweep(tmp_path, plan, Judged())[1]) == [DrawTask]
    assert main(["report", str(tmp_path), "--table", "power"]) == 0, "a folder of mutants alone"
    row = tables.power(Swept([tmp_path])).loc[("torch", "2.13.0", "smoke")]
    assert (row["mutants"], row["seen"], row["share"]) == (3, 3, 1.0)
    assert main(["report", str(tmp_path)]) == 0
    assert "Machine-made mutants" in capsys.readouterr().out


def test_a_mutant_that_kills_its_machine_is_tried_again_and_then_given_up(tmp_path: Path) -> None:
    def fate(task: Task[Any]) -> str | None:
        return "no memory" if isinstance(task, MutantTask) else None

    with pytest.raises(SweepError, match="died 3 times: no memory"):
        sweep(tmp_path, plan_of({"mutants": [MUTANTS]}), Judged(fate))


def test_a_mutant_that_no_memory_is_enough_for_costs_itself_alone(tmp_path: Path) -> None:
    pytest.importorskip("torch")

    def fate(task: Task[Any]) -> str | None:
        if isinstance(task, NoMemoryMutant):
            return None
        if isinstance(task, MutantTask):
            return NO_MEMORY if task.mutant.change.start == 1 else None
        return None if task.exclusive else NO_MEMORY

    class Real(Judged):
        def carry_out(self, task: Task[Any]) -> Any:
            own = isinstance(task, NoMemoryMutant)
            return replace(task.run(), version="2.13.0") if own else super().carry_out(task)

    _, engine = sweep(tmp_path, plan_of({"mutants": [MUTANTS]}), Real(fate))
    (path,) = tmp_path.glob("mutants/*.jsonl")
    records = {record.start: record for record in faults.load(path).records}
    assert [records[n].status for n in range(3)] == ["killed", "error", "killed"]
    assert "short of memory" in records[1].message
    of_one = [
        task
        for task in engine.tasks
        if isinstance(task, MutantTask) and task.mutant.change.start == 1
    ]
    assert [(type(task), task.exclusive) for task in of_one] == [
        (MutantTask, False), (MutantTask, True), (NoMemoryMutant, False),
    ]  # fmt: skip
    assert len({task.name for task in engine.tasks}) == len(engine.tasks)
