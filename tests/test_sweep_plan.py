"""Plans of sweeps: what they say, and what each wrong one is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.registry import UsageError
from suite.sweep.plan import NO_TIMING, TIMING, load, plan_of, seeds_of, seeds_text, series_of

TORCH: dict[str, Any] = {"backends": ["torch"]}


def test_a_plan_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        "core_hour = 0.04\n"
        "[[judge]]\nbackends = ['pytorch', 'tensorflow']\nseeds = '0-2'\n"
        "releases = ['installed', 'jax-0.8.1']\n"
        "[[judge]]\nbackends = ['jax']\nlevel = 'smoke'\nmode = 'all'\nseeds = [5, '7-8']\n"
        "[[search]]\nbackends = ['torch']\nseeds = '0-9'\nexamples = 50\n"
    )
    plan = load(path)
    first, other, jax = series_of(plan)
    assert first.options.backend == ("torch", "tf"), "by their own names"
    assert (first.seeds, first.release, other.release) == ((0, 1, 2), "", "jax-0.8.1")
    assert (jax.seeds, jax.options.level, jax.options.mode) == ((5, 7, 8), "smoke", "all")
    assert plan.core_hour == 0.04
    assert plan.search[0].examples == 50


def test_every_run_has_a_folder_of_its_own() -> None:
    tables = [
        {"backends": ["torch"], "seeds": "0-3", "releases": ["installed", "jax-0.8.1"]},
        {"backends": ["torch"], "seeds": "4-5", "level": "smoke"},
        {"backends": ["torch"], "seeds": "0-3", "mode": "compiled"},
        {"backends": ["jax"], "seeds": "0-3", "dtypes": ["f32"]},
        {"backends": ["jax"], "seeds": "0-3", "dtypes": ["bf16"]},
    ]
    series = series_of(plan_of({"judge": tables}))
    names = [each.name(seed) for each in series for seed in each.seeds]
    assert len(set(names)) == len(names) == 22
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") for name in names)
    again = series_of(plan_of({"judge": tables}))
    assert [each.name(seed) for each in again for seed in each.seeds] == names


def test_the_digest_is_of_what_is_asked() -> None:
    one = plan_of({"judge": [TORCH | {"seeds": "0-3"}]})
    assert plan_of({"judge": [{"seeds": "0-3"} | TORCH]}).digest == one.digest
    assert plan_of({"judge": [TORCH | {"seeds": "0-4"}]}).digest != one.digest


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "nothing is asked for; write a table: [[judge]], [[search]]"),
        ({"judges": []}, "unknown word 'judges'; valid: judge, search, core_hour"),
        ({"judge": {"backends": ["torch"]}}, "expected tables [[judge]]"),
        ({"judge": [TORCH | {"seed": 1}]}, "[[judge]] 1: unknown word 'seed'; valid: backends"),
        ({"judge": [TORCH, {"level": "smoke"}]}, "backends"),
        ({"judge": [TORCH | {"level": "deep"}]}, "unknown level 'deep'; valid: smoke"),
        ({"judge": [TORCH | {"mode": "fast"}]}, "unknown mode 'fast'; valid: eager, compiled, all"),
        ({"judge": [{"backends": ["trch"]}]}, "unknown backend 'trch'; valid: numpy"),
        ({"judge": [{"backends": ["all"]}]}, "name each"),
        ({"judge": [{"backends": ["tf", "keras-jax"]}]}, "cannot share a process"),
        ({"judge": [TORCH | {"dtypes": ["f8"]}]}, "f8"),
        ({"judge": [TORCH | {"releases": ["jax-0.1"]}]}, "'jax-0.1'; valid: installed, jax-0.10.2"),
        ({"judge": [TORCH | {"releases": []}]}, "releases: name one"),
        ({"judge": [TORCH | {"seeds": "1-"}]}, "seeds: expected numbers or ranges"),
        ({"judge": [TORCH | {"seeds": "3-1"}]}, "seeds: expected numbers or ranges"),
        ({"judge": [TORCH | {"seeds": -1}]}, "seeds: expected numbers or ranges"),
        ({"judge": [TORCH | {"seeds": [1, "0-2"]}]}, "a seed is named twice"),
        ({"judge": [TORCH | {"seeds": []}]}, "seeds: name one or more"),
        ({"judge": [TORCH | {"seeds": 1.5}]}, "seeds"),
        ({"judge": [TORCH], "core_hour": -1.0}, "core_hour"),
        ({"judge": [TORCH], "cell_timeout": -1.0}, "--cell-timeout must not be negative"),
        ({"search": [TORCH | {"examples": 0}]}, "examples must be positive, got 0"),
        ({"mutants": [{"frameworks": ["torch"]}]}, "run `python -m tests.mutation --framework"),
    ],
)
def test_what_is_wrong_is_named(document: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        plan_of(document)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("word", TIMING)
def test_a_sweep_refuses_to_time(word: str) -> None:
    for document in ({word: {}, "judge": [TORCH]}, {"judge": [TORCH | {word: True}]}):
        with pytest.raises(UsageError) as error:
            plan_of(document)
        assert NO_TIMING in str(error.value)
        assert "one quiet machine" in str(error.value)


def test_no_cell_is_asked_by_two_tables() -> None:
    apart: list[list[dict[str, Any]]] = [
        [TORCH | {"seeds": "0-3"}, TORCH | {"seeds": "4-7", "level": "smoke"}],
        [TORCH | {"mode": "eager"}, TORCH | {"mode": "compiled"}],
        [TORCH | {"dtypes": ["f32"]}, TORCH | {"dtypes": ["bf16"]}],
        [TORCH | {"implementations": ["sdpa"]}, TORCH | {"implementations": ["flex"]}],
        [TORCH | {"releases": ["jax-0.8.1"]}, TORCH],
    ]
    for tables in apart:
        assert len(series_of(plan_of({"judge": tables}))) == 2
    twice: list[list[dict[str, Any]]] = [
        [TORCH, {"backends": ["pytorch", "numpy"]}],
        [TORCH, TORCH | {"level": "smoke"}],
        [TORCH | {"mode": "eager"}, TORCH | {"mode": "all"}],
        [TORCH, TORCH | {"dtypes": ["f32"]}],
    ]
    for tables in twice:
        with pytest.raises(UsageError, match="torch with seed 0 is asked by two"):
            plan_of({"judge": tables})


def test_no_search_is_made_by_two_tables() -> None:
    apart = [{"seeds": 1}, {"gradients": False}, {"mode": "compiled"}, {"dtypes": ["f32"]}]
    for words in apart:
        assert plan_of({"search": [TORCH, TORCH | words]})
    both = {"backends": ["torch", "numpy"], "seeds": "0-3"}
    for one, other in [
        (TORCH, TORCH), (TORCH, TORCH | {"examples": 5}),
        (both, {"backends": ["numpy", "pytorch"], "seeds": [7, 0]}),
    ]:  # fmt: skip
        with pytest.raises(UsageError, match="with seed 0 is searched by two tables"):
            plan_of({"search": [one, other]})


def test_seeds() -> None:
    assert seeds_of(3) == (3,)
    assert seeds_of("0-2") == (0, 1, 2)
    assert seeds_of(["4", 7, "9 - 10"]) == (4, 7, 9, 10)
    assert seeds_text((0, 1, 2, 5, 7, 8)) == "0-2, 5, 7-8"


def test_files_that_are_no_plan(tmp_path: Path) -> None:
    for text in ("[[judge", "judge = 1"):
        path = tmp_path / "plan.toml"
        path.write_text(text)
        with pytest.raises(UsageError, match=r"plan\.toml"):
            load(path)
    with pytest.raises(UsageError, match=r"missing\.toml"):
        load(tmp_path / "missing.toml")


def test_a_release_by_the_path_of_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "mine-1.2.txt"
    path.write_text("# released: 2026-01-02\nmine==1.2\nnumpy==2.4.6\n")
    (series,) = series_of(plan_of({"judge": [TORCH | {"releases": [str(path)]}]}))
    assert series.release == str(path)
    path.write_text("mine==1.2\n")
    with pytest.raises(UsageError, match="released"):
        plan_of({"judge": [TORCH | {"releases": [str(path)]}]})
