"""Tables and differences of sweeps: what many seeds say, read run by run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.records.cells import CellRecord, Run
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.records.searches import FoundRecord, SearchHeader, SearchRun, save
from attention_conformance.suite.report.diff import NothingInCommon, difference
from attention_conformance.suite.report.kinds import SWEEPS, kind_of
from attention_conformance.suite.report.swept import read
from tests.rows import cell, header

ONE, TWO = "sdpa/none/mha/f32/b2h3q5k7d8", "sdpa/causal/mha/f32/b2h3q5k7d8"


def swept(
    folder: Path,
    *cells: CellRecord,
    seed: int = 0,
    release: str = "",
    parts: int = 1,
    **options: Any,
) -> Path:
    """The folder of a sweep with one more run, of these cells, in so many shards."""
    stated = {"backend": ["torch"], "level": "smoke", "mode": "eager", "seed": seed, **options}
    of_run = header(*cells, options=stated | {"release": release})
    for part in range(1, parts + 1):
        shard = f"{part}/{parts}" if parts > 1 else ""
        name = f"run{seed}{release}{options}{shard}".replace(" ", "").replace("/", "of")
        Run(replace(of_run, shard=shard), cells[part - 1 :: parts]).save(folder / f"{name}.jsonl")
    return folder


def table(name: str, *folders: Path) -> pd.DataFrame:
    """A table of sweeps."""
    return SWEEPS.of(read(folders), [name])[name]


def test_a_folder_is_a_sweep_and_every_table_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = swept(tmp_path / "one", cell(ONE))
    assert kind_of(folder) is SWEEPS
    assert main(["report", str(folder)]) == 0
    said = capsys.readouterr().out
    for name in SWEEPS.tables:
        assert f"\n{name.replace('_', ' ').capitalize()}\n" in said
    assert main(["report", str(folder), "--table", "statuses"]) == 2
    assert "Seeds of one case are not independent" in " ".join(said.split())
    assert "these tables need records of conformance" in capsys.readouterr().err


def test_several_sweeps_are_read_together_and_none_twice(tmp_path: Path) -> None:
    folder = swept(tmp_path / "one", cell(ONE), cell(TWO), parts=2)
    more = swept(tmp_path / "more", cell(ONE, seed=77), seed=77)
    assert len(read([folder, more])["swept_runs"]) == 2
    with pytest.raises(RecordError, match="is given twice"):
        read([folder, more, folder])
    with pytest.raises(RecordError, match="the folders hold no records"):
        read([tmp_path / "empty"])


def test_differences_are_those_of_the_runs_that_both_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for seed in range(3):
        swept(old, cell(ONE, seed=seed), cell(TWO, seed=seed), seed=seed)
    for seed in range(1, 4):
        worse = {"status": "fail", "kind": "value"} if seed == 2 else {}
        swept(new, cell(ONE, seed=seed), cell(TWO, seed=seed, **worse), seed=seed, versions=1)
    comparison = difference(old, new, {})
    (change,) = comparison["changes"].to_dict("records")
    assert (change["change"], change["seed"], change["case"]) == ("new failure", 2, TWO)
    assert comparison["alone"].to_numpy().tolist() == [
        ["torch smoke installed seed 0", "old"], ["torch smoke installed seed 3", "new"],
    ]  # fmt: skip
    (header,) = comparison["headers"].to_dict("records")
    assert (header["field"], header["runs"]) == ("options.versions", 2), "each once"
    assert main(["diff", str(old), str(new)]) == 1
    assert "new failure" in capsys.readouterr().out
    assert main(["diff", str(old), str(old)]) == 0
    with pytest.raises(NothingInCommon):
        difference(old, swept(tmp_path / "other", cell(ONE, seed=9), seed=9), {})


def test_releases_are_compared_with_each_other(tmp_path: Path) -> None:
    sweep = tmp_path / "s"
    before = swept(sweep / "a", cell(ONE), release="jax-0.8.1")
    after = swept(sweep / "b", cell(ONE, status="fail", kind="value"), release="jax-0.9.2")
    comparison = difference(before, after, {})
    assert comparison["changes"]["change"].tolist() == ["new failure"]
    assert "options.release" in comparison["headers"]["field"].tolist()
    swept(sweep / "b", cell(ONE), release="jax-0.8.1")
    assert difference(before, sweep / "b", {})["changes"].empty, (
        "the same release where there is one"
    )


def found(case: str, said: str = "element", **fields: Any) -> FoundRecord:
    """A way of failing that a search found."""
    record = FoundRecord("torch:sdpa", "values", "value", "f32", said, "fail", case, "off by 3")
    return replace(record, **fields)


def test_searches_are_counted_and_each_cause_is_listed_once(tmp_path: Path) -> None:
    asked = {"backend": ["torch"], "dtype": ["f32"], "mode": "eager", "gradients": True}
    small, large = "sdpa/none/mha/f32/b1h1q1k1d1", "sdpa/none/mha/f32/b1h1q1k1d10"
    ways = {0: [found(large, times=2)], 1: [found(small, times=3), found(large, "other")], 2: []}
    for seed, records in ways.items():
        header = SearchHeader(
            options=asked | {"seed": seed}, examples=5, statuses={"pass": 9, "fail": len(records)},
            seconds=36.0,
        )  # fmt: skip
        save(tmp_path / f"{seed}.jsonl", SearchRun(header, tuple(records)))
    save(tmp_path / "3.jsonl", SearchRun(SearchHeader(options=asked | {"seed": 3}), ()))
    (row,) = table("searched", tmp_path).reset_index().to_dict("records")
    assert (row["backends"], row["dtypes"], row["gradients"]) == ("torch", "f32", "yes")
    assert [row[name] for name in ("seeds", "died", "examples", "pass", "fail")] == [
        4,
        1,
        15,
        27,
        3,
    ]
    assert row["core_hours"] == pytest.approx(0.03)
    first, second = table("found", tmp_path).reset_index().to_dict("records")
    assert (first["case"], first["times"], first["seeds"], first["seed"]) == (small, 5, 2, 0)
    assert (second["case"], second["times"]) == (large, 1)
    assert main(["report", str(tmp_path)]) == 0
