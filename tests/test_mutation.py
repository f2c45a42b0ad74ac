"""Machine-made mutants: what is changed, how a process gets it, and what becomes of a run."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import pytest

from suite.records.lines import RecordError
from suite.records.machine import ROOT
from tests.mutation import records as faults
from tests.mutation import tables as power
from tests.mutation.__main__ import main
from tests.mutation.changes import KINDS, Change, changes
from tests.mutation.loader import VARIABLE
from tests.mutation.run import Judge, Mutant, mutants
from tests.mutation.targets import TARGETS, Target, targets

TEXT = '''
import typing

def attention(query, key, scale: float | None = None, causal=True) -> "array":
    """Docs of 1 == 1."""
    if scale is None and not causal:
        raise ValueError(f"got {scale + 1}")
    scores = product(
        query, key,
        scaled=True,
    )
    return scores * -0.5 + "é" * 2 if causal else other(scores, axis=-1)

@typing.overload
def attention(query): x = 1

class Layer:
    def call(self, x):
        x += 1
        return x

def untouched(x):
    return x + 1
'''

NAMES = ("attention", "Layer.*")


def text_changes(kind: str = "") -> list[Change]:
    return [change for change in changes(TEXT, "module", NAMES) if kind in ("", change.kind)]


def test_every_kind_of_change_is_made_and_no_other() -> None:
    triples = {
        (change.kind, " ".join(change.old.split()), change.new.strip()) for change in text_changes()
    }
    assert triples == {
        ("truth", "True", "False"), ("comparison", "is", "is not"), ("and-or", "and", "or"),
        ("sign", "not", ""), ("sign", "-", ""), ("number", "0.5", "1.5"), ("number", "2", "3"),
        ("number", "1", "2"), ("arithmetic", "*", "/"), ("arithmetic", "+", "-"),
        ("condition", "scale is None and not causal", "(not (scale is None and not causal))"),
        ("condition", "causal", "(not (causal))"), ("keyword", "scaled=True,", ""),
        ("keyword", ", axis=-1", ""), ("assignment", "x += 1", "pass"),
        ("assignment", "scores = product( query, key, scaled=True, )", "pass"),
    }  # fmt: skip
    assert {kind for kind, _, _ in triples} == set(KINDS)


def test_a_change_leaves_every_line_where_it_is() -> None:
    for change in text_changes():
        text = change.applied(TEXT)
        ast.parse(text)
        assert text.count("\n") == TEXT.count("\n")
        assert text.split("\n")[change.line - 1] != TEXT.split("\n")[change.line - 1]
    with pytest.raises(ValueError, match="is not the file that the change was made for"):
        text_changes()[0].applied(TEXT[1:])


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.module)
def test_released_code_can_be_changed_everywhere(target: Target) -> None:
    if importlib.util.find_spec(target.module.partition(".")[0]) is None:
        pytest.skip(f"{target.distribution} is not installed")
    text = target.path.read_text(encoding="utf-8")
    edits = changes(text, target.module, target.names)
    for name in target.names:
        assert any(name in (c.function, f"{c.function.partition('.')[0]}.*") for c in edits), name
    for change in edits[::25]:  # the largest of these files takes 60 ms
        ast.parse(change.applied(text))


def test_a_seed_draws_the_same_mutants_from_all_targets() -> None:
    pytest.importorskip("torch")
    chosen = mutants(targets("torch"), 12, 3)
    assert chosen == mutants(targets("torch"), 12, 3)
    assert chosen != mutants(targets("torch"), 12, 4)
    assert len({mutant.change for mutant in chosen}) == 12
    assert {mutant.target for mutant in chosen} == set(targets("torch"))


def test_a_process_imports_the_change_and_the_file_stays(tmp_path: Path) -> None:
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    text = "def double(x):\n    return x * 2\n"
    (folder / "code.py").write_text(text)
    (change,) = (c for c in changes(text, "library.code", ("double",)) if c.kind == "number")
    program = "import tests.mutation.loader, library.code; print(library.code.double(5))"
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    for variable, said in (({}, "10"), ({VARIABLE: json.dumps(asdict(change))}, "15")):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True,
            env=os.environ | {"PYTHONPATH": path} | variable,
        )  # fmt: skip
        assert done.stdout.strip() == said, done.stderr
    assert (folder / "code.py").read_text() == text


def test_other_backends_are_asked_where_those_before_see_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Target(
        "ours", "numpy", "backends._numpy.attention", ("definition",), "numpy", ("definition",),
        others=("torch", "jax", "tf"),
    )  # fmt: skip
    change = changes(target.path.read_text(encoding="utf-8"), target.module, target.names)[0]
    backends = []

    def run(
        self: Judge, target: Target, results: Path, limit: float | None, change: Change | None
    ) -> tuple[int, str]:
        backends.append(target.backend)
        return (-11 if change and target.backend == "jax" else 0), ""

    monkeypatch.setattr(Judge, "_run", run)
    judge = Judge("smoke")
    (record,) = judge.judged([Mutant(target, change)])
    assert (record.status, record.backend) == ("killed", "jax")
    # Each as it is, and changed, until it is seen.
    assert backends == ["numpy", "numpy", "torch", "torch", "jax", "jax"]
    # A sweep hands over the limit of the first alone.
    judge = Judge("smoke")
    judge.limits[target.backend, target.implementations] = 60.0
    assert judge.judge(Mutant(target, change)).status == "killed"


def test_what_becomes_of_a_mutant(tmp_path: Path) -> None:
    target = Target(
        "ours", "numpy", "backends._numpy.attention", ("definition",), "numpy", ("definition",)
    )
    text = target.path.read_text(encoding="utf-8")
    (change,) = (
        c for c in changes(text, target.module, target.names) if c.old.startswith("output =")
    )
    judge = Judge("smoke")
    judge.limits[target.backend, target.implementations] = 60.0
    record = judge.judge(Mutant(target, change))
    assert (record.status, record.implementation) == ("killed", "definition"), record.message
    assert record.check
    assert "output" in record.message
    judge.limits[target.backend, target.implementations] = 0.1
    assert judge.judge(Mutant(target, change)).status == "timed-out"
    writer = faults.writer(tmp_path / "f.jsonl", faults.FaultHeader(versions={"numpy": "2"}))
    writer.write(record)
    writer.close()
    assert faults.load(tmp_path / "f.jsonl").records == (record,)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--framework=torch", "--module=torch.nn"), "unknown module 'torch.nn' of torch; valid: "),
        (("--framework=torch", "--results=."), "exists and is not overwritten"),
    ],
)
def test_usage_errors(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    assert main([*words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def fault(status: str, line: int, **fields: str) -> faults.FaultRecord:
    return faults.FaultRecord(
        framework="torch", version="2", module="m", function="f", line=line, start=line,
        change="number", old="1", new="2", level="smoke", status=status, **fields,
    )  # fmt: skip


def test_what_cannot_be_seen_does_not_count() -> None:
    records = (
        fault("killed", 1, check="values"), fault("killed", 2, check="values"),
        fault("timed-out", 3), fault("survived", 4), fault("survived", 5), fault("survived", 6),
        fault("not-imported", 7),
    )  # fmt: skip
    read = [
        faults.Survivor("m", "2", line, "1", "2", verdict, "because")
        for line, verdict in ((4, "equivalent"), (5, "missing"), (9, "equivalent"))
    ]
    run = faults.FaultRun(faults.FaultHeader(options={"seed": 3}), records)
    tables = power.tables([run], read)
    row = tables["power"].loc["torch", "2", "smoke", 3]
    assert row["mutants"] == 7
    assert (row["seen"], row["survived"], row["equivalent"]) == (3, 3, 1)
    assert (row["missing"], row["unread"], row["not imported"]) == (1, 1, 1)
    assert row["share"] == 3 / 5
    assert tables["killers"].loc["values", "torch"] == 2
    assert tables["survivors"]["verdict"].tolist() == ["equivalent", "missing", "unread"]


def test_verdicts_are_words_that_are_known(tmp_path: Path) -> None:
    assert {survivor.verdict for survivor in faults.survivors()} <= set(faults.VERDICTS)
    path = tmp_path / "s.toml"
    entry = 'module="m"\nversion="1"\nline=1\nold="a"\nnew="b"\nwhy="c"\nverdict="fine"\n'
    path.write_text(f"[[survivor]]\n{entry}")
    with pytest.raises(RecordError, match="survivor 1: unknown verdict 'fine'; valid: equivalent"):
        faults.survivors(path)
    path.write_text("[[survivors]]\n")
    with pytest.raises(RecordError, match=r"s\.toml"):
        faults.survivors(path)


def test_what_a_level_below_saw_is_not_judged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    requests: list[tuple[str, str]] = []

    def judged(self: Judge, chosen: list[Mutant]) -> list[faults.FaultRecord]:
        statuses = ("killed", "timed-out", "not-imported", "survived", "error", "survived")
        requests.extend((self.level, mutant.change.function) for mutant in chosen)
        return [
            faults.FaultRecord(
                framework="torch", version=version("torch"), module=c.module, function=c.function,
                line=c.line, start=c.start, change=c.kind, old=c.old, new=c.new, level=self.level,
                status=status,
            )
            for status, c in zip(statuses, (mutant.change for mutant in chosen), strict=False)
        ]  # fmt: skip

    monkeypatch.setattr(Judge, "judged", judged)
    words = ["--framework=torch", "--count=6", "--seed=3"]
    first, second = (str(tmp_path / name) for name in ("smoke.jsonl", "standard.jsonl"))
    assert main([*words, "--level=smoke", f"--results={first}"]) == 0
    every = [mutant.change.function for mutant in mutants(targets("torch"), 6, 3)]
    assert requests == [("smoke", function) for function in every]
    requests.clear()
    assert main([*words, f"--after={first}", f"--results={second}"]) == 0
    assert requests == [("standard", function) for function in every[3:]]
    records = faults.load(second).records
    assert [record.function for record in records] == every
    assert {record.level for record in records} == {"standard"}
    assert [record.status for record in records[:3]] == ["killed", "timed-out", "not-imported"]
    capsys.readouterr()
    assert main([*words, "--level=smoke", f"--after={first}"]) == 2
    assert "records of the level smoke; expected one below smoke" in capsys.readouterr().err
