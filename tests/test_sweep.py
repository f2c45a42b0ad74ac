"""Sweeps without a cluster: tasks in their order, what is recorded, and what is carried out again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.records.cells import CellRecord, load, writer
from attention_conformance.suite.records.sweeps import runs
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.recorded import record
from attention_conformance.suite.sweep.child import Outcome, carry_out
from attention_conformance.suite.sweep.cluster import Lost
from attention_conformance.suite.sweep.plan import SweepPlan, Task, plan_of, tasks
from attention_conformance.suite.sweep.run import FAILED, GREEN, UNFINISHED, Sweep, source
from tests.records_by_hand import cell, header
from tests.sweeps_by_hand import Here, few, recorded, sweep


def answer(
    tmp_path: Path, status: str = "pass", code: int = 0, footer: bool = True, version: str = "2"
) -> Outcome:
    """What a task gives that judged one cell."""
    one = cell(status=status)
    path = tmp_path / "answer.jsonl"
    path.unlink(missing_ok=True)
    file = writer(path, header(one, versions={"torch": version}))
    file.write(one)
    file.close(footer)
    return Outcome(code, "the last line", path.read_text())


def plainly(seed: int) -> tuple[str, list[CellRecord]]:
    """The digest of a plain run of `tests.sweeps_by_hand.FEW`, and its records."""
    options = Options(("numpy",), level="smoke", dtype=("f16",), seed=seed)
    plan = Plan.make(options)
    cells = [cell for check in all_checks().values() for cell in plan.cells(check)]
    records = [replace(record(c, judge(c, plan.policy(c))), seconds=0.0) for c in cells]
    return plan.digest()[0], sorted(records, key=lambda c: c.key)


def titles(plan: SweepPlan) -> list[str]:
    return [task.title for task in tasks(plan)]


def test_records_and_digests_are_those_of_plain_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, engine = sweep(tmp_path / "s", few(seeds="3", shards=2))
    assert code == GREEN
    assert [task.title for task in engine.done] == [
        "numpy smoke seed 3 part 1/2", "numpy smoke seed 3 part 2/2",
    ]  # fmt: skip
    (run,) = runs(tmp_path / "s")
    digest, cells = plainly(3)
    assert run.load().header.digest == digest
    for mine, plain in zip(recorded(tmp_path / "s"), cells, strict=True):
        assert vars(mine) == vars(plain)
    assert f"tables: python -m suite report {tmp_path / 's'}" in capsys.readouterr().out


def test_a_cell_that_ends_its_process_is_one_crash(tmp_path: Path) -> None:
    unruly = {"backends": ["tests.unruly:aborts"], "level": "smoke", "dtypes": ["bf16"]}
    code, _ = sweep(tmp_path / "s", plan_of({"judge": [unruly]}))
    assert code == FAILED
    cells = recorded(tmp_path / "s")
    assert {"k17" in c.case for c in cells if c.status == "crash"} == {True}
    assert {c.status for c in cells if "k17" not in c.case} == {"pass", "unsupported"}


def test_what_is_recorded_is_not_asked_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The driver is gone, a task is lost, a file has no footer: the same command goes on."""
    plan, places = few(seeds="0-4"), iter(range(9))
    green = answer(tmp_path)

    def gone(task: Task) -> Outcome | BaseException:
        return KeyboardInterrupt() if next(places) == 3 else green

    engine = Here(gone)
    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path / "s", plan, engine)
    assert [task.title for task in engine.cancelled] == titles(plan)[4:]
    first, second, third = (tmp_path / "s" / f"{t.name}.jsonl" for t in tasks(plan)[:3])
    before = [path.stat().st_mtime_ns for path in (first, third)]
    second.write_text(second.read_text().rpartition('{"record": "footer"')[0])

    def lost(task: Task) -> Outcome | BaseException:
        return Lost("its process died") if "seed 3" in task.title else green

    code, engine = sweep(tmp_path / "s", plan, Here(lost))
    assert code == UNFINISHED
    assert [task.title for task in engine.done] == [titles(plan)[1], titles(plan)[4]]
    said = capsys.readouterr().out
    assert "5 tasks, 2 of them recorded" in said
    assert "numpy smoke seed 3 is not recorded: its process died" in said
    assert "1 tasks are not recorded; the same command continues" in said
    code, engine = sweep(tmp_path / "s", plan, Here(lambda task: green))
    assert (code, [task.title for task in engine.done]) == (GREEN, [titles(plan)[3]])
    assert [path.stat().st_mtime_ns for path in (first, third)] == before
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[: len(text) // 2], "cut off"),
        (lambda text: text.replace('"status": "pass"', '"status": "fail"'), "footer counts"),
        (lambda text: "x" + text, "line 1 is no header"),
        (lambda text: "", "line 1 is no header"),
    ],
)
def test_a_damaged_file_is_moved_aside_and_its_task_runs_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[str], str], said: str
) -> None:
    plan, green = few(seeds="0-1"), answer(tmp_path)
    sweep(tmp_path / "s", plan, Here(lambda task: green))
    path = tmp_path / "s" / f"{tasks(plan)[0].name}.jsonl"
    whole = path.read_text()
    path.write_text(damaged := damage(whole))
    capsys.readouterr()
    code, engine = sweep(tmp_path / "s", plan, Here(lambda task: green))
    assert (code, [task.title for task in engine.done]) == (GREEN, titles(plan)[:1])
    out = capsys.readouterr().out
    assert said in out
    assert f"renamed to {path.stem}.damaged; {titles(plan)[0]} runs again" in out
    assert (path.read_text(), path.with_suffix(".damaged").read_text()) == (whole, damaged)
    assert len(recorded(tmp_path / "s")) == 2


