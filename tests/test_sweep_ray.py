"""Sweeps on Ray: one small cluster on this machine, and sweeps whose processes are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from backends.registry import UsageError
from suite.front.options import Options
from suite.records import sweeps
from suite.sweep.cluster import RayEngine, pins
from suite.sweep.driver import Died
from suite.sweep.plan import plan_of
from suite.sweep.run import FAILED, GREEN, Sweep
from suite.sweep.store import Store, SweepLimits
from suite.sweep.tasks import OfSeries, SurveyTask, SweepError

pytest.importorskip("ray")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayEngine]:
    with RayEngine("local", 1, tmp_path_factory.mktemp("compiled")) as engine:
        yield engine


@dataclass(frozen=True)
class Acts(OfSeries):
    """A task that does something to its process, or says something of it."""

    act: str

    @property
    def name(self) -> str:
        return self.act

    def run(self) -> Any:
        if self.act == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.act == "asks for what is not there":
            raise UsageError("no such thing")
        if self.act == "breaks":
            raise ZeroDivisionError("by zero")
        return {"pid": os.getpid(), "cwd": os.getcwd(), **os.environ}


def acts(act: str, backend: str = "numpy") -> Acts:
    return Acts(Options((backend,)), "", act)


def outcome(engine: RayEngine, task: Any) -> Any:
    return end(engine, engine.submit(task))


def end(engine: RayEngine, handle: Any) -> Any:
    while not engine.wait([handle], 5.0):
        continue
    return engine.result(handle)


def test_tasks_end_as_they_end(engine: RayEngine) -> None:
    assert engine.cores() == 1.0
    with pytest.raises(Died):
        outcome(engine, acts("dies"))
    with pytest.raises(UsageError, match="no such thing"):
        outcome(engine, acts("asks for what is not there"))
    with pytest.raises(SweepError, match="ZeroDivisionError: by zero"):
        outcome(engine, acts("breaks"))


def test_who_is_ended_for_want_of_memory_is_told(
    engine: RayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    def get(handle: object) -> None:
        raise ray.exceptions.OutOfMemoryError(
            "Task was killed due to the node running low on memory."
        )

    monkeypatch.setattr(ray, "get", get)
    with pytest.raises(Died, match="short of memory") as told:
        engine.result(None)
    assert told.value.memory


def test_a_process_serves_one_series_and_begins_with_its_variables(engine: RayEngine) -> None:
    # Ray ends processes that had nothing to do for a second: the second task waits already.
    handles = [engine.submit(acts("says")), engine.submit(acts("says more"))]
    first, again = (end(engine, handle) for handle in handles)
    assert first["pid"] == again["pid"], "what is imported stays"
    other = outcome(engine, acts("says", "keras-jax"))
    assert other["pid"] != first["pid"]
    assert other["KERAS_BACKEND"] == "jax" != first.get("KERAS_BACKEND")
    for said in (first, other):
        assert said["OMP_NUM_THREADS"] == said["PJRT_NPROC"] == "1"
        assert said["RAY_USAGE_STATS_ENABLED"] == "0"
        assert str(ROOT) in said["PYTHONPATH"].split(os.pathsep)
        assert "compiled" in said["JAX_COMPILATION_CACHE_DIR"]


def test_a_sweep_on_ray(engine: RayEngine, tmp_path: Path) -> None:
    few = {"backends": ["numpy"], "level": "smoke", "dtypes": ["f16"], "seeds": "0-1"}
    plan = plan_of({"judge": [few]})
    with Store(tmp_path / "s", plan) as store:
        assert Sweep(plan, store, engine, SweepLimits()).run() == GREEN
    assert [run.complete for run in sweeps.runs(tmp_path)] == [True, True]


def test_a_cell_that_kills_its_worker_costs_itself_alone(
    engine: RayEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {"backends": ["tests.unruly:aborts"], "level": "smoke", "dtypes": ["f64"]}
    plan = plan_of({"judge": [few]})
    with Store(tmp_path / "s", plan) as store:
        assert Sweep(plan, store, engine, SweepLimits()).run() == FAILED
    (run,) = sweeps.runs(tmp_path)
    cells = run.load().cells
    assert run.complete
    assert {"k17" in c.case for c in cells if c.status == "crash"} == {True}
    assert {c.status for c in cells if "k17" not in c.case} <= {"pass", "unsupported"}
    assert all("SIGABRT" in c.message for c in cells if c.status == "crash")
    assert "it is run again, cell by cell" in capsys.readouterr().out


def test_a_task_carries_the_environment_of_its_release(engine: RayEngine) -> None:
    task = SurveyTask(Options(("jax",)), "jax-0.8.1")
    environment = engine.environment(task)
    assert environment["pip"] == {"packages": pins("jax-0.8.1"), "pip_check": False}
    assert {"jax==0.8.1", "jaxlib==0.8.1", "numpy==2.4.6"} <= set(environment["pip"]["packages"])
    assert not any("#" in pin for pin in environment["pip"]["packages"])
    assert "pip" not in engine.environment(SurveyTask(Options(("jax",)), ""))
    groups = {SurveyTask(Options(("jax",)), release).group for release in ("", "jax-0.8.1")}
    assert len(groups) == 2, "releases share no process"


PLAN = """
[[judge]]
backends = ["numpy"]
level = "smoke"
dtypes = ["bf16"]
seeds = "0-5"
"""


WORKING = ("raylet/raylet", "gcs_server", "ray::numpy", "ray::IDLE", "suite.sweep")
"""What the processes of a cluster are called that hold anything."""


def descendants(pid: int) -> list[int]:
    """The processes below one."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            child = int(path.parent.name)
            pids += [child, *descendants(child)]
    return pids


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder for Ray's files, with a name short enough for sockets, which goes with the test."""
    with tempfile.TemporaryDirectory(prefix="s-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield


def begin(folder: Path) -> subprocess.Popen[str]:
    plan = folder / "plan.toml"
    plan.write_text(PLAN)
    words = ["sweep", str(plan), f"--results={folder / 's'}", "--cores=1"]
    return subprocess.Popen(
        [sys.executable, "-m", "suite", *words], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def wait_for(condition: Any, process: subprocess.Popen[str], seconds: float = 90.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.02)


def files(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_kill_9_of_a_worker_loses_nothing(tmp_path: Path) -> None:
    process = begin(tmp_path)
    wait_for(lambda: files(tmp_path), process)

    def busy() -> list[int]:
        return [p for p in descendants(process.pid) if "ray::numpy smoke" in command(p)]

    wait_for(busy, process)
    os.kill(busy()[0], signal.SIGKILL)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert "it is run again, cell by cell" in said
    runs = list(sweeps.runs(tmp_path))
    assert len(runs) == 6
    for run in runs:
        run.check()
        assert run.complete


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_kill_9_of_the_driver_loses_nothing_and_leaves_no_process(tmp_path: Path) -> None:
    process = begin(tmp_path)
    wait_for(lambda: len(files(tmp_path)) >= 2, process)
    below = descendants(process.pid)
    process.kill()
    process.communicate()
    before = files(tmp_path)
    until = time.monotonic() + 60
    while left := [p for p in below if any(word in command(p) for word in WORKING)]:
        assert time.monotonic() < until, [command(p) for p in left]
        time.sleep(0.2)
    for agent in below:
        # Ray's agents look for their raylet once in a while only.
        if "Agent" in command(agent):
            os.kill(agent, signal.SIGKILL)
    again = begin(tmp_path)
    said, _ = again.communicate(timeout=240)
    assert again.returncode == 0, said
    assert "of them recorded" in said
    after = files(tmp_path)
    assert before.items() <= after.items(), "what was recorded is as it was"
    for run in sweeps.runs(tmp_path):
        run.check()
        assert run.complete
