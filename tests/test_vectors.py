"""Vectors: the files hold what is asked and what is right, say so, and are the same every time."""

from __future__ import annotations

import hashlib
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.elections import ELECTION_CASES
from attention_conformance.suite.spec.masks import parse_mask
from attention_conformance.suite.spec.operator import LETTERS
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import NUMERICS

pytest.importorskip("safetensors")

from attention_conformance.backends.registry import load
from attention_conformance.suite.vectors import index as schema
from attention_conformance.suite.vectors.asked import NOT_STORED, StoredProblem, problems_of
from attention_conformance.suite.vectors.export import export, in_words, raised
from attention_conformance.suite.vectors.index import Entry, Index, read_index
from attention_conformance.suite.vectors.options import Selection
from attention_conformance.suite.vectors.tensors import TYPES, Tensor, decoded, encoded, type_of
from tests.answering import answered

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "docs" / "data" / "vector-files.md", ROOT / "docs" / "vectors.md")
SELECTION = Selection("smoke", operator=("sdpa", "rotary", "multi-head"), dtype=("f32", "f16"))
MEGABYTES = 80e6


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
def files(folder: Path, index: dict[str, Any]) -> dict[str, dict[str, Tensor]]:
    return {e["case"]: decoded((folder / e["file"]).read_bytes()) for e in index["cases"]}


@pytest.fixture(scope="module")
def questions() -> dict[str, StoredProblem]:
    return {one.id: one for one in problems_of(SELECTION)}


def test_a_folder_has_a_file_for_each_case(folder: Path, index: dict[str, Any]) -> None:
    names = {entry["file"] for entry in index["cases"]}
    assert {p.name for p in folder.iterdir()} == names | {"index.json", "index.schema.json"}
    kinds = [entry["kind"] for entry in index["cases"]]
    assert kinds == sorted(kinds)
    assert set(kinds) == {"case", "election"}
    (level, seed) = index["level"], index["seed"]
    assert (level, seed, index["numerics"]) == ("smoke", 0, list(NUMERICS))
    wanted = {
        case.id
        for check in all_checks().values()
        if check.name in ("values", "gradients", "long_rows", "precision")
        for case in check.cases("smoke")
        if case.operator.name in SELECTION.operator and case.dtype.name in SELECTION.dtype
    }
    assert wanted <= {entry["case"] for entry in index["cases"]}


def test_files_hold_what_the_index_names(
    index: dict[str, Any], files: dict[str, dict[str, Tensor]]
) -> None:
    for entry in index["cases"]:
        tensors = files[entry["case"]]
        bounds = {b for answer in entry["answers"].values() for b in answer["bounds"].values()}
        is_case = entry["kind"] == "case"
        expected = {f"expected.{name}" for name in entry["answers"]} if is_case else set()
        rest = set(tensors) - set(entry["inputs"]) - bounds - expected
        assert rest <= {"fully_masked_rows"}, entry["case"]
        assert set(tensors) >= {*entry["inputs"], *bounds, *expected}
        assert ("fully_masked_rows" in tensors) == bool(entry["elections"])
        for name, axes in entry["inputs"].items():
            assert len(axes) == len(tensors[name].shape), (entry["case"], name)
            integral = {"mask": "BOOL", "position": "I64", "scale": "F64", "softcap": "F64"}
            own = "F64" if axes == "" else entry["dtype"]
            assert tensors[name].type == integral.get(name, own)
        for name, answer in entry["answers"].items():
            assert len(answer["axes"]) == len(answer["shape"])
            assert set(answer["bounds"]) == (set(NUMERICS) if is_case else set())
            for tensor in [f"expected.{name}", *answer["bounds"].values()] if is_case else ():
                assert tensors[tensor].shape == tuple(answer["shape"])


def test_inputs_are_those_that_frameworks_get(
    questions: dict[str, StoredProblem], files: dict[str, dict[str, Tensor]]
) -> None:
    for name, one in questions.items():
        inputs, tensors = one.inputs(), files[name]
        for array, values in inputs.arrays.items():
            stored = np.asarray(tensors[array].values, np.float64)
            assert np.array_equal(stored.ravel(), values.ravel(), equal_nan=True), (name, array)
        if isinstance(one.case, Case) and inputs.dense_mask is not None:
            s = inputs.sizes
            whole = np.broadcast_to(inputs.dense_mask, (s.B, s.H, s.Lq, s.Lk))
            assert np.array_equal(np.broadcast_to(tensors["mask"].values, whole.shape), whole)
            assert tensors["mask"].values.ndim == 4
    plain = questions["sdpa/none/mha/f32/b2h3q17k23d8/lse"]
    assert files[plain.id]["scale"].values == 1 / math.sqrt(8)
    capped = next(name for name in questions if "/cap2.0" in name)
    assert files[capped]["softcap"].values == 2.0


