"""The randomised search: what it draws, that it finds and shrinks; every smaller case makes sense and
asks less; what was found is recorded, also if the process that searched died."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.records import searches
from attention_conformance.suite.records.expectations import Expectation, Manifest
from attention_conformance.suite.run import process
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.search import drawing
from attention_conformance.suite.search.engine import Search
from attention_conformance.suite.search.options import SearchOptions
from attention_conformance.suite.spec import masks
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases, gradient_cases
from attention_conformance.suite.spec.dtypes import DTYPES, DType
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.spec.operators import OPERATORS, WORDS
from attention_conformance.suite.spec.recipes import RECIPES
from attention_conformance.suite.spec.smaller import (
    simpler_cases,
    smallest_failing,
    well_posed,
    what_it_takes,
)
from attention_conformance.suite.spec.vocabulary import BIASES, HIDING
from tests.processes import Done, python

MUTANTS = "attention_conformance.suite.deviations:mutants"


def search(backend: str, **options: Any) -> Search:
    """A search that ended."""
    chosen = SearchOptions((backend,), **options)
    engine = Search(Plan.make(replace(chosen, seed=Options.seed)), chosen)
    engine.run()
    return engine


def draws(operator: Any, count: int, dtypes: Sequence[DType] = (*DTYPES.values(),)) -> list[Case]:
    """The cases among the first draws of an operator."""
    drawn = (drawing.case_of(operator, dtypes, x, x) for x in map(Random, range(count)))
    return [case for case in drawn if case is not None]


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=str)
def test_cases_drawn_are_valid(operator: Any) -> None:
    for case in draws(operator, 12):
        s = case.sizes
        assert Case.parse(case.id) == case
        assert set(case.needs) <= set(WORDS)
        if case.operator.packing is None:  # segments have few tokens each
            assert s.pairs <= drawing.PAIRS
        assert s.Lk > 0
        assert not case.option("rate"), "dropout has a check of its own"
        inputs = draw(case)
        assert inputs.attends.shape == (s.B, s.H, s.Lq, s.Lk)
        drawn = {name: inputs.arrays[name].ndim for name in case.axes}
        assert drawn == {name: len(letters) for name, letters in case.axes.items()}
        assert not any(np.isnan(array).any() for array in inputs.arrays.values())
        if inputs.has_empty_rows and operator.takes_masks:  # packed rows without keys are not read
            assert {"fully-masked-row", "padded-sample"} & {*operator.questions.elections}
        if case.option("bias") in HIDING:
            assert case.mask is None


def test_draws_reach_what_the_table_does() -> None:
    """Every value of every axis, tails, zeros, and combinations that the table does not have."""
    # What overflows before it is scaled is asked in float16 alone.
    seen = draws(OPERATORS["sdpa"], 1500) + draws(OPERATORS["sdpa"], 300, (DTYPES["f16"],))
    drawn = [c.mask for c in seen if c.mask is not None]
    parts = [part for mask in drawn for part in mask.parts]
    sizes = [c.sizes for c in seen]
    assert {c.dtype.name for c in seen} == set(DTYPES)
    assert {c.axis_order for c in seen} == {"bhld", "blhd", "bhdl"}
    assert {c.form for c in seen} == {"native", "dense"}
    assert {c.recipe for c in seen} == set(RECIPES)
    assert {c.option("bias") for c in seen} == set(BIASES)
    assert {c.option("sinks") for c in seen} == {False, True} == {c.option("lse") for c in seen}
    assert {type(p).__name__ for p in parts} >= {"Causal", "Window", "Padding", "Segments", "Or"}
    assert any(isinstance(mask, masks.And) for mask in drawn)
    assert {p.axes for p in parts if isinstance(p, masks.Boolean)} == set(masks.Boolean.AXES)
    assert {0, 1} <= {s.B for s in sizes}
    assert {0, 1, 33, 64, 129} <= {s.Lq for s in sizes}
    assert max(s.Lk for s in sizes) > 512
    assert {s.heads for s in sizes} >= {"mha", "mqa", "gqa2", "gqa4"}


def drawn(seed: int, examples: int) -> list[str]:
    return [*search("numpy", seed=seed, examples=examples, gradients=False, dtype=("f32",)).seen]


def test_the_same_seed_draws_the_same_cases() -> None:
    """And a longer search begins like a shorter one."""
    short, long = drawn(3, 30), drawn(3, 60)
    assert len(short) == 30
    assert len(long) == 60
    assert long[:30] == short
    assert drawn(4, 30) != short


@pytest.mark.seldom
def test_the_control_and_the_honest_variants_pass() -> None:
    for backend, examples in (("numpy", 60), ("tests.honest:honest", 12)):
        done = search(backend, seed=5, examples=examples, gradients=False)
        assert not done.failures, [(f.cell.case.id, f.verdict) for f in done.failures.values()]
        assert len(done.seen) == examples
        assert done.statuses["pass"] >= 0.9 * examples  # full caches are refused


@pytest.mark.seldom
def test_a_planted_fault_of_gradients_is_found_and_shrunk() -> None:
    done = search(
        MUTANTS, implementation=("key-gradient-unscaled",), seed=1, examples=50, dtype=("f32",)
    )
    first = next(f for f in done.failures.values() if f.cell.check.name == "gradients")
    case: Any = first.cell.case
    s = case.sizes
    assert (s.B, s.H) == (1, 1)
    assert s.Lq * s.Lk <= 6
    assert (case.recipe, case.axis_order) == ("normal", "bhld")
    assert judge(first.cell).message == first.verdict.message


def test_what_is_known_is_not_found_again() -> None:
    """Neither in the cells an entry names, nor in cases of other sizes that fail alike."""
    entry = Expectation(
        ("mask-ignored",), ("values",), ("sdpa/bool.qk/mha/f32/b2h3q5k7d8/dense",), "value",
        "beyond their bound", "masks have no effect", "none found", (), source="by hand, entry 1",
    )  # fmt: skip
    few = {"implementation": ("mask-ignored",), "dtype": ("f32",), "examples": 80}
    options = SearchOptions((MUTANTS,), seed=1, gradients=False, **few)
    plan = Plan.make(replace(options, seed=0))
    found = Search(plan, options)
    found.run()
    assert found.failures
    plan = replace(plan, loaded=[replace(plan.loaded[0], manifest=Manifest([entry], {}, "cpu"))])
    known = Search(plan, options)
    known.run()
    assert not known.failures
    assert known.statuses["like known"] > 0
    assert known.alike == {"by hand, entry 1: masks have no effect": known.statuses["like known"]}
    named = Search(plan, options)
    named.judge_case(Case.parse(entry.case[0]))
    assert named.statuses == {"known": 1}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--backend=numpy", "--examples=20"], 0, "nothing found"),
        (["--backend=numpy", "--case=sdpa/none/mha/f32/b1h2q3k4d5"], 0, "1 pass"),
        ([f"--backend={MUTANTS}", "--implementation=mask-inverted", "--examples=60"], 1, "found "),
    ],
)
def test_exit_codes(
    words: list[str], code: int, said: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(process, "can_fork", lambda: False)  # all in this process
    assert main(["search", *words]) == code
    assert said in capsys.readouterr().out


SMALLEST = "sdpa/none/mha/f32/b1h1q1k1d1"
DEADLY = "sdpa/none/mha/f32/b2h3q5k17d8"


def command(results: Path, *words: str) -> Done:
    asked = ("--dtype=f32", "--no-gradients", *words, f"--results={results}")
    return python("-m", "suite", "search", *asked)


def test_what_is_found_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    words = ("--backend=tests.miniatures:always_wrong", "--examples=5", "--seed=3")
    assert command(path, *words).returncode == 1
    run = searches.load(path)
    (found,) = run.records
    assert (found.implementation, found.check, found.status) == (
        "mini:alwayswrong",
        "values",
        "fail",
    )
    assert (found.case, found.dtype) == (SMALLEST, "f32")
    assert found.times == run.header.statuses["fail"] > 1
    assert run.header.examples == 5
    assert (run.header.options["seed"], run.header.options["gradients"]) == (3, False)
    again = command(path, *words)
    assert (again.returncode, f"--results={path} exists; name a new file" in again.stderr) == (
        2,
        True,
    )


def test_a_case_that_ends_the_process_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "search.jsonl"
    done = command(path, "--backend=tests.unruly:aborts", f"--case={DEADLY}")
    assert (done.returncode, "died of SIGABRT" in done.stderr) == (1, True)
    run = searches.load(path)
    (found,) = run.records
    assert (found.implementation, found.status, found.kind) == ("mini:unruly", "crash", "crash")
    assert found.case == DEADLY


@pytest.mark.parametrize("case", cases("smoke")[::4], ids=str)
def test_steps_are_valid_and_never_larger(case: Case) -> None:
    candidates = list(simpler_cases(case))
    assert case not in candidates
    for candidate in candidates:
        assert Case.parse(candidate.id) == candidate
        assert (candidate.operator, candidate.dtype) == (case.operator, case.dtype)
        # The sizes of a pool follow from those of samples and of a page; pages and latents are options,
        # whose default is simpler and may be larger.
        own = {x: size for x, size in case.letters.items() if x not in "pstrel"}
        assert all(candidate.letters[x] <= size for x, size in own.items())


LARGE = "sdpa/pad+win4.0/gqa2/f32/b2h4q17k257d8/bias.bhqk/scale-0.2/cap5.0/blhd/dense"


@pytest.mark.parametrize(
    ("case", "fails", "least"),
    [
        (LARGE, lambda case: case.sizes.Lk >= 33, "sdpa/none/mha/f32/b1h1q1k33d1"),
        (LARGE, lambda case: case.option("softcap"), "sdpa/none/mha/f32/b1h1q1k1d1/cap5.0"),
        (LARGE, lambda case: "win" in case.mask_token, "sdpa/win4.0/mha/f32/b1h1q1k1d1"),
        (LARGE, lambda case: case.sizes.H > case.sizes.Hkv, "sdpa/none/mqa/f32/b1h2q1k1d1"),
        (LARGE, lambda case: case.sizes.Lq < case.sizes.Lk, "sdpa/none/mha/f32/b1h1q1k2d1"),
        (
            "multi-head/causal/gqa3/f32/b2h6q5k5d4/e12.12.12.12/self",
            lambda case: case.sizes.H > 1 and case.mask is not None,
            "multi-head/causal/mha/f32/b1h2q1k1d1/e1.1.1.1",
        ),
        (
            "additive/pad/mha/bf16/b2h1q5k9d16v14/e16.16.14.14/identity/head",
            lambda case: case.option("returned") == "head",
            "additive/none/mha/bf16/b1h1q1k1d1/e1.1.1.1/head",
        ),
    ],
)  # fmt: skip
def test_what_remains_is_what_the_failure_needs(
    case: str, fails: Callable[[Case], bool], least: str
) -> None:
    assert smallest_failing(Case.parse(case), lambda x: bool(fails(x))).id == least


@pytest.mark.parametrize(
    ("case", "passing", "words"),
    [
        ("sdpa/causal/mha/f32/b1h1q129k129d1", ("none/mha/f32/b1h1q129k129d1",), "mask causal"),
        (
            "sdpa/causal/mha/f32/b1h1q129k129d1",
            ("causal/mha/f32/b1h1q128k129d1", "none/mha/f32/b1h1q129k129d1"),
            "mask causal, 129 queries",
        ),
        ("sdpa/none/gqa9/f32/b1h18q1k1d1", ("none/mqa/f32/b1h9q1k1d1",), "18 heads, 2 key heads"),
        (
            "sdpa/pad+win4.0/mha/bf16/b2h1q1k5d8v6/scale0.3/large/dense",
            ("none/mha/bf16/b1h1q1k1d1",),
            "mask pad, mask win4.0, scale0.3, recipe large, form dense, 2 samples, 5 keys, head size 8, "
            "value size 6",
        ),
        ("sdpa/none/mha/f32/b1h1q2k1d1", (), ""),
    ],
)
def test_a_smaller_case_says_what_it_takes(case: str, passing: tuple[str, ...], words: str) -> None:
    others = [Case.parse(f"sdpa/{text}") for text in passing]
    assert what_it_takes(Case.parse(case), others) == words


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=str)
def test_cases_of_the_table_are_well_posed(operator: Any) -> None:
    """What the search never draws is asked nowhere."""
    for of, differentiated in ((cases, False), (gradient_cases, True)):
        for case in of("standard"):
            if case.operator is operator:
                assert well_posed(case, differentiated), case.id
