"""Claims are read: from options, from attributes, and from the decorator `claims`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.claims import ORDER, Claims, read_claims
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.claims import claims
from tests.test_claims import CLAIMED, plan


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"claim": ("heads=3",)}, "unknown claim 'heads'; expected NAME=VALUE.*head_sizes"),
        *(
            ({"claim": (f"{name}={n}",)}, f"{name}: expected a whole number from 1 on, got {n}")
            for name, n in (("queries", -1), ("queries", 0), ("max_length", 0))
        ),
        ({"claim": ("head_sizes",)}, "expected a value, as in --claim head_sizes=VALUE"),
        ({"claim": ("f16.max_length=",)}, "expected a value, as in --claim f16.max_length=VALUE"),
        ({"claim": ("scales=nan,1",)}, r"scales are .*, got \[nan, 1.0\]"),
        ({"claim": ("head_sizes=x",)}, "head_sizes=x: head_sizes: Expected `int`, got `str`"),
        ({"claim": ("f12.max_length=8",)}, "f12"),
        ({"claim": ("f16.dtypes=f16",)}, "unknown claim 'f16.dtypes'"),
        ({"claim": ("lengths_multiple_of=0",)}, "lengths_multiple_of are whole numbers from 1 on"),
        (
            {"claim": ("lengths_multiple_of=1,1,1",)},
            "one number for queries and keys, or one for each",
        ),
        ({"claim": ("queries=1", "lengths_multiple_of=16")}, "=1,16 is about keys alone"),
        (
            {"claim": ("max_length=8", "lengths_multiple_of=16")},
            "no length up to 8 is a multiple of 16",
        ),
        ({"claim": ("contiguous=perhaps",)}, "contiguous: Expected `bool`, got `str`"),
        ({"claim": ("scales=1",)}, "scales: Expected `array` of length 2, got 1"),
        ({"claim": ("elections=zeros",)}, "elections are promised with --elect QUESTION=ANSWER"),
        ({"elect": ("minus-inf=nan",)}, "unknown question 'minus-inf'; valid: fully-masked-row"),
        ({"elect": ("minus-inf-row=one",)}, "unknown answer 'one' to minus-inf-row; valid: zeros"),
        ({"expect": ("absent.toml",)}, "there is no manifest absent.toml"),
    ],
)
def test_claims_that_say_nothing_list_what_does(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan("textbook", **options)


@pytest.mark.parametrize(
    ("file", "like", "claim"),
    [
        ("merging.py:right", "merge", "centred_keys"),
        ("latents.py:absorbed", "latent", "centred_keys"),
        ("varlen.py:right", "packed", "absorbs"),
        ("of_torch.py:smoothed", "", "absorbs=false"),
    ],
)
def test_a_claim_of_one_operator_is_refused_from_functions_of_others(
    file: str, like: str, claim: str
) -> None:
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match=f"{claim.partition('=')[0]}: only functions of "):
        Plan.make(Options(
            ("torch",), function=(f"{CLAIMED / file}",), like=like, level="smoke", claim=(claim,)
        ))  # fmt: skip


def test_an_attribute_that_is_nearly_a_claim_is_no_silent_one(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text("def near(query, key, value):\n    return value\nnear.head_size = (64,)\n")
    with pytest.raises(UsageError, match="did you mean 'head_sizes'"):
        registry.function_implementation(registry.load("torch"), f"{path}:near", {})
    with pytest.raises(TypeError, match="unknown claim head_size"):
        claims(head_size=64)


def test_a_claim_for_all_dtypes_stands_beside_one_for_a_dtype() -> None:
    said = read_claims(["head_sizes=64", "f16.head_sizes=64,128", "f16.equal_heads"])
    limits = Claims.of(None, said).limits
    assert isinstance(limits, dict)
    assert limits["f16"] == Limits(head_sizes=(64, 128), equal_heads=True)
    assert limits["f32"] == Limits(head_sizes=(64,))


class Layer:
    """The attributes are those of layers, and no claims."""

    head_size, max_length, dtype = 64, 512, "f32"

    def __init__(self, query_width: int) -> None: ...

    def scale(self) -> float:
        return 0.125

    def queries(self) -> None: ...


class Callable_:
    """A callable object: `queries` is a claim by its type, `scales` is none."""

    queries = 1
    scales = "per head"
    head_size = 64


def test_a_class_claims_by_the_decorator_alone() -> None:
    assert Claims.of(Layer, {}) == Claims(dtypes=ORDER)
    claimed = claims(max_length=64, head_sizes=8)(type("Claimed", (Layer,), {}))
    assert Claims.of(claimed, {}).limits == Limits(head_sizes=(8,), max_length=64)
    assert Claims.of(Layer, {}).limits == Limits()
    assert Claims.of(Callable_(), {}).limits == Limits(queries=1)


def test_an_attribute_of_a_function_claims_after_the_decorator() -> None:
    @claims(max_length=64, queries=1)
    def kernel() -> None: ...

    kernel.max_length = [32]  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="max_length: Expected `int`, got `array`"):
        Claims.of(kernel, {})
    kernel.max_length = 32  # type: ignore[attr-defined]
    assert Claims.of(kernel, {}).limits == Limits(max_length=32, queries=1)
    assert Claims.of(kernel, {"max_length": 16}).limits == Limits(max_length=16, queries=1)
