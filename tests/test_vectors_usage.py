"""What cannot be judged is one line that says what to do; the page about vectors is true, and its C
program is judged."""

from __future__ import annotations

import doctest
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.records import cells as records

pytest.importorskip("safetensors")

from attention_conformance.suite.vectors.index import RUNTIME, digest_of, read_index, text_of
from attention_conformance.suite.vectors.judge import plan_of
from attention_conformance.suite.vectors.options import JudgeOptions
from tests.answering import file_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "vectors.md"
FILES = ROOT / "docs" / "data" / "vector-files.md"
PLAIN = "sdpa/none/mha/f16/b1h2q33k33d600/scale-0.2/onehot"


def broken_json(folder: Path, vectors: Path) -> None:
    (folder / RUNTIME).write_text("{")


def changed(place: str, **changes: Any) -> Callable[[Path, Path], None]:
    def change(folder: Path, vectors: Path) -> None:
        path = {"index": vectors / "index.json"}.get(place, folder / RUNTIME)
        document = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**document, **changes}), encoding="utf-8")

    return change


def other_inputs(folder: Path, vectors: Path) -> None:
    path = vectors / "index.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["suite"] = "0.0.7"
    document["cases"][0]["inputs_sha256"] = "0" * 64
    path.write_text(json.dumps(document), encoding="utf-8")


def fewer_cases(folder: Path, vectors: Path) -> None:
    index = read_index(vectors)
    cases = index.cases[1:]
    digest = digest_of((entry.file, entry.sha256) for entry in cases)
    text = text_of(replace(index, cases=cases, digest=digest))
    (vectors / "index.json").write_text(text, encoding="utf-8")
    file_of(folder, index.cases[0].case).unlink()


def climbs(folder: Path, vectors: Path) -> None:
    path = vectors / "index.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["cases"][0]["file"] = "../elsewhere"
    os.mkfifo(vectors.parent / "elsewhere")
    path.write_text(json.dumps(document), encoding="utf-8")


def pipe_at(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


USAGE: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "no folder": (lambda a, v: shutil.rmtree(a), "there is no folder"),
    "no declaration": (lambda a, v: (a / RUNTIME).unlink(), "it describes the runtime"),
    "no JSON": (broken_json, "cannot be read"),
    "a pipe": (lambda a, v: pipe_at(a / RUNTIME), "expected a regular file"),
    "a pipe among the vectors": (lambda a, v: pipe_at(file_of(v, PLAIN)), "expected a regular file"),
    "a path": (climbs, "index.json: expected the name of a file, got '../elsewhere'"),
    "no object": (lambda a, v: (a / RUNTIME).write_text("[]"), "expected a JSON object"),
    "no version": (lambda a, v: (a / RUNTIME).write_text('{"name": "x"}'), "`version`"),
    "an unknown field": (changed("runtime", numeric="exact"), "did you mean 'numerics'"),
    "a field of another type": (changed("runtime", elections=["x"]), "runtime.json"),
    "a name that is none": (changed("runtime", name="a b"), "cannot be the name"),
    "a name of ours": (changed("runtime", name="torch"), "a backend of the suite"),
    "a class": (changed("runtime", numerics="loose"), "unknown numerics class 'loose'"),
    "a question": (changed("runtime", elections={"empty": "nan"}), "unknown question 'empty'"),
    "an answer": (changed("runtime", elections={"no-keys": "x"}), "unknown answer"),
    "other vectors": (changed("runtime", vectors="f" * 64), "answers are to the vectors ffffffffffff"),
    "a feature": (changed("runtime", unsupported={"softcaps": ""}), "did you mean 'softcap'"),
    "a contradiction": (changed("runtime", unsupported={"sdpa/*": ""}), "which has an answer"),
    "an invented case": (
        lambda a, v: file_of(a, "sdpa/none/mha/f16/b1h2q33k33d601").write_bytes(b""),
        "answers no case",
    ),
    "no vectors": (lambda a, v: shutil.rmtree(v), "there is no"),
    "a changed file": (
        lambda a, v: file_of(v, PLAIN).write_bytes(b"x"), "differs from its digest",
    ),
    "a file that is gone": (lambda a, v: file_of(v, PLAIN).unlink(), "make the vectors anew"),
    "a changed digest": (changed("index", digest="f" * 64), "index.json was changed"),
    "an index of another form": (changed("index", cases=[{}]), "make the vectors anew"),
    "a newer schema": (changed("index", schema=2, suite="9.1"), "version '9.1' of the suite"),
    "another version": (other_inputs, "made by version 0.0.7 of the suite"),
    "fewer cases": (fewer_cases, "1 cases differ"),
}  # fmt: skip


