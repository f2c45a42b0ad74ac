"""Promise: an operator costs its spec, its reference and what implements it; all else asks it.

The operator `mean` is nowhere but in this file: every query gets the mean of the values it attends. Ids,
draws, checks, the oracle, verdicts, records and reports take it as they take any other.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_conformance.backends._numpy import NumpyEngine, Rounded, rounded_to
from attention_conformance.backends.declared import ATTENTION_FEATURES, Declared
from attention_conformance.backends.masks import dense_arguments
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.primitives.attend import Attend
from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.primitives.scores import Scores
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import Asks, Operator
from attention_conformance.suite.spec.operators import OPERATORS
from attention_conformance.suite.spec.recipes import DRAWS


def drawn(case: Case, rng: np.random.Generator, seed: int) -> dict[str, np.ndarray]:
    operands = DRAWS[case.recipe](rng, case.sizes, case.dtype)
    return dict(zip(("query", "key", "value"), operands, strict=True))


MEAN = Operator(
    name="mean",
    text="the mean of the values that a query attends",
    axes=lambda case: {"query": "bhqd", "key": "bgkd", "value": "bgkv"},
    draw=drawn,
    outputs=lambda case: {"output": "bhqv"},
    needs=lambda case, arrays, sizes, widths: {"value-size": sizes.D != sizes.Dv},
    ties=lambda options: ("hg",),
    asks=Asks(
        plain="mean/none/mha/{dt}/b2h3q5k7d8",
        cases=(
            Ask("mean/none/mha/{dt}/b2h3q5k7d8", "mean/causal/mha/{dt}/b2h3q5k7d8v6"),
            Ask(
                "mean/pad/mha/{dt}/b2h3q5k7d8",
                "mean/bool.qk.empty/mha/{dt}/b2h3q5k7d8/dense",
                since="standard",
            ),
        ),
        gradients=(Ask("mean/causal/mha/f32/b2h3q5k7d8v6"),),
    ),
)


def compose(problem: Problem) -> Composition:
    """Scores that are all the same, whatever queries and keys are."""
    query, key, value = (problem.leaf(name) for name in ("query", "key", "value"))
    pairs = Pairs.of(problem)
    scores = Scores(problem.u, query, key, 0.0, pairs)
    return Composition(Attend(problem.u, scores, value, pairs), keys=pairs.keys)


class Right(Implementation):
    """The mean of the values, added up over the keys that are attended and divided by their number."""

    name = "right"
    operator = MEAN
    declared = Declared(
        features=ATTENTION_FEATURES - {"native-causal", "native-window"},
        elections={"fully-masked-row": "zeros"},
        dtypes=("f32", "bf16", "f16"),
    )

    def weights(self, attends: np.ndarray) -> np.ndarray:
        return attends / np.maximum(attends.sum(-1, keepdims=True), 1)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        weights = self.weights(inputs.attends)

        def call(value: Rounded, **others: Rounded) -> Rounded:
            return rounded_to(weights @ value.values, inputs.dtype)

        def gradients(cotangent: Rounded, wrt: list[str], **arrays: Rounded) -> dict[str, Any]:
            zeros = {n: Rounded(np.zeros(arrays[n].shape), inputs.dtype) for n in wrt}
            value = round_to(weights.swapaxes(-1, -2) @ cotangent.values, inputs.dtype)
            return zeros | ({"value": Rounded(value, inputs.dtype)} if "value" in wrt else {})

        arguments = dense_arguments(self.backend, inputs)
        operands = {name: arguments[name] for name in ("query", "key", "value")}
        return PreparedCall(call, operands, vjp=gradients)


class DividesByAll(Right):
    """Divides by the number of all keys, hidden ones among them."""

    name = "divides-by-all"

    def weights(self, attends: np.ndarray) -> np.ndarray:
        return attends / attends.shape[-1]


class SeesAll(Right):
    """Adds up the values of all keys, whatever the mask says."""

    name = "sees-all"

    def weights(self, attends: np.ndarray) -> np.ndarray:
        return np.full(attends.shape, 1 / attends.shape[-1])


class Means(NumpyEngine):
    """A third party's backend, of one operator."""

    name = "means"

    def implementations(self) -> list[Implementation]:
        return [Right(self), DividesByAll(self), SeesAll(self)]


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line in the table of operators, and the reference that is found by the operator's name."""
    monkeypatch.setitem(OPERATORS, MEAN.name, MEAN)
    module = SimpleNamespace(reference=Reference(compose))
    monkeypatch.setitem(sys.modules, f"attention_conformance.references.{MEAN.module}", module)


def judged(name: str, level: str = "standard") -> Mapping[Cell, Verdict]:
    """The verdicts of all checks on one of the implementations."""
    implementations = [i for i in Means().implementations() if i.name == name]
    cells = [
        cell for check in all_checks().values() for cell in check.cells(level, implementations)
    ]
    return {cell: judge(cell) for cell in cells}


def test_checks_ask_it_and_a_right_implementation_passes_them() -> None:
    by_check: dict[str, set[str]] = {}
    for cell, verdict in judged("right").items():
        if cell.dtype.name in Right.declared.dtypes:
            by_check.setdefault(cell.check.name, set()).add(verdict.status)
    passed = (
        "values", "contract", "kept_answers", "own_memory", "poison", "gradients", "gradient_hidden",
        "gradient_alone", "gradient_arrangements", "gradient_contract", "gradient_cotangents",
        "gradient_passes",
        "gradient_layouts", "inner_gradient_layouts", "layouts", "inner_layouts", "negative_layouts",
        "stateless", "invariant_rerun", "invariant_batch", "invariant_rows",
        "batch_independence", "ambient",
    )  # fmt: skip
    assert by_check == {name: {"pass"} for name in passed} | {"tangents": {"unsupported"}}


def test_deviations_of_it_die_of_the_checks_that_there_are() -> None:
    failed = {
        name: {
            cell.check.name for cell, verdict in judged(name).items() if verdict.status == "fail"
        }
        for name in ("divides-by-all", "sees-all")
    }
    assert failed["divides-by-all"] == {"values", "gradients"}
    assert failed["sees-all"] == {"values", "gradients", "poison", "gradient_hidden"}
