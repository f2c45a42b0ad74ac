"""The randomised search: what it draws, that it finds and shrinks, and that its scripts stand alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from suite.plan import Options, Plan
from suite.spec.problem import FEATURES, Case

from backends.compilation import mode_of
from suite.judge.cell import Cell, run
from suite.records.expectations import Expectation, Manifest
from suite.search import command, engine, script, strategies
from suite.search.engine import Failure, Search, Summary
from suite.spec.dtypes import DTYPES, round_to
from suite.spec.masks import And, Boolean, Causal, Mask, Or, Padding, Prefix, parse_mask
from suite.spec.recipes import draw
from suite.test_values import test_values as values

ROOT = Path(__file__).resolve().parents[1]

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


def search(backend: str, found: list[Failure] | None = None, **options: Any) -> Summary:
    """The summary of a search; `found` takes up the failures as they are reported."""
    names = ("implementation", "function", "dtype")
    given = {name: options.pop(name) for name in names if name in options}
    plan = Plan.make(Options((backend,), **given))
    return Search(plan, found=(found if found is not None else []).append, **options).run()


def command_line(*words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "suite", "search", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


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


def judged(backend: str, implementation: str, case: str, **options: Any) -> Cell:
    """The value cell of one implementation, judged."""
    plan = Plan.make(Options((backend,), **options))
    chosen = next(i for i in plan.implementations if i.name == implementation)
    return Cell(values.check, Case.parse(case), chosen)  # type: ignore[attr-defined]


@settings(max_examples=100, deadline=None, database=None)
@given(strategies.cases())
def test_cases_drawn_are_valid(case: Case) -> None:
    s = case.problem.sizes
    assert Case.parse(case.id) == case
    assert set(case.needs) <= set(FEATURES)
    assert s.B * s.H * s.Lq * s.Lk <= strategies.PAIRS
    assert s.Lk > 0
    inputs = draw(case)
    assert inputs.attends.shape == (s.B, s.H, s.Lq, s.Lk)
    assert np.isfinite(inputs.query).all()


def test_draws_reach_what_the_table_does() -> None:
    """Every value of every axis, tails, zeros, and combinations that the table does not have."""
    seen: list[Case] = []
    engine.run_batch(strategies.cases(), 1, seen.append, 1200)
    masks = [c.problem.mask for c in seen if c.problem.mask is not None]
    parts = [part for mask in masks for part in mask.parts]
    sizes = [c.problem.sizes for c in seen]
    assert {c.dtype.name for c in seen} == set(DTYPES)
    assert {c.layout for c in seen} == {"bhld", "blhd", "bhdl"}
    assert {c.form for c in seen} == {"native", "dense"}
    assert len({c.recipe for c in seen}) == 9
    assert len({c.problem.bias for c in seen}) == 7
    assert {type(p).__name__ for p in parts} >= {"Causal", "Window", "Padding", "Segments", "Or"}
    assert any(isinstance(mask, And) for mask in masks)
    assert {p.axes for p in parts if isinstance(p, Boolean)} == set(Boolean.AXES)
    assert {0, 1} <= {s.B for s in sizes}
    assert {0, 1, 33, 64, 129} <= {s.Lq for s in sizes}
    assert max(s.Lk for s in sizes) > 512
    assert {s.heads for s in sizes} >= {"mha", "mqa", "gqa2", "gqa4"}


@pytest.mark.parametrize(
    "mask",
    [
        Causal() | Padding(),
        Causal() | Padding() | Prefix(3),
        (Prefix(2) | Causal(bottom_right=True)) & Padding(left=True),
    ],
)
def test_alternatives_parse_back(mask: Mask) -> None:
    assert parse_mask(mask.token) == mask


def test_alternatives_are_flat() -> None:
    assert (Causal() | Padding()) | Prefix(3) == Or((Causal(), Padding(), Prefix(3)))


def drawn(seed: int, examples: int) -> list[str]:
    found: list[str] = []
    plan = Plan.make(Options(("numpy",), dtype=("f32",)))
    told = lambda case: found.append(case.id)  # noqa: E731
    Search(plan, seed, examples=examples, gradients=False, drawn=told).run()
    return found


def test_the_same_seed_draws_the_same_cases() -> None:
    """And a longer search begins like a shorter one."""
    short, long = drawn(3, 30), drawn(3, 220)  # two batches
    assert len(short) == 30
    assert len(set(long)) == 220
    assert long[:30] == short
    assert drawn(4, 30) != short


def test_the_control_and_the_honest_variants_pass() -> None:
    for backend, examples in (("numpy", 60), ("tests.mutants:honest", 12)):
        summary = search(backend, seed=5, examples=examples, gradients=False)
        assert not summary.failures, [(f.case.id, f.verdict) for f in summary.failures]
        assert summary.examples == examples
        assert summary.statuses["pass"] >= examples


FAULTS: Iterable[tuple[str, str, dict[str, int]]] = (
    # a mutant, the check that finds it, and how large a minimal case may be
    ("left-padding-as-right", "values", {"B": 2, "H": 1, "Lq": 1, "Lk": 4}),
    ("full-mask-of-group-leader", "values", {"B": 2, "H": 3, "Lq": 2, "Lk": 3}),
    ("key-gradient-unscaled", "gradients", {"B": 1, "H": 1, "Lq": 2, "Lk": 3}),
)


@pytest.mark.parametrize(("name", "check", "limits"), FAULTS)
def test_a_planted_fault_is_found_and_shrunk(name: str, check: str, limits: dict[str, int]) -> None:
    found: list[Failure] = []
    search(
        "tests.mutants:mutants", found, implementation=(name,), seed=1, examples=250, dtype=("f32",),
        gradients=check == "gradients",
    )  # fmt: skip
    first = next(f for f in found if f.check.name == check)
    assert first.shrunk
    assert first.repeats
    sizes = first.case.problem.sizes
    assert all(getattr(sizes, size) <= limit for size, limit in limits.items()), first.case.id
    assert first.case.recipe == "normal"
    assert first.case.layout == "bhld"
    again = first.check.cell(first.check, first.case, first.implementation)
    assert run(again).message == first.verdict.message


def test_a_tail_beyond_a_block_is_found() -> None:
    """The fault shows only where the keys do not fill the last block of 128."""
    from tests.mutants.kernel import Kernel, KernelBackend

    class LastTileShort(Kernel):
        """Beyond a block of 128 keys the last key is dropped where the block is not full."""

        def allowed(self, call: Any) -> np.ndarray | None:
            allowed = super().allowed(call)
            Lk = call.sizes.Lk
            if Lk <= 128 or Lk % 128 == 0:
                return allowed
            kept = np.arange(Lk) < Lk - 1
            return kept[None, None, None] if allowed is None else allowed & kept

    plan = Plan.make(Options(("numpy",), dtype=("f32",)))
    plan.implementations = list(KernelBackend("numpy", (LastTileShort,)).implementations())
    found: list[Failure] = []
    Search(plan, 0, examples=100, gradients=False, found=found.append).run()
    sizes = found[0].case.problem.sizes
    assert 128 < sizes.Lk < 140
    assert (sizes.B, sizes.H, sizes.Lq, sizes.D) == (1, 1, 1, 1)


def test_what_is_known_is_not_found_again() -> None:
    """Neither in the cells an entry names, nor in cases of other sizes that fail alike."""
    entry = Expectation(
        ("mask-ignored",), ("values",), ("sdpa/bool.qk/mha/f32/b2h3q5k7d8/dense",), "value",
        "beyond their bound", "masks have no effect", "none found", (), source="by hand, entry 1",
    )  # fmt: skip
    options = Options(("tests.mutants:mutants",), implementation=("mask-ignored",), dtype=("f32",))
    plan = Plan.make(options)
    assert Search(plan, 1, examples=80, gradients=False).run().failures
    plan.manifests["mutants"] = Manifest([entry], {}, "cpu")
    summary = Search(plan, 1, examples=80, gradients=False).run()
    assert not summary.failures
    assert summary.statuses["like known"] > 0
    assert summary.alike["by hand, entry 1"].implementation == "mutants:mask-ignored"
    named = Search(plan, gradients=False)
    shown = named.judge_these([Case.parse(entry.case[0])])
    assert shown.statuses == {"known": 1}


def test_an_entry_that_a_drawn_case_passes_is_no_failure() -> None:
    """Patterns name cells of the table; what else they match may well pass."""
    entry = Expectation(
        ("definition",), ("values",), ("sdpa/*",), "value", "x", "none", "none found", ()
    )
    plan = Plan.make(Options(("numpy",)))
    plan.manifests["numpy"] = Manifest([entry], {}, "cpu")
    summary = Search(plan, examples=20).run()
    assert summary.statuses["pass"] == 20


def test_other_dtypes_than_an_entry_names_are_not_alike() -> None:
    entry = Expectation(
        ("left-padding-as-right",), ("*",), ("sdpa/*/bf16/*",), "value", ".", "c", "none found", ()
    )
    plan = Plan.make(Options(("tests.mutants:mutants",), implementation=entry.implementation))
    cell = Cell(
        values.check,  # type: ignore[attr-defined]
        Case.parse("sdpa/padleft/mha/f32/b2h3q5k7d8/dense"),
        plan.implementations[0],
    )
    assert engine.alike(Manifest([entry], {}, "cpu"), cell, run(cell)) is None


def test_backends_without_words_give_the_case_alone() -> None:
    cell = judged("tests.mutants:mutants", "mask-inverted", "sdpa/bool.qk/mha/f32/b2h3q5k7d8/dense")
    with pytest.raises(script.NoScript, match="no words for a script"):
        script.script(cell, run(cell))


@pytest.mark.parametrize("case", ["b1h2q3k5d4", "b2h3q40k33d16"])
@pytest.mark.parametrize("dt", ["f32", "bf16", "f16", "f64"])
def test_inputs_of_a_script_are_those_of_the_case(case: str, dt: str) -> None:
    """Written out, or drawn by the lines of the script: the same bytes."""
    cell = judged("numpy", "definition", f"sdpa/causal/mha/{dt}/{case}/bias.bhqk")
    found: dict[str, Any] = {"np": np}
    exec(script._given(cell), found)
    for name in ("query", "key", "value", "bias"):
        assert found[name].tobytes() == getattr(cell.inputs, name).tobytes(), name
    assert (found["mask"] == cell.inputs.dense_mask).all()


@pytest.mark.parametrize("count", [7, 2000])
def test_literals_are_exact(count: int) -> None:
    rng = np.random.default_rng(0)
    arrays = [round_to(rng.standard_normal(count), DTYPES["f16"]), rng.random(count) < 0.5]
    arrays.append(np.where(arrays[1], -np.inf, arrays[0]))
    for array in arrays:
        got = eval(
            script.literal(array),
            {"np": np, "zlib": __import__("zlib"), "base64": __import__("base64")},
        )
        assert got.dtype == array.dtype
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
        assert (case.problem.sizes.B, case.problem.sizes.H, case.problem.sizes.Lq) == (1, 1, 1)
        assert case.problem.sizes.Lk == 5
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
    ("backend", "name", "case", "check"),
    [
        ("tf", "eager", "sdpa/pad/mha/bf16/b2h2q5k7d8/cap2.0", "gradients"),
        ("tf", "keras-ops", "sdpa/causal/gqa2/f32/b2h4q5k7d8/scale0.3", "values"),
        ("jax", "jax-nn", "sdpa/pad+win2.0/gqa2/f32/b2h4q5k7d8/bias.bhqk", "gradients"),
        ("jax", "eager", "sdpa/none/mha/f16/b2h2q5k7d8", "values"),
        ("torch", "sdpa-math@aot_eager", "sdpa/causal/gqa2/f32/b2h4q5k7d8/scale0.3", "gradients"),
        ("torch", "flex@aot_eager", "sdpa/bool.qk/mha/f32/b2h2q5k7d8/bias.1hqk/dense", "values"),
        ("tf", "eager@xla", "sdpa/pad/mha/f32/b2h2q5k7d8/cap2.0", "gradients"),
        ("tf", "keras-ops@function", "sdpa/causal/gqa2/f32/b2h4q5k7d8", "values"),
        ("jax", "jax-nn@ops", "sdpa/pad+win2.0/gqa2/f32/b2h4q5k7d8/bias.bhqk", "gradients"),
        ("jax", "eager@aot", "sdpa/none/mha/bf16/b2h2q5k7d8", "values"),
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
    from suite.checks import all_checks
    from suite.judge.verdict import Verdict

    asked = next(c for c in all_checks() if c.name == check)
    plan = Plan.make(Options((backend,), mode=mode_of(name)))
    chosen = next(i for i in plan.implementations if i.name == name)
    cell = asked.cell(asked, Case.parse(case), chosen)
    verdict = run(cell)
    assert verdict.status == "pass", verdict
    real = script.ratios
    monkeypatch.setattr(script, "ratios", lambda error, limit: real(error, limit) + 2.0)
    text = script.script(cell, Verdict("fail", "value", "as if"))
    shown = alone(text, folder)
    assert shown.returncode == 0, text + shown.stderr
    assert "by definition" in shown.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--backend=numpy", "--examples=20"], 0, "nothing found"),
        (["--backend=numpy", "--case=sdpa/none/mha/f32/b1h2q3k4d5"], 0, "1 pass"),
        (
            ["--backend=tests.mutants:mutants", "--implementation=mask-inverted", "--examples=60"],
            1,
            "found ",
        ),
        (["--backend=caffe"], 2, "unknown backend 'caffe'; valid: numpy"),
        (["--backend=numpy", "--implementation=x"], 2, "valid: numpy:definition"),
        (["--backend=numpy", "--minutes=0"], 2, "--minutes must be positive"),
        (["--backend=numpy", "--examples=0"], 2, "--examples must be positive"),
        (["--backend=numpy", "--dtype=f8"], 2, "valid: f64"),
        (["--backend=numpy", "--mode=jitted"], 2, "valid: eager, compiled, all"),
        (["--backend=numpy", "--mode=compiled"], 2, "no implementation to judge"),
        (["--backend=numpy", "--case=sdpa/x"], 2, "not a case id"),
        ([], 2, "--backend"),
    ],
)
def test_exit_codes(words: list[str], code: int, said: str) -> None:
    out = command_line(*words)
    assert out.returncode == code, out.stdout + out.stderr
    assert said in (out.stderr if code == 2 else out.stdout)
    assert "Traceback" not in out.stderr


def test_the_summary_says_what_was_done() -> None:
    out = command_line("--backend=numpy", "--examples=30", "--seed=11", "--list").stdout
    assert "seed 11: 30 examples in" in out
    assert "a second, of numpy:definition" in out
    assert "30 pass" in out
    assert "4 dtypes" in out
    assert sum(line.startswith("sdpa/") for line in out.splitlines()) == 30


def test_without_hypothesis_one_line_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "hypothesis.py").write_text("raise ImportError('none')", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    out = subprocess.run(
        [sys.executable, "-m", "suite", "search", "--backend=numpy"],
        cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=60,
    )  # fmt: skip
    assert out.returncode == 2
    assert out.stderr.strip() == command.MISSING


def test_pools_of_sizes_are_of_the_seed() -> None:
    pool = engine.size_pool(2, 5)
    assert len(pool) == 5
    assert pool == engine.size_pool(2, 5)
    summary = search("numpy", seed=2, examples=60, pool=5)
    assert len(summary.axes["sizes"]) <= 5
