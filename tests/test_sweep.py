"""Sweeps without Ray: plans, their tasks, result files, and tasks that run again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.__main__ import main
from attention_conformance.suite.records.cells import CellRecord, Run
from attention_conformance.suite.records.machine import ROOT
from attention_conformance.suite.records.sweeps import runs_below
from attention_conformance.suite.sweep import (
    FAILED,
    GREEN,
    UNFINISHED,
    Outcome,
    Task,
    load_plan,
    run_task,
    sweep,
    tasks_of,
)
from tests.rows import cell, header

FEW = {"backends": ["numpy"], "level": "smoke", "dtypes": ["f16"]}
"""A dozen cells."""

TORCH: dict[str, Any] = {"backends": ["torch"]}


def recorded(folder: Path) -> list[CellRecord]:
    """All records below a folder, without the time they took."""
    cells = [c for run in runs_below(folder) for c in run.load().cells]
    return sorted((replace(c, seconds=0.0) for c in cells), key=lambda c: c.key)


def few(**fields: Any) -> list[Task]:
    return tasks_of({"judge": [FEW | fields]})


def here(give: Callable[[Task], Outcome], done: list[str]) -> Callable[[Task], Future[Outcome]]:
    """A function that runs tasks at once in this process, and notes their titles."""

    def submit(task: Task) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        done.append(task.title)
        try:
            future.set_result(give(task))
        except RuntimeError as error:
            future.set_exception(error)
        return future

    return submit


def answer(
    folder: Path, status: str = "pass", code: int = 0, footer: bool = True
) -> Callable[[Task], Outcome]:
    """A function that gives the outcome of a task that judged one cell."""
    one = cell(status=status)
    path = folder / f"answer-{status}-{footer}.jsonl"
    path.unlink(missing_ok=True)
    Run(header(one), (one,), complete=footer).save(path)
    return lambda task: Outcome(code, "the last line", path.read_text())


def test_a_plan_is_tasks_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        "[[search]]\nbackends = ['torch']\nseeds = '8-9'\nexamples = 50\ngradients = false\n"
        "[[judge]]\nbackends = ['pytorch', 'tensorflow']\nseeds = '0-1'\ncell_timeout = 30.0\n"
        "releases = ['installed', 'jax-0.8.1']\n"
        "[[judge]]\nbackends = ['jax']\nlevel = 'smoke'\nmode = 'all'\nseeds = 5\nshards = 2\n"
        "dtypes = ['f32']\nimplementations = ['jax-nn']\naudit = true\noptimized = true\n"
    )
    every = load_plan(path)
    titles = [task.title.replace(" installed", "") for task in every]
    assert titles == [
        "judge torch tf standard eager seed 0", "judge torch tf standard eager seed 1",
        "judge torch tf standard eager jax-0.8.1 seed 0",
        "judge torch tf standard eager jax-0.8.1 seed 1",
        "judge jax smoke all seed 5 part 1/2", "judge jax smoke all seed 5 part 2/2",
        "search torch eager seed 8", "search torch eager seed 9",
    ]  # fmt: skip
    releases = [task.release for task in every]
    assert releases == [*["installed"] * 2, *["jax-0.8.1"] * 2, *["installed"] * 4]
    assert "jax==0.8.1" in every[2].pins
    assert every[1].words[-4:] == (
        "--backend=torch", "--backend=tf", "--seed=1", "--cell-timeout=30.0",
    )  # fmt: skip
    assert {*every[5].words} >= {
        "--backend=jax", "--implementation=jax-nn", "--dtype=f32", "--level=smoke", "--mode=all",
        "--seed=5", "--shard=2/2", "--audit", "--optimized",
    }  # fmt: skip
    assert every[6].words == (
        "attention_conformance.suite", "search", "--backend=torch", "--no-gradients", "--seed=8",
        "--examples=50",
    )  # fmt: skip
    names = [task.file for task in every]
    assert len({*names}) == len(names) == 8
    assert names == [task.file for task in load_plan(path)]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "expected tables [[judge]] and [[search]], got none"),
        ({"judge": [TORCH | {"sead": 1}]}, "[[judge]]: unknown field sead; valid: backends"),
        ({"search": [TORCH | {"shards": 2}]}, "[[search]]: unknown field shards; valid: backends"),
        ({"judge": [{"level": "smoke"}]}, "--backend"),
        ({"judge": [TORCH | {"level": "deep"}]}, "unknown level 'deep'; valid: smoke"),
        ({"judge": [{"backends": ["trch"]}]}, "unknown backend 'trch'; valid: numpy"),
        ({"judge": [TORCH | {"releases": ["jax-0.1"]}]}, "unknown release 'jax-0.1'; valid: jax-0.10.2"),
        ({"judge": [TORCH | {"seeds": "3-1"}]}, "seeds: expected a number or a range"),
        ({"judge": [TORCH | {"cell_timeout": -1.0}]}, "--cell-timeout must not be negative"),
    ],
)  # fmt: skip
def test_a_wrong_plan_is_refused(document: dict[str, Any], said: str) -> None:
    with pytest.raises((UsageError, ValueError)) as error:
        tasks_of(document)
    assert said in str(error.value)


@pytest.mark.parametrize("text", ["[[judge", "judge = 1", "[judge]\nbackends = 1", None])
def test_a_file_that_is_no_plan_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    path = tmp_path / "plan.toml"
    if text is not None:
        path.write_text(text)
    assert main(["sweep", str(path), f"--results={tmp_path / 's'}"]) == 2
    assert f"{path}: expected a plan in TOML" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_without_ray_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    path = tmp_path / "plan.toml"
    path.write_text("[[judge]]\nbackends = ['numpy']\n")
    assert main(["sweep", str(path), f"--results={tmp_path / 's'}"]) == 2
    assert capsys.readouterr().err.strip() == (
        'a sweep needs Ray: pip install "attention-conformance[cluster]"'
    )


@pytest.mark.seldom
def test_records_are_those_of_a_plain_run(tmp_path: Path) -> None:
    done: list[str] = []
    submit = here(lambda task: run_task(task.words), done)
    assert sweep(few(seeds=3, shards=2), tmp_path / "s", submit) == GREEN
    assert [title[-8:] for title in done] == ["part 1/2", "part 2/2"]
    words = (
        "-m pytest -q -p no:cacheprovider suite --backend=numpy --level=smoke --dtype=f16 --seed=3"
    )
    plain = tmp_path / "plain" / "run.jsonl"
    command = [sys.executable, *words.split(), f"--results={plain}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert recorded(tmp_path / "s") == recorded(plain.parent)


def test_arguments_that_a_run_refuses_end_the_sweep(tmp_path: Path) -> None:
    submit = here(lambda task: run_task(task.words), [])
    with pytest.raises(UsageError, match=r"(?s)seed .: .*unknown implementation flex"):
        sweep(few(implementations=["flex"], seeds="0-1"), tmp_path / "s", submit)


def test_a_task_with_a_whole_file_does_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One task is lost, one file has no footer: the same sweep continues."""
    every, green = few(seeds="0-3"), answer(tmp_path)

    def loses(task: Task) -> Outcome:
        if "seed 2" in task.title:
            raise RuntimeError("\x1b[36m(pid=7)\x1b[0m its process died")
        return green(task)

    assert sweep(every, tmp_path / "s", here(loses, [])) == UNFINISHED
    said = capsys.readouterr().out
    assert "4 tasks, 0 of them recorded" in said
    assert "seed 2: not recorded: RuntimeError: (pid=7) its process died" in said
    assert "1 tasks are not recorded; the same command continues the sweep" in said
    path = tmp_path / "s" / every[1].file
    path.write_text(path.read_text().rpartition('{"record": "footer"')[0])
    done: list[str] = []
    assert sweep(every, tmp_path / "s", here(green, done)) == GREEN
    assert done == [every[1].title, every[2].title]
    assert f"tables: attention-conformance report {tmp_path / 's'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[: len(text) // 2], "cut off"),
        (lambda text: text.replace('"status": "pass"', '"status": "fail"'), "footer counts"),
        (lambda text: "", "line 1 is no header"),
    ],
)
def test_a_damaged_file_is_moved_aside_and_its_task_runs_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[str], str], said: str
) -> None:
    every, green, done = few(seeds="0-1"), answer(tmp_path), list[str]()
    assert sweep(every, tmp_path / "s", here(green, [])) == GREEN
    path = tmp_path / "s" / every[0].file
    whole = path.read_text()
    path.write_text(damaged := damage(whole))
    capsys.readouterr()
    assert sweep(every, tmp_path / "s", here(green, done)) == GREEN
    assert done == [every[0].title]
    out = capsys.readouterr().out
    assert said in out
    assert f"renamed to {path.stem}.damaged; {every[0].title} runs again" in out
    assert (path.read_text(), path.with_suffix(".damaged").read_text()) == (whole, damaged)


