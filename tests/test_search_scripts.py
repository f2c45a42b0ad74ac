"""Scripts of the search: what they show stands alone, and is exact."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.backends.compilation import mode_of
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.run import definition, literals, script
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES, round_to
from attention_conformance.suite.spec.inputs import draw
from tests.test_search import command_line, value_cell

WRONG = """
import torch


def kernel(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    if is_causal and key.shape[-2] > 4:
        rows, keys = query.shape[-2], key.shape[-2]
        attn_mask, is_causal = torch.ones(rows, keys, dtype=torch.bool).tril({diagonal}), False
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
    )
"""


def alone(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A script in a process that does not have this project on its path."""
    path = folder / "shown.py"
    path.write_text(text, encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    # -I leaves the folder of the script and the user's packages out, and -S would leave torch out.
    command = [sys.executable, "-I", str(path)]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=environment, timeout=120
    )


def test_backends_without_words_give_the_case_alone() -> None:
    cell = value_cell(
        "attention_conformance.suite.faults:mutants",
        "mask-inverted",
        "sdpa/bool.qk/mha/f32/b2h3q5k7d8/dense",
    )
    with pytest.raises(script.NoScript, match="no dialect"):
        script.script(cell, judge(cell))


@pytest.mark.parametrize("case", ["b1h2q3k5d4", "b2h3q40k33d16"])
@pytest.mark.parametrize("dt", ["f32", "bf16", "f16", "f64"])
def test_inputs_of_a_script_are_those_of_the_case(case: str, dt: str) -> None:
    """Written out, or drawn by the lines of the script: the same bytes."""
    inputs = draw(Case.parse(f"sdpa/causal/mha/{dt}/{case}/bias.bhqk/sinks/logitscale"))
    values: dict[str, Any] = {"np": np}
    exec(definition.arrays_text(inputs, None), values)
    assert {"bias", "sinks", "logit_scale"} < inputs.arrays.keys()
    for name in inputs.arrays:
        assert values[name].tobytes() == inputs.arrays[name].tobytes(), name
    assert (values["mask"] == inputs.dense_mask).all()


