"""The protocol: words are checked where they are declared, what is not declared is not asked, and a
prepared call is differentiated by whatever it is handed."""

from __future__ import annotations

from typing import Any

import pytest

from attention_conformance.backends._numpy.backend import NumpyBackend
from attention_conformance.backends.declared import ATTENTION_FEATURES, checked_name
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import (
    DeclarationError,
    Declared,
    DeclaredRounding,
    Implementation,
)
from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.spec.catalogue import find
from attention_conformance.suite.spec.inputs import Inputs

F32 = find("sdpa/none/mha/f32/b2h3q5k7d8").dtype


class Told(Implementation):
    """Computes nothing, and declares what it is told."""

    name = "told"

    def prepare(self, inputs: Inputs) -> PreparedCall:
        raise NotImplementedError


def told(**declared: Any) -> Told:
    return Told(NumpyBackend(), declared=Declared(**declared))


@pytest.mark.parametrize(
    ("declared", "hint"),
    [
        ({"features": frozenset({"maks"})}, r"unknown feature 'maks'; valid: mask, causal, "),
        ({"refusals": {"sink": "no"}}, r"unknown feature 'sink'; valid: .*sinks"),
        ({"numerics": "exakt"}, r"unknown numerics class 'exakt'; valid: exact, fused"),
        ({"numerics": {"f32": "exact"}}, r"dtype without a numerics class 'f64'; valid: f32$"),
        ({"numerics": {"f33": "exact"}}, r"unknown dtype 'f33'; valid: f64, f32, bf16, f16$"),
        ({"elections": {"no-key": "zeros"}}, r"unknown question 'no-key'; valid: .*no-keys"),
        (
            {"elections": {"no-keys": "zero"}},
            r"answer to no-keys 'zero'; valid: zeros, nan, raises",
        ),
        ({"elections": {"no-keys": {"f33": "nan"}}}, r"unknown dtype 'f33'"),
        ({"dtypes": ("float32",)}, r"unknown dtype 'float32'; valid: f64"),
        ({"dropout": "rows"}, r"unknown dropout 'rows'; valid: , elements, shared"),
    ],
)
def test_unknown_words_are_usage_errors_that_list_the_known(
    declared: dict[str, Any], hint: str
) -> None:
    with pytest.raises(UsageError, match=hint):
        Declared(**declared)


def test_a_timed_compiler_is_one_of_the_compilers() -> None:
    mine = type("Mine", (NumpyBackend,), {"compilers": ("fast",), "timed_compilers": ("faster",)})
    with pytest.raises(DeclarationError, match=r"unknown compiler of numpy 'faster'; valid: fast"):
        mine()


def test_elsewhere_than_on_the_cpu_nothing_verified_there_is_declared() -> None:
    declared = Declared(
        numerics="fused",
        features=ATTENTION_FEATURES,
        elections={"no-keys": "zeros"},
        rounding=DeclaredRounding(exp_error={"bf16": 1e-4}, narrow_reductions=("bf16",)),
    )
    assert declared.on("cpu") is declared
    assert declared.on("cuda") == Declared(numerics="fused", features=ATTENTION_FEATURES)

    class Elsewhere(NumpyBackend):
        devices = ("cuda",)

    assert Told(Elsewhere("cuda"), declared=declared).declared_answer("no-keys", F32) is None
    assert Told(NumpyBackend(), declared=declared).declared_answer("no-keys", F32) == "zeros"


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a:b", "a@b", "größe", "a\n"])
def test_names_that_ids_and_command_lines_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match="a name has one character or more, all of them"):
        checked_name("an implementation", name)

    class Named(NumpyBackend):
        pass

    Named.name = name
    with pytest.raises(DeclarationError, match="cannot be the name of a backend"):
        Named()
