"""Promise: a person's function of an operator passes where it is right, fails where it is wrong, and is
asked nothing that it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.backends.registry import UsageError, function_implementation, load
from tests.runtimes import of_person

FUNCTIONS = Path(__file__).parent / "functions"
PASS, FAIL, LACKS = "pass", "fail", "unsupported"


@pytest.mark.parametrize(
    ("like", "function", "option", "level", "expected"),
    [
        ("packed", "varlen.py:right", "alignment", "standard",
         {"all": {PASS}, "causal": {PASS}, "causalbr": {PASS}}),
        # Its flag was seen to follow the first query, and it has no scale.
        ("packed", "varlen.py:top_left", "alignment", "standard",
         {"causal": {PASS, LACKS}, "causalbr": {LACKS}}),
        ("packed", "varlen.py:of_the_longest", "alignment", "smoke",
         {"causal": {PASS, LACKS}, "causalbr": {PASS, FAIL}}),
        ("packed", "varlen.py:shifted", "alignment", "smoke", {"all": {FAIL}, "causal": {LACKS}}),
        ("paged", "paging.py:right", "alignment", "smoke",
         {"all": {PASS}, "causal": {PASS, LACKS}}),  # no softcap
        ("paged", "paging.py:short", "alignment", "smoke",
         {"all": {FAIL}, "causal": {FAIL, LACKS}}),
        ("paged-write", "paging.py:written", "skipped", "smoke",
         {False: {PASS, LACKS}, True: {PASS}}),  # no kv_layout
        ("paged-write", "paging.py:written_in_place", "skipped", "smoke",
         {False: {PASS}, True: {PASS}}),
        ("paged-write", "paging.py:wraps", "skipped", "smoke",
         {False: {PASS, LACKS}, True: {FAIL}}),
        ("merge", "merging.py:right", "height", "smoke",
         {"level": {PASS}, "high": {PASS}, "deep": {PASS}}),
        ("merge", "merging.py:empty_is_nan", "empty", "smoke", {False: {PASS}, True: {FAIL}}),
        ("merge", "merging.py:overflows", "height", "smoke", {"level": {PASS}, "high": {FAIL}}),
        ("rotary", "rotations.py:rotate", "interleaved", "smoke",
         {False: {PASS, LACKS}, True: {PASS}}),  # no scaling
        # It has no word for pairs, and turns neighbours.
        ("rotary", "rotations.py:neighbours", "interleaved", "smoke",
         {False: {LACKS}, True: {PASS, LACKS}}),
    ],
)  # fmt: skip
def test_a_function_is_judged_where_it_is_asked(
    like: str, function: str, option: str, level: str, expected: dict[object, set[str]]
) -> None:
    """Statuses of the check values, by the values of one option."""
    pytest.importorskip("torch")
    found: dict[object, set[str]] = {}
    for cell, verdict in of_person(f"{FUNCTIONS / function}", like, level=level):
        found.setdefault(cell.case.option(option), set()).add(verdict.status)
    for value, statuses in expected.items():
        assert (FAIL in found[value]) == (FAIL in statuses), value
        assert found[value] & {PASS, FAIL} >= statuses & {PASS}, value


def test_another_alignment_fails_where_a_sample_has_more_keys_than_queries() -> None:
    """With as many queries as keys both alignments are one."""
    pytest.importorskip("torch")
    found: dict[tuple[str, bool], set[str]] = {}
    for cell, verdict in of_person(f"{FUNCTIONS / 'paging.py'}:top_left", "paged"):
        case = cell.case
        kind = case.option("alignment"), case.sizes.Lq == case.sizes.Lk
        found.setdefault(kind, set()).add(verdict.status)
    assert {kind for kind, statuses in found.items() if FAIL in statuses} == {("causal", False)}
    assert set().union(*found.values()) == {PASS, FAIL, LACKS}


@pytest.mark.parametrize(
    ("like", "function", "message"),
    [
        ("packed", "varlen.py:misspelt",
         "never passed: is_causal; did you mean causal.*Passed are max_seqlen_q"),
        ("packed", "varlen.py:padded",
         r"expected padded\(query, key, value, cu_seqlens_q, cu_seqlens_k"),
        ("paged", "paging.py:misspelt", "never passed: kv_layouts; did you mean kv_layout"),
        ("rotary", "rotations.py:misspelt",
         "never passed: interleave; did you mean interleaved.*Passed are base, interleaved"),
        ("rotary", "rotations.py:alone", r"expected alone\(query, position"),
    ],
)  # fmt: skip
def test_a_function_that_does_not_fit_is_told_why(like: str, function: str, message: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match=message):
        function_implementation(load("torch"), f"{FUNCTIONS / function}", {}, like)


def test_parameters_that_nobody_passes_are_named() -> None:
    pytest.importorskip("torch")
    place = f"{FUNCTIONS / 'merging.py'}:with_scale"
    judged, _ = function_implementation(load("torch"), place, {}, "merge")
    assert judged.remarks == ("never passed, so that the default is judged: scale",)
