"""Files of sweeps: records come back as they were; what cannot be used is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.records import sweeps
from suite.records.cells import CellRecord
from suite.records.lines import BrokenLine, NotARecordFile, RecordError
from suite.records.sweeps import Overlap
from suite.sweep.store import gaps
from tests.records_by_hand import cell, header

AWKWARD = cell(
    status="fail", kind="value", message="off é \u2028 \x1b", error_ratio=float("nan"), rms=1.5,
    max_abs_error=float("inf"), grade="none", seconds=0.25, seed=7, features=("mask", "causal"),
    ratios={"query": 0.5, "key": float("inf")}, native="f", kernels="k",
    facts={"Lq": 5, "scale": 0.3, "mask": "causal", "sinks": True, "softcap": None},
)  # fmt: skip


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    plain = cell(case="sdpa/none/mha/bf16/b2h3q5k7d8")
    stated = header(AWKWARD, plain, options={"backend": ["torch"], "seed": 7})
    path = tmp_path / sweeps.file_name(0, 2)
    sweeps.write(path, sweeps.encoded(stated, [AWKWARD, plain]))
    (batch,) = sweeps.batches(tmp_path)
    assert repr(sweeps.records(batch.table())) == repr([AWKWARD, plain])
    assert batch.header == stated
    assert batch.table().schema.names == [*CellRecord.__dataclass_fields__]


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    data = sweeps.encoded(header(AWKWARD), [AWKWARD])
    path = tmp_path / "a" / sweeps.file_name(0, 1)
    sweeps.write(path, data)
    with pytest.raises(FileExistsError, match="not overwritten"):
        sweeps.write(path, data)
    sweeps.write(tmp_path / "b" / sweeps.file_name(0, 2), data)
    with pytest.raises(BrokenLine, match="expected 2 records, as its name says, got 1"):
        sweeps.batches(tmp_path / "b")[0].table()
    sweeps.write(tmp_path / "b" / sweeps.file_name(1, 2), data)
    with pytest.raises(Overlap, match="hold the same cells"):
        sweeps.batches(tmp_path / "b")
    broken = tmp_path / "c" / sweeps.file_name(0, 1)
    sweeps.write(broken, data[:-30])
    with pytest.raises(NotARecordFile, match="cannot be read"):
        next(sweeps.runs(tmp_path / "c"))
    other = sweeps.encoded(header(AWKWARD, schema=99), [AWKWARD])
    sweeps.write(tmp_path / "d" / sweeps.file_name(0, 1), other)
    with pytest.raises(RecordError, match="expected schema 2, got 99"):
        next(sweeps.runs(tmp_path / "d"))
    lying = sweeps.encoded(header(AWKWARD, digest="0" * 16), [AWKWARD])
    sweeps.write(tmp_path / "e" / sweeps.file_name(0, 1), lying)
    with pytest.raises(BrokenLine, match="its cells are not those of its header"):
        next(sweeps.runs(tmp_path / "e")).load()


def test_gaps(tmp_path: Path) -> None:
    def batch(first: int, end: int) -> sweeps.Batch:
        return sweeps.Batch(tmp_path, first, end)

    assert gaps([], 5) == [(0, 5)]
    assert gaps([batch(0, 2), batch(2, 5)], 5) == []
    assert gaps([batch(1, 2), batch(3, 4)], 6) == [(0, 1), (2, 3), (4, 6)]