def test_one_driver_works_on_a_folder(tmp_path: Path) -> None:
    def second(task: Task) -> Outcome:
        with pytest.raises(BlockingIOError, match="another process is at work on"):
            sweep(few(), tmp_path / "s", here(answer(tmp_path), []))
        return answer(tmp_path)(task)

    assert sweep(few(), tmp_path / "s", here(second, [])) == GREEN
    assert sweep(few(), tmp_path / "s", here(second, [])) == GREEN


def test_the_limit_of_hours_ends_a_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    assert sweep(few(), tmp_path / "s", lambda task: Future(), hours=1e-6) == UNFINISHED
    assert time.monotonic() - began < 5
    assert "--hours=1e-06 is reached" in capsys.readouterr().out


def test_failures_end_with_1_also_failures_that_are_recorded(tmp_path: Path) -> None:
    done: list[str] = []
    for _ in range(2):
        submit = here(answer(tmp_path, "fail", code=1), done)
        assert sweep(few(), tmp_path / "s", submit) == FAILED
    assert len(done) == 1


@pytest.mark.parametrize(
    ("given", "code"), [({"footer": False}, 1), ({"status": "fail"}, 0), ({}, 1), ({}, 3)]
)
def test_a_run_whose_end_its_file_does_not_explain_is_not_kept(
    tmp_path: Path, given: dict[str, Any], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run is red without a failing cell if a framework cannot be imported."""
    odd = answer(tmp_path, code=code, **given)
    assert sweep(few(), tmp_path / "s", here(odd, [])) == UNFINISHED
    assert (
        f"not recorded: exit code {code}; its last lines:\nthe last line" in capsys.readouterr().out
    )
    assert not list((tmp_path / "s").iterdir())


def test_a_release_is_in_the_header(tmp_path: Path) -> None:
    lock = tmp_path / "mine-1.2.txt"
    lock.write_text("mine==1.2\nnumpy==2.4.6\n")
    every = few(releases=["installed", "jax-0.8.1", str(lock)])
    assert every[2][3:] == ("mine-1.2", ("mine==1.2", "numpy==2.4.6"))
    assert sweep(every, tmp_path / "s", here(answer(tmp_path), [])) == GREEN
    assert {run.key[1] for run in runs_below(tmp_path / "s")} == {
        "installed",
        "jax-0.8.1",
        "mine-1.2",
    }
    lock.write_text("mine==1.3\n")
    with pytest.raises(ValueError, match=r"expected a line mine==1\.2"):
        few(releases=[str(lock)])
