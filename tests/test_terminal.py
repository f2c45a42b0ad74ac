"""What a run says on the terminal: what is left, why cells fail, few failures in full."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.records import cells as records
from tests.processes import CONTROL, ROOT, Done, python

LATE = """
import torch


def late(query, key, value, attn_mask=None, is_causal=False, scale=None):
    if key.shape[-2] >= 33:
        value = value.roll(1, -2)
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask, is_causal=is_causal, scale=scale
    )
"""
"""A kernel that is wrong from 33 keys on."""


CONFIG = ("-c", str(ROOT / "pyproject.toml"), "-p", "attention_conformance.suite.plugin")

PYTEST = ("-m", "pytest", "-p", "no:cacheprovider")


def run(*words: str, cwd: Path = ROOT, start: tuple[str, ...] = PYTEST) -> Done:
    """A command in a Python process of its own, which imports this checkout."""
    env = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return python(*start, *words, cwd=cwd, env=env)


WRONG = (
    "suite/test_values.py",
    "--backend=tests.miniatures:always_wrong",
    "--level=smoke",
    "--dtype=f32",
)


@pytest.fixture(scope="module")
def wrong() -> str:
    out = run(*WRONG)
    assert out.returncode == 1, out.stdout[-3000:] + out.stderr
    return out.stdout


def failed(text: str) -> int:
    """How many tests failed, by the last line."""
    match = re.search(r"(\d+) failed", text.splitlines()[-1])
    assert match
    return int(match[1])


def test_the_verdict_comes_first_and_a_failure_is_shown_once(wrong: str) -> None:
    count = failed(wrong)
    order = (f"WRONG: {count} of ", "Failures by group", "-v, or")
    places = [wrong.index(text) for text in order]
    assert places == sorted(places)
    explained = wrong[places[1] : places[2]]
    assert f" 1. values of mini:alwayswrong: {count} failures, value" in explained
    again = re.search(
        r"^    again     pytest '(.*)' --backend=(\S+) --level=smoke$", explained, re.M
    )
    assert again
    assert again[2] == "tests.miniatures:always_wrong"
    assert wrong[places[1] :].count(again[1]) == 1, "no section of pytest repeats the failure"
    assert "= FAILURES =" not in wrong
    assert "short test summary" not in wrong
    once = run(again[1], f"--backend={again[2]}", "--level=smoke")
    assert failed(once.stdout) == 1


def test_a_line_for_each_failure_is_asked_for(wrong: str) -> None:
    out = run(*WRONG, "-rf", "-q").stdout
    assert len(re.findall("^FAILED suite/test_values", out, re.M)) == failed(out) == failed(wrong)


def test_verbose_shows_tables_and_every_failure_in_full(wrong: str) -> None:
    out = run(*WRONG, "-v").stdout
    assert failed(out) == failed(wrong)
    assert out.count("\n  again: pytest") == failed(wrong)
    order = (
        "Statuses\n--",
        "Accuracy\n--",
        "Unsupported\n--",
        "WRONG: ",
        "Failures by",
        "= FAILURES",
    )
    places = [out.index(text) for text in order]
    assert places == sorted(places)
    assert not any(text in wrong for text in order[:3])


def test_the_command_to_go_on_finds_a_smaller_case_and_saves_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "late.py").write_text(LATE)
    words = (str(ROOT / "suite/test_values.py"), "--backend=torch", "--function=late.py:late")
    config = (*CONFIG, "--rootdir", str(ROOT))
    out = run(*config, *words, "--level=smoke", "--dtype=f32", cwd=tmp_path)
    assert "have Lk >= " in out.stdout, out.stdout
    line = next(
        x for x in out.stdout.splitlines() if x.startswith("    go on     attention-conformance")
    )
    command = shlex.split(line)[3:]
    search = run(*command, cwd=tmp_path, start=("-m", "suite"))
    assert search.returncode == 1, search.stdout + search.stderr
    assert "saved   values-late.py" in search.stdout
    assert re.search(r"case    sdpa/none/mha/\w+/b1h1q1k33d", search.stdout)
    script = run(str(tmp_path / "values-late.py"), cwd=tmp_path, start=())
    assert "AssertionError" in script.stderr
    (tmp_path / "late.py").write_text(LATE.replace(">= 33", ">= 10**9"))
    mended = run(str(tmp_path / "values-late.py"), cwd=tmp_path, start=())
    assert mended.returncode == 0, mended.stderr
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    assert "--script=values-late.py exists" in capsys.readouterr().err


WIDE = """
import torch


