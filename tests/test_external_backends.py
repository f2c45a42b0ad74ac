"""An adapter of one's own: the page about it holds a complete one, and what it declares is respected."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.backends.protocol import Declared, Implementation, Limits
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.catalogue import find
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


class Stub(Implementation):
    """An implementation that declares and computes nothing."""

    name = "stub"

    def prepare(self, inputs: Any) -> Any:
        raise TypeError("the adapter cannot convert this")


def stub(adapter: Path, **declared: Any) -> Implementation:
    backend = plan(adapter).implementations[0].backend
    return Stub(backend, declared=Declared(**declared))


def test_limits_are_declared_for_each_dtype(adapter: Path) -> None:
    limited = stub(
        adapter, numerics="exact", features=frozenset({"scale", "causal"}),
        limits={"f16": Limits(max_length=4), "f32": Limits(equal_lengths=True, scales=(0.0, 1.0))},
    )  # fmt: skip
    reasons = {
        text: limited.unsupported(find(text))
        for text in (
            "sdpa/none/mha/f16/b2h3q5k7d8", "sdpa/none/mha/f32/b2h3q5k7d8",
            "sdpa/none/mha/f32/b2h3q7k7d8/scale2.5", "sdpa/none/mha/f64/b2h3q5k7d8",
        )
    }  # fmt: skip
    assert list(reasons.values()) == [
        "declares lengths up to 4, and 7 is more",
        "declares equal lengths, and these are 5 and 7",
        "declares scales from 0 to 1, and 2.5 is none of them",
        None,
    ]
