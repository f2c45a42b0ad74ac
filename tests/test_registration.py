"""Promise: custom operators are asked torch's own rules, and right ones are green."""

from __future__ import annotations

import inspect

import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict

torch = pytest.importorskip("torch")

from tests.functions import operators  # noqa: E402


def handed_over(name: str) -> Implementation:
    function = getattr(operators, name)
    return registry.callable_implementation(registry.load("torch"), function, name, {})[0]


def verdicts(name: str, check: str = "registration") -> list[Verdict]:
    cells = all_checks()[check].cells("smoke", [handed_over(name)])
    return [judge(cell) for cell in cells if check == "registration" or "f32" in cell.case.id]


@pytest.mark.parametrize("name", ["forward_only", "packet", "overload"])
def test_parameters_are_those_of_the_schema(name: str) -> None:
    operator = handed_over(name)
    signature = inspect.signature(getattr(operators, name))
    assert str(signature) == "(query, key, value, is_causal=False)"
    assert operator.missing(["native-causal"]) is None
    assert operator.missing(["bias"]) == "the function has no parameter attn_mask"
    found = {v.status for v in verdicts(name, "values")}
    assert found == {"pass", "unsupported"}


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("without_fake", ("test_faketensor: its fake function (register_fake) is missing",)),
        (
            "query_shaped",
            ("test_faketensor: its fake function (register_fake) is missing, or says",),
        ),
        ("broken_backward", ("test_aot_dispatch_dynamic: traced with symbolic sizes it",)),
        ("writes", ("test_schema: its schema does not say which arguments it writes to",)),
    ],
)
def test_broken_rules_are_named(name: str, rules: tuple[str, ...]) -> None:
    first = verdicts(name)[0]
    assert (first.status, first.kind) == ("fail", "registration")
    for rule in rules:
        assert rule in first.message
