"""An adapter of one's own: the page about it holds a complete one, and what it declares is respected."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.vocabulary import BROKEN
from tests.processes import run
from tests.shown import ROOT

PAGE = ROOT / "docs" / "backend.md"


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "my_adapter.py"
    path.write_text(source, encoding="utf-8")
    return path


REGISTERED = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "runtime-attention"
version = "1"

[project.entry-points."attention_conformance.backends"]
runtime = "my_adapter:Runtime"

[tool.setuptools]
py-modules = ["my_adapter"]
"""


def test_a_registered_backend_is_found_by_its_name(adapter: Path, tmp_path: Path) -> None:
    """The distribution that holds the adapter is installed, and nothing else is said."""
    (tmp_path / "pyproject.toml").write_text(REGISTERED)
    site, empty = tmp_path / "site", tmp_path / "empty"
    words = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", f"--target={site}"]
    subprocess.run([sys.executable, "-m", "pip", "install", *words, str(tmp_path)], check=True)
    empty.mkdir()
    out = run(
        "--pyargs", "attention_conformance.suite.test_extremes", "--attention-backend=runtime",
        "--attention-level=smoke", cwd=empty, env={"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert out.returncode == 0, out.stdout + out.stderr
    assert "runtime:fused" in out.stdout


def plan(adapter: Path, **options: Any) -> Plan:
    return Plan.make(Options((f"{adapter}:backend",), level="smoke", **options))


def judged(of: Plan) -> list[tuple[Cell, Verdict]]:
    cells = (cell for check in all_checks().values() for cell in of.cells(check))
    return [(cell, judge(cell, of.policy(cell))) for cell in cells]


def test_the_adapter_of_the_page_is_right(adapter: Path) -> None:
    verdicts = judged(plan(adapter))
    assert not [(str(cell.case), v.message) for cell, v in verdicts if v.status in BROKEN]
    assert sum(verdict.status == "pass" for _, verdict in verdicts) > 100
    reasons = {verdict.message for _, verdict in verdicts if verdict.status == "unsupported"}
    assert "the runtime has no softcap" in reasons
    assert "dtype float64 is not supported" in reasons