def wide(query, key, value, attn_mask=None, is_causal=False, scale=None):
    mask, rows, keys = attn_mask, query.shape[-2], key.shape[-2]
    if is_causal:
        seen = torch.ones(rows, keys, dtype=torch.bool).tril(1)
        seen = torch.zeros(rows, keys, dtype=query.dtype).masked_fill(~seen, -torch.inf)
        if mask is None:
            mask = seen
        else:
            mask = torch.where(mask, seen, -torch.inf) if mask.dtype == torch.bool else mask + seen
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, scale=scale)
"""
"""A kernel whose causal queries see the next key."""

LINES = 40
"""The number of lines after the dots, at most, for one fault."""


def wide(folder: Path, *words: str) -> Done:
    """A run that judges `WIDE` and has a cache."""
    (folder / "wide.py").write_text(WIDE)
    files = [
        str(ROOT / "suite" / f"test_{name}.py") for name in ("values", "masking", "equalities")
    ]
    config = (*CONFIG, "--rootdir", str(ROOT))
    cache = ("-o", f"cache_dir={folder / 'cache'}")
    function = ("--backend=torch", "--function=wide.py:wide", "--level=smoke", "--dtype=f32")
    return run(*config, *cache, *files, *function, *words, cwd=folder, start=("-m", "pytest"))


def test_one_fault_is_named_in_few_lines_with_a_script_that_shows_it(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = wide(tmp_path, "--results=r.jsonl")
    assert out.returncode == 1
    end = out.stdout.rpartition("[100%]")[2].splitlines()[1:]
    assert len(end) <= LINES, out.stdout
    said = [line for line in end if line]
    assert said[0].startswith("WRONG: ")
    assert said[1:4] == ["Diagnosis", "---------", " 1. A causal query sees the next key."]
    evidence = re.fullmatch(
        r"    as a known fault: explains (\d+) of (\d+) failures tried, contradicts none; sdpa/causal\S*",
        said[4],
    )
    assert evidence
    assert int(evidence[1]) > int(evidence[2]) / 2
    assert any(line.startswith("    # .") and "X" in line for line in end), "the picture"
    script = next(line.split("python ")[1] for line in end if line.startswith("    script "))
    assert "AssertionError" in run(script, cwd=tmp_path, start=()).stderr
    (one, *_) = records.load(tmp_path / "r.jsonl").diagnoses
    assert (one.fault, one.contradicts) == ("causal-sees-next", 0)


@pytest.mark.seldom
def test_workers_are_diagnosed_in_a_child(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = wide(tmp_path, "-n", "2")
    assert out.returncode == 1
    assert " 1. A causal query sees the next key." in out.stdout
    assert "no diagnosis" not in out.stdout


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_long_run_says_what_is_left(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "hurry.py").write_text(
        "from attention_conformance.suite.run import progress\nprogress.EVERY[False] = 0.0\n"
    )
    results = tmp_path / "r.jsonl"
    out = python(
        *PYTEST, "-p", "hurry", *workers, "suite/test_extremes.py", *CONTROL, "--level=smoke",
        f"--results={results}", env={"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
    ).stdout  # fmt: skip
    count = len(records.load(results).cells)
    said = re.findall(rf"^(\d+) of {count} cells, about \d+ s left$", out, re.M)
    assert [int(number) for number in said] == list(range(1, count)), out
    assert "left" not in results.read_text()


@pytest.mark.parametrize(
    "words",
    [("suite", "tests"), ("suite", "-n", "2"), ("--pyargs", "attention_conformance.suite")],
    ids=" ".join,
)  # fmt: skip
def test_checks_without_a_backend_are_one_usage_error(words: tuple[str, ...]) -> None:
    out = run(*words)
    assert out.returncode == 4
    said = out.stdout + out.stderr
    assert said.count("choose what to judge with --backend=NAME; installed here: numpy") == 1
    assert not re.search("ERROR collecting|errors? in|Interrupted|bringing up", said)


@pytest.mark.parametrize(
    "words", [("tests/test_diff.py", "--collect-only", "-q"), ("suite", "--help")], ids=" ".join
)
def test_what_judges_nothing_needs_no_backend(words: tuple[str, ...]) -> None:
    out = run(*words)
    assert out.returncode == 0, out.stdout[-2000:] + out.stderr


def test_results_need_a_backend() -> None:
    assert "need a --backend" in run("suite/test_values.py", "--results=x.jsonl").stderr
