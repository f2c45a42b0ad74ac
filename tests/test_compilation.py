"""Promise: no verdict depends on programs of another cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from attention_conformance.backends._numpy.backend import NumpyBackend
from attention_conformance.backends.compilers import Compiled
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Compilers, DeclarationError, Implementation
from attention_conformance.backends.registry import load
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.deviations.kernels.attention import Kernel
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.features import FEATURES
from tests.runtimes import verdict_of

CASE = "sdpa/none/mha/f32/b2h3q11k9d6"
ALIKE = "sdpa/none/mha/f32/b2h3q11k9d6/large"  # other values

Function = Callable[..., Any]


class CompilingBackend(NumpyBackend):
    """NumPy with a compiler: `make` turns a function into a program, and every one is counted."""

    name = "compiling"

    def __init__(self, make: Callable[[Function], Function] = lambda function: function) -> None:
        super().__init__()
        self.make, self.count = make, 0
        self.compilers = Once(self, ("once",))

    def implementations(self) -> list[Implementation]:
        return [Kernel(self)]


class Once(Compilers):
    """Makes programs as its backend does, and counts them."""

    backend: CompilingBackend

    def compiled(self, prepared: PreparedCall, compiler: str, batch: int) -> PreparedCall:
        self.backend.count += 1
        program = self.backend.make(prepared.function)
        return replace(prepared, function=program, compiled=program)


def stale_query(function: Function) -> Function:
    """A program into which the query of its first call was compiled."""
    first: dict[str, Any] = {}

    def program(**arguments: Any) -> Any:
        return function(**arguments | {"query": first.setdefault("query", arguments["query"])})

    return program


def cold(function: Function) -> Function:
    """A program whose first answer is wrong."""
    calls: list[Mapping[str, Any]] = []

    def program(**arguments: Any) -> Any:
        calls.append(arguments)
        late = arguments if len(calls) > 1 else arguments | {"value": arguments["key"]}
        return function(**late)

    return program


def compiled(backend: CompilingBackend) -> Compiled:
    return Compiled(backend.implementations()[0], "once")


def judged(implementation: Implementation, *pairs: tuple[str, str]) -> list[Verdict]:
    return [
        judge(Cell(all_checks()[check], Case.parse(case), implementation, seed=0))
        for check, case in pairs
    ]


@pytest.mark.parametrize("make", [stale_query, cold])
def test_verdicts_are_those_of_the_cell_alone(make: Callable[[Function], Function]) -> None:
    pairs = [
        ("values", CASE), ("values", ALIKE), ("compiled_lengths", CASE), ("compiled_again", CASE),
        ("values", ALIKE), ("compiled_again", CASE), ("values", CASE),
    ]  # fmt: skip
    together = judged(compiled(CompilingBackend(make)), *pairs)
    alone = [judged(compiled(CompilingBackend(make)), one)[0] for one in pairs]
    assert [replace(v, seconds=0) for v in together] == [replace(v, seconds=0) for v in alone]
    assert together[3].status == "fail"


def test_only_the_compiled_have_the_sign_in_their_names() -> None:
    inner = CompilingBackend().implementations()[0]
    with pytest.raises(DeclarationError, match="'once@more' cannot be the name of a compiler"):
        Compiled(inner, "once@more")
    with pytest.raises(DeclarationError, match="cannot be the name of an implementation"):
        type(inner)(inner.backend, "a@b")


@pytest.mark.parametrize(
    "token", [f.option.write(True) for f in FEATURES.values() if f.option and (f.axes or f.outputs)]
)
def test_a_twin_for_rewrites_refuses_what_it_does_not_compute(token: str) -> None:
    pytest.importorskip("torch")
    (twin,) = load("torch").compilers.implementations()
    assert verdict_of(twin, CASE).status == "pass"
    case = Case.parse(f"{CASE}/{token}")
    assert verdict_of(twin, case).status == "unsupported"
