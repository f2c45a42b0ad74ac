"""Answers in files are judged as those of a framework: the same verdicts, records and explanations. What
cannot be judged is one line that says what to do. The page about vectors is true."""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.backends.registry import load
from attention_conformance.suite.__main__ import main
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.deviations import all_faults
from attention_conformance.suite.deviations.kernels.gradient import Differentiable
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.records import cells as records
from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.run.recorded import record

pytest.importorskip("safetensors")

from attention_conformance.suite.vectors.files import RUNTIME, decoded, encoded, read_index
from attention_conformance.suite.vectors.judge import plan_of
from attention_conformance.suite.vectors.options import JudgeOptions
from tests.answering import answer, declare, file_of, plain_vectors

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "vectors.md"
HONEST = load("tests.honest:honest")
BROKEN = {"fail", "error", "crash"}
PLAIN = "sdpa/none/mha/f16/b1h2q33k33d600/scale-0.2/onehot"
GRADIENTS = "sdpa/padempty/mha/f16/b2h3q5k13d8v10/bias.qk/scale-0.2/integers/dense"

Cells = dict[tuple[str, str], CellRecord]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attention in float32."""
    return plain_vectors(tmp_path_factory.mktemp("vectors"), "f32")


def verdicts(answers: Path, vectors: Path) -> Cells:
    """The records by check and case."""
    plan = plan_of(answers, JudgeOptions(answers, vectors))
    cells = (cell for check in all_checks().values() for cell in plan.cells(check))
    made = (record(cell, judge(cell, plan.policy(cell, 0.0))) for cell in cells)
    return {(one.check, one.case): one for one in made}


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    return {name: array for name, (_, array) in decoded(path.read_bytes()).items()}


def failing(cells: Cells) -> dict[tuple[str, str], str]:
    return {key: one.kind for key, one in cells.items() if one.status in BROKEN}


def test_verdicts_are_those_of_the_implementation_itself(tmp_path: Path) -> None:
    """The control and an honest kernel with gradients, through files and called: the same statuses,
    grades and ratios."""
    narrow = plain_vectors(tmp_path, "bf16", "f16")
    for implementation in (load("numpy").implementations()[0], Differentiable(HONEST)):
        folder = answer(narrow, tmp_path / implementation.name, [implementation], numerics="exact")
        plan, passed = plan_of(folder, JudgeOptions(folder, narrow)), 0
        for cell in (cell for check in all_checks().values() for cell in plan.cells(check)):
            got = judge(cell, plan.policy(cell, 0.0))
            want = judge(Cell(cell.check, cell.case, implementation))
            if want.status == "unsupported" or got.message == "no answer":
                assert got.status == "unsupported"
            else:
                assert facts(got) == facts(want), (cell.check.name, cell.case.id)
            passed += got.status == "pass"
        assert passed > 20 + 20 * isinstance(implementation, Differentiable)


def facts(verdict: Verdict) -> tuple[Any, ...]:
    measured = verdict.measured
    return verdict.status, measured.grade, measured.error_ratio


def test_a_wrong_runtime_dies(
    vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = next(one.kernel for one in all_faults() if one.name == "causal-sees-next")(
        HONEST, "wrong"
    )
    folder = answer(vectors, tmp_path / "wrong", [wrong], numerics="exact")
    assert main(["vectors", "judge", str(folder), f"--vectors={vectors}"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("WRONG: ")
    assert "values of other:sdpa" in told
    again = shlex.split(told.split("again     attention-conformance ")[1].splitlines()[0])
    assert main(again) == 1
    assert again[3].removeprefix("--case=") in capsys.readouterr().out


def test_records_are_read_by_every_command(
    right_answers: Path, vectors_f16: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "right.jsonl"
    words = ["vectors", "judge", str(right_answers), f"--vectors={vectors_f16}"]
    assert main([*words, f"--results={path}"]) == 0
    loaded = records.load(path)
    assert loaded.header.options["vectors"] == read_index(vectors_f16).digest
    assert loaded.header.versions["other"] == "1.2"
    assert loaded.header.cells == len(loaded.cells)
    assert {(c.backend, c.implementation) for c in loaded.cells} == {("other", "sdpa")}
    assert main(["report", str(path)]) == 0
    assert "other:sdpa" in capsys.readouterr().out
    assert main(["diff", str(path), str(path)]) == 0
    capsys.readouterr()
    assert main([*words, f"--results={path}"]) == 2
    assert "exists" in capsys.readouterr().err


FAULTS: dict[str, tuple[Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], str]] = {
    "NaN": (lambda t: {**t, "output": t["output"] * np.float16(np.nan)}, "non-finite"),
    "a shape": (lambda t: {**t, "output": t["output"].swapaxes(1, 2)}, "shape"),
    "integers": (lambda t: {**t, "output": t["output"].astype(np.int64)}, "dtype"),
    "another name": (lambda t: {"out": t["output"]}, "type"),
    "no output": (lambda t: {n: x for n, x in t.items() if n != "output"}, "type"),
    "a gradient is missing": (
        lambda t: {n: x for n, x in t.items() if n != "grad.key"},
        "no-gradient",
    ),
    "a wrong gradient": (lambda t: {**t, "grad.bias": 2 * t["grad.bias"]}, "value"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_answer_fails_its_case_alone(
    fault: str, own_answers: Path, vectors_f16: Path
) -> None:
    break_it, kind = FAULTS[fault]
    path = file_of(own_answers, GRADIENTS)
    tensors = {n: np.ascontiguousarray(x) for n, x in break_it(tensors_of(path)).items()}
    path.write_bytes(encoded(tensors))
    assert failing(verdicts(own_answers, vectors_f16)) == {("gradients", GRADIENTS): kind}


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_a_file_that_is_cut_off_fails_its_case_alone(
    size: int, own_answers: Path, vectors_f16: Path
) -> None:
    path = file_of(own_answers, PLAIN)
    path.write_bytes(path.read_bytes()[:size])
    cells = verdicts(own_answers, vectors_f16)
    assert failing(cells) == {("precision", PLAIN): "type"}
    assert "is no safetensors file" in cells["precision", PLAIN].message


def test_gradients_are_optional(own_answers: Path, vectors_f16: Path) -> None:
    path = file_of(own_answers, GRADIENTS)
    tensors = tensors_of(path)
    path.write_bytes(encoded({"output": tensors["output"]}))
    cells = verdicts(own_answers, vectors_f16)
    assert not failing(cells)
    assert cells["gradients", GRADIENTS].message == "the answer has no gradients"
    del tensors["grad.bias"]
    path.write_bytes(encoded(tensors))
    assert failing(verdicts(own_answers, vectors_f16)) == {("gradients", GRADIENTS): "no-gradient"}
    declare(own_answers, numerics="exact", unsupported={"gradient-of-bias": "left out"})
    cells = verdicts(own_answers, vectors_f16)
    assert cells["gradients", GRADIENTS].status == "pass"
    assert set(cells["gradients", GRADIENTS].ratios) == {"query", "key", "value"}


def changed(place: str, **changes: Any) -> Callable[[Path, Path], None]:
    def change(folder: Path, vectors: Path) -> None:
        path = {"index": vectors / "index.json"}.get(place, folder / RUNTIME)
        document = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**document, **changes}), encoding="utf-8")

    return change


def changed_case(**changes: Any) -> Callable[[Path, Path], None]:
    def change(folder: Path, vectors: Path) -> None:
        path = vectors / "index.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        document["cases"][0] |= changes
        path.write_text(json.dumps(document), encoding="utf-8")

    return change


def pipe_at(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


USAGE: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "no folder": (lambda a, v: shutil.rmtree(a), "No such file"),
    "no declaration": (lambda a, v: (a / RUNTIME).unlink(), "expected at least"),
    "no JSON": (lambda a, v: (a / RUNTIME).write_text("{"), "cannot be read"),
    "a pipe": (lambda a, v: pipe_at(a / RUNTIME), "expected a regular file"),
    "a pipe among the vectors": (lambda a, v: pipe_at(file_of(v, PLAIN)), "expected a regular file"),
    "a path": (changed_case(file="../elsewhere"), "differs from its name"),
    "no version": (lambda a, v: (a / RUNTIME).write_text('{"name": "x"}'), "`version`"),
    "an unknown field": (changed("runtime", numeric="exact"), "unknown field `numeric`"),
    "a name of ours": (changed("runtime", name="torch"), "a backend of the suite"),
    "a class": (changed("runtime", numerics="loose"), "unknown numerics class 'loose'"),
    "a question": (changed("runtime", elections={"empty": "nan"}), "unknown question 'empty'"),
    "other vectors": (changed("runtime", vectors="f" * 64), "answers to ffffffffffff"),
    "an invented case": (
        lambda a, v: file_of(a, "sdpa/none/mha/f16/b1h2q33k33d601").write_bytes(b""),
        "answers no case",
    ),
    "no vectors": (lambda a, v: shutil.rmtree(v), "No such file"),
    "a changed file": (
        lambda a, v: file_of(v, PLAIN).write_bytes(b"x"), "differs from its name or digest",
    ),
    "a changed digest": (changed("index", digest="f" * 64), "index.json was changed"),
    "an index of another form": (changed("index", cases=[{}]), "make the vectors anew"),
    "another version": (changed_case(inputs_sha256="0" * 64), "1 cases differ"),
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
    words = [str(own_answers), f"--vectors={own}", f"--results={results}"]
    assert main(["vectors", "judge", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
    assert not results.exists()


def without_numbers(text: str) -> str:
    """A text whose numbers of two digits or more are all alike: they depend on the number of cases."""
    return re.sub(r"\d*\.\d+(?:e[+-]?\d+)?|\d{2,}", "N", text)


@pytest.mark.seldom
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
    page = (ROOT / "docs" / "data" / "vector-files.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^    (LC_ALL=C sha256sum .*)$", page, re.MULTILINE)
    ran = subprocess.run(command, shell=True, cwd=vectors_f16, capture_output=True, text=True)
    assert ran.stdout.split()[0] == read_index(vectors_f16).digest


def test_the_example_of_a_declaration_can_be_read(vectors_f16: Path, tmp_path: Path) -> None:
    (text,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    declared = {**json.loads(text), "vectors": read_index(vectors_f16).digest}
    (tmp_path / RUNTIME).write_text(json.dumps(declared), encoding="utf-8")
    plan = plan_of(tmp_path, JudgeOptions(tmp_path, vectors_f16))
    assert plan.versions == {"my-runtime": "1.4.0"}
