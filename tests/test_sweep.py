"""Sweeps: batches, the folder, what is continued, and what becomes of processes that die. No cluster."""

from __future__ import annotations

import contextlib
import itertools
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backends.registry import UsageError
from suite.records import sweeps
from suite.sweep import driver
from suite.sweep.costs import Costs
from suite.sweep.driver import Driver
from suite.sweep.judging import SeriesRuns
from suite.sweep.plan import plan_of
from suite.sweep.run import FAILED, GREEN, UNFINISHED, Sweep
from suite.sweep.store import Store, SweepLimits, source
from suite.sweep.tasks import JudgeTask, SurveyTask, SweepError, Task, WarmTask, WrongMachine
from tests.sweeps_by_hand import FEW, Here, few, kinds, plainly, recorded, sweep

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def batches_of_five(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches as small as can be."""
    monkeypatch.setattr(driver, "BATCH_SECONDS", 1e-9)
    monkeypatch.setattr(driver, "SHORTEST", 1e-9)


@pytest.mark.usefixtures("batches_of_five")
def test_records_and_digests_are_those_of_plain_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, engine = sweep(tmp_path / "s", few(seeds="0-1"))
    assert code == GREEN
    plain = {seed: plainly(seed) for seed in (0, 1)}
    for run in sweeps.runs(tmp_path / "s"):
        digest, cells = plain[run.seed]
        assert run.header.digest == digest
        assert run.header.cells == run.recorded == len(cells)
        assert run.complete
        assert len(run.batches) > 1, "several batches"
    assert recorded(tmp_path / "s") == sorted([*plain[0][1], *plain[1][1]], key=lambda c: c.key)
    assert "seeds 0-1" in capsys.readouterr().out
    names = [task.name for task in engine.tasks]
    assert len(set(names)) == len(names)


@pytest.mark.usefixtures("batches_of_five")
def test_what_is_recorded_is_not_asked_again(tmp_path: Path) -> None:
    """A driver that is gone at any time: nothing lost, nothing twice."""

    class Gone(BaseException):
        """What a driver does not see coming."""

    count = itertools.count()

    def fate(task: Task[Any]) -> BaseException | None:
        return Gone() if next(count) in (3, 6) else None

    plan = few(seeds="0-1")
    positions: Counter[tuple[int, int]] = Counter()
    for _ in range(2):
        with pytest.raises(Gone):
            sweep(tmp_path / "s", plan, Here(fate))
    done = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    assert len(done) >= 3
    code, engine = sweep(tmp_path / "s", plan)
    assert code == GREEN
    assert {path: path.stat().st_mtime_ns for path in done} == done
    for task in engine.tasks:
        if isinstance(task, JudgeTask):
            for seed in task.seeds:
                positions.update((seed, n) for n in range(task.first, task.end))
    assert set(positions.values()) == {1}
    kept = sum(batch.end - batch.first for run in sweeps.runs(tmp_path) for batch in run.batches)
    assert kept == len(plainly(0)[1]) * 2
    assert len(positions) < kept
    code, engine = sweep(tmp_path / "s", plan)
    assert code == GREEN
    assert [type(task) for task in engine.tasks] == [SurveyTask], "nothing is left"


def test_a_folder_belongs_to_one_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path / "s", few()) as store:
        assert not store.continued
        with pytest.raises(UsageError, match="another process sweeps"):
            Store(tmp_path / "s", few())
    with Store(tmp_path / "s", few()) as store:
        assert store.continued
    with pytest.raises(UsageError, match="the sweep of another plan"):
        Store(tmp_path / "s", few(seeds="0-1"))
    for commit in ("0123456789abcdef", "fedcba9876543210"):
        monkeypatch.setattr("suite.records.machine.commit", lambda c=commit: (c, True))
        with pytest.raises(UsageError, match="was begun with the suite's commit"):
            Store(tmp_path / "s", few())
        Store(tmp_path / commit, few()).__exit__()
    monkeypatch.setattr("suite.sweep.store.source", lambda: "0" * 16)
    with pytest.raises(UsageError, match="with other files of the suite"):
        Store(tmp_path / commit, few())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("kept")
    with pytest.raises(UsageError, match="holds something, and no sweep"):
        Store(tmp_path / "other", few())
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


def test_other_cells_in_a_folder_are_seen(tmp_path: Path) -> None:
    """Positions mean nothing where the suite asks other cells than it did."""
    plan = few()
    code, _ = sweep(tmp_path / "s", plan)
    assert code == GREEN
    batch = next(sweeps.runs(tmp_path)).batches[0]
    data = sweeps.encoded(replace(batch.header, digest="0" * 16), sweeps.records(batch.table()))
    batch.path.write_bytes(data)
    with pytest.raises(SweepError, match="holds other cells than the suite asks now"):
        sweep(tmp_path / "s", plan)


@pytest.mark.usefixtures("batches_of_five")
def test_other_software_in_a_folder_is_seen(tmp_path: Path) -> None:
    """A run that is continued has one set of versions, in every file."""
    code, _ = sweep(tmp_path / "s", few())
    assert code == GREEN
    batch = next(sweeps.runs(tmp_path)).batches[-1]
    data = sweeps.encoded(
        replace(batch.header, versions={"numpy": "0.1"}), sweeps.records(batch.table())
    )
    batch.path.write_bytes(data)
    said = rf"{batch.path.name} was judged with numpy 0\.1, this machine has numpy \d"
    with pytest.raises(SweepError, match=said):
        sweep(tmp_path / "s", few())


@pytest.mark.parametrize(
    ("way", "said"), [("tmpfs", "No space left on device"), ("limit", "File too large")]
)
def test_a_full_disk_is_named_and_the_sweep_goes_on_afterwards(
    tmp_path: Path, way: str, said: str
) -> None:
    """Errors of the system itself; what was written before is neither lost nor asked again."""
    alone = ["unshare", "--mount", "--map-root-user"] if way == "tmpfs" else []
    if alone and subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("this system gives nobody name spaces of his own to mount in")
    done = subprocess.run(
        [*alone, sys.executable, "-m", "tests.full_disk", way, str(tmp_path)], cwd=ROOT, text=True,
        capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    written = re.fullmatch(rf"(\d+) files, then {said}", done.stdout.splitlines()[-1])
    assert written is not None, done.stdout
    assert int(written[1]) >= 2
    assert not [*tmp_path.rglob("*.parquet")] or way == "limit"


def test_a_half_written_file_is_none(tmp_path: Path) -> None:
    code, _ = sweep(tmp_path / "s", few())
    batch = next(sweeps.runs(tmp_path)).batches[0]
    data = batch.path.read_bytes()
    batch.path.unlink()
    (batch.path.parent / f"{batch.path.name}.77.part").write_bytes(data[:100])
    code, _ = sweep(tmp_path / "s", few())
    assert code == GREEN
    assert not [*tmp_path.rglob("*.part")]


def test_failures_are_told_and_end_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"backends": ["tests.miniatures:always_wrong"], "level": "smoke", "dtypes": ["f16"]}
    code, _ = sweep(tmp_path / "s", plan_of({"judge": [wrong | {"seeds": "0-1"}]}))
    assert code == FAILED
    said = capsys.readouterr().out
    told = [line.partition(",")[0] for line in said.splitlines() if line.startswith("fail ")]
    assert len(told) > 1
    assert len(set(told)) == len(told), "each way of failing once"
    failed = {(c.check, c.kind) for c in recorded(tmp_path / "s") if c.status == "fail"}
    assert len(told) == len(failed)
    assert "fail value: values of mini:alwayswrong" in said
    assert "tests.miniatures:always_wrong smoke f16 installed seed 0: " in said


def test_a_machine_with_other_software_is_told(tmp_path: Path) -> None:
    engine = Here()
    sweep(tmp_path / "s", few(), engine)
    task = next(task for task in engine.tasks if isinstance(task, JudgeTask))
    other = {**task.identities[0], "versions": {"numpy": "0.1"}}
    with pytest.raises(WrongMachine, match=r"the sweep began with numpy 0\.1"):
        replace(task, identities=(other,)).run()
    with pytest.raises(WrongMachine, match="asks other cells"):
        replace(task, order="0" * 16).run()


@pytest.mark.usefixtures("batches_of_five")
def test_limits_end_a_sweep_that_goes_on_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of({"judge": [FEW], "core_hour": 3600.0})
    for limits, said in (
        (SweepLimits(hours=1e-9), "--hours=1e-09 is reached"),
        (SweepLimits(money=1e-9, core_hour=3600.0), "--money=1e-09 is reached"),
    ):
        code, engine = sweep(tmp_path / "s", plan, limits=limits)
        assert code == UNFINISHED
        assert said in capsys.readouterr().out
        assert len(engine.tasks) <= 3
    code, _ = sweep(tmp_path / "s", plan)
    assert code == GREEN


def test_money_is_paid_for_all_cores() -> None:
    limits = SweepLimits(money=1.0, core_hour=0.5)
    limits.spend(1800, 2)
    assert (limits.spent, limits.reached) == (0.5, "")
    limits.spend(1800, 2)
    assert limits.reached == "--money=1"


def test_money_is_counted_over_all_times(tmp_path: Path) -> None:
    for n in (1, 2):
        limits = SweepLimits()
        limits.spend(100.0, 36.0)
        code, _ = sweep(tmp_path / "s", few(), limits=limits)
        assert code == GREEN
        with Store(tmp_path / "s", few()) as store:
            assert store.core_seconds == pytest.approx(3600.0 * n, abs=60)
    limits = SweepLimits(money=1.0, core_hour=0.5)
    code, engine = sweep(tmp_path / "s", few(), limits=limits)
    assert (code, engine.tasks) == (UNFINISHED, []), "two core-hours are spent"


def test_tasks_that_run_as_a_limit_is_reached_are_given_up(tmp_path: Path) -> None:
    class Stuck(Here):
        def wait(self, handles: Any, seconds: float) -> list[int]:
            return []

    times = itertools.count(step=10.0)
    engine = Stuck()
    with Store(tmp_path / "s", few()) as store:
        sources = Sweep(few(), store, engine, SweepLimits()).sources
        limited = Driver(engine, sources, SweepLimits(hours=1e-9), clock=lambda: next(times))
        assert limited.run() == "--hours=1e-09"
    assert engine.cancelled == [1]


@pytest.mark.usefixtures("batches_of_five")
def test_what_is_left_is_kept_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for every task that is handed out, it looks at no cell."""
    left, of = SeriesRuns.left.fget, Costs.of
    compared: list[float] = []

    def looked(judging: SeriesRuns) -> float:
        with monkeypatch.context() as patch:
            patch.delattr(Costs, "of")
            kept = left(judging)
        spans = [span for spans in judging.gaps.values() for span in spans]
        assert kept == pytest.approx(sum(of(judging._costs, *span).sum() for span in spans))
        compared.append(kept)
        return kept

    monkeypatch.setattr(SeriesRuns, "left", property(looked))
    count = itertools.count()
    interrupted = Here(lambda task: KeyboardInterrupt() if next(count) == 5 else None)
    for engine in (interrupted, Here()):
        with contextlib.suppress(KeyboardInterrupt):
            sweep(tmp_path / "s", few(seeds="0-2"), engine)
    assert len(compared) > 10
    assert compared[-1] == pytest.approx(0.0)


def test_cores_that_no_survey_has_prepare_to_judge(tmp_path: Path) -> None:
    """Else they would begin to import frameworks when the survey is over."""

    class Three(Here):
        def cores(self) -> float:
            return 3.0

    def fate(task: Task[Any]) -> str | None:
        return "killed" if isinstance(task, WarmTask) and task.number == 2 else None

    engine = Three(fate)
    assert sweep(tmp_path / "s", few(), engine)[0] == GREEN
    assert kinds(engine)[:3] == [SurveyTask, WarmTask, WarmTask]
    assert kinds(engine).count(WarmTask) == 2, "who dies is not missed"
    assert recorded(tmp_path / "s") == plainly(0)[1]
    two = plan_of({"judge": [FEW, FEW | {"dtypes": ["bf16"]}]})
    _, engine = sweep(tmp_path / "two", two, Three())
    assert kinds(engine)[:3] == [SurveyTask, WarmTask, SurveyTask]
