"""A person's own function: claims are read from options, from attributes, and from the decorator
`claims`; what it elects is printed, what nobody elects fails, what it claims is what it is judged on,
and what concerns every cell is said once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from msgspec.structs import replace

from attention_conformance.backends.claims import Claims, read_claims
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.__main__ import main
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.recorded import record
from attention_conformance.suite.spec.claims import claims
from attention_conformance.suite.spec.vocabulary import BROKEN
from tests.rows import run as records

CLAIMED = Path(__file__).parent / "functions"


def plan(name: str, file: str = "of_torch.py", **options: Any) -> Plan:
    pytest.importorskip("torch")
    names = name.split(",")
    functions = tuple(f"{CLAIMED / file}:{n}" for n in names)
    return Plan.make(Options(("torch",), function=functions, level="smoke", **options))


def judged(of: Plan, *checks: str) -> list[tuple[Cell, Verdict]]:
    """The cells of some checks, by default all, with their verdicts."""
    selection = [check for check in all_checks().values() if not checks or check.name in checks]
    return [(cell, judge(cell, of.policy(cell))) for check in selection for cell in of.cells(check)]


def wrong(verdicts: list[tuple[Cell, Verdict]]) -> list[str]:
    return [
        f"{cell.check.name} {cell.implementation} {cell.case}: {verdict.message}"
        for cell, verdict in verdicts
        if verdict.status in BROKEN
    ]


def test_what_concerns_every_cell_is_said_once() -> None:
    message = r"its trial call on sdpa/\S* ran longer than 1 s; --cell-timeout gives it longer"
    with pytest.raises(UsageError, match=message) as error:
        plan("sleeps", "faulty.py", cell_timeout=1.0)
    assert "\n" not in str(error.value)


def test_parameters_that_nobody_passes_can_be_allowed() -> None:
    verdicts = judged(plan("other_names", "faulty.py", allow_unused=True), "values")
    assert not wrong(verdicts)


def test_an_election_that_is_promised_is_held() -> None:
    promised = ("minus-inf-row=nan", "fully-masked-row=zeros")
    checks = ("election", "forms_of_empty_rows")
    assert not wrong(judged(plan("rows_of_two_kinds", "faulty.py", elect=promised), *checks))
    broken = wrong(judged(plan("textbook", elect=("minus-inf-row=f32:zeros",)), "election"))
    assert len(broken) == 1
    assert "declared zeros, observed nan" in broken[0]


def test_malformed_problems_are_asked_of_a_drop_in_alone() -> None:
    assert not judged(plan("textbook"), "bad_problem")
    verdicts = judged(plan("textbook", drop_in=True), "bad_problem", "election")
    assert {cell.check.name for cell, _ in verdicts} == {"bad_problem", "election"}
    assert any(
        "the framework's own attention, for which it stands in" in x for x in wrong(verdicts)
    )


def test_parameters_beyond_the_native_signature_are_asked_for() -> None:
    verdicts = judged(plan("with_extras", "faulty.py", dtype=("f32",)), "values")
    assert not wrong(verdicts)
    needs = {
        need for cell, verdict in verdicts if verdict.status == "pass" for need in cell.case.needs
    }
    assert {"softcap", "sinks", "window", "lse", "alibi-slopes"} <= needs


def test_a_function_has_a_manifest_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    entry = {
        "implementation": ["flag_ignored"], "check": ["mask_beside_flag"],
        "case": ["elect/causal-with-mask/*"], "kind": "election", "message": "silently ignored",
        "cause": "the flag is not merged yet", "issue": "none found", "versions": ["torch>=2"],
    }  # fmt: skip
    path.write_text(tomli_w.dumps({"expect": [entry]}))
    of = plan("flag_ignored", "faulty.py", expect=(str(path),))
    assert {v.status for _, v in judged(of, "mask_beside_flag")} == {"known"}
    assert not of.stale_expectations()
    entry |= {"implementation": ["textbook"]}
    path.write_text(tomli_w.dumps({"expect": [entry]}))
    of = plan("textbook", expect=(str(path),))
    assert "unexpected-pass" in {v.kind for _, v in judged(of, "mask_beside_flag")}
    entry |= {"implementation": ["another"]}
    path.write_text(tomli_w.dumps({"expect": [entry]}))
    assert (
        "no entry names a function that is judged"
        in plan("textbook", expect=(str(path),)).stale_expectations()[-1]
    )


def test_an_entry_is_stale_where_all_that_it_names_are_judged() -> None:
    """One half of an entry may be what a run does not ask."""
    pytest.importorskip("torch")
    of = Plan.make(Options(("torch",), implementation=("sdpa",), level="smoke"))
    manifest = of.loaded[0].manifest
    known = replace(manifest.entries[0], case=["sdpa/diagonal/*"])
    for names, stale in ((["sdpa"], True), (["sdpa", "flex"], False), (["sdpa", "sdpa@x"], True)):
        manifest.entries[:] = [replace(known, implementation=names)]
        assert bool(of.stale_expectations()) is stale, names
        assert not of.stale_expectations(filtered=True)


DELEGATING = """
from tests.functions import faulty

def flag_ignored(query, key, value, attn_mask=None, is_causal=False, scale=None):
    return faulty.flag_ignored(query, key, value, attn_mask, is_causal, scale)

flag_ignored.expect = "mine.toml"
"""


def test_a_draft_of_what_fails_becomes_the_manifest_of_an_attribute(tmp_path: Path) -> None:
    verdicts = judged(plan("flag_ignored", "faulty.py"), "mask_beside_flag")
    ran = records(*(record(cell, verdict) for cell, verdict in verdicts)).save(tmp_path / "r.jsonl")
    draft, own = tmp_path / "mine.toml", tmp_path / "mine.py"
    own.write_text(DELEGATING)
    assert main(["expect", "--write", str(ran), "--output", str(draft)]) == 0
    with pytest.raises(UsageError, match=r"mine\.toml, entry 1: issue must be a link"):
        plan("flag_ignored", str(own))
    verified = re.sub('"TODO: a link.*"', '"none found"', draft.read_text())
    draft.write_text(re.sub('"TODO: verify.*"', '"the flag is not merged yet"', verified))
    of = plan("flag_ignored", str(own))
    assert {v.status for _, v in judged(of, "mask_beside_flag")} == {"known"}
    assert not of.stale_expectations()


def test_a_claim_for_all_dtypes_stands_beside_one_for_a_dtype() -> None:
    with pytest.raises(TypeError, match="unknown claim head_size"):
        claims(head_size=64)
    said = read_claims(["head_sizes=64", "f16.head_sizes=64,128", "f16.equal_heads"])
    limits = Claims.of(None, said).limits
    assert isinstance(limits, dict)
    assert limits["f16"] == Limits(head_sizes=(64, 128), equal_heads=True)
    assert limits["f32"] == Limits(head_sizes=(64,))
