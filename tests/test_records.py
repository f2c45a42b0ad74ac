"""Records: what is written is read back, and every defect of a file has its own named error."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from attention_conformance.suite.records.cells import (
    DifferentCaseLists,
    IncompleteShards,
    digest,
    load,
    merge,
    writer,
)
from attention_conformance.suite.records.lines import (
    BrokenLine,
    DuplicateCell,
    NotARecordFile,
    OtherSchema,
    RecordError,
    TruncatedRun,
)
from tests.rows import cell, header, run

A, B, C = (cell(f"sdpa/none/mha/f32/b1h1q1k{n}d8") for n in (1, 2, 3))


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return run(A, B, C).save(tmp_path / "whole.jsonl")


def spoil(path: Path, change) -> Path:  # type: ignore[no-untyped-def]
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


def test_a_file_from_before_facts_were_recorded_is_read(whole: Path) -> None:
    def without(lines: list[str]) -> list[str]:
        return [lines[0], lines[1].replace(', "facts": {}', ""), *lines[2:]]

    spoil(whole, without)
    assert whole.read_text().count('"facts"') == 2
    assert load(whole).cells == (A, B, C)


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


@pytest.mark.parametrize(
    "facts", ['{"Lk": [3]}', '{"Lk": {"of": 3}}', "[3]", '{"Lk": 1' + "0" * 400 + "}"]
)
def test_a_fact_is_one_plain_value(whole: Path, facts: str) -> None:
    spoil(whole, lambda lines: [lines[0], lines[1].replace('"facts": {}', f'"facts": {facts}')])
    with pytest.raises(BrokenLine, match=r"line 2.*facts"):
        load(whole)


def test_text_that_utf8_cannot_hold_does_not_end_the_run(tmp_path: Path) -> None:
    path = run(cell(status="fail", message="bad \udcff byte"), A).save(tmp_path / "r.jsonl")
    assert [c.message for c in load(path).cells] == ["bad \ufffd byte", ""]


def test_the_writer_never_overwrites(whole: Path) -> None:
    before = whole.read_bytes()
    with pytest.raises(FileExistsError):
        writer(whole, header(A))
    assert whole.read_bytes() == before


def test_lines_are_in_the_file_as_soon_as_they_are_judged(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    lines = writer(path, header(A, B))
    lines.write(A)
    assert load(path, partial=True).cells == (A,)
    lines.close(finished=False)
    with pytest.raises(TruncatedRun, match="1 records are there"):
        load(path)


def test_fields_of_a_later_version_are_ignored(whole: Path) -> None:
    def add(lines: list[str]) -> list[str]:
        return [lines[0], json.dumps(json.loads(lines[1]) | {"new_field": 1}), *lines[2:]]

    assert load(spoil(whole, add)).cells == (A, B, C)


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


def test_a_run_without_footer_is_truncated(whole: Path) -> None:
    spoil(whole, lambda lines: lines[:-1])
    with pytest.raises(TruncatedRun, match="no footer"):
        load(whole)
    partial_run = load(whole, partial=True)
    assert partial_run.cells == (A, B, C)
    assert not partial_run.complete


@pytest.mark.parametrize("kept", [1, 20, -3])
def test_a_line_cut_off_is_a_truncated_run(whole: Path, kept: int) -> None:
    spoil(whole, lambda lines: [*lines[:3], lines[3][:kept]])
    with pytest.raises(TruncatedRun):
        load(whole)
    partial_run = load(whole, partial=True)
    assert (partial_run.cells, partial_run.complete) == ((A, B), False)


def test_a_line_cut_within_a_character_is_a_truncated_run(tmp_path: Path) -> None:
    path = run(A, cell(B.case, message="größer"), complete=False).save(tmp_path / "r.jsonl")
    text = path.read_bytes()
    path.write_bytes(text[: text.index("ö".encode()) + 1])
    with pytest.raises(TruncatedRun):
        load(path)
    assert load(path, partial=True).cells == (A,)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x: [x[0], "{", *x[2:]], "line 2 is not a record"),
        (lambda x: [x[0], '{"record": "cell", "case": "c"}', *x[2:]], "line 2.*missing"),
        (lambda x: [x[0], x[1].replace('"pass"', '"passed"'), *x[2:]], "'passed'; valid: pass"),
        (lambda x: [x[0], x[1].replace('"rms": null', '"rms": "small"'), *x[2:]],
         r"line 2.*float.*got `str` - at `\$\.rms`"),
        (lambda x: [x[0], *x], "got 'header'"),
        (lambda x: [*x, x[1]], "got 'footer'"),
        (lambda x: [*x[:2], '{"record": "note"}', *x[2:]], "got 'note'"),
        (lambda x: [*x[:2], *x[3:]], "lines were lost"),
    ],
    ids=["no JSON", "field missing", "status", "figure", "two headers", "after footer", "kind",
         "totals"],
)  # fmt: skip
def test_a_broken_line_is_named(whole: Path, change, says: str) -> None:  # type: ignore[no-untyped-def]
    spoil(whole, change)
    with pytest.raises(BrokenLine, match=says):
        load(whole)


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("line", "old", "new", "says"),
    [
        (2, f'"case": "{A.case}"', '"case": ["a"]', "Expected `str`, got `array` - at `$.case`"),
        (2, '"seed": 0', '"seed": ' + "1" * 400, "at `$.seed`"),
        (2, '"seed": 0', f'"seed": {2**64}', "at `$.seed`"),
        (2, '"seed": 0', '"seed": ' + "1" * 10_000, "out of range"),
        (2, '"seed": 0', '"seed": true', "Expected `int`, got `bool`"),
        (2, '"ratios": {}', '"ratios": null', "Expected `object`, got `null` - at `$.ratios`"),
        (2, '"ratios": {}', '"ratios": {"key": "far"}', "Expected `float`, got `str`"),
        (2, '"features": []', '"features": [1]', "Expected `str`, got `int` - at `$.features[0]`"),
        (2, '"message": ""', '"message": "\\ud800"', "malformed"),
        (2, '"message": ""', '"message": "\0"', "malformed"),
        (2, '"message": ""', f'"message": {DEEP}', "recursion"),
        (2, '"rms": null', '"rms": NaN', "malformed"),
        (2, '"rms": null', '"rms": 1e999', "out of range"),
        (1, '"versions": {"torch": "2.13.0"}', '"versions": null',
         "Expected `object`, got `null` - at `$.versions`"),
        (1, '"cells": 3', '"cells": -1', "`int` >= 0"),
        (5, '"totals": {"pass": 3}', '"totals": [3]', "Expected `object`, got `array`"),
    ],
)  # fmt: skip
def test_a_field_of_another_type_is_one_error_with_its_place(
    whole: Path, line: int, old: str, new: str, says: str
) -> None:
    text = whole.read_text(encoding="utf-8").split("\n")
    assert old in text[line - 1]
    text[line - 1] = text[line - 1].replace(old, new)
    whole.write_text("\n".join(text), encoding="utf-8")
    with pytest.raises(BrokenLine) as caught:
        load(whole)
    shown = str(caught.value)
    assert shown.startswith(f"{whole}: line {line}")
    assert says in shown
    assert "restore it, or run again" in shown


@pytest.mark.parametrize("schema", [1, 3])
def test_a_file_of_another_schema_names_the_remedy(whole: Path, schema: int) -> None:
    spoil(whole, lambda lines: [lines[0].replace('"schema": 2', f'"schema": {schema}'), *lines[1:]])
    with pytest.raises(OtherSchema, match=rf"expected schema 2, got {schema}.*run again"):
        load(whole)


def test_a_cell_that_occurs_twice(whole: Path) -> None:
    spoil(whole, lambda lines: [*lines[:3], lines[2], *lines[3:]])
    with pytest.raises(DuplicateCell, match=B.case):
        load(whole)


@pytest.mark.parametrize(
    "other", ["check", "case", "backend", "implementation", "mode", "device", "seed"]
)
def test_cells_that_differ_in_identity_are_no_duplicates(tmp_path: Path, other: str) -> None:
    twin = replace(A, **{other: 7 if other == "seed" else "other"})
    assert load(run(A, twin).save(tmp_path / "r.jsonl")).cells == (A, twin)


@pytest.mark.parametrize("other", ["status", "message", "seconds", "error_ratio"])
def test_cells_that_differ_in_outcome_are_duplicates(tmp_path: Path, other: str) -> None:
    values = {"status": "fail", "message": "m", "seconds": 2.0, "error_ratio": 0.5}
    twin = replace(A, **{other: values[other]})
    with pytest.raises(DuplicateCell):
        load(run(A, twin).save(tmp_path / "r.jsonl"))


def test_every_error_is_a_record_error() -> None:
    for error in (NotARecordFile, OtherSchema, TruncatedRun, BrokenLine, DuplicateCell,
                  DifferentCaseLists, IncompleteShards):  # fmt: skip
        assert issubclass(error, RecordError)


def test_the_digest_knows_the_cells_but_not_their_order() -> None:
    keys = [A.key, B.key, C.key]
    assert digest(keys) == digest(reversed(keys))
    assert len({digest(keys), digest(keys[:2]), digest([*keys, A.key]), digest([])}) == 4


def shards(*parts: tuple) -> list:  # type: ignore[type-arg]
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


def test_merging_proves_completeness() -> None:
    for parts in (shards((A,), (B,)), shards((A, B), (C,))[:1], shards((A, B, C, cell("x"))), []):
        with pytest.raises(IncompleteShards):
            merge(parts)


def test_merging_names_the_shards_given() -> None:
    with pytest.raises(IncompleteShards, match=r"2 cells.*1/2"):
        merge(shards((A, B), (C,))[:1])


def test_shards_that_share_a_cell() -> None:
    with pytest.raises(DuplicateCell, match=B.case):
        merge(shards((A, B), (B, C)))


def test_shards_of_different_runs() -> None:
    with pytest.raises(DifferentCaseLists, match="s1 and other"):
        merge([*shards((A,), (B, C)), run(A, source="other")])
