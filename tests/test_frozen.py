"""Promise: ids, statuses and bounds stay as they are frozen (see `tests.frozen`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from backends import registry
from suite.records.cells import Run
from suite.records.expectations import Expectation
from suite.spec.operators import OPERATORS
from tests import frozen
from tests.records_by_hand import cell, run, write

ROOT = Path(__file__).resolve().parents[1]
CASE = "sdpa/none/mha/bf16/b2h3q5k7d8"
LAYER = "multi-head/causal+pad/mha/f32/b2h4q7k7d3/e12.12.12.12/self"
KEY = f"torch sdpa values {CASE}"


@pytest.mark.parametrize("part", ["ids", "bounds"])
def test_nothing_differs(part: str) -> None:
    assert not frozen.compare(part)


def test_bounds_of_every_operator_are_frozen() -> None:
    cells = {tuple(key.split()[:3]) for key in frozen.frozen_bounds()}
    directions = {(case.partition("/")[0], direction) for case, _, direction in cells}
    assert directions == {
        (name, d)
        for name, operator in OPERATORS.items()
        for d in ("forward", "vjp", "jvp")
        if d == "forward" or operator.asks.gradients
    }
    assert len(cells) >= 300


def test_a_difference_is_lines_under_their_number() -> None:
    before = {"kept": "1", "moved": "1"} | {f"old{i:02}": "" for i in range(21)}
    lines = frozen.difference(before, {"kept": "1", "moved": "2", "new": "pass"})
    olds = [f"- old{i:02}" for i in range(20)]
    assert lines == ["21 removed:", *olds, "1 added:", "+ new pass", "1 changed:", "~ moved 1 -> 2"]


def test_bounds_may_differ_in_their_last_digits_alone() -> None:
    assert frozen.alike("", "1 0.5 8", f"{1 + 2**-21} 0.5 8")
    assert not frozen.alike("", "1 0.5 8", f"{1 + 2**-19} 0.5 8")
    assert not frozen.alike("", "1 0.5 8", "1 0.5 7")


def test_an_id_is_frozen_with_the_checks_that_ask_it() -> None:
    checks = {check for case, check in map(str.split, frozen.frozen_ids("smoke")) if case == LAYER}
    assert checks == {"paths", "values", "compiled:values"}


def of_torch(status: str, **fields: object) -> Run:
    """A whole run of torch at standard: one cell with the status."""
    return run(cell(CASE, status=status), options=frozen.ASKED, **fields)  # type: ignore[arg-type]


@pytest.fixture
def passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one cell passed when statuses were frozen, and no manifest speaks of it."""
    monkeypatch.setattr(frozen, "STATUSES", tmp_path / "statuses.parquet")
    monkeypatch.setattr(frozen, "manifests", dict)
    frozen.write_statuses([of_torch("pass")])


@pytest.mark.usefixtures("passed")
def test_statuses_are_compared_cell_by_cell(tmp_path: Path) -> None:
    path = write(tmp_path / "torch.jsonl", of_torch("fail"))
    assert frozen.compare("statuses", [str(path)]) == ["1 changed:", f"~ {KEY} pass -> fail"]
    assert frozen.main(["compare", "statuses", str(path)]) == 1
    frozen.write("statuses", [str(path)])
    assert frozen.main(["compare", "statuses", str(path)]) == 0
    assert frozen.compare_statuses([run(cell("x", "jax:sdpa"))]) == [
        "1 added:",
        "+ jax sdpa values x pass",
    ]
    other = run(cell("y"), options=frozen.ASKED)
    assert frozen.compare_statuses([other]) == [
        "1 removed:", f"- {KEY} fail", "1 added:", "+ torch sdpa values y pass",
    ]  # fmt: skip


@pytest.mark.usefixtures("passed")
def test_what_hangs_on_the_cpu_may_pass_or_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    conditions = ({"cpu": ("!no_such_flag",)}, {"sometimes": "with some seeds"}, {})
    for condition in conditions:
        entry = Expectation(
            ("sdpa",), ("values",), ("sdpa/*",), "value", ".*", "cause", "none found", ("torch>=2",),
            **condition,
        )  # fmt: skip
        monkeypatch.setattr(frozen, "manifests", lambda entry=entry: {"torch": ([], [entry])})
        assert bool(frozen.compare_statuses([of_torch("known")])) == (not condition)
        assert frozen.compare_statuses([of_torch("fail")])
        # An entry for other versions speaks of no cell of this run.
        assert frozen.compare_statuses([of_torch("known", versions={"torch": "1.13"})])


def test_runs_of_other_options_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "smoke.jsonl", run(cell()))
    with pytest.raises(SystemExit, match=r"expected a run with .*'level': 'standard'"):
        frozen.main(["compare", "statuses", str(path)])
    with pytest.raises(SystemExit, match="--results=FILE"):
        frozen.main(["compare", "statuses"])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["numpy", "torch", "tf", "jax"])
def test_no_status_changed(backend: str, tmp_path: Path) -> None:
    if backend not in registry.installed():
        pytest.skip(f"{backend} is not installed")
    results = tmp_path / f"{backend}.jsonl"
    words = ["suite", "-q", f"--backend={backend}", f"--results={results}"]
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=True)
    assert not frozen.compare("statuses", [str(results)])
