"""Vectors: the files hold what is asked and what is right, say so, and are the same every time."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.spec.operator import LETTERS
from attention_conformance.suite.spec.vocabulary import NUMERICS

pytest.importorskip("safetensors")

from attention_conformance.suite.vectors.asked import Output, StoredCase, stored_cases
from attention_conformance.suite.vectors.export import export
from attention_conformance.suite.vectors.files import Runtime, decoded, encoded, read_index
from attention_conformance.suite.vectors.options import Selection
from tests.processes import ROOT, python

PAGES = (ROOT / "docs" / "data" / "vector-files.md", ROOT / "docs" / "vectors.md")
SELECTION = Selection("smoke", operator=("sdpa", "rotary", "multi-head"), dtype=("f32", "f16"))
MEGABYTES = 80e6

Tensors = dict[str, tuple[str, np.ndarray]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors") / "new"
    export(SELECTION, path)
    return path


@pytest.fixture(scope="module")
def index(folder: Path) -> dict[str, Any]:
    """The index as another language reads it."""
    return json.loads((folder / "index.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def files(folder: Path, index: dict[str, Any]) -> dict[str, Tensors]:
    return {e["case"]: decoded((folder / e["file"]).read_bytes()) for e in index["cases"]}


@pytest.fixture(scope="module")
def problems() -> dict[str, StoredCase]:
    return {one.case.id: one for one in stored_cases(SELECTION)}


def bound_of(tensors: Tensors, name: str, numerics: str) -> np.ndarray:
    """The bound of a numerics class, or of the nearest narrower class that has a tensor."""
    known = NUMERICS[: NUMERICS.index(numerics) + 1][::-1]
    return next(tensors[t][1] for t in (f"bound.{name}.{n}" for n in known) if t in tensors)


def test_a_folder_has_a_file_for_each_case(folder: Path, index: dict[str, Any]) -> None:
    names = {entry["file"] for entry in index["cases"]}
    assert {p.name for p in folder.iterdir()} == names | {"index.json"}
    assert index["selection"] == {
        **vars(SELECTION),
        "operator": [*SELECTION.operator],
        "dtype": ["f32", "f16"],
    }
    assert index["numerics"] == list(NUMERICS)
    wanted = {
        case.id
        for check in all_checks().values()
        if check.name in ("values", "gradients", "long_rows", "precision")
        for case in check.cases("smoke")
        if case.operator.name in SELECTION.operator and case.dtype.name in SELECTION.dtype
    }
    assert wanted <= {entry["case"] for entry in index["cases"]}
    assert sum(p.stat().st_size for p in folder.iterdir()) < MEGABYTES / 2


def test_inputs_are_those_that_frameworks_get(
    problems: dict[str, StoredCase], files: dict[str, Tensors]
) -> None:
    for name, one in problems.items():
        inputs, tensors = one.inputs(), files[name]
        for array, values in inputs.arrays.items():
            stored = np.asarray(tensors[array][1], np.float64)
            assert np.array_equal(stored.ravel(), values.ravel(), equal_nan=True), (name, array)
        if inputs.dense_mask is not None:
            s, mask = inputs.sizes, tensors["mask"][1]
            whole = np.broadcast_to(inputs.dense_mask, (s.B, s.H, s.Lq, s.Lk))
            assert np.array_equal(np.broadcast_to(mask, whole.shape), whole)
            assert mask.ndim == 4
    assert files["sdpa/none/mha/f32/b2h3q17k23d8/lse"]["scale"][1] == 1 / math.sqrt(8)
    capped = next(name for name in problems if "/cap2.0" in name)
    assert files[capped]["softcap"][1] == 2.0


def test_expected_values_and_bounds_are_those_of_the_judge(
    problems: dict[str, StoredCase], files: dict[str, Tensors]
) -> None:
    """No bound is smaller than the judge's, and none larger by more than a rounding."""
    for case, one in problems.items():
        for name in one.answers():
            for numerics in NUMERICS:
                rounding, cotangent = Rounding(numerics), one.cotangent()
                if name.startswith("grad."):
                    assert cotangent is not None
                    oracle = Oracle.vjp(one.inputs(), cotangent, rounding)
                else:
                    oracle = Oracle.forward(one.inputs(), rounding)
                want = oracle.expected[name.removeprefix("grad.")]
                value = files[case][f"expected.{name}"][1]
                assert np.array_equal(value.ravel(), want.value.ravel().astype(np.float64))
                limit = want.error.ravel()
                stored = bound_of(files[case], name, numerics).ravel().astype(np.float64)
                assert (stored >= limit).all(), (case, name, numerics)
                assert (stored <= limit * (1 + 2.0**-22) + 2.0**-148).all()


def test_digests(folder: Path, index: dict[str, Any], problems: dict[str, StoredCase]) -> None:
    lines = []
    for entry in sorted(index["cases"], key=lambda e: e["file"]):
        digest = hashlib.sha256((folder / entry["file"]).read_bytes()).hexdigest()
        assert digest == entry["sha256"]
        lines.append(f"{digest}  {entry['file']}\n")
        own = encoded(problems[entry["case"]].arrays())
        assert hashlib.sha256(own).hexdigest() == entry["inputs_sha256"]
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == index["digest"]


def test_the_same_command_writes_the_same_bytes(tmp_path: Path) -> None:
    """In a process of its own, whose sets have another order."""
    words = ["vectors", "--operator=rotary", "--operator=additive", "--dtype=bf16", "--seed=3"]
    assert main([*words, f"--output={tmp_path / 'one'}"]) == 0
    python("-m", "suite", *words, f"--output={tmp_path / 'two'}", check=True)
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("one", "two"))
    assert one == two
    assert len(one) > 2
    assert read_index(tmp_path / "one").selection.seed == 3


def test_the_page_says_what_the_files_hold(index: dict[str, Any]) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    fields = [*index, *index["cases"][0], *Output._fields, *Runtime.__struct_fields__]
    for name in fields:
        assert f"\n| `{name}` | " in text, name
    for letter in LETTERS:
        assert f"`{letter}`" in text, letter
    section = text[text.index("## What is judged") : text.index("Not tested")]
    stored = {check.name for check in all_checks().values() if check.single_answer}
    asked = {name for name in stored if f"`{name}`" in section}
    assert asked == {name for one in stored_cases(Selection("standard")) for name in one.checks}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--output=FOLDER"),
        (["--output={full}"], "exists and is not an empty folder"),
        (["--output={new}", "--operator=concat", "--dtype=f16"], "no case"),
    ],
)
def test_what_cannot_be_written(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("mine")
    assert main(["vectors", *(w.format(full=full, new=tmp_path / "new") for w in words)]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1
    assert captured.out == ""
    assert [p.name for p in tmp_path.rglob("*")] == ["full", "mine"]


@pytest.mark.parametrize("words", [["--output=x"], ["judge", "x", "--vectors=y"]])
def test_without_the_library_a_line_says_what_to_install(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [
        name for name in sys.modules if name.startswith("attention_conformance.suite.vectors.")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert main(["vectors", *words]) == 2
    assert "attention-conformance[vectors]" in capsys.readouterr().err
