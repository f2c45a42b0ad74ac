"""Numbers of a person's code that float16 does not hold are named where they can explain a failure."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest

from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.steps import overflowing
from tests.test_claims import plan
from tests.test_inherited import FUNCTIONS, judged

SAID = "claim dtypes=f32,bf16,f64? float16 ends at 65504, and there the code's -1e9 is -inf: "


@pytest.mark.parametrize(("case", "check", "is_told"), [
    ("elect/fully-masked-row/f16", "one_answer_in_all_dtypes", True),
    ("elect/fully-masked-row/bf16", "one_answer_in_all_dtypes", True),  # nan in float16
    ("elect/minus-inf-row/bf16", "forms_of_empty_rows", False),
])  # fmt: skip
def test_a_failure_that_speaks_of_float16_names_the_number(
    case: str, check: str, is_told: bool
) -> None:
    verdict = judged(plan("penalised", "faulty.py"), check, case)
    assert (verdict.status, verdict.kind) == ("fail", "election")
    assert verdict.message.startswith(SAID) is is_told, verdict.message


def test_a_layer_is_told_in_the_cells_of_float16() -> None:
    pytest.importorskip("tensorflow")
    function = f"{FUNCTIONS / 'keras_layers.py'}:Penalised"
    of = Plan.make(Options(("tf",), function=(function,), like="multi-head"))
    case = "multi-head/padempty/mha/f16/b2h4q7k7d3/e12.12.12.12/self"
    verdict = judged(of, "values", case)
    assert (verdict.status, verdict.kind) == ("fail", "non-finite")
    assert verdict.message.startswith(SAID)
    assert judged(of, "values", case.replace("f16", "bf16")).status == "pass"


def _hidden(scores: Any) -> Any:
    return scores - 1e30


def calls(scores: Any) -> Any:
    return _hidden(scores)


def nests(scores: Any) -> Any:
    return [(lambda x: x * -70_000)(score) for score in scores]


def counts(scores: Any) -> Any:
    return scores[:1_000_000] - 6e4 + math.inf


class Layer:
    def hide(self, scores: Any) -> Any:
        return scores + 1e5

    def __call__(self, scores: Any) -> Any:
        return self.hide(scores)


@pytest.mark.parametrize(("function", "numbers"), [
    (calls, (1e30,)),
    (nests, (-7e4,)),
    (counts, ()),
    (Layer(), (1e5,)),
    (functools.partial(calls), (1e30,)),
    (math.exp, ()),
])  # fmt: skip
def test_numbers_are_read_from_what_is_called(function: Any, numbers: tuple[float, ...]) -> None:
    assert overflowing(function) == numbers
