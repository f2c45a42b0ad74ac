"""Files of the first schema are read as if they were of the second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from suite.records import cells, speed
from suite.records.cells import IncompleteShards, digest, load, merge
from suite.records.lines import BrokenLine
from suite.report.diff import compare
from tests.records_by_hand import cell, run, write

KEY = ("check", "case", "backend", "implementation", "mode", "device", "seed")


def line(case: str, check: str = "values", **fields: Any) -> dict[str, Any]:
    """A cell as the first schema wrote it."""
    return {
        "record": "cell", "case": case, "check": check, "backend": "torch", "implementation": "sdpa",
        "mode": "eager", "device": "cpu", "dtype": "f32", "status": "pass", "kind": "", "message": "",
        "error_ratio": 0.25, "rms": None, "max_abs_error": None, "grade": "", "observed": "",
        "seconds": 0.5, "group": "none", "numerics": "fused", "seed": 0,
    } | fields  # fmt: skip


def file(path: Path, *lines: dict[str, Any], whole: str = "", shard: str = "") -> Path:
    """A file of the first schema; its digest is that of its own cells unless it is told another."""
    checksum = whole or digest(tuple(cell[name] for name in KEY) for cell in lines)
    header = {
        "record": "header",
        "digest": checksum,
        "cells": len(lines),
        "shard": shard,
        "schema": 1,
    }
    totals: dict[str, int] = {}
    for entry in lines:
        totals[entry["status"]] = totals.get(entry["status"], 0) + 1
    entries = [header, *lines, {"record": "footer", "totals": totals}]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


@pytest.mark.parametrize(
    ("case", "operator", "question", "features"),
    [
        ("sdpa/causal/gqa2/f32/b2h4q5k7d8", "sdpa", "", ()),
        ("sdpa/causal/gqa2/f32/b2h4q5k7d8v6", "sdpa", "", ("value-size",)),
        ("multi-head/pad/mha/f32/b2h4q5k9d3v5/e10.11.13.7/average", "multi-head", "",
         ("average", "value-size")),
        ("additive/none/mha/f32/b2h1q1k9d16v14/e12.10.14.14/single/head", "additive", "",
         ("squeezed", "weights", "value-size")),
        ("elect/fully-masked-row/f32", "sdpa", "fully-masked-row", ()),
        ("elect/multi-head/mask-polarity/bf16", "multi-head", "mask-polarity", ()),
        ("bad/key-rank-3/f32", "sdpa", "", ()),
        ("bad/additive/key-rank-2/f32", "additive", "", ()),
        ("elect", "sdpa", "", ()),
    ],
)  # fmt: skip
def test_columns_are_read_out_of_the_id(
    tmp_path: Path, case: str, operator: str, question: str, features: tuple[str, ...]
) -> None:
    (record,) = load(file(tmp_path / "r.jsonl", line(case))).cells
    assert (record.operator, record.question) == (operator, question)
    assert set(record.features) == set(features)


@pytest.mark.parametrize(
    ("check", "observed", "kept", "kernels", "ratios"),
    [
        ("gradients", "query 0.2, key 1e-05, bias inf", "", "",
         {"query": 0.2, "key": 1e-5, "bias": float("inf")}),
        ("layer_gradients", "query_kernel 0.31", "", "", {"query_kernel": 0.31}),
        ("values", "triton_fused 1", "", "triton_fused 1", {}),
        ("layer_values", "aten::addmm", "", "aten::addmm", {}),
        ("election", "uniform", "uniform", "", {}),
        ("invariant_rows", "within bound", "within bound", "", {}),
    ],
)  # fmt: skip
def test_sentences_become_columns(
    tmp_path: Path, check: str, observed: str, kept: str, kernels: str, ratios: dict[str, float]
) -> None:
    entry = line("sdpa/none/mha/f32/b2h3q5k7d8", check, observed=observed)
    (record,) = load(file(tmp_path / "r.jsonl", entry)).cells
    assert (record.observed, record.kernels, record.ratios) == (kept, kernels, ratios)


LAYER = "multi-head/none/mha/f32/b2h4q5k9d3/e12.12.12.12"


def test_old_names_of_checks_are_todays_so_that_runs_of_both_schemas_compare(
    tmp_path: Path,
) -> None:
    old = load(file(tmp_path / "old.jsonl", line(LAYER, "layer_values")))
    assert old.cells[0].check == "values"
    new = load(write(tmp_path / "new.jsonl", run(cell(LAYER, status="fail"))))
    assert list(compare(old, new)["change"]) == ["new failure"]


def test_shards_of_the_first_schema_still_prove_that_they_are_complete(tmp_path: Path) -> None:
    lines = [line(LAYER, "layer_values"), line(LAYER, "election"), line("sdpa/none/x", "values")]
    whole = digest(tuple(entry[name] for name in KEY) for entry in lines)
    one = load(file(tmp_path / "1.jsonl", *lines[:2], whole=whole, shard="1/2"))
    two = load(file(tmp_path / "2.jsonl", lines[2], whole=whole, shard="2/2"))
    assert [c.check for c in merge([one, two]).cells] == ["values", "election", "values"]
    with pytest.raises(IncompleteShards):
        merge([one])


def test_types_are_checked_before_ids_are_read(tmp_path: Path) -> None:
    with pytest.raises(BrokenLine, match=r"line 2: Expected `str`, got `array` - at `\$\.case`"):
        load(file(tmp_path / "r.jsonl", line("x") | {"case": ["sdpa"]}))


def test_speed_of_the_first_schema(tmp_path: Path) -> None:
    entry = {
        "record": "speed", "workload": "sweep-64", "case": "sdpa/none/mha/f32/b1h4q32k64d64",
        "backend": "torch", "implementation": "sdpa", "mode": "eager", "device": "cpu", "dtype": "f32",
        "direction": "forward", "threads": 1, "status": "timed", "samples": [0.5],
    }  # fmt: skip
    layer = entry | {"workload": "bahdanau", "case": "additive/pad/mha/f32/b16h1q1k50d128/e1.1.1.1"}
    lines = [
        {"record": "header", "protocol": 1, "schema": "speed-1"},
        entry, layer,
        {"record": "footer", "totals": {"timed": 2}},
    ]  # fmt: skip
    path = tmp_path / "speed.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in lines))
    swept, other = speed.load(path).records
    assert (swept.operator, swept.keys, swept.swept) == ("sdpa", 64, True)
    assert (other.operator, other.keys, other.swept) == ("additive", 50, False)


def test_todays_files_are_left_as_they_are(tmp_path: Path) -> None:
    odd = cell("elect/x/f32", check="layer_values", observed="query 0.2", operator="of-tomorrow")
    assert load(write(tmp_path / "r.jsonl", run(odd))).cells == (odd,)
    assert cells.FORM.schema == 2
