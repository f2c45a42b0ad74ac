"""Promise: no verdict depends on programs of another cell. Programs that are compiled quickly: which
cells have them, that they say the same, and that no verdict depends on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from attention_conformance.backends import registry
from attention_conformance.backends._numpy.backend import NumpyBackend
from attention_conformance.backends.compilers import Compiled
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.deviations.kernels.attention import Kernel
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.records.expectations import Manifest, load_named
from attention_conformance.suite.run.loading import load_backend
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.levels import OPTIMIZED
from tests.miniatures import Miniature, Miniatures
from tests.runtimes import of

PLAIN = "sdpa/none/mha/f32/b2h3q5k7d8"


class Hasty(Miniatures):
    """A backend of which there is a quick one, which computes the same; `is_quick` says which this is.

    `calls` lists, call by call, whether the quick one was called, `wrong` says whose answers are wrong,
    and `act` is done in the first call.
    """

    name = "hasty"

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device, Wrong)
        self.is_quick = False
        self.calls: list[bool] = []
        self.wrong: tuple[bool, ...] = ()
        self.act: Callable[[], object] | None = None

    def quick(self) -> Hasty:
        """The quick backend, which shares the list of calls."""
        backend = Hasty(self.device)
        backend.calls, backend.wrong, backend.act = self.calls, self.wrong, self.act
        backend.is_quick = True
        return backend


class Wrong(Miniature):
    """Wrong in the backends that are to be `wrong`."""

    backend: Any

    def prepare(self, inputs: Inputs) -> PreparedCall:
        plain, backend = super().prepare(inputs), self.backend

        def call(**arguments: Any) -> Any:
            if backend.act is not None and not backend.calls:
                backend.act()
            backend.calls.append(backend.is_quick)
            answer = plain.function(**arguments)
            if backend.is_quick in backend.wrong:
                answer.values[...] += 1
            return answer

        return PreparedCall(call, plain.arguments)


def planned(backend: Backend, manifest: Manifest | None = None, **options: Any) -> Plan:
    """A plan of this backend, as `Plan.make` makes it of one that it loads."""
    asked = Options(backend=(backend.name,), **options)
    loaded = load_backend(backend, asked)
    return Plan(asked, [loaded if manifest is None else replace(loaded, manifest=manifest)], {})


def judged(
    *wrong: bool,
    manifest: Manifest | None = None,
    act: Callable[[], object] | None = None,
    check: Check | None = None,
    **options: Any,
) -> tuple[Verdict, list[bool]]:
    """The verdict of a cell whose answer is wrong where `wrong` says so, and how it was compiled, call by
    call; `act` is done in the first one."""
    backend = Hasty()
    backend.wrong, backend.act = wrong, act
    plan = planned(backend, manifest, **options)
    (implementation,) = plan.implementations
    cell = Cell(check or all_checks()["values"], Case.parse(PLAIN), implementation)
    return judge(cell, plan.policy(cell)), backend.calls


def test_a_wrong_answer_of_quick_programs_is_asked_for_again() -> None:
    verdict, calls = judged(True)
    assert verdict.status == "pass", verdict.message
    assert (calls[0], calls[-1]) == (True, False)


def test_what_is_wrong_both_times_fails_as_it_does_with_all_optimisations() -> None:
    verdict, calls = judged(True, False)
    assert (verdict.status, {*calls}) == ("fail", {True, False})
    verdict, calls = judged(True, False, optimized=True)
    assert (verdict.status, {*calls}) == ("fail", {False})


KNOWN = """
[[expect]]
implementation = ["wrong"]
check = ["values"]
case = ["*"]
kind = "value"
message = ".*"
cause = "a test"
issue = "none found"
versions = ["miniature>=1"]
"""


def test_what_a_manifest_expects_is_asked_for_once_and_what_it_does_not_again(
    tmp_path: Path,
) -> None:
    path = tmp_path / "known.toml"
    path.write_text(KNOWN)
    manifest = Manifest(load_named(path), {"miniature": "1.0"}, "cpu")
    verdict, calls = judged(True, False, manifest=manifest)
    assert (verdict.status, {*calls}) == ("known", {True})
    # Quick programs are right where those of people are wrong: no news.
    verdict, calls = judged(False, manifest=manifest)
    assert (verdict.status, {*calls}) == ("known", {True, False})


def test_what_the_first_run_left_behind_or_what_died_in_it_fails_the_cell(tmp_path: Path) -> None:
    def leave() -> None:
        os.chdir(tmp_path)

    for wrong in ((), (True,)):
        verdict, calls = judged(*wrong, act=leave)
        assert (verdict.status, verdict.kind) == ("fail", "leaked-state"), verdict
        assert (False in calls) == bool(wrong)
    with patch.object(
        leaks, "background_errors", side_effect=[["an object raised ValueError"], []]
    ):
        verdict, calls = judged(True)
    assert (verdict.status, verdict.kind) == ("fail", "raised")
    assert "an object raised ValueError" in verdict.message


@pytest.fixture(scope="module")
def backend() -> Any:
    pytest.importorskip("jax")
    return registry.load("jax")


def test_a_share_of_values_is_compiled_as_people_do(backend: Any) -> None:
    jax_nn, eager = of(backend, "jax-nn"), of(backend, "eager")

    def share(check: Check, implementation: Implementation) -> float:
        cells = list(check.cells("standard", [implementation]))
        return sum(cell.asks_optimized for cell in cells) / len(cells)

    one_of = OPTIMIZED["values"]
    assert 0.5 / one_of < share(all_checks()["values"], jax_nn) < 2 / one_of
    assert share(all_checks()["values"], eager) == share(all_checks()["gradients"], jax_nn) == 0
    case = next(
        cell.case
        for cell in all_checks()["values"].cells("standard", [jax_nn])
        if cell.asks_optimized
    )
    own = Hasty()
    plan = planned(own)
    cell = Cell(all_checks()["values"], case, plan.implementations[0])
    judge(cell, plan.policy(cell))
    assert {*own.calls} == {False}


CASE = "sdpa/none/mha/f32/b2h3q11k9d6"
ALIKE = "sdpa/none/mha/f32/b2h3q11k9d6/large"  # other values

Function = Callable[..., Any]


class CompilingBackend(NumpyBackend):
    """NumPy with a compiler: `make` turns a function into a program, and every one is counted."""

    name = "compiling"
    compilers = ("once",)

    def __init__(self, make: Callable[[Function], Function] = lambda function: function) -> None:
        super().__init__()
        self.make, self.count = make, 0

    def implementations(self) -> list[Implementation]:
        return [Kernel(self)]

    def compiled(self, prepared: PreparedCall, compiler: str, batch: int) -> PreparedCall:
        self.count += 1
        program = self.make(prepared.function)
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


def verdicts_of(implementation: Implementation, *pairs: tuple[str, str]) -> list[Verdict]:
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
    together = verdicts_of(compiled(CompilingBackend(make)), *pairs)
    alone = [verdicts_of(compiled(CompilingBackend(make)), one)[0] for one in pairs]
    assert [replace(v, seconds=0) for v in together] == [replace(v, seconds=0) for v in alone]
    assert together[3].status == "fail"