def test_expected_values_and_bounds_are_those_of_the_judge(
    questions: dict[str, StoredProblem], files: dict[str, dict[str, Tensor]], index: dict[str, Any]
) -> None:
    """No bound is smaller than the judge's, and none larger by more than a rounding."""
    for entry in index["cases"]:
        one, tensors = questions[entry["case"]], files[entry["case"]]
        if entry["kind"] != "case":
            continue
        for name, answer in entry["answers"].items():
            for numerics in NUMERICS:
                rounding, cotangent = Rounding(numerics), one.cotangent()
                if name.startswith("grad."):
                    assert cotangent is not None
                    oracle = Oracle.vjp(one.inputs(), cotangent, rounding)
                else:
                    oracle = Oracle.forward(one.inputs(), rounding)
                want = oracle.expected[name.removeprefix("grad.")]
                value = np.asarray(tensors[f"expected.{name}"].values)
                assert np.array_equal(value.ravel(), want.value.ravel().astype(np.float64))
                limit = want.error.ravel()
                stored = np.asarray(tensors[answer["bounds"][numerics]].values, np.float64).ravel()
                assert (stored >= limit).all(), (entry["case"], name, numerics)
                assert (stored <= limit * (1 + 2.0**-22) + 2.0**-148).all()


def test_a_bound_is_rounded_up() -> None:
    from attention_conformance.references.rounding import Bounded

    error = np.array([0.0, 1e-8, 1.0, 1 / 3, 1e-60, 1e300, np.inf, np.nan])
    bound = raised(Bounded(np.zeros(8), error), np.zeros(8), "F32")
    assert bound.dtype == np.float32
    assert (bound[:-1].astype(np.float64) >= error[:-1]).all()
    assert bound[0] == 0
    assert bound[2] == 1
    assert np.isinf(bound[5:]).all()
    off = raised(Bounded(np.array([np.longdouble(1) / 3]), np.zeros(1)), np.array([1 / 3]), "F64")
    assert 0 < off < 2.0**-53


def test_a_right_answer_lies_within_the_stored_bounds(
    questions: dict[str, StoredProblem], files: dict[str, dict[str, Tensor]], index: dict[str, Any]
) -> None:
    """What another language can ask without the judge; and a wrong scale does not."""
    definition = load("numpy").implementations()[0]
    entries = {e["case"]: e for e in index["cases"] if e["kind"] == "case"}
    judged = 0
    for name, entry in entries.items():
        one, tensors = questions[name], files[name]
        if (
            one.case.operator is not definition.operator
            or definition.unsupported(one.case) is not None
        ):
            continue
        got = answered(one, definition)["output"].astype(np.float64)
        want, bound = (
            np.asarray(tensors[n].values, np.float64)
            for n in ("expected.output", entry["answers"]["output"]["bounds"]["exact"])
        )
        assert (np.abs(got - want) <= bound).all(), name
        judged += 1
        if name == "sdpa/none/mha/f32/b2h3q17k23d8/lse":
            assert not (np.abs(1.01 * got - want) <= bound).all()
    assert judged > 30


def test_digests(folder: Path, index: dict[str, Any], questions: dict[str, StoredProblem]) -> None:
    lines = []
    for entry in sorted(index["cases"], key=lambda e: e["file"]):
        digest = hashlib.sha256((folder / entry["file"]).read_bytes()).hexdigest()
        assert digest == entry["sha256"]
        lines.append(f"{digest}  {entry['file']}\n")
        own = {n: t for n, t in questions[entry["case"]].arrays().items() if n in entry["inputs"]}
        assert hashlib.sha256(encoded(own)).hexdigest() == entry["inputs_sha256"]
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == index["digest"]


def test_the_same_command_writes_the_same_bytes(tmp_path: Path) -> None:
    words = ["vectors", "--operator=rotary", "--operator=additive", "--dtype=bf16", "--seed=3"]
    for name in ("one", "two"):
        subprocess.run(
            [sys.executable, "-m", "suite", *words, f"--output={tmp_path / name}"],
            cwd=ROOT, check=True, capture_output=True,
        )  # fmt: skip
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("one", "two"))
    assert one == two
    assert len(one) > 5
    assert read_index(tmp_path / "one").seed == 3


