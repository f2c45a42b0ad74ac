"""The protocol: words are checked where they are declared, what is not declared is not asked, and a
prepared call is differentiated by whatever it is handed."""

from __future__ import annotations

from typing import Any

import pytest

from attention_conformance.backends import registry
from attention_conformance.backends._numpy.backend import NumpyBackend
from attention_conformance.backends.declared import ATTENTION_FEATURES, LAYER_FEATURES, checked_name
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import (
    Backend,
    DeclarationError,
    Declared,
    DeclaredRounding,
    Implementation,
)
from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.spec.catalogue import find
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators import WORDS
from attention_conformance.suite.spec.vocabulary import DEVICES

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


def test_a_feature_that_nobody_declared_is_not_asked() -> None:
    sinks = find("sdpa/none/mha/f32/b2h3q17k23d8/sinks")
    old = told(features=ATTENTION_FEATURES)
    assert old.unsupported(sinks) == f"does not declare sinks ({WORDS['sinks']})"
    assert told(features=ATTENTION_FEATURES | {"sinks"}).unsupported(sinks) is None
    assert told().missing(["scale"]) == "does not declare scale (an explicit scale)"


def test_what_is_refused_is_no_feature_and_says_why() -> None:
    declared = Declared(features=ATTENTION_FEATURES, refusals={"softcap": "has no softcap"})
    assert "softcap" not in declared.features
    assert Told(NumpyBackend(), declared=declared).missing(["scale", "softcap"]) == "has no softcap"
    again = declared.taking("softcap", "sinks")
    assert {"softcap", "sinks"} <= again.features
    assert "softcap" not in again.refusals
    assert again.refusing({"sinks": "none"}).refusals["sinks"] == "none"


def test_dropout_is_a_feature_where_it_is_declared() -> None:
    without = Declared(features=LAYER_FEATURES)
    assert without.refusals["dropout"] == "has no dropout"
    assert "dropout" in without.but(dropout="elements").features
    assert "dropout" not in without.but(dropout="elements").but(dropout="").features
    other = without.refusing({"dropout": "takes another path"}).but(dropout="shared")
    assert other.refusals["dropout"] == "takes another path"


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

    assert Told(Elsewhere("cuda"), declared=declared).elected("no-keys", F32) is None
    assert Told(NumpyBackend(), declared=declared).elected("no-keys", F32) == "zeros"


def test_answers_and_classes_are_read_by_dtype() -> None:
    implementation = told(
        numerics={"f64": "single", "f32": "fused", "bf16": "fused", "f16": "eager"},
        elections={"no-keys": {"f32": "nan"}, "nan-in-query": "zeros"},
    )
    f16 = find("sdpa/none/mha/f16/b1h1q1k1d1").dtype
    assert implementation.numerics_for(f16) == "eager"
    assert [implementation.elected("no-keys", x) for x in (F32, f16)] == ["nan", None]
    assert implementation.elected("nan-in-query", f16) == "zeros"
    with pytest.raises(KeyError):
        implementation.elected("no-such-question", F32)
    assert told(dtypes=("f32",)).unsupported(find("sdpa/none/mha/f16/b1h1q1k1d1")) == (
        "dtype float16 is not supported"
    )


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a:b", "a@b", "größe", "a\n"])
def test_names_that_ids_and_command_lines_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match="a name has one character or more, all of them"):
        checked_name("an implementation", name)

    class Named(NumpyBackend):
        pass

    Named.name = name
    with pytest.raises(DeclarationError, match="cannot be the name of a backend"):
        Named()


@pytest.mark.parametrize("name", registry.registered())
def test_backends_are_judged_on_devices_that_can_be_asked_for(name: str) -> None:
    """The first, or all: which ones there are is said once."""
    devices = registry.kind_of(name).devices
    assert devices == DEVICES[:1] or devices is DEVICES


def test_a_manifest_lies_beside_the_module_of_its_backend() -> None:
    class Mine(NumpyBackend):
        name = "mine"

    assert Mine().expectations.name == "mine.toml"
    assert Mine().expectations.parent.name == "tests"
    backend: Backend = registry.load("numpy")
    assert not backend.expectations.exists(), "the control has no known failures"