@pytest.mark.parametrize("problem", USAGE)
def test_what_cannot_be_judged_is_one_line(
    problem: str,
    own_answers: Path,
    vectors_f16: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = Path(shutil.copytree(vectors_f16, tmp_path / "vectors"))
    change, said = USAGE[problem]
    change(own_answers, own)
    results = tmp_path / "r.jsonl"
    assert (
        main(["vectors", "judge", str(own_answers), f"--vectors={own}", f"--results={results}"])
        == 2
    )
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
    assert not results.exists()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--elect=no-keys=perhaps", "unknown answer"),
        ("--numerics=loose", "unknown numerics class"),
        ("--case=sdpa/x", "is no case of"),
        ("--expect=absent.toml", "there is no manifest"),
    ],
)
def test_options_that_cannot_be_used(
    word: str, said: str, right_answers: Path, vectors_f16: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["vectors", "judge", str(right_answers), f"--vectors={vectors_f16}", word]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1


def test_options_go_before_the_declaration(right_answers: Path, vectors_f16: Path) -> None:
    asked = JudgeOptions(vectors_f16, numerics="eager", elect=("no-keys=zeros",))
    plan = plan_of(right_answers, asked)
    (implementation,) = plan.implementations
    assert implementation.declared.numerics == "eager"
    assert implementation.declared.elections == {"no-keys": "zeros"}


def without_numbers(text: str) -> str:
    """A text whose numbers of two digits or more are all alike: they depend on the number of cases."""
    return re.sub(r"\d*\.\d+(?:e[+-]?\d+)?|\d{2,}", "N", text)


def test_the_page_shows_what_happens(tmp_path: Path) -> None:
    """A C program reads the files and is judged right; with a fault it is judged wrong."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    page = PAGE.read_text(encoding="utf-8")
    shutil.copy(ROOT / "tests" / "vectors" / "runtime.c", tmp_path)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shown = "".join(re.findall(r"```console\n(.*?)```", page, re.DOTALL))
    commands = re.findall(r"^\$ (.*)\n((?:[^$].*\n|\n)*)", shown, re.MULTILINE)
    assert len(commands) == 10
    for command, expected in commands:
        ran = subprocess.run(
            command, shell=True, cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        want, got = (without_numbers(x) for x in (expected, ran.stdout))
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert doctest.OutputChecker().check_output(want, got, flags), (command, ran.stdout)
    cells = records.load(tmp_path / "plain-c.jsonl").cells
    assert {cell.status for cell in cells} == {"pass", "unsupported"}
    values = [cell for cell in cells if cell.check == "values" and cell.status == "pass"]
    assert {cell.grade for cell in values} == {"exact"}
    assert {"f32", "bf16"} == {cell.dtype for cell in values}
    assert len(values) > 30


def test_the_digest_is_what_the_page_says_prints_it(vectors_f16: Path) -> None:
    (command,) = re.findall(
        r"^    (LC_ALL=C sha256sum .*)$", FILES.read_text(encoding="utf-8"), re.MULTILINE
    )
    ran = subprocess.run(command, shell=True, cwd=vectors_f16, capture_output=True, text=True)
    assert ran.stdout.split()[0] == read_index(vectors_f16).digest


def test_the_example_of_a_declaration_can_be_read(
    right_answers: Path, vectors_f16: Path, tmp_path: Path
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (text,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    declared = {**json.loads(text), "vectors": read_index(vectors_f16).digest}
    del declared["unsupported"]["sdpa/*/f64/*"]  # these vectors have float16 alone
    (tmp_path / RUNTIME).write_text(json.dumps(declared), encoding="utf-8")
    plan = plan_of(tmp_path, JudgeOptions(vectors_f16))
    assert plan.title == "my-runtime 1.4.0, vectors of level smoke"
