"""Plans of sweeps: what they say, and what each wrong one is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.sweep.plan import load, plan_of, seeds_of, tasks

TORCH: dict[str, Any] = {"backends": ["torch"]}


def test_a_plan_is_tasks_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        "cell_timeout = 30.0\n"
        "[[search]]\nbackends = ['torch']\nseeds = '8-9'\nexamples = 50\ngradients = false\n"
        "[[judge]]\nbackends = ['pytorch', 'tensorflow']\nseeds = '0-1'\n"
        "releases = ['installed', 'jax-0.8.1']\n"
        "[[judge]]\nbackends = ['jax']\nlevel = 'smoke'\nmode = 'all'\nseeds = 5\nshards = 2\n"
        "dtypes = ['f32']\nimplementations = ['jax-nn']\naudit = true\noptimized = true\n"
    )
    every = tasks(load(path))
    assert [task.title for task in every] == [
        "torch tf standard seed 0", "torch tf standard seed 1",
        "torch tf standard jax-0.8.1 seed 0", "torch tf standard jax-0.8.1 seed 1",
        "jax smoke all seed 5 part 1/2", "jax smoke all seed 5 part 2/2",
        "search torch seed 8", "search torch seed 9",
    ]  # fmt: skip
    assert [task.release for task in every] == ["", "", "jax-0.8.1", "jax-0.8.1", "", "", "", ""]
    assert every[1].words[-4:] == (
        "--backend=torch", "--backend=tf", "--seed=1", "--cell-timeout=30.0",
    )  # fmt: skip
    assert set(every[5].words) >= {
        "--backend=jax", "--implementation=jax-nn", "--dtype=f32", "--level=smoke", "--mode=all",
        "--seed=5", "--shard=2/2", "--audit", "--optimized",
    }  # fmt: skip
    assert every[6].words == (
        "suite", "search", "--backend=torch", "--seed=8", "--cell-timeout=30.0", "--examples=50",
        "--no-gradients",
    )  # fmt: skip


def test_words_make_the_same_options_again() -> None:
    options = Options(
        ("torch", "tf"), implementation=("sdpa",), dtype=("f32",), seed=3, shard="1/2", audit=True
    )
    words: dict[str, Any] = {}
    for word in options.command_line(every=True):
        name, _, value = word.removeprefix("--").partition("=")
        field = name.replace("-", "_")
        many = isinstance(getattr(options, field), tuple)
        words[field] = (*words.get(field, ()), value) if many else value or True
    words["seed"] = int(words["seed"])
    assert Options.of(lambda name: words.get(name)) == options


def test_every_task_has_a_file_of_its_own() -> None:
    tables = [
        {"backends": ["torch"], "seeds": "0-3", "releases": ["installed", "jax-0.8.1"]},
        {"backends": ["torch"], "seeds": "4-5", "level": "smoke", "shards": 3},
        {"backends": ["torch"], "seeds": "0-3", "mode": "compiled"},
        {"backends": ["jax"], "seeds": "0-3", "dtypes": ["f32"]},
        {"backends": ["jax"], "seeds": "0-3", "dtypes": ["bf16"]},
    ]
    names = [task.name for task in tasks(plan_of({"judge": tables}))]
    assert len(set(names)) == len(names) == 26
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") for name in names)
    assert [task.name for task in tasks(plan_of({"judge": tables}))] == names


def test_the_digest_is_of_what_is_asked() -> None:
    one = plan_of({"judge": [TORCH | {"seeds": "0-3"}]})
    assert plan_of({"judge": [{"seeds": "0-3"} | TORCH]}).digest == one.digest
    assert plan_of({"judge": [TORCH | {"seeds": "0-4"}]}).digest != one.digest


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "nothing is asked for; write a table: [[judge]] or [[search]]"),
        ({"judges": []}, "unknown field `judges`; words are the plan: judge, search, cell_timeout"),
        ({"judge": {"backends": ["torch"]}}, "Expected `array`, got `object` - at `$.judge`"),
        ({"judge": [TORCH | {"seed": 1}]}, "unknown field `seed` - at `$.judge[0]`; words are"),
        ({"judge": [TORCH, {"level": "smoke"}]}, "`backends` - at `$.judge[1]`"),
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
        ({"judge": [TORCH | {"shards": 0}]}, "shards must be positive, got 0"),
        ({"judge": [TORCH], "cell_timeout": -1.0}, "--cell-timeout must not be negative"),
        ({"search": [TORCH | {"examples": 0}]}, "examples must be positive, got 0"),
        ({"judge": [TORCH], "core_hour": 0.04}, "core_hour"),
    ],
)
def test_what_is_wrong_is_named(document: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        plan_of(document)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("table", ["judge", "search"])
def test_no_cell_is_asked_by_two_tables(table: str) -> None:
    apart: list[list[dict[str, Any]]] = [
        [TORCH | {"seeds": "0-3"}, TORCH | {"seeds": "4-7"}],
        [TORCH | {"mode": "eager"}, TORCH | {"mode": "compiled"}],
        [TORCH | {"dtypes": ["f32"]}, TORCH | {"dtypes": ["bf16"]}],
        [TORCH | {"implementations": ["sdpa"]}, TORCH | {"implementations": ["flex"]}],
        [TORCH | {"releases": ["jax-0.8.1"]}, TORCH],
        [TORCH, {"backends": ["numpy"]}],
    ]
    for tables in apart:
        assert tasks(plan_of({table: tables}))
    twice: list[list[dict[str, Any]]] = [
        [TORCH, {"backends": ["pytorch", "numpy"]}],
        [TORCH, TORCH | {"seeds": [7, 0]}],
        [TORCH | {"mode": "eager"}, TORCH | {"mode": "all"}],
        [TORCH, TORCH | {"dtypes": ["f32"]}],
    ]
    for tables in twice:
        with pytest.raises(UsageError, match="torch with seed 0 is in two tables"):
            plan_of({table: tables})
    assert plan_of({"judge": [TORCH], "search": [TORCH]})


def test_seeds() -> None:
    assert seeds_of(3) == (3,)
    assert seeds_of("0-2") == (0, 1, 2)
    assert seeds_of(["4", 7, "9 - 10"]) == (4, 7, 9, 10)


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
    (task,) = tasks(plan_of({"judge": [TORCH | {"releases": [str(path)]}]}))
    assert task.release == str(path)
    path.write_text("mine==1.2\n")
    with pytest.raises(UsageError, match="released"):
        plan_of({"judge": [TORCH | {"releases": [str(path)]}]})
