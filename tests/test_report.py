"""Report tables say what the records say, and refusing never helps the score."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from attention_conformance.suite.records.cells import CellRecord, load
from attention_conformance.suite.report import conformance, frames
from attention_conformance.suite.report.kinds import CONFORMANCE, frames_of
from attention_conformance.suite.report.summary import facts, tables
from attention_conformance.suite.spec.vocabulary import STATUSES
from tests.rows import cell, elect, frame, run

CASES = [f"sdpa/none/mha/f32/b1h1q1k{n}d8" for n in range(1, 7)]


def test_cells_holds_every_field_and_the_source() -> None:
    record = cell(status="fail", kind="value", error_ratio=2.0, grade="none", seed=4)
    table = frames.cells([run(record, source="a.jsonl"), run(cell(), source="b.jsonl")])
    assert table["source"].tolist() == ["a.jsonl", "b.jsonl"]
    row = table.iloc[0]
    for name in CellRecord.__dataclass_fields__:
        want = getattr(record, name)
        assert pd.isna(row[name]) if want is None else row[name] == want


def test_nothing_measured_is_nan_and_a_measured_nan_is_infinite() -> None:
    cells = frame(cell(CASES[0]), cell(CASES[1], error_ratio=math.nan))
    assert math.isnan(cells["error_ratio"][0])
    assert cells["error_ratio"][1] == math.inf
    gradients = frame(cell(check="gradients", ratios={"query": math.nan, "key": 0.5}))
    table = conformance.OF_GRADIENTS.of(gradients)
    assert table[["query", "key"]].to_numpy().tolist() == [[math.inf, 0.5]]


def test_the_columns_of_the_frame_are_those_that_it_documents() -> None:
    """A row of the page is what the columns hold, two blanks, and their names."""
    documented: dict[str, str] = {}
    table = str(frames.__doc__).split("\n\n")[2]
    for line in re.sub(r"\n {16}", " ", table).splitlines():
        holds, names = re.split(r" {2,}", line, maxsplit=1)
        documented |= dict.fromkeys(re.findall(r"\w+", re.sub(r"\(.*?\)|;.*", "", names)), holds)
    cells = frame(cell(error_ratio=0.5, rms=0.5, max_abs_error=0.5, features=("mask",)))
    kinds = {"str": "text", "tuple": "tuple of text"}
    held = {name: type(cells[name].tolist()[0]).__name__ for name in cells}
    held = {name: kinds.get(kind, kind) for name, kind in held.items()}
    held |= {n: str(cells[n].dtype) for n in cells.select_dtypes("number")}
    assert held == documented


def test_a_field_that_an_older_file_lacks_is_empty(tmp_path: Path) -> None:
    path = run(cell()).save(tmp_path / "r.jsonl")
    path.write_text(path.read_text().replace(', "native": ""', ""))
    assert "native" not in path.read_text()
    assert frames.cells(load(path))["native"].tolist() == [""]


def test_every_status_is_counted() -> None:
    table = conformance.OF_STATUSES.of(
        frame(*(cell(c, status=s) for c, s in zip(CASES, STATUSES, strict=True)))
    )
    assert table.columns.tolist() == ["score", "coverage", "cells", *STATUSES]
    assert table.loc["torch:sdpa"].tolist() == [1 / 5, 5 / 6, 6, 1, 1, 1, 1, 1, 1]


def test_statuses_that_do_not_occur_have_columns() -> None:
    table = conformance.OF_STATUSES.of(frame(cell()))
    assert table.loc["torch:sdpa", list(STATUSES)].tolist() == [1, 0, 0, 0, 0, 0]


def test_an_implementation_that_supports_nothing_has_no_score() -> None:
    cells = frame(*(cell(c, "mute:all", "unsupported", message="no") for c in CASES), cell())
    for table in (conformance.OF_STATUSES.of(cells), conformance.CONFORMANCE.of(cells)):
        assert table.loc[["mute:all", "torch:sdpa"], "coverage"].tolist() == [0, 1]
        assert table["score"].fillna(-1).loc[["mute:all", "torch:sdpa"]].tolist() == [-1, 1]
    assert conformance.CONFORMANCE.of(cells).loc["mute:all", "none"] == "0/0 (6 unsupported)"
    shown = "\n".join(tables(run(*(cell(c, "mute:all", "unsupported") for c in CASES))))
    (row,) = (line.split() for line in shown.splitlines() if line.startswith("mute:all"))
    assert row[:4] == ["mute:all", "-", "0.00%", "6"]


@pytest.mark.parametrize("status", STATUSES)
def test_what_is_unsupported_counts_in_the_coverage_alone(status: str) -> None:
    """The score is of what was asked; refusing shows beside it, whatever judging would have given."""
    rest = [cell(CASES[0]), cell(CASES[1], status="fail")]

    def shares(*cells: CellRecord) -> list[float]:
        return (
            conformance.OF_STATUSES.of(frame(*cells))
            .loc["torch:sdpa", ["score", "coverage"]]
            .tolist()
        )

    assert shares(*rest, cell(CASES[2], status="unsupported")) == [1 / 2, 2 / 3]
    if status != "unsupported":
        passes = status == "pass"
        assert shares(*rest, cell(CASES[2], status=status)) == [(1 + passes) / 3, 1]


def test_unsupported_cells_are_tabled_by_reason() -> None:
    names = [f"torch:{name}" for name in "abcd"]
    flag = [cell(CASES[0], name, "unsupported", message="has no flag") for name in names]
    cap = [cell(c, names[0], "unsupported", message="has no softcap") for c in CASES]
    one = cell(CASES[0], names[1], "unsupported", message="has no sinks", check="contract")
    table = conformance.OF_UNSUPPORTED.of(frame(one, *flag, *cap, cell(CASES[1], message="fine")))
    assert table.index.tolist() == ["has no softcap", "has no flag", "has no sinks"]
    assert table["cells"].tolist() == [6, 4, 1]
    assert table["implementations"].tolist() == ["torch:a", "torch:a and 3 more", "torch:b"]
    assert table.loc["has no sinks", ["check", "case"]].tolist() == ["contract", CASES[0]]


def test_the_summary_ends_with_the_reasons() -> None:
    cells = [
        cell(f"{case}/{n}", status="unsupported", message=f"reason {n:02}")
        for n in range(23)
        for case in CASES[: 2 if n < 20 else 1]
    ]
    shown = tables(run(*cells, cell()))
    assert "Unsupported" in shown
    assert sum(line.startswith("reason ") for line in shown) == 1 + 20
    assert shown[-1] == "... and 3 more reasons, of 3 cells"
    assert shown.index("Unsupported") > shown.index("Statuses")


def test_conformance_counts_by_group() -> None:
    cells = frame(
        cell(CASES[0], group="causal"),
        cell(CASES[1], group="causal", status="fail"),
        cell(CASES[2], group="causal", status="unsupported"),
        cell(CASES[3], group="bias", status="crash"),
        cell(CASES[4], group="bias", status="known"),
        cell(CASES[5], "jax:jax-nn", group="bias"),
        cell(CASES[0], "jax:jax-nn", group=""),
    )
    shown = conformance.CONFORMANCE.of(cells)
    shares = ["score", "coverage", "cells"]
    assert shown.columns.tolist() == [*shares, *STATUSES, "causal", "bias", "other"]
    assert shown.loc["torch:sdpa", ["causal", "bias", "other"]].tolist() == [
        "1/2 (1 fail, 1 unsupported)", "0/2 (1 crash, 1 known)", "",
    ]  # fmt: skip
    assert shown.loc["jax:jax-nn", ["causal", "bias", "other"]].tolist() == ["", "1/1", "1/1"]


@pytest.mark.parametrize(
    ("field", "values"),
    [("mode", ("eager", "compiled")), ("device", ("cpu", "cuda"))],
)
def test_one_name_in_two_modes_or_devices_is_two_rows(field: str, values: tuple[str, str]) -> None:
    cells = [
        cell(**{field: value}, status=s) for value, s in zip(values, ("pass", "fail"), strict=True)
    ]
    table = conformance.OF_STATUSES.of(frame(*cells, cell(CASES[1], "jax:jax-nn")))
    assert table.index.tolist() == [f"torch:sdpa [{value}]" for value in values] + ["jax:jax-nn"]
    assert table["score"].tolist() == [1, 0, 1]


def test_one_name_in_two_files_is_two_rows() -> None:
    runs = [run(cell(), source="old/r.jsonl"), run(cell(status="fail"), source="new/r.jsonl")]
    table = conformance.OF_STATUSES.of(frames.cells(runs))
    assert table.index.tolist() == ["torch:sdpa [old/r.jsonl]", "torch:sdpa [new/r.jsonl]"]
    renamed = [runs[0], run(cell(status="fail"), source="new/nightly.jsonl")]
    table = conformance.OF_STATUSES.of(frames.cells(renamed))
    assert table.index.tolist() == ["torch:sdpa [r]", "torch:sdpa [nightly]"]


def test_accuracy() -> None:
    cases = [f"sdpa/none/mha/bf16/b1h1q1k{n}d8" for n in range(4)]
    table = conformance.ACCURACY.of(
        frame(
            cell(cases[0], error_ratio=0.5, rms=0.9, grade="fused", numerics="eager"),
            cell(cases[1], error_ratio=0.8, rms=1.2, grade="eager", numerics="eager"),
            cell(cases[2], error_ratio=0.1, rms=1.1, grade="exact", numerics="eager"),
            cell(cases[3], status="unsupported", numerics="eager"),
            cell(cases[1], check="contract", error_ratio=90.0, grade="none"),
            cell("sdpa/x/f32", error_ratio=0.3, grade="exact", numerics="eager"),
        )
    )
    assert table.index.tolist() == [("torch:sdpa", "bf16"), ("torch:sdpa", "f32")]
    row = table.loc[("torch:sdpa", "bf16")]
    assert (row["numerics"], row["grade"], row["case"]) == ("eager", "eager", cases[1])
    assert (row["median"], row["max"], row["rms"]) == (0.5, 0.8, 1.2)
    assert (row["cells"], row["beyond"], row["unmeasured"]) == (3, 0, 0)


@pytest.mark.parametrize(
    ("broken", "grade", "beyond", "unmeasured", "largest"),
    [
        (cell(CASES[1], status="fail", kind="value", error_ratio=3.0, grade="none"),
         "none", 1, 0, 3.0),
        (cell(CASES[1], status="fail", kind="value", error_ratio=3.0, grade="working"),
         "working", 1, 0, 3.0),
        (cell(CASES[1], status="known", kind="value", error_ratio=3.0, grade="none"),
         "none", 1, 0, 3.0),
        (cell(CASES[1], status="fail", kind="value", error_ratio=3.0), "none", 1, 0, 3.0),
        (cell(CASES[1], status="fail", kind="non-finite"), "none", 1, 0, math.inf),
        (cell(CASES[1], status="fail", kind="raised"), "exact", 0, 1, 0.25),
        (cell(CASES[1], status="crash", kind="crash"), "exact", 0, 1, 0.25),
        (cell(CASES[1], error_ratio=0.5, grade=""), "exact", 0, 0, 0.5),
    ],
)  # fmt: skip
def test_accuracy_of_failures(
    broken: CellRecord, grade: str, beyond: int, unmeasured: int, largest: float
) -> None:
    row = conformance.ACCURACY.of(frame(cell(error_ratio=0.25, grade="exact"), broken)).iloc[0]
    assert (row["grade"], row["beyond"], row["unmeasured"]) == (grade, beyond, unmeasured)
    assert row["max"] == largest


@pytest.mark.parametrize(
    ("grades", "widest"),
    [
        (("exact", "fused"), "fused"), (("single", "eager"), "single"),
        (("none", "single"), "none"),
        (("of-tomorrow", "single"), "of-tomorrow"), (("of-tomorrow", "none"), "none"),
        (("", "exact"), "exact"), (("", ""), ""),
    ],
)  # fmt: skip
def test_the_grade_is_the_widest(grades: tuple[str, str], widest: str) -> None:
    cells = [cell(c, grade=g, error_ratio=0.5) for c, g in zip(CASES[:2], grades, strict=True)]
    for order in (cells, cells[::-1]):
        assert conformance.ACCURACY.of(frame(*order)).iloc[0]["grade"] == widest


def test_gradients_are_the_worst_by_operand_of_every_operator() -> None:
    cases = [f"sdpa/none/mha/bf16/b1h1q1k{n}d8" for n in range(4)]
    layer = "multi-head/none/mha/f32/b2h4q5k9d3/e12.12.12.12"
    table = conformance.OF_GRADIENTS.of(
        frame(
            cell(cases[0], check="gradients", ratios={"query": 0.5, "key": 0.25}, grade="fused"),
            cell(cases[1], check="gradient_of_bias", ratios={"query": 0.25, "bias": 2.0},
                 grade="none", status="fail"),
            cell(cases[2], check="gradients", status="unsupported"),
            cell(cases[3], check="gradient_alone", ratios={"query": 9.0}),
            cell(cases[3], ratios={"value": 9.0}),
            cell(layer, "torch:nn-mha", check="gradients", operator="multi-head",
                 ratios={"query": 0.125, "query_kernel": math.inf}),
        )
    )  # fmt: skip
    shown = ["grade", "cells", "beyond"]
    assert table[shown].values.tolist() == [["none", 2, 1], ["", 1, 0]]
    ratios = table.drop(columns=["numerics", *shown])
    assert ratios.columns.tolist() == ["query", "key", "bias", "query_kernel"]
    assert ratios.fillna(-1).values.tolist() == [[0.5, 0.25, 2.0, -1], [0.125, -1, -1, math.inf]]


def test_kernels_are_counted_where_values_are_judged() -> None:
    compiled = {"mode": "compiled", "implementation": "torch:sdpa@inductor"}
    table = conformance.KERNELS.of(
        frame(
            *(cell(c, **compiled, kernels="triton") for c in CASES[:2]),
            cell(CASES[2], **compiled, kernels="aten::bmm"),
            cell(CASES[3], **compiled, check="contract", kernels="triton"),
            cell(CASES[4], **compiled, observed="triton"),
            cell(CASES[5]),
        )
    )
    name = "torch:sdpa@inductor"
    assert table["cells"].to_dict() == {(name, "triton"): 2, (name, "aten::bmm"): 1}


def test_cells_as_recorded_have_a_column_for_every_ratio() -> None:
    table = frames.recorded(
        frame(cell(CASES[0], ratios={"key": 0.5}, features=("mask", "bias")), cell(CASES[1]))
    )
    assert table["ratio_of_key"].fillna(-1).tolist() == [0.5, -1]
    assert table["features"].tolist() == ["mask bias", ""]
    assert "ratios" not in table


def test_cells_as_recorded_have_a_column_for_every_fact() -> None:
    facts = {"Lk": 33, "bias": "inf", "scale": None}
    table = frames.recorded(frame(cell(CASES[0], facts=facts), cell(CASES[1])))
    assert table["fact_Lk"].fillna(-1).tolist() == [33, -1]
    assert table["fact_bias"].tolist() == ["inf", ""]
    assert table["fact_scale"].tolist() == ["", ""]
    assert "facts" not in table


def test_the_summary_names_operators_where_there_are_several() -> None:
    sdpa = elect("no-keys", {"f32": "zeros"})
    layer = [replace(c, operator="multi-head", implementation="nn-mha") for c in sdpa]
    shown = [tables(run(*cells)) for cells in (sdpa, [*sdpa, *layer])]
    heads = [[line for line in text if line.startswith("Elections")] for text in shown]
    assert heads == [["Elections"], ["Elections: sdpa", "Elections: multi-head"]]
    assert facts(run(*sdpa).cells, {"jax": "no wheel"}) == ["not judged: jax: no wheel"]


def test_failures_are_listed_gravest_first() -> None:
    table = conformance.FAILURES.of(
        frame(*(cell(c, status=s) for c, s in zip(CASES, STATUSES, strict=True)))
    )
    assert table["status"].tolist() == ["crash", "error", "fail", "known"]
    assert table["case"].tolist() == [CASES[5], CASES[4], CASES[1], CASES[2]]


def three(*statuses: str) -> pd.DataFrame:
    """One case in three implementations, and another that all pass."""
    names = ("torch:sdpa", "tf:eager", "jax:jax-nn")
    cells = [
        cell(CASES[0], n, s, kind="value", message=n) for n, s in zip(names, statuses, strict=True)
    ]
    return frame(*cells, *(cell(CASES[1], n) for n in names))


@pytest.mark.parametrize(
    ("statuses", "alone", "everywhere"),
    [
        (("pass", "fail", "pass"), ["tf:eager"], 0),
        (("unsupported", "fail", "pass"), ["tf:eager"], 0),
        (("unsupported", "fail", "unsupported"), [], 0),
        (("pass", "fail", "fail"), [], 0),
        (("pass", "fail", "known"), [], 0),
        (("unsupported", "fail", "error"), [], 2),
        (("fail", "known", "crash"), [], 3),
        (("pass", "pass", "pass"), [], 0),
    ],
)
def test_failures_here_and_everywhere(
    statuses: tuple[str, ...], alone: list[str], everywhere: int
) -> None:
    cells = three(*statuses)
    assert conformance.ONLY_HERE.of(cells)["implementation"].tolist() == alone
    assert conformance.EVERYWHERE.of(cells)["implementations"].tolist() == [everywhere] * bool(
        everywhere
    )


def test_only_here_says_how_many_pass() -> None:
    row = conformance.ONLY_HERE.of(three("pass", "fail", "pass")).iloc[0]
    assert (row["passed"], row["message"], row["case"]) == (2, "tf:eager", CASES[0])


def test_slowest() -> None:
    seconds = (0.1, 3.0, 0.2, 9.0, 0.3, 0.0)
    cells = frame(*(cell(c, seconds=s) for c, s in zip(CASES, seconds, strict=True)))
    assert conformance.SLOWEST.of(cells)["case"].tolist()[:2] == [CASES[3], CASES[1]]


def test_runs_say_what_they_are_not() -> None:
    record = cell()
    runs = [
        run(record, source="a"),
        run(record, source="b", partial=True, dirty=True, versions={"jax": "0.11"}),
        run(record, source="c", complete=False, cells=9),
        run(record, source="d", shard="1/2", cells=9),
        run(record, source="e", cells=9),
    ]
    table = frames.runs(runs)
    assert table.loc["extent"].tolist() == [
        "whole", "partial: cells were left out by a filter", "unfinished: 1 of 9 cells",
        "shard 1/2", "unfinished: 1 of 9 cells",
    ]  # fmt: skip
    assert table.loc["torch"].tolist() == ["2.13.0", "", "2.13.0", "2.13.0", "2.13.0"]
    assert table.loc["suite", ["a", "b"]].tolist() == ["0.1.0 abc1234", "0.1.0 abc1234 (modified)"]
    assert table.loc["options", "a"] == "level=smoke seed=0"


@pytest.mark.parametrize("cells", [[], [cell(status="unsupported")], [cell()]])
def test_every_table_of_almost_nothing(cells: list[CellRecord]) -> None:
    report = CONFORMANCE.of(frames_of(run(*cells)), CONFORMANCE.tables)
    assert list(report) == list(CONFORMANCE.tables)
    assert len(report["statuses"]) == len(cells)
    assert len(report["failures"]) == len(report["only_here"]) == len(report["everywhere"]) == 0


def test_tables_are_chosen_by_name() -> None:
    frames = frames_of(run(cell()))
    rare = {"cells", "changed", "distribution", "history", "largest", "operators", "together"}
    assert list(CONFORMANCE.of(frames)) == [name for name in CONFORMANCE.tables if name not in rare]
    assert list(CONFORMANCE.of(frames, ["failures", "statuses"])) == ["statuses", "failures"]


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after a statement."""
    code = f"import sys; {statement}; print(' '.join({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_reports_load_no_framework_and_the_command_line_no_pandas() -> None:
    everything = "from attention_conformance.suite.report import frames, diff, render, laws"
    frameworks = {"torch", "tensorflow", "jax", "keras", "pytest"}
    modules = loaded_by(everything)
    assert "pandas" in modules
    assert not modules & frameworks
    assert not loaded_by("import attention_conformance.suite.report.commands") & (
        frameworks | {"pandas", "numpy"}
    )
