"""Garbage: whose cell it is held against, and where it is looked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attention_conformance.suite.run.plugin import YOUNG
from tests.processes import ROOT, run
from tests.test_runs import FEW, ISOLATED, judged, statuses


def test_garbage_of_the_last_cell_is_in_its_record(tmp_path: Path) -> None:
    out, loaded = judged("garbage", tmp_path / "r.jsonl", "-k", "b3h3q11k17d8/bias")
    assert out.returncode == 1
    assert statuses(loaded) == {("fail", "raised")}


LOOKS_FOR_CYCLES = """
import gc, pathlib, os

def pytest_runtest_protocol(item, nextitem):
    path = pathlib.Path(os.environ["SAID"])
    path.write_text(f"{gc.isenabled()} {gc.get_freeze_count() > 50_000} {gc.get_threshold()[0]}")
"""


@pytest.mark.parametrize("words", [(), ISOLATED])
def test_garbage_is_looked_for_among_what_cells_make_alone(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "looks.py").write_text(LOOKS_FOR_CYCLES)
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "SAID": str(tmp_path / "said")}
    assert run(*FEW, "--backend=numpy", "-p", "looks", *words, env=env).returncode == 0
    assert (tmp_path / "said").read_text() == f"True True {YOUNG}"


@pytest.mark.parametrize("words", [(), ISOLATED])
def test_garbage_of_other_peoples_tests_is_looked_for(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "test_theirs.py").write_text(
        f"import gc\n\ndef test():\n    assert gc.isenabled() and gc.get_threshold()[0] < {YOUNG}\n"
    )
    out = run(
        *words,
        "-p",
        "attention_conformance.suite.plugin",
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert out.returncode == 0, out.stdout
