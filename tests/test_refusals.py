"""A person's function refuses a case by NotImplementedError, or by an error of validation that names an
argument. Any other error is a failure, also where the field elects to raise. Custom operators are asked
torch's own rules."""

from __future__ import annotations

import inspect
from itertools import count

import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.compilers import compiled_forms
from attention_conformance.backends.protocol import Implementation
from attention_conformance.backends.registry import load
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge import refusal
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.spec.vocabulary import REFUSED
from tests.functions import operators, partly
from tests.runtimes import verdict_of

torch = pytest.importorskip("torch")


def judged(name: str, check: str, case: str) -> Verdict:
    function = getattr(partly, name)
    implementation = load("torch").function(function, name, Claims.of(function, {}))
    return verdict_of(implementation, case, check)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotImplementedError("later"), True),
        (ValueError("is_causal needs as many queries as keys"), True),
        (TypeError("expected a key of 8 components, got 6"), True),
        (ValueError("`attn_mask` must be boolean"), True),
        (ValueError("only heads of 64 and 128"), False),
        (ValueError("key_padding is not known"), False),
        (RuntimeError("is_causal needs as many queries as keys"), False),
        (IndexError("key"), False),
        (KeyError("scale"), False),
        (AssertionError("query"), False),
        (ValueError("The truth value of an array with more than one element is ambiguous."), False),
        (TypeError("attend() got an unexpected keyword argument 'scale'"), False),
        (TypeError("attend() missing 1 required positional argument: 'value'"), False),
        (TypeError("masked_fill_(): argument 'value' must be Number, not NoneType"), False),
        (TypeError("Cannot interpret value of type <class 'object'> as an abstract array"), False),
        (ValueError("size of label 'k' for operand 1 (7) does not match previous terms"), False),
    ],
)
def test_an_error_refuses_where_it_names_an_argument(error: Exception, expected: bool) -> None:
    def attend(q, k, v, attn_mask=None, is_causal=False, scale=None):  # type: ignore[no-untyped-def]
        return v

    implementation = load("torch").function(attend, "attend", Claims())
    assert refusal.refuses(implementation, error) is expected


def test_tensorflow_refuses_by_invalid_arguments_too() -> None:
    tf = pytest.importorskip("tensorflow")
    error = tf.errors.InvalidArgumentError(None, None, "key must have as many heads as query")
    implementation = load("tf").function(lambda query, key, value: value, "attend", Claims())
    assert refusal.refuses(implementation, error)
    assert not refusal.refuses(load("torch").function(len3, "attend", Claims()), error)


def len3(query, key, value):  # type: ignore[no-untyped-def]
    return value


ALIGNMENT = ("election", "elect/causal-alignment/f32")
VALUE_SIZE = ("election", "elect/value-size/f32")


def test_an_accident_is_no_election() -> None:
    verdict = judged("output_like_query", *VALUE_SIZE)
    assert (verdict.status, verdict.kind) == ("fail", "raised")
    rule = (
        "; only NotImplementedError, or a ValueError or TypeError that names an argument (query, "
    )
    assert rule in verdict.message


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("refuses_new_shapes", "values"),
        ("refuses_every_third", "contract"),
        ("refuses_every_third", "remembered"),
        ("refuses_every_seventh", "kept_answers"),
        ("refuses_every_seventh", "own_memory"),
    ],
)
def test_a_call_refused_once_and_answered_once_fails(name: str, check: str) -> None:
    partly.CALLS.update({3: count(), 7: count()})
    partly.seen.clear()
    verdict = judged(name, check, "sdpa/none/mha/f32/b2h3q5k7d8")
    assert (verdict.status, verdict.kind) == ("fail", "stale")
    assert verdict.message.startswith(
        "the same call was answered, and refused (the function refuses: "
    )


def test_a_variation_may_be_refused() -> None:
    case = "sdpa/none/mha/f32/b2h4q6k11d8"
    assert judged("refuses_windows", "remembered", case).status == "pass"
    verdict = judged("of_float64", "remembered", case)
    assert (verdict.status, verdict.kind) == ("unsupported", "refused")


@pytest.mark.parametrize(
    ("name", "check", "case", "verdict"),
    [
        ("decodes", "values", "sdpa/none/mha/f32/b2h3q5k7d8", ("unsupported", REFUSED)),
        ("square_mask_validated", *ALIGNMENT, ("pass", "")),
        ("square_mask", *ALIGNMENT, ("fail", "raised")),
    ],
)
def test_a_compiled_function_refuses_by_the_same_errors(
    name: str, check: str, case: str, verdict: tuple[str, str]
) -> None:
    function = load("torch").function(getattr(partly, name), name, Claims())
    compiled = next(i for i in compiled_forms(function.backend, [function]) if "aot" in i.name)
    got = verdict_of(compiled, case, check)
    assert (got.status, got.kind) == verdict, got.message


def handed_over(name: str) -> Implementation:
    function = getattr(operators, name)
    return registry.callable_implementation(registry.load("torch"), function, name, {})[0]


def verdicts_of_operator(name: str, check: str = "registration") -> list[Verdict]:
    cells = all_checks()[check].cells("smoke", [handed_over(name)])
    return [judge(cell) for cell in cells if check == "registration" or "f32" in cell.case.id]


@pytest.mark.parametrize("name", ["forward_only", "packet", "overload"])
def test_parameters_are_those_of_the_schema(name: str) -> None:
    operator = handed_over(name)
    signature = inspect.signature(getattr(operators, name))
    assert str(signature) == "(query, key, value, is_causal=False)"
    assert operator.missing(["native-causal"]) is None
    assert operator.missing(["bias"]) == "the function has no parameter attn_mask"
    found = {v.status for v in verdicts_of_operator(name, "values")}
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
    first = verdicts_of_operator(name)[0]
    assert (first.status, first.kind) == ("fail", "registration")
    for rule in rules:
        assert rule in first.message
