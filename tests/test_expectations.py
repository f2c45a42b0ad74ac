"""Expectations: strict in both directions, refused where they are vague."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.records.expectations import ExpectationError, Manifest, draft, load
from attention_conformance.suite.records.findings import load_findings
from tests.rows import cell

GOOD = """
[[expect]]
implementation = ["sdpa"]
check = ["values"]
case = ["sdpa/*/f64/*"]
except = ["sdpa/*/b1h1*"]
kind = "value"
message = "ratio \\\\d+"
cause = "softmax in float32"
issue = "https://example.org/1"
versions = ["torch>=2.0,<3"]
device = ["cpu"]
"""

CASE = "sdpa/none/mha/f64/b2h1q1k1d1"


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    path = tmp_path / "torch.toml"
    path.write_text(GOOD)
    return Manifest(load(path), {"torch": "2.13.0+cpu"}, "cpu")


def apply(manifest: Manifest, *verdict: str, case: str = CASE) -> Verdict:
    return manifest.apply(Verdict(*verdict), "sdpa", "values", case)


def test_the_expected_failure_is_known_and_says_why(manifest: Manifest) -> None:
    got = apply(manifest, "fail", "value", "ratio 12")
    assert got.status == "known"
    assert "softmax in float32" in got.message
    assert "https://example.org/1" in got.message


def test_a_pass_another_kind_and_another_message_fail(manifest: Manifest) -> None:
    for verdict, kind in (
        (("pass",), "unexpected-pass"),
        (("fail", "raised", "ratio 12"), "other-failure"),
        (("fail", "value", "no number"), "other-failure"),
    ):
        got = apply(manifest, *verdict)
        assert (got.status, got.kind) == ("fail", kind)
        assert "torch.toml, entry 1" in got.message


def test_what_fails_with_some_seeds_may_pass_and_is_as_strict_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "torch.toml"
    path.write_text(f'{GOOD}sometimes = "small values hide it"\n')
    entries = Manifest(load(path), {"torch": "2.13.0"}, "cpu")
    passed = apply(entries, "pass")
    assert (passed.status, passed.kind) == ("pass", "")
    assert passed.message == "torch.toml, entry 1 expects a failure: small values hide it"
    assert apply(entries, "fail", "value", "ratio 12").status == "known"
    assert apply(entries, "fail", "raised", "ratio 12").kind == "other-failure"
    for other in ('""', "true"):
        path.write_text(f"{GOOD}sometimes = {other}\n")
        with pytest.raises(ExpectationError, match="sometimes"):
            load(path)


def test_harness_errors_and_unsupported_cells_are_not_excused(manifest: Manifest) -> None:
    for status in ("error", "crash", "unsupported"):
        assert apply(manifest, status, "harness", "ratio 12").status == status


def test_other_cells_are_left_alone(manifest: Manifest) -> None:
    for case in ("sdpa/none/mha/f32/b2h1q1k1d1", "sdpa/none/mha/f64/b1h1q1k1d1"):
        assert apply(manifest, "fail", "value", "ratio 12", case=case).status == "fail"
        assert apply(manifest, "pass", case=case).status == "pass"
    assert manifest.apply(Verdict("pass"), "eager", "values", CASE).status == "pass"
    assert manifest.apply(Verdict("pass"), "sdpa", "contract", CASE).status == "pass"


@pytest.mark.parametrize(
    ("cpu", "holds"), [('["fma"]', True), ('["!fma"]', False), ('["x9"]', False)]
)
def test_an_entry_may_hang_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu: str, holds: bool
) -> None:
    monkeypatch.setattr(
        "attention_conformance.suite.records.machine.cpu_flags", lambda: frozenset({"fma", "avx2"})
    )
    path = tmp_path / "torch.toml"
    path.write_text(f"{GOOD}cpu = {cpu}\n")
    assert bool(Manifest(load(path), {"torch": "2.13"}, "cpu").entries) == holds


def test_an_entry_that_matches_nothing_is_reported(manifest: Manifest) -> None:
    other = ("sdpa", "values", "sdpa/none/mha/f32/x")
    assert manifest.unmatched(lambda entry: entry.matches(*other)) == manifest.entries
    assert manifest.unmatched(lambda entry: entry.matches("sdpa", "values", CASE)) == []


def test_two_entries_for_one_cell_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "torch.toml"
    path.write_text(GOOD + GOOD)
    twice = Manifest(load(path), {"torch": "2.13"}, "cpu")
    with pytest.raises(ExpectationError, match=r"entry 1 and .*entry 2 both match"):
        twice.find("sdpa", "values", CASE)


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ('kind = "value"', 'kind = "odd"', "unknown kind 'odd'"),
        ('cause = "softmax in float32"', 'cause = ""', "at `$.cause`"),
        ('cause = "softmax in float32"', 'cause = "TODO: verify"', "verify it"),
        ('issue = "https://example.org/1"', 'issue = "somewhere"', "none found"),
        ('check = ["values"]', 'check = "values"', "Expected `array`, got `str` - at `$.check`"),
        ('check = ["values"]', 'chekc = ["values"]', "chekc"),
        ('message = "ratio \\\\\\\\d+"', 'message = "("', "entry 1"),
        ('versions = ["torch>=2.0,<3"]', 'versions = ["torch>>2"]', "entry 1"),
        ("[[expect]]", "[[expects]]", "only"),
        ("[[expect]]", "[[expect", "not valid TOML"),
    ],
)
def test_vague_or_broken_entries_are_refused(tmp_path: Path, old: str, new: str, hint: str) -> None:
    path = tmp_path / "torch.toml"
    assert old.replace("\\\\\\\\", "\\\\") in GOOD
    path.write_text(GOOD.replace(old.replace("\\\\\\\\", "\\\\"), new))
    with pytest.raises(ExpectationError, match=r"torch\.toml") as error:
        load(path)
    assert hint in str(error.value)


def failing(message: str, case: str = CASE) -> CellRecord:
    return cell(case, status="fail", kind="value", message=message)


def filled_in(text: str) -> str:
    """A draft whose causes and issues somebody wrote down."""
    return text.replace("TODO: verify, then one line", "x").replace("TODO: a link, or: ", "")


@pytest.mark.parametrize(
    "message",
    [
        'element (b=0): "quoted" got 1',
        "\x1b[1mException encountered\x1b[0m when calling\nthe layer",
        "lost \udcff byte \ud800",
        "",
        "tab\tand nul \0 and \x7f",
        "größer […] {x} .* $",
    ],
)
def test_a_draft_loads_once_its_causes_are_filled_in(tmp_path: Path, message: str) -> None:
    text = draft(
        [failing(message), failing(message, CASE + "/tiny")], {"torch": "2.13.0+cpu", "numpy": "2"}
    )
    path = tmp_path / "draft.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ExpectationError, match=r"entry 1: (issue|the cause)"):
        load(path)
    path.write_text(filled_in(text), encoding="utf-8")
    (entry,) = load(path)
    assert entry.case == (CASE, CASE + "/tiny")
    assert entry.versions == ("torch==2.13.0",)
    manifest = Manifest([entry], {"torch": "2.13.0"}, "cpu")
    assert apply(manifest, "fail", "value", message).status == "known"
    assert apply(manifest, "fail", "value", "nothing like it\n").status == (
        "fail" if entry.message != ".*" else "known"
    )


def test_failures_that_differ_in_numbers_alone_share_an_entry(tmp_path: Path) -> None:
    path = tmp_path / "draft.toml"
    alike = [
        failing(f"element (h={n}, i=1): got {x}, {n + 2}.5e-0{n} bounds off", f"{CASE}/{n}")
        for n, x in enumerate(("nan", "-inf", "+0.25"))
    ]
    other = failing("element (h=0, i=1): got 3, 2 bounds off, and the gradient", f"{CASE}/3")
    path.write_text(filled_in(draft([*alike, other], {"torch": "2.13.0"})))
    assert [len(entry.case) for entry in load(path)] == [3, 1]
    # The draft speaks of the whole sentence.
    manifest = Manifest(load(path), {"torch": "2.13.0"}, "cpu")
    began = "element (h=9): got 1, then more"
    beginning = apply(manifest, "fail", "value", began, case=f"{CASE}/0")
    assert (beginning.status, beginning.kind) == ("fail", "other-failure")
    assert draft([], {"torch": "2.13.0"}) == ""


@pytest.mark.parametrize(
    "text",
    ["expect = 3", "[[expect]]\nimplementation = 3", "expect = [3]", "finding = [3]", "[expect]",
     '[[finding]]\nname = 3', "\x00", "a = " + "[" * 100_000, GOOD + 'source = "x"\n'],
)  # fmt: skip
def test_anything_else_in_a_manifest_is_one_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "torch.toml"
    path.write_text(text)
    with pytest.raises(ExpectationError, match=r"torch\.toml"):
        assert load(path) + load_findings(path)


def test_what_a_search_drew_makes_no_cell_known_and_is_never_stale(tmp_path: Path) -> None:
    path = tmp_path / "torch.toml"
    path.write_text(f"{GOOD}\ndrawn = true\n")
    drawn = Manifest(load(path), {"torch": "2.13.0+cpu"}, "cpu")
    assert len(drawn.entries) == 1
    assert apply(drawn, "fail", "value", "ratio 12").status == "fail"
    assert apply(drawn, "pass").status == "pass"
    assert drawn.unmatched(lambda entry: False) == []
