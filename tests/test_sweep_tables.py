"""Tables and differences of sweeps: what many seeds say, read run by run."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.records.cells import CellRecord, Run
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.records.searches import FoundRecord, SearchHeader, SearchRun, save
from attention_conformance.suite.records.sweeps import runs
from attention_conformance.suite.report.diff import NothingInCommon, difference
from attention_conformance.suite.report.kinds import SWEEPS, kind_of
from attention_conformance.suite.report.swept import read
from tests.rows import cell, header, run

ONE, TWO = "sdpa/none/mha/f32/b2h3q5k7d8", "sdpa/causal/mha/f32/b2h3q5k7d8"


def swept(
    folder: Path,
    *cells: CellRecord,
    seed: int = 0,
    release: str = "",
    owed: int | None = None,
    parts: int = 1,
    **options: Any,
) -> Path:
    """The folder of a sweep with one more run, of these cells, in so many shards; `owed` is how many
    cells the run has, where they are not all."""
    stated = {"backend": ["torch"], "level": "smoke", "mode": "eager", "seed": seed, **options}
    of_run = header(*cells, options=stated | {"release": release})
    of_run = replace(of_run, cells=of_run.cells if owed is None else owed)
    for part in range(1, parts + 1):
        shard = f"{part}/{parts}" if parts > 1 else ""
        name = f"run{seed}{release}{options}{shard}".replace(" ", "").replace("/", "of")
        Run(replace(of_run, shard=shard), cells[part - 1 :: parts]).save(folder / f"{name}.jsonl")
    return folder


def table(name: str, *folders: Path) -> pd.DataFrame:
    """A table of sweeps."""
    return SWEEPS.of(read(folders), [name])[name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten seeds of two cases and of the control; the second case fails with seed 3, always in f16."""
    for seed in range(10):
        failing = {"status": "fail", "kind": "value", "message": f"off by {seed}"}
        swept(
            tmp_path / "ten",
            cell(ONE, seed=seed, error_ratio=seed / 10, numerics="exact", seconds=1.0),
            cell(
                TWO, seed=seed, numerics="exact", seconds=1.0,
                **({**failing, "error_ratio": math.nan} if seed == 3 else {"error_ratio": 0.5}),
            ),
            cell("sdpa/none/mha/f16/b2h3q5k7d8", seed=seed, error_ratio=2.0, **failing),
            cell(ONE, "torch:flex", status="unsupported", message="no", seed=seed),
            cell(ONE, "numpy:definition", seed=seed, error_ratio=0.01),
            seed=seed,
            parts=2,
        )  # fmt: skip
    return tmp_path / "ten"


