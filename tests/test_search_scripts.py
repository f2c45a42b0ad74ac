"""Scripts: they run alone, hold the arrays of the cell, and say what was expected and got."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.backends.compilers import mode_of
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.run import script
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from tests.processes import Done


def alone(text: str, folder: Path) -> Done:
    """A script in a process of its own, in another folder."""
    path = folder / "shown.py"
    path.write_text(text, encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    # -I leaves the folder of the script out.
    command = [sys.executable, "-I", str(path)]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=environment, timeout=120
    )


@pytest.mark.parametrize("count", [7, 2000])
def test_literals_are_exact(count: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [round_to(rng.standard_normal(count), DTYPES["f16"]), rng.random(count) < 0.5]
    arrays += [np.where(arrays[1], -np.inf, arrays[0]), np.array(0.5), np.arange(count)]
    arrays += [np.zeros((0, 3)), arrays[0].astype(np.float32) * np.nan]
    for array in arrays:
        got = eval(
            script.literal(array),
            {"np": np, "zlib": __import__("zlib"), "base64": __import__("base64")},
        )
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        assert np.array_equal(got, array, equal_nan=array.dtype != bool)


def test_scripts_of_right_answers_pass(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    rows = (
        ("sdpa", "sdpa/pad/gqa2/bf16/b2h4q5k7d8"),
        ("sdpa", "sdpa/none/mha/f64/b2h2q5k7d8/bias.qk/scale0.3"),
        ("sdpa-math", "sdpa/none/mha/f16/b2h2q7k5d8/bias.bhqk"),
        ("sdpa-flash", "sdpa/none/mha/f32/b2h2q64k65d16"),
    )
    cells = [_cell("torch", *row, check) for row in rows for check in ("values", "gradients")]
    _scripts_pass(cells, tmp_path)


@pytest.mark.parametrize(
    ("name", "case", "check", "reason"),
    [
        ("flex", "sdpa/causal/mha/f32/b2h2q5k7d8", "values", "no source text"),
        ("sdpa", "sdpa/causal/gqa2/f32/b2h4q5k7d8/blhd", "values", "are views"),
        ("sdpa", "sdpa/bool.qk/mha/f32/b2h2q5k7d8/bias.qk/dense", "gradients", "into the bias"),
        ("sdpa", "sdpa/padempty/mha/f32/b2h3q17k23d8", "gradients", None),
    ],
)
def test_what_a_script_cannot_show_has_none(
    name: str, case: str, check: str, reason: str | None
) -> None:
    pytest.importorskip("torch")
    cell = _cell("torch", name, case, check)
    if reason is None:
        assert "empty_rows='zeros'" in script.script(cell, AS_IF)
        return
    with pytest.raises(script.NoScript, match=reason):
        script.script(cell, AS_IF)


AS_IF = Verdict("fail", "value", "as if")


def slow(*values: str) -> Any:
    """A script that takes the way of another one that is always run."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.seldom
@pytest.mark.parametrize(
    ("backend", "name", "case", "check"),
    [
        ("tf", "keras-ops", "sdpa/causal/gqa2/f32/b2h4q5k7d8/scale0.3", "gradients"),
        ("jax", "jax-nn", "sdpa/pad/gqa2/bf16/b2h4q5k7d8", "gradients"),
        ("torch", "sdpa-math@aot_eager", "sdpa/causal/gqa2/f32/b2h4q5k7d8/scale0.3", "gradients"),
        slow("tf", "keras-ops@xla", "sdpa/pad/mha/f32/b2h2q5k7d8", "values"),
        slow("jax", "jax-nn@ops", "sdpa/pad+win2.0/gqa2/f32/b2h4q5k7d8/bias.bhqk", "values"),
        slow("keras-numpy", "keras-ops", "sdpa/pad/mha/bf16/b2h2q5k7d8", "values"),
    ],
)
def test_scripts_in_other_frameworks_pass(
    backend: str, name: str, case: str, check: str, tmp_path: Path
) -> None:
    pytest.importorskip({"tf": "tensorflow"}.get(backend, backend.partition("-")[2] or backend))
    _scripts_pass([_cell(backend, name, case, check)], tmp_path)


def _cell(backend: str, name: str, case: str, check: str) -> Cell:
    plan = Plan.make(Options((backend,), mode=mode_of(name)))
    chosen = next(i for i in plan.implementations if i.name == name)
    return Cell(all_checks()[check], Case.parse(case), chosen)


def _scripts_pass(cells: Sequence[Cell], folder: Path) -> None:
    """The scripts of right answers end without an error, one after the other in one process."""
    assert [judge(cell).status for cell in cells] == ["pass"] * len(cells)
    texts = [script.script(cell, AS_IF) for cell in cells]
    shown = alone("\n".join(f"exec({text!r}, {{}})" for text in texts), folder)
    assert shown.returncode == 0, texts[-1][-2000:] + shown.stderr
