"""Records: what is written is read back, and every defect of a file has its own named error."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.suite.records.cells import (
    KEY,
    CellRecord,
    DifferentCaseLists,
    IncompleteShards,
    Run,
    digest,
    load,
    merge,
)
from attention_conformance.suite.records.lines import (
    BrokenLine,
    DuplicateCell,
    NotARecordFile,
    OtherSchema,
    RecordError,
    TruncatedRun,
)
from tests.rows import cell, run

A, B, C = (cell(f"sdpa/none/mha/f32/b1h1q1k{n}d8") for n in (1, 2, 3))


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return run(A, B, C).save(tmp_path / "whole.jsonl")


def spoil(path: Path, change: Callable[[list[str]], list[str]]) -> Path:
    """The file with its list of lines changed."""
    lines = change(path.read_text(encoding="utf-8").splitlines())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    record = cell(
        status="fail",
        kind="value",
        message="|error| 1e-3 > bound; größer\nsecond line \u2028 still the same cell",
        error_ratio=3.5,
        rms=1.25,
        max_abs_error=1e-3,
        grade="none",
        observed="zeros",
        seconds=0.125,
        numerics="fused",
        seed=3,
        question="no-keys",
        features=("mask", "bias"),
        kernels="triton_fused",
        ratios={"query": 0.25, "key": math.inf},
        facts={"Lk": 33, "bias": "inf", "scale": -0.25, "softcap": None, "sinks": False},
    )
    before = run(record, A, dirty=True, partial=True, shard="1/2")
    after = load(before.save(tmp_path / "r.jsonl"))
    assert after.cells == before.cells
    assert after.header == before.header
    assert after.complete
    assert after.totals == {"fail": 1, "pass": 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (name, value)
        for name in ("error_ratio", "rms", "max_abs_error")
        for value in (math.inf, math.nan, 0.0, 5e-324, None)
    ]
    + [("rms", -math.inf)],
)
def test_figures_survive_and_the_file_is_strict_json(
    tmp_path: Path, name: str, value: float | None
) -> None:
    path = run(cell(**{name: value})).save(tmp_path / "r.jsonl")

    def no_constant(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=no_constant)
    got = getattr(load(path).cells[0], name)
    assert got == value or (value is not None and math.isnan(value) and math.isnan(got))


def test_text_that_utf8_cannot_hold_does_not_end_the_run(tmp_path: Path) -> None:
    path = run(cell(status="fail", message="bad \udcff byte"), A).save(tmp_path / "r.jsonl")
    assert [c.message for c in load(path).cells] == ["bad \ufffd byte", ""]


@pytest.mark.parametrize("change", [{"new_field": 1}, {"facts": None}, {"native": None}])
def test_files_of_earlier_and_later_versions_are_read(whole: Path, change: dict[str, Any]) -> None:
    def changed(lines: list[str]) -> list[str]:
        fields = json.loads(lines[1]) | change
        kept = {name: value for name, value in fields.items() if value is not None or name == "rms"}
        return [lines[0], json.dumps(kept), *lines[2:]]

    assert load(spoil(whole, changed)).cells == (A, B, C)


@pytest.mark.parametrize(
    "text",
    ["", "\n", "not json\n", "[1, 2]\n", '{"case": 1}\n', '{"record": "cell"}\n', "\x00\xff\n",
     '{"record": "header", "schema": 99, "digest": "", "cells": 0}\n'],
)  # fmt: skip
def test_not_a_record_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(text.encode("latin-1"))
    for partial in (False, True):
        with pytest.raises(NotARecordFile, match=r"r\.jsonl"):
            load(path, partial)


def test_a_missing_file_is_not_a_record_file(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.jsonl", tmp_path, tmp_path / "a\0b"):
        with pytest.raises(NotARecordFile, match="cannot be read"):
            load(path)


@pytest.mark.parametrize(
    ("last", "length", "cells"),
    [(4, 0, (A, B, C)), (3, 1, (A, B)), (3, 20, (A, B)), (3, -3, (A, B))],
)
def test_a_line_cut_off_is_a_truncated_run(
    whole: Path, last: int, length: int, cells: tuple[CellRecord, ...]
) -> None:
    spoil(whole, lambda lines: [*lines[:last], *filter(None, [lines[last][:length]])])
    with pytest.raises(TruncatedRun, match="no footer" if not length else None):
        load(whole)
    partial_run = load(whole, partial=True)
    assert (partial_run.cells, partial_run.complete) == (cells, False)


def test_a_line_cut_within_a_character_is_a_truncated_run(tmp_path: Path) -> None:
    path = run(A, cell(B.case, message="größer"), complete=False).save(tmp_path / "r.jsonl")
    text = path.read_bytes()
    path.write_bytes(text[: text.index("ö".encode()) + 1])
    assert load(path, partial=True).cells == (A,)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("line", "old", "new", "says"),
    [
        (2, f'"case": "{A.case}"', '"case": ["a"]', "Expected `str`, got `array` - at `$.case`"),
        (2, '"seed": 0', f'"seed": {2**64}', "at `$.seed`"),
        (2, '"ratios": {}', '"ratios": {"key": "far"}', "Expected `float`, got `str`"),
        (2, '"message": ""', '"message": "\\ud800"', "malformed"),
        (2, '"message": ""', f'"message": {DEEP}', "recursion"),
        (2, '"rms": null', '"rms": NaN', "malformed"),
        (2, '"facts": {}', '"facts": {"Lk": [3]}', "at `$.facts[...]`"),
        (2, '"facts": {}', f'"facts": {{"Lk": 1{"0" * 400}}}', "at `$.facts[...]`"),
        (2, '"case"', '"of"', "missing required field `case`"),
        (2, '"pass"', '"passed"', "'passed'; valid: pass"),
        (2, '"record": "cell"', '"record": "note"', "got 'note'; was a file appended"),
        (2, '{"record"', '"record"', "is not a record"),
        (1, '"versions": {"torch": "2.13.0"}', '"versions": null',
         "Expected `object`, got `null` - at `$.versions`"),
        (1, '"cells": 3', '"cells": -1', "`int` >= 0"),
        (5, '"totals": {"pass": 3}', '"totals": {"pass": 4}', "lines were lost or added"),
    ],
)  # fmt: skip
def test_a_broken_line_is_one_error_with_its_place(
    whole: Path, line: int, old: str, new: str, says: str
) -> None:
    text = whole.read_text(encoding="utf-8").split("\n")
    assert old in text[line - 1]
    text[line - 1] = text[line - 1].replace(old, new, 1)
    whole.write_text("\n".join(text), encoding="utf-8")
    with pytest.raises(BrokenLine) as caught:
        load(whole)
    shown = str(caught.value)
    assert shown.startswith(f"{whole}: line {line}")
    assert says in shown
    assert ("restore it, or run again" in shown) != ("appended" in shown)


@pytest.mark.parametrize("schema", [1, 3])
def test_a_file_of_another_schema_names_the_remedy(whole: Path, schema: int) -> None:
    spoil(whole, lambda lines: [lines[0].replace('"schema": 2', f'"schema": {schema}'), *lines[1:]])
    with pytest.raises(OtherSchema, match=rf"expected schema 2, got {schema}.*run again"):
        load(whole)


@pytest.mark.parametrize(
    ("other", "value"),
    [*((name, "other") for name in KEY[:-1]), ("seed", 7), ("status", "fail"), ("message", "m"),
     ("seconds", 2.0), ("error_ratio", 0.5)],
)  # fmt: skip
def test_cells_are_told_apart_by_their_identity_alone(
    tmp_path: Path, other: str, value: Any
) -> None:
    path = run(A, twin := replace(A, **{other: value})).save(tmp_path / "r.jsonl")
    if other in KEY:
        assert load(path).cells == (A, twin)
    else:
        with pytest.raises(DuplicateCell, match=A.case):
            load(path)


def test_the_digest_knows_the_cells_but_not_their_order() -> None:
    keys = [A.key, B.key, C.key]
    assert digest(keys) == digest(reversed(keys))
    assert len({digest(keys), digest(keys[:2]), digest([*keys, A.key]), digest([])}) == 4


def shards(*parts: tuple[CellRecord, ...]) -> list[Run]:
    whole = digest(c.key for c in (A, B, C))
    count = len(parts)
    return [
        run(*cells, digest=whole, shard=f"{n}/{count}", source=f"s{n}")
        for n, cells in enumerate(parts, 1)
    ]


def test_shards_merge_into_the_whole_run() -> None:
    merged = merge(shards((C,), (A, B)))
    assert set(merged.cells) == {A, B, C}
    assert (merged.header.shard, merged.header.cells) == ("", 3)
    assert merged.source == "s1+s2"
    assert merge([run(A, B, C)]).cells == (A, B, C)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (shards((A,), (B,)), IncompleteShards, r"2 cells.*1/2, 2/2"),
        (shards((A, B), (C,))[:1], IncompleteShards, r"2 cells.*1/2"),
        (shards((A, B, C, cell("x"))), IncompleteShards, "4 cells"),
        ([], IncompleteShards, "no result files"),
        (shards((A, B), (B, C)), DuplicateCell, B.case),
        ([*shards((A,), (B, C)), run(A, source="other")], DifferentCaseLists, "s1 and other"),
    ],
)
def test_merging_proves_completeness(given: list[Run], error: type[Exception], says: str) -> None:
    assert issubclass(error, RecordError)
    with pytest.raises(error, match=says):
        merge(given)