@pytest.mark.parametrize("count", [7, 2000])
def test_literals_are_exact(count: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [round_to(rng.standard_normal(count), DTYPES["f16"]), rng.random(count) < 0.5]
    arrays += [np.where(arrays[1], -np.inf, arrays[0]), np.array(0.5), np.arange(count)]
    for array in arrays:
        got = eval(
            literals.literal(array),
            {"np": np, "zlib": __import__("zlib"), "base64": __import__("base64")},
        )
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        assert (got == array).all()


class TestTorch:
    """With a framework: what is printed runs without this project."""

    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        pytest.importorskip("torch")

    def test_a_causal_off_by_one(self, tmp_path: Path) -> None:
        kernel = tmp_path / "kernels.py"
        kernel.write_text(WRONG.format(diagonal=1), encoding="utf-8")
        out = command_line(
            "--backend=torch", f"--function={kernel}:kernel", "--examples=300", "--dtype=f32",
            "--no-gradients",
        )  # fmt: skip
        assert out.returncode == 1, out.stdout + out.stderr
        assert "fail: value, values of torch:kernel" in out.stdout
        line = next(t for t in out.stdout.splitlines() if t.startswith("  case    "))
        case = Case.parse(line.split()[1])
        assert case.mask_token == "causal"
        assert (case.sizes.B, case.sizes.H, case.sizes.Lq, case.sizes.Lk) == (1, 1, 1, 5)
        start = out.stdout.index('"""torch:kernel')
        text = out.stdout[start : out.stdout.index("\nseed 0:")]
        assert not {"suite", "backends", "references"} & {
            word
            for t in text.splitlines()
            if t.startswith(("import", "from"))
            for word in t.split()
        }
        shown = alone(text, tmp_path)
        assert shown.returncode == 1
        assert "AssertionError: output at (0, 0, 0, 0): error" in shown.stderr
        kernel.write_text(WRONG.format(diagonal=0), encoding="utf-8")
        mended = alone(text, tmp_path)
        assert mended.returncode == 0, mended.stderr
        again = command_line("--backend=torch", f"--function={kernel}:kernel", f"--case={case.id}")
        assert again.returncode == 0, again.stdout

    @pytest.mark.parametrize(
        ("name", "case"),
        [
            ("eager", "sdpa/pad/gqa2/bf16/b2h4q5k7d8/cap2.0"),
            ("eager", "sdpa/none/mha/f64/b2h2q5k7d8/bias.qk/scale0.3"),
            ("eager", "sdpa/bool.qk.empty/gqa2/f32/b2h4q5k7d8/bias.qk/sinks/dense"),
            ("eager", "sdpa/causal/gqa2/f32/b2h4q11k9d6/logitscale"),
            ("eager", "sdpa/causal/gqa2/bf16/b2h4q11k9d6/slopes"),
            ("sdpa", "sdpa/causal/gqa2/f32/b2h4q5k7d8/blhd"),
            ("sdpa-math", "sdpa/causalbr/mha/f16/b2h2q7k5d8/bias.bhqk"),
            ("sdpa-flash", "sdpa/none/mha/bf16/b2h2q64k65d16/large"),
            ("flex", "sdpa/bool.qk/mha/f32/b2h2q5k7d8/bias.1hqk/cap2.0/dense"),
        ],
    )
    @pytest.mark.parametrize("check", ["values", "gradients"])
    def test_scripts_of_right_answers_pass(
        self, name: str, case: str, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A script asserts one element; of a right answer any element will do."""
        if name == "flex" and check == "gradients":
            pytest.skip("no backward pass on CPU")
        _script_passes("torch", name, case, check, tmp_path, monkeypatch)

    @pytest.mark.parametrize(
        ("case", "check"),
        [
            ("dot/pad/mha/f32/b2h1q5k7d8v6/e8.8.6.6", "values"),
            ("dot/none/mha/bf16/b2h1q5k5d8/e8.8.8.8/unscaled/self", "gradients"),
            ("dot/causal/mha/f32/b3h1q40k40d8/e8.8.8.8", "gradients"),
        ],
    )
    def test_the_script_of_a_layer_that_gives_its_source(
        self, case: str, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It shows a right answer as right, and what it does not compute as wrong."""
        plan = Plan.make(Options(("torch",), implementation=("luong",)))
        (layer,) = plan.implementations
        cell = Cell(all_checks()[check], Case.parse(case), layer)
        with pytest.raises(script.NoScript, match="has no source text of its call"):
            script.script(cell, Verdict("fail", "value", "as if"))
        plain = layer.prepare
        monkeypatch.setattr(
            layer, "prepare", lambda inputs: with_source(plain(inputs), LUONG.splitlines())
        )
        text = _script_of_any_element(cell, monkeypatch)
        shown = alone(text, tmp_path)
        assert shown.returncode == 0, text + shown.stderr
        assert "by definition" in shown.stdout
        other = alone(text.replace("torch.softmax(scores, -1)", "torch.sigmoid(scores)"), tmp_path)
        assert other.returncode == 1
        assert "AssertionError" in other.stderr


LUONG = """
scores = query @ key.transpose(-2, -1)
scores = scores * scale
scores = scores.masked_fill(hidden, -torch.inf)
output = torch.softmax(scores, -1) @ value
"""


def with_source(prepared: PreparedCall, lines: list[str]) -> PreparedCall:
    """The call with its text: of the lines those whose variables it is given."""
    absent = {"scale", "hidden"} - set(prepared.arguments)
    kept = [line for line in lines if not any(name in line for name in absent)]
    return replace(prepared, source="\n".join(["import torch", *kept]))


def slow(*values: str) -> Any:
    """A script that takes the way of another one that is always run."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("backend", "name", "case", "check"),
    [
        ("tf", "eager", "sdpa/pad/mha/bf16/b2h2q5k7d8/cap2.0", "gradients"),
        slow("tf", "keras-ops", "sdpa/causal/gqa2/f32/b2h4q5k7d8/scale0.3", "values"),
        slow("jax", "jax-nn", "sdpa/pad+win2.0/gqa2/f32/b2h4q5k7d8/bias.bhqk", "gradients"),
        ("jax", "eager", "sdpa/none/mha/f16/b2h2q5k7d8", "values"),
        ("torch", "sdpa-math@aot_eager", "sdpa/causal/gqa2/f32/b2h4q5k7d8/scale0.3", "gradients"),
        slow(
            "torch", "flex@aot_eager", "sdpa/bool.qk/mha/f32/b2h2q5k7d8/bias.1hqk/dense", "values"
        ),
        slow("tf", "eager@xla", "sdpa/pad/mha/f32/b2h2q5k7d8/cap2.0", "gradients"),
        ("tf", "keras-ops@function", "sdpa/causal/gqa2/f32/b2h4q5k7d8", "values"),
        ("jax", "jax-nn@ops", "sdpa/pad+win2.0/gqa2/f32/b2h4q5k7d8/bias.bhqk", "gradients"),
        slow("jax", "eager@aot", "sdpa/none/mha/bf16/b2h2q5k7d8", "values"),
    ],
)
def test_scripts_in_other_frameworks_pass(
    backend: str, name: str, case: str, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip({"tf": "tensorflow"}.get(backend, backend))
    _script_passes(backend, name, case, check, tmp_path, monkeypatch)


def test_a_transformation_without_words_gives_the_case_alone() -> None:
    pytest.importorskip("torch")
    plan = Plan.make(Options(("torch",), mode="compiled", implementation=("eager@vmap",)))
    prepared = plan.implementations[0].prepare(draw(Case.parse("sdpa/none/mha/f32/b2h2q5k7d8"), 0))
    assert prepared.source == ""


def _script_passes(
    backend: str, name: str, case: str, check: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script of a right answer, written as if its last element were the worst, exits with 0."""
    plan = Plan.make(Options((backend,), mode=mode_of(name)))
    chosen = next(i for i in plan.implementations if i.name == name)
    cell = Cell(all_checks()[check], Case.parse(case), chosen)
    assert judge(cell).status == "pass"
    shown = alone(_script_of_any_element(cell, monkeypatch), folder)
    assert shown.returncode == 0, shown.stderr
    assert "by definition" in shown.stdout


def _script_of_any_element(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> str:
    """The script of a right answer, which asserts the element that is nearest to its bound."""
    real = script.ratios
    monkeypatch.setattr(script, "ratios", lambda error, limit: real(error, limit) + 2.0)
    return script.script(cell, Verdict("fail", "value", "as if"))
