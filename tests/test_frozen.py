"""Promise: what is frozen stays as it is; here its quick part and the statuses (see `tests.frozen`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attention_conformance.backends import registry
from attention_conformance.suite.deviations import all_faults
from attention_conformance.suite.records.cells import Run
from attention_conformance.suite.spec.operators import OPERATORS
from tests.diagnosed.kernels import KERNELS
from tests.frozen import statuses, told, transcripts
from tests.frozen.__main__ import PARTS, compared, main
from tests.frozen.asked import BOUNDS
from tests.frozen.part import Folder, Part
from tests.rows import cell, run

ROOT = Path(__file__).resolve().parents[1]
CASE = "sdpa/none/mha/bf16/b2h3q5k7d8"
KEY = f"torch sdpa values {CASE}"


QUICK = [part for part in PARTS if part.quick]


@pytest.mark.parametrize("part", QUICK, ids=[part.name for part in QUICK])
def test_nothing_differs(part: Part) -> None:
    assert not compared(part, quick=True)


@pytest.mark.slow
@pytest.mark.parametrize("group", ["kills", "told", "transcripts"])
def test_nothing_differs_in_the_whole_part(group: str) -> None:
    """In a process of its own, whose environment keeps the CPU out of what is told."""
    words = [sys.executable, "-m", "tests.frozen", "compare", group]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_bounds_of_every_operator_are_frozen() -> None:
    cells = {tuple(key.split()[:3]) for key in BOUNDS.read()}
    directions = {(case.partition("/")[0], direction) for case, _, direction in cells}
    assert directions == {
        (name, d)
        for name, operator in OPERATORS.items()
        for d in ("forward", "vjp", "jvp")
        if d == "forward" or operator.asks.gradients
    }
    assert len(cells) >= 300


def test_a_part_is_written_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.frozen.part.FOLDER", tmp_path)
    made = {"masks.py:one": "values: A sentence.", "empty": ""}
    for part in (
        Part("told", "told", lambda wanted: {k: v for k, v in made.items() if wanted(k)}),
        Folder("told", "folder", lambda wanted: {k: f"first\n{v}\n" for k, v in made.items()}),
    ):
        part.write()
        assert not part.compare()
    assert (tmp_path / "told.txt").read_text() == "empty:\nmasks.py:one: values: A sentence.\n"
    made["empty"] = "now"
    assert [*map(str.splitlines, part.compare())] == [
        ["folder: 1 changed:"], ["folder: ~ empty", "  - ", "  + now"],
    ]  # fmt: skip


def test_every_command_has_a_transcript_and_every_fault_its_lines() -> None:
    by_name = {part.name: part.read() for part in PARTS}
    assert by_name["transcripts"].keys() == transcripts.COMMANDS.keys()
    faults = {fault.name for fault in all_faults()}
    for name in ("kills-smoke", "kills-standard", "told-withheld"):
        assert by_name[name].keys() == faults
    assert by_name["told-functions"].keys() == {*told.functions()}
    pytest.importorskip("torch")
    from tests.exploits import every

    assert by_name["told-exploits"].keys() == every().keys()
    asked = {one.name for one in KERNELS if told.is_asked(one.name, one.backend)}
    assert by_name["told-diagnosed"].keys() == asked
    told_lines = {
        k: v for name, lines in by_name.items() if "told" in name for k, v in lines.items()
    }
    assert not {key for key, text in told_lines.items() if "no diagnosis" in text}


def of_torch(status: str, **fields: object) -> Run:
    """A whole run of torch at standard: one cell with the status."""
    return run(cell(CASE, status=status), options=statuses.ASKED, **fields)  # type: ignore[arg-type]


@pytest.fixture
def passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one cell passed when statuses were frozen, and no manifest speaks of it."""
    monkeypatch.setattr(statuses, "STATUSES", tmp_path / "statuses.parquet")
    monkeypatch.setattr(statuses, "manifests", dict)
    statuses.write_statuses([of_torch("pass")])


@pytest.mark.usefixtures("passed")
def test_statuses_are_compared_cell_by_cell(tmp_path: Path) -> None:
    path = of_torch("fail").save(tmp_path / "torch.jsonl")
    runs = statuses.loaded([str(path)])
    assert statuses.compare_statuses(runs) == ["1 changed:", f"~ {KEY} pass -> fail"]
    assert main(["compare", "statuses", str(path)]) == 1
    assert main(["write", "statuses", str(path)]) == 0
    assert main(["compare", "statuses", str(path)]) == 0
    assert statuses.compare_statuses([run(cell("x", "jax:sdpa"))]) == [
        "1 added:",
        "+ jax sdpa values x pass",
    ]
    other = run(cell("y"), options=statuses.ASKED)
    assert statuses.compare_statuses([other]) == [
        "1 removed:", f"- {KEY} fail", "1 added:", "+ torch sdpa values y pass",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "torch", "tf", "jax"])
def test_no_status_changed(backend: str, tmp_path: Path) -> None:
    if backend not in registry.installed():
        pytest.skip(f"{backend} is not installed")
    results = tmp_path / f"{backend}.jsonl"
    words = ["suite", "-q", f"--backend={backend}", f"--results={results}"]
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=True)
    assert not statuses.compare_statuses(statuses.loaded([str(results)]))