def test_a_folder_is_a_sweep_and_every_table_is_made(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kind_of(folder) is SWEEPS
    assert main(["report", str(folder)]) == 0
    said = capsys.readouterr().out
    for name in SWEEPS.tables:
        assert f"\n{name.replace('_', ' ').capitalize()}\n" in said
    assert main(["report", str(folder), "--table", "statuses"]) == 2
    assert "Seeds of one case are not independent" in " ".join(said.split())
    assert "these tables need records of conformance" in capsys.readouterr().err


def test_counts_by_release_and_seed(folder: Path) -> None:
    by_release = table("by_release", folder)
    assert by_release.loc[("torch:sdpa", "installed"), ["cells", "pass", "fail"]].tolist() == [
        30, 19, 11,
    ]  # fmt: skip
    assert by_release.loc[("torch:sdpa", "installed"), "score"] == 19 / 30
    assert by_release.loc[("torch:flex", "installed"), "coverage"] == 0
    assert math.isnan(by_release.loc[("torch:flex", "installed"), "score"])
    by_seed = table("by_seed", folder)
    assert by_seed.loc[("installed", 3), "fail"] == 2
    assert by_seed["fail"].sum() == 11
    overview = table("swept", folder)
    assert overview.loc[("torch smoke", "installed"), ["seeds", "whole", "cells", "owed"]].tolist() == [
        10, 10, 50, 50,
    ]  # fmt: skip
    assert overview["core_hours"].tolist() == [20 / 3600]


def test_quantiles_of_ratios(folder: Path) -> None:
    quantiles = table("tightness", folder)
    row = quantiles.loc[("torch:sdpa", "f32", "installed")]
    ratios = [*np.arange(10) / 10, *[0.5] * 9, math.inf]
    assert row["cells"] == 20
    assert row["beyond"] == 1, "a ratio that is no number is beyond every bound"
    assert row["max"] == math.inf
    assert row["median"] == np.quantile(ratios, 0.5, method="higher") == 0.5
    assert row["90%"] == 0.9
    assert row["numerics"] == "exact"
    assert quantiles.loc[("torch:sdpa", "f16", "installed"), "beyond"] == 10
    checks = table("tightness_of_checks", folder)
    assert checks.loc[("values", "exact"), "cells"] == 20


def test_rates_have_exact_intervals(folder: Path) -> None:
    row = table("rates", folder).loc[("torch:sdpa", "installed")]
    assert row[["asked", "failed", "seeds"]].tolist() == [30, 11, 10]
    assert row["rate"] == 11 / 30
    # Clopper and Pearson's, from quantiles of the beta distribution.
    assert row["low"] == pytest.approx(beta.ppf(0.025, 11, 20))
    assert row["high"] == pytest.approx(beta.ppf(0.975, 12, 19))
    assert ("torch:flex", "installed") not in table("rates", folder).index, "it was asked nothing"
    alarms = table("false_alarms", folder)
    assert list(alarms.index) == [("numpy:definition", "installed"), ("all", "")]
    assert alarms.loc[("all", ""), "a_million"] == 0
    assert alarms.loc[("all", ""), "high"] == pytest.approx(1e6 * (1 - 0.025 ** (1 / 10)))


def test_failures_of_some_seeds_are_told_from_those_of_all(folder: Path) -> None:
    (row,) = table("some_seeds", folder).reset_index().to_dict("records")
    assert (row["case"], row["failed"], row["of"], row["seed"]) == (TWO, 1, 10, 3)
    assert row["error_ratio"] == math.inf
    (row,) = table("failing", folder).reset_index().to_dict("records")
    assert (row["implementation"], row["kind"], row["cells"], row["seeds"]) == (
        "torch:sdpa", "value", 2, 10,
    )  # fmt: skip
    assert (row["case"], row["message"]) == (TWO, "off by 3"), "the worst of them"


def test_what_is_known_is_no_failure(tmp_path: Path) -> None:
    """A cell that is known with all seeds but one, where it passes against the expectation."""
    known = {"status": "known", "kind": "value", "message": "expected", "error_ratio": 9.0}
    for seed in range(5):
        passes = {"status": "fail", "kind": "unexpected-pass", "message": "now right"}
        swept(
            tmp_path,
            cell(ONE, seed=seed, **(passes if seed == 2 else known)),
            cell(TWO, seed=seed, **known),
            seed=seed,
        )
    (row,) = table("failing", tmp_path).reset_index().to_dict("records")
    assert (row["kind"], row["cells"], row["seeds"]) == ("unexpected-pass", 1, 1)
    assert (row["case"], row["message"]) == (ONE, "now right")
    (row,) = table("some_seeds", tmp_path).reset_index().to_dict("records")
    assert (row["case"], row["failed"], row["known"], row["of"]) == (ONE, 1, 4, 5)
    assert (row["status"], row["kind"], row["seed"]) == ("fail", "unexpected-pass", 2)


def test_what_is_known_to_fail_with_some_seeds_is_counted(tmp_path: Path) -> None:
    for seed in range(5):
        known = {"status": "known", "kind": "value", "message": "expected", "error_ratio": 9.0}
        swept(
            tmp_path,
            cell(ONE, seed=seed, **(known if seed != 2 else {"message": "it passes"})),
            cell(TWO, seed=seed, **known),
            seed=seed,
        )
    assert table("failing", tmp_path).empty
    (row,) = table("some_seeds", tmp_path).reset_index().to_dict("records")
    assert (row["case"], row["failed"], row["known"], row["of"]) == (ONE, 0, 4, 5)
    assert row["status"] == "known"
    assert math.isnan(row["seed"])


def test_runs_that_lack_a_shard_or_cells_are_not_whole(tmp_path: Path) -> None:
    swept(tmp_path, cell(ONE), cell(TWO), seed=0, parts=2)
    swept(tmp_path, cell(ONE, seed=1), seed=1, owed=2)
    swept(tmp_path, cell(ONE, seed=2), cell(TWO, seed=2), seed=2, parts=2)
    next(tmp_path.glob("run2*1of2.jsonl")).unlink()
    overview = table("swept", tmp_path)
    assert overview[["seeds", "whole", "cells", "owed"]].to_numpy().tolist() == [[3, 1, 4, 6]]
    assert [run.load().complete for run in runs(tmp_path)] == [True, True, False]


def test_several_sweeps_are_read_together_and_none_twice(folder: Path, tmp_path: Path) -> None:
    more = swept(tmp_path / "more", cell(ONE, seed=77), seed=77)
    assert len(read([folder, more])["swept_runs"]) == 11
    with pytest.raises(RecordError, match="is given twice"):
        read([folder, more, folder])
    with pytest.raises(RecordError, match="the folders hold no records"):
        read([tmp_path / "empty"])


def test_a_file_with_a_damaged_header_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = swept(tmp_path / "s", cell(ONE), seed=0)
    (path,) = swept(tmp_path / "more", cell(ONE, seed=1), seed=1).iterdir()
    (folder / "damaged.jsonl").write_text("x" + path.read_text())
    assert main(["report", str(folder)]) == 2
    assert f"{folder / 'damaged.jsonl'}: expected a result file" in capsys.readouterr().err


def test_shards_of_different_versions_are_told(tmp_path: Path) -> None:
    swept(tmp_path, cell(ONE), cell(TWO), parts=2)
    first = next(tmp_path.glob("*1of2.jsonl"))
    first.write_text(first.read_text().replace('"torch": "2.13.0"', '"torch": "2.12.0"'))
    with pytest.raises(RecordError, match="its shards are of different versions"):
        read([tmp_path])


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


def test_a_sweep_is_compared_with_a_plain_run(tmp_path: Path) -> None:
    options = {"backend": ["torch"], "level": "smoke", "mode": "eager", "seed": 0}
    plain = run(cell(ONE), cell(TWO), options=options).save(tmp_path / "r.jsonl")
    sweep = swept(tmp_path / "s", cell(ONE), cell(TWO))
    assert difference(plain, sweep, {})["changes"].empty
    worse = swept(tmp_path / "w", cell(ONE), cell(TWO, status="fail"))
    assert main(["diff", str(plain), str(worse)]) == 1
    assert main(["diff", str(worse), str(plain)]) == 0
    flex = swept(tmp_path / "f", cell(ONE, "torch:flex", status="fail"))
    assert main(["diff", str(plain), str(flex), "--map", "sdpa=flex"]) == 1


def found(case: str, said: str = "element", **fields: Any) -> FoundRecord:
    """A way of failing that a search found."""
    record = FoundRecord("torch:sdpa", "values", "value", "f32", said, "fail", case, "off by 3")
    return replace(record, **fields)


def test_searches_are_counted_and_each_cause_is_listed_once(tmp_path: Path) -> None:
    asked = {"backend": ["torch"], "dtype": ["f32"], "mode": "eager", "gradients": True}
    small, large = "sdpa/none/mha/f32/b1h1q1k1d1", "sdpa/none/mha/f32/b1h1q1k1d10"
    ways = {
        0: [found(large, times=2)],
        1: [found(small, times=3), found(large, "other")],
        2: [],
    }
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
