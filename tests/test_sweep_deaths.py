"""Sweeps whose processes die: the cell that kills is a crash, and costs itself alone. No cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from suite.front.options import Options
from suite.records import sweeps
from suite.sweep.alone import AloneTask, CannotStart, NoMemoryTask
from suite.sweep.run import FAILED, GREEN
from suite.sweep.source import DEATHS
from suite.sweep.tasks import JudgeTask, SurveyTask, SweepError, Task
from tests.sweeps_by_hand import NO_MEMORY, Here, few, plainly, recorded, sweep


def dies_together(task: Task[Any]) -> str | None:
    """A fate: batches die that are not judged cell by cell."""
    together = isinstance(task, JudgeTask) and not isinstance(task, AloneTask)
    return "killed" if together else None


@pytest.mark.parametrize(
    ("act", "kind", "said"),
    [
        ("aborts", "crash", "it died of SIGABRT"),
        ("leaves_in_c", "crash", "it ended with exit code 0, unasked"),
        ("holds_the_lock", "timeout", "it ran too long, in hold_the_lock (unruly.py:"),
    ],
)
def test_the_cell_that_kills_is_a_crash(act: str, kind: str, said: str) -> None:
    options = Options((f"tests.unruly:{act}",), level="smoke", dtype=("bf16",), cell_timeout=1.0)
    survey = SurveyTask(options, "").run()
    place = next(n for n, key in enumerate(survey.keys) if key[0] == "values" and "k17" in key[1])
    first, end = place - 1, place + 2
    (judged,) = AloneTask(
        options, "", survey.order, first, end, (3,), (survey.identity("of-run"),)
    ).run()
    records = sweeps.records(pq.read_table(pa.BufferReader(judged.data)))
    assert [c.key for c in records] == [(*key, 3) for key in survey.keys[first:end]]
    crashed = [c for c in records if c.status == "crash"]
    assert crashed
    assert all((c.kind, "k17" in c.case) == (kind, True) for c in crashed)
    assert all(said in c.message for c in crashed)
    assert {c.status for c in records if "k17" not in c.case} <= {"pass", "unsupported"}
    assert judged.counts["mini", "crash"] == len(crashed)
    assert any("crash" in line and "seed 3" in line for line in judged.failing.values())


def test_a_batch_that_is_killed_from_outside_is_run_again(tmp_path: Path) -> None:
    code, engine = sweep(tmp_path / "s", few(), Here(dies_together))
    assert code == GREEN
    assert any(isinstance(task, AloneTask) for task in engine.tasks)
    assert recorded(tmp_path / "s") == plainly(0)[1]


@pytest.mark.parametrize("lasts", [True, False], ids=["it lasts alone", "it never lasts"])
def test_a_cell_that_memory_does_not_last_for_costs_itself_alone(
    tmp_path: Path, lasts: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batches become smaller until one cell is left, which is judged with nothing beside it."""

    class Two(Here):
        """An engine with room for tasks side by side, which ends the last one first."""

        beside: list[int] = []

        def cores(self) -> float:
            return 2.0

        def submit(self, task: Task[Any]) -> int:
            if self._open:
                self.beside += [task.exclusive, *(other.exclusive for other in self._open.values())]
            return super().submit(task)

    def fate(task: Task[Any]) -> str | None:
        if not isinstance(task, JudgeTask) or not (task.first <= 3 < task.end and 1 in task.seeds):
            return None
        if isinstance(task, NoMemoryTask) or (lasts and task.exclusive):
            return None
        return NO_MEMORY

    engine = Two(fate)
    code, _ = sweep(tmp_path, few(seeds="0-1"), engine)
    assert code == (GREEN if lasts else FAILED)
    assert not any(engine.beside)
    only = [task for task in engine.tasks if type(task) is AloneTask and task.exclusive]
    assert [(task.first, task.end, task.seeds) for task in only] == [(3, 4, (1,))]
    crashed = [c for c in recorded(tmp_path) if c.status == "crash"]
    assert len(crashed) == (not lasts)
    assert all("short of memory" in c.message and c.seed == 1 for c in crashed)
    expected = sorted([*plainly(0)[1], *plainly(1)[1]], key=lambda c: c.key)
    keys = {c.key for c in crashed}
    assert [c for c in recorded(tmp_path) if c.key not in keys] == [
        c for c in expected if c.key not in keys
    ]
    assert "it is run again, with nothing beside it" in capsys.readouterr().out


def test_what_dies_again_and_again_ends_the_sweep(tmp_path: Path) -> None:
    for kind in (SurveyTask, AloneTask):

        def fate(task: Task[Any], kind: Any = kind) -> str | None:
            return "no memory" if isinstance(task, kind) else dies_together(task)

        with pytest.raises(SweepError, match=rf"died {DEATHS} times: no memory"):
            sweep(tmp_path / kind.__name__, few(), Here(fate))


def test_a_child_that_cannot_start_ends_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def environment(task: JudgeTask) -> dict[str, str]:
        return {"PYTHONSTARTUP": "", "PYTHONHOME": str(tmp_path)}

    monkeypatch.setattr(AloneTask, "variables", property(environment))
    with pytest.raises(CannotStart, match="ends"):
        sweep(tmp_path / "s", few(), Here(dies_together))