def test_one_driver_works_on_a_folder(tmp_path: Path) -> None:
    def second(task: Task) -> Outcome:
        with pytest.raises(UsageError, match="another driver is at work on"):
            sweep(tmp_path / "s", few())
        return answer(tmp_path)

    assert sweep(tmp_path / "s", few(), Here(second))[0] == GREEN
    assert sweep(tmp_path / "s", few())[0] == GREEN


def test_messages_of_a_sweep_have_no_colours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = Lost("\x1b[36m(pid=7)\x1b[0m its process died")
    sweep(tmp_path / "s", few(), Here(lambda task: lost))
    assert "is not recorded: (pid=7) its process died" in capsys.readouterr().out


def test_the_limit_of_hours_ends_a_sweep_that_goes_on_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = few(seeds="0-3")
    times = iter([0.0, 0.0, 3599.0, 3601.0, 3601.0])
    monkeypatch.setattr("attention_conformance.suite.sweep.run.time.monotonic", lambda: next(times))
    engine = Here(lambda task: answer(tmp_path))
    assert Sweep(plan, tmp_path / "s").run(engine, hours=1.0) == UNFINISHED
    assert [task.title for task in engine.done] == titles(plan)[:2]
    assert [task.title for task in engine.cancelled] == titles(plan)[2:]
    assert "--hours=1 is reached" in capsys.readouterr().out
    monkeypatch.undo()
    code, engine = sweep(tmp_path / "s", plan, Here(lambda task: answer(tmp_path)))
    assert (code, len(engine.done)) == (GREEN, 2)


def test_failures_end_with_1_also_those_of_earlier_times(tmp_path: Path) -> None:
    failed = answer(tmp_path, "fail", code=1)
    for expected in (1, 0):
        code, engine = sweep(tmp_path / "s", few(), Here(lambda task: failed))
        assert (code, len(engine.done)) == (FAILED, expected)


@pytest.mark.parametrize(
    ("given", "code"), [({"footer": False}, 1), ({"status": "fail"}, 0), ({}, 1), ({}, 3)]
)
def test_a_run_whose_end_its_file_does_not_explain_is_not_kept(
    tmp_path: Path, given: dict[str, str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run is red without a failing cell if a framework cannot be imported."""
    odd = replace(answer(tmp_path, **given), code=code)
    assert sweep(tmp_path / "s", few(), Here(lambda task: odd))[0] == UNFINISHED
    assert f"exit code {code}; its last lines:\nthe last line" in capsys.readouterr().out
    assert not list((tmp_path / "s").glob("*.jsonl"))


def test_arguments_that_a_run_refuses_end_the_sweep(tmp_path: Path) -> None:
    plan = few(implementations=["flex"], seeds="0-1")
    with pytest.raises(UsageError, match=r"(?s)numpy smoke seed 0: .*unknown implementation flex"):
        sweep(tmp_path / "s", plan)


def test_a_machine_with_other_versions_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also by what an earlier time recorded; each release has its own."""
    places = iter("23")
    other = Here(lambda task: answer(tmp_path, version=next(places)))
    code, _ = sweep(tmp_path / "s", few(seeds="0-1"), other)
    assert code == UNFINISHED
    told = "its machine has torch 3, the sweep began with 2"
    assert told in capsys.readouterr().out
    third = Here(lambda task: answer(tmp_path, version="3"))
    assert sweep(tmp_path / "s", few(seeds="0-1"), third)[0] == UNFINISHED
    assert told in capsys.readouterr().out
    places = iter("23")
    both = few(releases=["installed", "jax-0.8.1"])
    assert sweep(tmp_path / "both", both, other)[0] == GREEN
    assert {run.key[1] for run in runs(tmp_path / "both")} == {"installed", "jax-0.8.1"}


def test_a_folder_belongs_to_one_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Sweep(few(), tmp_path / "s")
    Sweep(few(), tmp_path / "s")
    with pytest.raises(UsageError, match="was begun with another plan"):
        Sweep(few(seeds="0-1"), tmp_path / "s")
    monkeypatch.setattr("attention_conformance.suite.sweep.run.source", lambda: "0" * 16)
    with pytest.raises(UsageError, match="was begun with other files of the suite"):
        Sweep(few(), tmp_path / "s")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("kept")
    with pytest.raises(UsageError, match="is not empty and holds no sweep"):
        Sweep(few(), tmp_path / "other")
    assert (tmp_path / "other" / "mine.txt").read_text() == "kept"


def test_every_file_of_the_suite_counts(tmp_path: Path) -> None:
    """Also where no commit speaks of it."""
    path = tmp_path / "backends" / "_torch" / "torch.toml"
    path.parent.mkdir(parents=True)
    seen = set()
    for text in ("one", "two"):
        path.write_text(text)
        seen.add(source(tmp_path))
    (path.parent / "notes.md").write_text("of no account")
    seen.add(source(tmp_path))
    path.rename(path.parent / "other.toml")
    seen.add(source(tmp_path))
    assert len(seen) == 3


def test_a_search_leaves_what_it_found(tmp_path: Path) -> None:
    pytest.importorskip("hypothesis")
    (task,) = tasks(
        plan_of({"search": [{"backends": ["numpy"], "dtypes": ["f32"], "examples": 3}]})
    )
    outcome = carry_out(task)
    assert outcome.code == 0, outcome.said
    assert outcome.records.count("\n") == 2, "a header and a footer"
    assert "nothing found" in outcome.said


def test_a_result_file_of_a_shard_can_be_read_alone(tmp_path: Path) -> None:
    sweep(tmp_path / "s", few(), Here(lambda task: answer(tmp_path)))
    (path,) = (tmp_path / "s").glob("*.jsonl")
    assert load(path).complete
