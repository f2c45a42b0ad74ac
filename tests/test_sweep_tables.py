"""Tables and differences of sweeps: what many seeds say, read run by run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import beta

from suite.__main__ import main
from suite.records.lines import RecordError
from suite.report import sweeps as tables
from suite.report import swept as reading
from suite.report.diff import NothingInCommon
from suite.report.kinds import SWEEPS, kind_of
from suite.report.sweep_diff import difference
from tests.records_by_hand import cell, run, write
from tests.sweeps_by_hand import swept

ONE, TWO = "sdpa/none/mha/f32/b2h3q5k7d8", "sdpa/causal/mha/f32/b2h3q5k7d8"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten seeds of two cases and of the control; the second case fails with seed 3, always in f16."""
    for seed in range(10):
        failing = {"status": "fail", "kind": "value", "message": f"off by {seed}"}
        swept(
            tmp_path,
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
    return tmp_path


def test_a_folder_is_a_sweep_and_every_table_is_made(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kind_of(folder) is SWEEPS
    assert set(tables._TABLES) == set(SWEEPS.tables)
    assert main(["report", str(folder)]) == 0
    said = capsys.readouterr().out
    for name in SWEEPS.tables:
        assert f"\n{name.replace('_', ' ').capitalize()}\n" in said
    assert main(["report", str(folder), "--table", "statuses"]) == 2
    assert "Cells of one case over seeds are not independent" in " ".join(said.split())
    assert "made of records of conformance" in capsys.readouterr().err


def test_counts_by_release_and_seed(folder: Path) -> None:
    read = reading.Swept([folder])
    by_release = tables.by_release(read)
    assert by_release.loc[("torch:sdpa", "installed"), ["cells", "pass", "fail"]].tolist() == [
        30, 19, 11,
    ]  # fmt: skip
    assert by_release.loc[("torch:sdpa", "installed"), "score"] == 19 / 30
    assert by_release.loc[("torch:flex", "installed"), "coverage"] == 0
    assert math.isnan(by_release.loc[("torch:flex", "installed"), "score"])
    by_seed = tables.by_seed(read)
    assert by_seed.loc[("installed", 3), "fail"] == 2
    assert by_seed["fail"].sum() == 11
    overview = tables.overview(read)
    assert overview.loc[("torch smoke", "installed"), ["seeds", "whole", "cells", "owed"]].tolist() == [
        10, 10, 50, 50,
    ]  # fmt: skip
    assert overview["core_hours"].tolist() == [20 / 3600]


def test_quantiles_of_ratios(folder: Path) -> None:
    table = tables.tightness(reading.Swept([folder]))
    row = table.loc[("torch:sdpa", "f32", "installed")]
    ratios = [*np.arange(10) / 10, *[0.5] * 9, math.inf]
    assert row["cells"] == 20
    assert row["beyond"] == 1, "a ratio that is no number is beyond every bound"
    assert row["max"] == math.inf
    assert row["median"] == np.quantile(ratios, 0.5, method="higher") == 0.5
    assert row["90%"] == 0.9
    assert row["numerics"] == "exact"
    assert table.loc[("torch:sdpa", "f16", "installed"), "beyond"] == 10
    checks = tables.tightness_of_checks(reading.Swept([folder]))
    assert checks.loc[("values", "exact"), "cells"] == 20


def test_rates_have_exact_intervals(folder: Path) -> None:
    read = reading.Swept([folder])
    row = tables.rates(read).loc[("torch:sdpa", "installed")]
    assert row[["asked", "failed", "seeds"]].tolist() == [30, 11, 10]
    assert row["rate"] == 11 / 30
    # Clopper and Pearson's, from quantiles of the beta distribution.
    assert row["low"] == pytest.approx(beta.ppf(0.025, 11, 20))
    assert row["high"] == pytest.approx(beta.ppf(0.975, 12, 19))
    assert ("torch:flex", "installed") not in tables.rates(read).index, "it was asked nothing"
    alarms = tables.false_alarms(read)
    assert list(alarms.index) == [("numpy:definition", "installed"), ("all", "")]
    assert alarms.loc[("all", ""), "a_million"] == 0
    assert alarms.loc[("all", ""), "high"] == pytest.approx(1e6 * (1 - 0.025 ** (1 / 10)))


def test_failures_of_some_seeds_are_told_from_those_of_all(folder: Path) -> None:
    read = reading.Swept([folder])
    (row,) = tables.some_seeds(read).reset_index().to_dict("records")
    assert (row["case"], row["failed"], row["of"], row["seed"]) == (TWO, 1, 10, 3)
    assert row["error_ratio"] == math.inf
    (row,) = tables.failing(read).reset_index().to_dict("records")
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
    read = reading.Swept([tmp_path])
    (row,) = tables.failing(read).reset_index().to_dict("records")
    assert (row["kind"], row["cells"], row["seeds"]) == ("unexpected-pass", 1, 1)
    assert (row["case"], row["message"]) == (ONE, "now right")
    (row,) = tables.some_seeds(read).reset_index().to_dict("records")
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
    read = reading.Swept([tmp_path])
    assert tables.failing(read).empty
    (row,) = tables.some_seeds(read).reset_index().to_dict("records")
    assert (row["case"], row["failed"], row["known"], row["of"]) == (ONE, 0, 4, 5)
    assert (row["status"], row["seed"]) == ("known", None)


def test_unfinished_runs_and_green_ones(tmp_path: Path) -> None:
    swept(tmp_path, cell(ONE), cell(TWO), seed=0)
    swept(tmp_path, cell(ONE, seed=1), seed=1, owed=2)
    swept(tmp_path, cell(ONE, seed=2, status="crash"), cell(TWO, seed=2), seed=2)
    swept(tmp_path, cell(ONE, seed=3, status="unsupported"), seed=3)
    swept(tmp_path, cell(ONE, seed=4, status="known"), cell(TWO, seed=4), seed=4)
    overview = tables.overview(reading.Swept([tmp_path]))
    assert overview[["seeds", "whole", "cells", "owed"]].to_numpy().tolist() == [[5, 4, 8, 9]]
    assert list(reading.not_green(tmp_path)) == [
        "torch smoke installed seed 2: 1 crash",
        "torch smoke installed seed 3: no cell passed",
    ]


def test_several_sweeps_are_read_together_and_none_twice(folder: Path, tmp_path: Path) -> None:
    more = swept(tmp_path / "more", cell(ONE, seed=77), seed=77)
    assert len(reading.Swept([folder / "cells", more]).runs) == 11
    with pytest.raises(RecordError, match="is given twice"):
        reading.Swept([folder, more])
    with pytest.raises(RecordError, match="nothing is recorded"):
        reading.Swept([tmp_path / "empty"])


def test_differences_are_those_of_the_runs_that_both_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for seed in range(3):
        swept(old, cell(ONE, seed=seed), cell(TWO, seed=seed), seed=seed)
    for seed in range(1, 4):
        worse = {"status": "fail", "kind": "value"} if seed == 2 else {}
        swept(new, cell(ONE, seed=seed), cell(TWO, seed=seed, **worse), seed=seed, versions=1)
    comparison = difference(old, new)
    assert comparison.compared == 2
    (change,) = comparison.changes.to_dict("records")
    assert (change["change"], change["seed"], change["case"]) == ("new failure", 2, TWO)
    assert comparison.alone.to_numpy().tolist() == [
        ["torch smoke installed seed 0", "old"], ["torch smoke installed seed 3", "new"],
    ]  # fmt: skip
    (header,) = comparison.headers.to_dict("records")
    assert (header["field"], header["runs"]) == ("options.versions", 2), "each once"
    assert main(["diff", str(old), str(new)]) == 1
    assert "new failure" in capsys.readouterr().out
    assert main(["diff", str(old), str(old)]) == 0
    with pytest.raises(NothingInCommon):
        difference(old, swept(tmp_path / "other", cell(ONE, seed=9), seed=9))


def test_releases_are_compared_with_each_other(tmp_path: Path) -> None:
    sweep = tmp_path / "s"
    before = swept(sweep / "a", cell(ONE), release="jax-0.8.1")
    after = swept(sweep / "b", cell(ONE, status="fail", kind="value"), release="jax-0.9.2")
    comparison = difference(before, after)
    assert comparison.changes["change"].tolist() == ["new failure"]
    assert "options.release" in comparison.headers["field"].tolist()
    swept(sweep / "b", cell(ONE), release="jax-0.8.1")
    assert difference(before, sweep / "b").changes.empty, "the same release where there is one"


def test_a_sweep_is_compared_with_a_plain_run(tmp_path: Path) -> None:
    options = {"backend": ["torch"], "level": "smoke", "mode": "eager", "seed": 0}
    plain = write(tmp_path / "r.jsonl", run(cell(ONE), cell(TWO), options=options))
    sweep = swept(tmp_path / "s", cell(ONE), cell(TWO))
    assert difference(plain, sweep).changes.empty
    worse = swept(tmp_path / "w", cell(ONE), cell(TWO, status="fail"))
    assert main(["diff", str(plain), str(worse)]) == 1
    assert main(["diff", str(worse), str(plain)]) == 0
    flex = swept(tmp_path / "f", cell(ONE, "torch:flex", status="fail"))
    assert main(["diff", str(plain), str(flex), "--map", "sdpa=flex"]) == 1
