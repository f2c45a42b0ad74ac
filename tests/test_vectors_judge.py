"""Answers in files are judged as those of a framework: the same verdicts, records and explanations."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from attention_conformance.backends.registry import load
from attention_conformance.suite.__main__ import main
from attention_conformance.suite.faults.kernels.attention import Kernel
from attention_conformance.suite.faults.kernels.gradient import Differentiable
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.records import cells as records
from attention_conformance.suite.records.cells import CellRecord, Run
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal
from tests.honest.attention import NanRows, UniformRows

pytest.importorskip("safetensors")

from attention_conformance.suite.vectors.index import read_index
from attention_conformance.suite.vectors.judge import judged, plan_of
from attention_conformance.suite.vectors.options import JudgeOptions
from attention_conformance.suite.vectors.tensors import decoded, encoded
from tests.answering import answer, declare, file_of, plain_vectors

HONEST = load("tests.honest:honest")
BROKEN = {"fail", "error", "crash"}
PLAIN = "sdpa/none/mha/f16/b1h2q33k33d600/scale-0.2/onehot"
GRADIENTS = "sdpa/padempty/mha/f16/b2h3q5k13d8v10/bias.qk/scale-0.2/integers/dense"


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attention in float32."""
    return plain_vectors(tmp_path_factory.mktemp("vectors"), "f32")


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attention in the 16-bit dtypes."""
    return plain_vectors(tmp_path_factory.mktemp("vectors"), "bf16", "f16")


def verdicts(
    answers: Path, vectors: Path, elections: Mapping[str, Any] | None = None
) -> dict[tuple[str, str], CellRecord]:
    """The records by check and case."""
    elect = tuple(f"{question}={answer}" for question, answer in (elections or {}).items())
    plan = plan_of(answers, JudgeOptions(vectors, elect=elect))
    return {(one.check, one.case): one for one in judged(plan)}


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    return {name: np.array(tensor.values) for name, tensor in decoded(path.read_bytes()).items()}


def failing(cells: dict[tuple[str, str], CellRecord]) -> dict[tuple[str, str], str]:
    return {key: one.kind for key, one in cells.items() if one.status in BROKEN}


def test_verdicts_are_those_of_the_implementation_itself(narrow: Path, tmp_path: Path) -> None:
    """The control and an honest kernel with gradients, through files and called: the same statuses,
    grades, observations and ratios."""
    for implementation in (load("numpy").implementations()[0], Differentiable(HONEST)):
        folder = answer(narrow, tmp_path / implementation.name, [implementation], numerics="exact")
        plan = plan_of(folder, JudgeOptions(narrow))
        statuses: Counter[str] = Counter()
        for cell in plan.every_cell():
            got = judge(cell, plan.policy(cell, 0.0))
            statuses[got.status] += 1
            assert got.status not in BROKEN, (cell.case.id, got.message)
            if not cell.check.applies_to(implementation.declared):
                continue  # what is asked of persons alone
            want = judge(Cell(cell.check, cell.case, implementation))
            if want.status == "unsupported" or got.message == "no answer":
                assert got.status == "unsupported"
                continue
            assert facts(got) == facts(want), (cell.check.name, cell.case.id)
        assert statuses["pass"] > 30 + 30 * isinstance(implementation, Differentiable)


def facts(verdict: Verdict) -> tuple[Any, ...]:
    measured = verdict.measured
    return verdict.status, measured.grade, measured.error_ratio, measured.observed


class Wrong(Kernel):
    """A kernel that is asked something else than the case."""

    change: Callable[[Inputs], Inputs] = staticmethod(lambda inputs: inputs)

    def prepare(self, inputs: Inputs) -> Any:
        return super().prepare(type(self).change(inputs))


class WrongScale(Wrong):
    change = staticmethod(lambda inputs: inputs.replace(scale=1.01 * inputs.effective_scale))


class NoMask(Wrong):
    change = staticmethod(lambda inputs: inputs.replace(mask=None, mask_array=None, form="native"))


class NoBias(Wrong):
    change = staticmethod(lambda inputs: inputs.replace(bias=None))


@pytest.mark.parametrize("kernel", [WrongScale, NoMask, NoBias])
def test_a_wrong_runtime_dies(
    kernel: type[Wrong], vectors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = answer(vectors, tmp_path / "wrong", [kernel(HONEST, "wrong")], numerics="exact")
    assert main(["vectors", "judge", str(folder), f"--vectors={vectors}"]) == 1
    told = capsys.readouterr().out
    assert "Failures by group" in told
    assert "\nWRONG: " in f"\n{told}"
    assert "values of other:sdpa" in told
    again = shlex.split(told.split("again     python -m suite ")[1].splitlines()[0])
    assert main(again) == 1
    assert again[-1].removeprefix("--case=") in capsys.readouterr().out


def test_records_are_read_by_every_command(
    right_answers: Path, vectors_f16: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "right.jsonl"
    words = [
        "vectors",
        "judge",
        str(right_answers),
        f"--vectors={vectors_f16}",
        f"--results={path}",
    ]
    assert main(words) == 0
    assert f"records: {path}" in capsys.readouterr().out
    loaded: Run = records.load(path)
    assert loaded.header.options["vectors"] == read_index(vectors_f16).digest
    assert loaded.header.versions["other"] == "1.2"
    assert loaded.header.cells == len(loaded.cells)
    assert {(c.backend, c.implementation) for c in loaded.cells} == {("other", "sdpa")}
    assert main(["report", str(path)]) == 0
    assert "other:sdpa" in capsys.readouterr().out
    assert main(["diff", str(path), str(path)]) == 0
    capsys.readouterr()
    assert main(words) == 2
    assert "exists" in capsys.readouterr().err


FAULTS: dict[str, tuple[Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]], str]] = {
    "NaN": (lambda t: {**t, "output": t["output"] * np.float16(np.nan)}, "non-finite"),
    "a shape": (lambda t: {**t, "output": t["output"].swapaxes(1, 2)}, "shape"),
    "a rank": (lambda t: {**t, "output": t["output"][0]}, "shape"),
    "integers": (lambda t: {**t, "output": t["output"].astype(np.int64)}, "dtype"),
    "a foreign type": (lambda t: {**t, "output": t["output"].astype(np.uint8)}, "dtype"),
    "another name": (lambda t: {"out": t["output"]}, "type"),
    "no output": (lambda t: {n: x for n, x in t.items() if n != "output"}, "type"),
    "a tensor nobody asks for": (lambda t: {**t, "weights": t["output"]}, "type"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_answer_fails_its_case_alone(
    fault: str, own_answers: Path, vectors_f16: Path
) -> None:
    break_it, kind = FAULTS[fault]
    path = file_of(own_answers, GRADIENTS)
    path.write_bytes(encoded(break_it(tensors_of(path))))
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


def test_gradients_are_answered_together(own_answers: Path, vectors_f16: Path) -> None:
    path = file_of(own_answers, GRADIENTS)
    tensors = tensors_of(path)
    path.write_bytes(encoded({n: x for n, x in tensors.items() if n != "grad.key"}))
    assert failing(verdicts(own_answers, vectors_f16)) == {("gradients", GRADIENTS): "no-gradient"}
    path.write_bytes(encoded({"output": tensors["output"]}))
    cells = verdicts(own_answers, vectors_f16)
    assert not failing(cells)
    assert cells["gradients", GRADIENTS].message == "the answer has no gradients"


def test_a_runtime_may_have_no_gradient_of_a_bias(own_answers: Path, vectors_f16: Path) -> None:
    path = file_of(own_answers, GRADIENTS)
    tensors = tensors_of(path)
    del tensors["grad.bias"]
    path.write_bytes(encoded(tensors))
    cells = verdicts(own_answers, vectors_f16)
    assert cells["gradients", GRADIENTS].status == "pass"
    assert set(cells["gradients", GRADIENTS].ratios) == {"query", "key", "value"}


def test_a_bias_may_have_its_axes_written_out(own_answers: Path, vectors_f16: Path) -> None:
    path = file_of(own_answers, GRADIENTS)
    tensors = tensors_of(path)
    tensors["grad.bias"] = np.repeat(tensors["grad.bias"] / 2, 2, axis=0)
    path.write_bytes(encoded(tensors))
    record = verdicts(own_answers, vectors_f16)["gradients", GRADIENTS]
    assert record.kind == "value"  # read, and wrong: samples have gradients of their own
    assert "gradient of the bias" in record.message


def test_a_wider_answer_is_taken_as_it_is(
    own_answers: Path, vectors_f16: Path, vectors: Path
) -> None:
    path = file_of(own_answers, PLAIN)
    tensors = tensors_of(path)
    for kind in (np.float32, np.float64):
        path.write_bytes(encoded({n: x.astype(kind) for n, x in tensors.items()}))
        assert not failing(verdicts(own_answers, vectors_f16))
    path.write_bytes(encoded({n: x.astype(np.float32) * 1.05 for n, x in tensors.items()}))
    assert failing(verdicts(own_answers, vectors_f16)) == {("precision", PLAIN): "value"}


def test_what_is_not_answered_is_counted(own_answers: Path, vectors_f16: Path) -> None:
    whole = len(verdicts(own_answers, vectors_f16))
    file_of(own_answers, PLAIN).unlink()
    declare(own_answers, unsupported={"sdpa/*/onehot": "too wide", "lse": "no log-sum-exp"})
    file_of(own_answers, "elect/lse-of-empty-row/f16").unlink()
    cells = verdicts(own_answers, vectors_f16)
    assert len(cells) == whole
    assert cells["precision", PLAIN].status == "unsupported"
    assert cells["precision", PLAIN].message == "too wide"
    assert cells["election", "elect/lse-of-empty-row/f16"].message == "no log-sum-exp"


def test_nothing_answered_is_no_success(vectors_f16: Path, tmp_path: Path) -> None:
    declare(tmp_path)
    assert main(["vectors", "judge", str(tmp_path), f"--vectors={vectors_f16}"]) == 1


def test_expected_failures(
    own_answers: Path, vectors_f16: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(own_answers, PLAIN)
    path.write_bytes(encoded({"output": tensors_of(path)["output"] * np.float16(2)}))
    entry = {
        "implementation": ["sdpa"], "check": ["precision"], "case": ["sdpa/*/onehot"], "kind": "value",
        "message": "beyond", "cause": "doubled", "issue": "none found", "versions": ["other>=1"],
    }  # fmt: skip
    words = ["vectors", "judge", str(own_answers), f"--vectors={vectors_f16}"]
    assert main(words) == 1
    manifest = own_answers / "known.toml"
    manifest.write_text(tomli_w.dumps({"expect": [entry]}))
    assert main([*words, f"--expect={manifest}"]) == 0
    assert "1 known" in capsys.readouterr().out
    manifest.rename(own_answers / "other.toml")
    assert main(words) == 0
    (own_answers / "other.toml").write_text(
        tomli_w.dumps({"expect": [entry | {"case": ["sdpa/x"]}]})
    )
    capsys.readouterr()
    assert main(words) == 2
    assert "stale" in capsys.readouterr().err


class BottomRight(Differentiable):
    """A kernel whose causal flag is bottom-right, and which goes by its flag."""

    def prepare(self, inputs: Inputs) -> Any:
        flag = inputs.form == "native" and inputs.mask_array is None and inputs.mask is not None
        parts = inputs.mask.parts if flag and inputs.mask is not None else ()
        if Causal() in parts:
            own = [Causal(True) if part == Causal() else part for part in parts]
            inputs = inputs.replace(mask=reduce(and_, own))
        return super().prepare(inputs)


def test_a_causal_flag_means_what_the_runtime_shows(vectors: Path, tmp_path: Path) -> None:
    kernel = BottomRight(HONEST, "bottom-right")
    folder = answer(vectors, tmp_path / "flag", [kernel], numerics="exact")
    cells = verdicts(folder, vectors)
    assert cells["election", "elect/causal-alignment/f32"].observed == "bottom-right"
    assert not failing(cells)
    differentiated = "sdpa/causal/gqa2/f32/b2h4q11k9d6/sinks"
    assert cells["gradients", differentiated].status == "pass"
    file_of(folder, "elect/causal-alignment/f32").unlink()
    file_of(folder, "elect/causal-with-mask/f32").unlink()
    # Who does not speak of a flag is held to the masks as they lie in the files.
    assert ("gradients", differentiated) in failing(verdicts(folder, vectors))
    promised = {"causal-alignment": "bottom-right"}
    assert not failing(verdicts(folder, vectors, elections=promised))


@pytest.mark.parametrize("kernel", [NanRows, UniformRows])
def test_rows_without_keys_are_elected(kernel: type[Kernel], vectors: Path, tmp_path: Path) -> None:
    one = kernel(HONEST)
    folder = answer(vectors, tmp_path / "rows", [one], numerics=dict.fromkeys(["f32"], "exact"))
    wanted = dict(one.declared.elections)
    rows = str(wanted["fully-masked-row"])
    cells = verdicts(folder, vectors)
    assert cells["election", "elect/fully-masked-row/f32"].observed == rows
    assert {check for check, _ in failing(cells)} <= {"forms_of_empty_rows"}
    both = {n: wanted[n] for n in ("fully-masked-row", "minus-inf-row")}
    assert not failing(verdicts(folder, vectors, elections=both))
    held = verdicts(folder, vectors, elections=both | {"fully-masked-row": "zeros"})
    assert ("election", "elect/fully-masked-row/f32") in failing(held)
    assert {"values", "election"} <= {check for check, _ in failing(held)}


def test_rows_that_nobody_speaks_of_are_not_judged(vectors: Path, tmp_path: Path) -> None:
    folder = answer(vectors, tmp_path / "rows", [NanRows(HONEST)], numerics="exact")
    for path in folder.glob("elect__*-row__*"):
        path.unlink()
    cells = verdicts(folder, vectors)
    assert not failing(cells)
    reasons = {one.message for (check, _), one in cells.items() if check == "values"}
    assert "no answer to elect/fully-masked-row/f32" in " ".join(sorted(reasons))
    told = verdicts(folder, vectors, elections={"fully-masked-row": "nan", "minus-inf-row": "nan"})
    assert not failing(told)
    passed = [sum(one.status == "pass" for one in x.values()) for x in (cells, told)]
    assert passed[0] < passed[1]


def test_an_answer_in_one_dtype_holds_in_the_others(narrow: Path, tmp_path: Path) -> None:
    folder = answer(narrow, tmp_path / "rows", [Differentiable(HONEST)], numerics="exact")
    for path in folder.glob("elect__*-row*__bf16*"):
        path.unlink()
    cells = verdicts(folder, narrow)
    assert not failing(cells)
    rows = ("elect/fully-masked-row/bf16", "elect/fully-masked-row-gradient/bf16")
    assert {cells["election", name].message for name in rows} == {"no answer"}
    assert cells["gradients", "sdpa/bool.qk.empty/gqa2/bf16/b2h4q11k9d6/dense"].status == "pass"