def test_vectors_of_two_dtypes_are_small(folder: Path) -> None:
    assert sum(p.stat().st_size for p in folder.iterdir()) < MEGABYTES / 3


@pytest.mark.slow
def test_smoke_is_small(tmp_path: Path) -> None:
    export(Selection("smoke"), tmp_path / "smoke")
    assert sum(p.stat().st_size for p in (tmp_path / "smoke").iterdir()) < MEGABYTES


def test_every_question_is_put_or_left_out_with_a_reason() -> None:
    put = {one.case.id for one in problems_of(Selection("smoke"))}
    names = {case.question.name for case in ELECTION_CASES}
    assert names >= NOT_STORED.keys()
    for case in ELECTION_CASES:
        assert (case.id in put) == (case.question.name not in NOT_STORED), case.id


def test_flags_are_no_tensors(index: dict[str, Any], files: dict[str, dict[str, Tensor]]) -> None:
    """What a causal flag means is asked by the flag; a mask beside it is a tensor."""
    flagged = {e["case"]: e for e in index["cases"] if e["flag"]}
    assert {e["flag"] for e in flagged.values()} == {"causal"}
    assert "mask" not in files["elect/causal-alignment/f32"]
    assert "mask" in files["elect/causal-with-mask/f32"]
    assert set(flagged) >= {"elect/causal-alignment/f32", "elect/causal-with-mask/f32"}
    assert all(e["kind"] == "election" for e in flagged.values())


def test_masks_are_said_in_words(index: dict[str, Any]) -> None:
    masks = {e["mask"]["token"]: e["mask"]["parts"] for e in index["cases"] if e["mask"]}
    assert masks["causal"] == [{"kind": "causal", "bottom_right": False}]
    (padded,) = masks["padempty"]
    assert padded["kind"] == "padding"
    assert padded["lengths"][-1] == 0
    joined = parse_mask("prefix3orcausal")
    assert joined is not None
    said = in_words(joined, Sizes(2, 3, 3, 5, 7, 8, 8), 0)
    assert [part["kind"] for part in said["masks"]] == ["prefix", "causal"]


def test_types_are_those_of_safetensors() -> None:
    from attention_conformance.suite.spec.dtypes import DTYPES

    assert {type_of(fmt) for fmt in DTYPES.values()} < TYPES.keys()
    arrays = {name: np.array([[0, 1]], kind) for name, kind in TYPES.items()}
    arrays["empty"], arrays["number"] = np.zeros((0, 3), np.float32), np.array(2.5)
    read = decoded(encoded(arrays))
    for name, array in arrays.items():
        assert read[name].shape == array.shape
        assert np.array_equal(np.asarray(read[name].values), array)


def test_the_page_says_what_the_schema_says() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    structs = (Index, Entry, schema.Output, schema.Hidden, schema.Question, schema.Runtime)
    for kind in structs:
        fields = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
        for name, field in fields.items():
            assert f"| `{name}` | {field['description']} |" in text, (kind.__name__, name)
    for letter in LETTERS:
        assert re.search(rf"`{letter}`", text), letter
    stored = {check.name for check in all_checks().values() if check.single_answer}
    section = text[text.index("## What is judged") :]
    assert stored == set(re.findall(r"`([a-z_]+)`", section[: section.index("Not asked")]))


def test_the_schema_is_that_of_the_index(folder: Path, index: dict[str, Any]) -> None:
    written = json.loads((folder / "index.schema.json").read_text(encoding="utf-8"))
    assert set(written["$defs"]["Index"]["required"]) == set(index)
    assert set(written["$defs"]["Entry"]["required"]) == set(index["cases"][0])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--output=FOLDER"),
        (["--output={full}"], "exists and is not an empty folder"),
        (["--output={new}", "--operator=batch-norm", "--dtype=f16"], "no case"),
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
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert main(["vectors", *words]) == 2
    assert "attention-conformance[vectors]" in capsys.readouterr().err


def test_float64_is_left_out_where_it_cannot_be_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from attention_conformance.suite.vectors import export as module

    def refuse(*_: Any) -> Any:
        raise module.HarnessError("float64 cases need an extended-precision numpy.longdouble")

    monkeypatch.setattr(module, "expected", refuse)
    words = ["vectors", "--operator=concat", "--dtype=f64", f"--output={tmp_path / 'new'}"]
    assert main(words) == 2
    assert "--dtype leaves float64 out" in capsys.readouterr().err
