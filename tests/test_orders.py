"""Promise: the order of an implementation's sums is revealed, shown, and held to if it is promised."""

from __future__ import annotations

import json

import numpy as np
import pytest

from backends import registry
from backends.claims import read_elections
from backends.protocol import Implementation
from suite.__main__ import main
from suite.checks import all_checks
from suite.judge import elections
from suite.judge.judge import judge
from suite.judge.verdict import Verdict
from suite.run import order
from suite.spec.dtypes import DTYPES
from suite.spec.elections import QUESTIONS

torch = pytest.importorskip("torch")

from tests.functions import sums  # noqa: E402

CHECK = all_checks()["election"]


def handed_over(add: sums.Add, *promises: str, alone: sums.Add | None = None) -> Implementation:
    """A person's function that adds by `add`, and for one query by `alone`."""
    said = {"elections": read_elections(promises)}
    function = sums.attention(add, alone)
    return registry.callable_implementation(registry.load("torch"), function, "sums", said)[0]


def asked(implementation: Implementation) -> dict[str, Verdict]:
    """The verdicts of both questions by name."""
    cells = CHECK.cells("standard", [implementation])
    names = {f"elect/{name}/f32": name for name in ("order-of-sums", "sums-of-one-row")}
    return {names[c.case.id]: judge(c) for c in cells if c.case.id in names}


@pytest.mark.parametrize("name", sums.ORDERS)
def test_a_known_order_is_observed(name: str) -> None:
    kernel = handed_over(sums.ORDERS[name])
    assert elections.observe("order-of-sums", kernel, DTYPES["f32"]) == name
    one_row = elections.observe("sums-of-one-row", kernel, DTYPES["f32"])
    assert one_row == "in-the-same-order"


def test_every_order_is_one_that_a_function_has() -> None:
    question = QUESTIONS["order-of-sums"]
    assert {question.option(name) for name in (*sums.ORDERS, "split-4")} == {*question.options}


def test_another_order_for_one_query_is_observed() -> None:
    kernel = handed_over(sums.in_turn, alone=sums.split)
    verdicts = asked(kernel)
    assert [v.status for v in verdicts.values()] == ["pass", "pass"]
    found = elections.observe("sums-of-one-row", kernel, DTYPES["f32"])
    assert found == "in-another-order"


def test_parts_merged_by_their_log_sum_exps_are_a_split() -> None:
    def merged(query, key, value):  # type: ignore[no-untyped-def]
        parts, lses = [], []
        for k, v in zip(key.chunk(4, 2), value.chunk(4, 2), strict=True):
            scores = query @ k.mT * query.shape[-1] ** -0.5
            parts.append(sums.attention(sums.in_turn)(query, k, v))
            lses.append(scores.logsumexp(-1, keepdim=True) * 1.0000001)
        shares = (
            torch.stack(lses).softmax(0)
            * torch.tensor([1, 1.0000001, 0.9999999, 1.0000002])[:, None, None, None, None]
        )  # as shares round where they are not powers of two
        return (torch.stack(parts) * shares).sum(0)

    function, _ = registry.callable_implementation(registry.load("torch"), merged, "merged", {})
    assert elections.observe("order-of-sums", function, DTYPES["f32"]) == "split-4"


@pytest.mark.parametrize(
    ("promise", "add", "status"),
    [
        ("order-of-sums=sequential", sums.in_turn, "pass"),
        ("order-of-sums=blocks-32", sums.blocks(32), "pass"),
        ("order-of-sums=blocks-64", sums.blocks(32), "fail"),
        ("order-of-sums=sequential", sums.pairwise, "fail"),
        ("order-of-sums=pairwise", sums.halves, "fail"),
    ],
)
def test_a_promised_order_is_held_to(promise: str, add: sums.Add, status: str) -> None:
    verdict = asked(handed_over(add, promise))["order-of-sums"]
    assert verdict.status == status
    if status == "fail":
        assert f"declared {promise.partition('=')[2]}, observed " in verdict.message


def test_an_order_that_nobody_has_cannot_be_promised() -> None:
    with pytest.raises(Exception, match="unknown answer 'blocks' to order-of-sums; valid: sequent"):
        read_elections(["order-of-sums=blocks"])


def test_dropped_keys_are_no_order() -> None:
    verdict = asked(handed_over(lambda terms: sums.in_turn(terms[:-1])))["order-of-sums"]
    assert (verdict.status, verdict.kind) == ("fail", "election")
    assert "no order of a sum of equal weights" in verdict.message


def test_sums_that_overflow_reveal_nothing() -> None:
    def narrow(terms):  # type: ignore[no-untyped-def]
        return sums.in_turn([term.half() for term in terms]).float()

    assert {v.status for v in asked(handed_over(narrow)).values()} == {"unsupported"}


def test_another_order_in_every_call_is_no_failure() -> None:
    random = np.random.default_rng(0)

    def shuffled(terms):  # type: ignore[no-untyped-def]
        return sums.in_turn([terms[j] for j in random.permutation(len(terms))])

    verdict = asked(handed_over(shuffled))["order-of-sums"]
    assert (verdict.status, verdict.measured.observed) == ("pass", "varies")


def test_values_rounded_inside_leave_the_order_to_be_seen() -> None:
    def narrow(terms):  # type: ignore[no-untyped-def]
        return sums.pairwise([term.bfloat16().float() for term in terms])

    verdict = asked(handed_over(narrow))["order-of-sums"]
    assert (verdict.status, verdict.measured.observed) == ("pass", "pairwise")


def test_blocks_that_grow_with_the_keys_are_a_split() -> None:
    found = order.orders(handed_over(sums.split))
    assert {found[f"{keys} keys"][0] for keys in order.KEYS} == {"split-4"}
    assert found["256 keys"][1] == "split in 4 parts, each one after the other"
    assert found[order.ALONE][0] == "same"


def test_the_command_prints_a_row_for_each_name(capsys: pytest.CaptureFixture[str]) -> None:
    function = "tests.functions.sums:split_keys"
    assert main(["order", "sdpa-math", function, "--backend=torch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["split_keys", "sdpa-math"]
    assert lines[1].split() == ["split_keys", *["split-4"] * 4, "same"]
    assert lines[-1].split(maxsplit=1)[0] in {name for line in lines[1:3] for name in line.split()}


def test_the_command_says_orders_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["order", "definition", "--backend=numpy", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out).items()
    assert told[0] == "numpy:definition"
    assert [*told[1]] == [*(f"{keys} keys" for keys in order.KEYS), order.ALONE]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none", "--backend=torch"], "unknown implementation none; valid: "),
        (["kernels.py:none", "--backend=torch"], "there is no file kernels.py"),
        (["sdpa"], "choose what to judge with --backend=NAME"),
    ],
)
def test_wrong_names_are_said(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["order", *words]) == 2
    assert said in capsys.readouterr().err
