"""JAX's programs: one a call, shared by calls that differ in nothing a program depends on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.implementation import as_in_programs
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend
from attention_conformance.backends.user.function import UserFunction
from attention_conformance.backends.user.layer import UserLayer
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs, draw, draw_cotangent
from attention_conformance.suite.spec.vocabulary import LEVELS
from tests.processes import run
from tests.runtimes import of

pytest.importorskip("jax")

ROOT = Path(__file__).resolve().parents[1]
PLAIN = "sdpa/none/mha/f32/b2h3q5k7d8"
LAYER = "multi-head/none/mha/f32/b2h4q7k7d3/e12.12.12.12/self"


@pytest.fixture(scope="module")
def backend() -> Backend:
    return registry.load("jax")


class Counted:
    """How many programs XLA compiles within a `with` block."""

    def __init__(self) -> None:
        from attention_conformance.backends._jax.profiler import Compilations

        self.all = Compilations()

    def __enter__(self) -> Counted:
        self.before = self.all.programs
        return self

    def __exit__(self, *_: object) -> None:
        self.programs = self.all.programs - self.before


@pytest.fixture(scope="module")
def counted() -> Counted:
    return Counted()


def inputs_of(text: str, seed: int = 0) -> Inputs:
    return draw(Case.parse(text), seed)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("eager", PLAIN),
        ("jax-nn", "sdpa/causal/gqa2/f32/b2h4q5k7d8"),
        ("packed-heads", LAYER),
        ("flax-nnx", LAYER),
        ("flax-linen", LAYER),
        ("flax-batch-norm", "batch-norm/none/mha/f32/b4h1q3k3d8/e8.8.8.8/self"),
    ],
)
def test_a_call_is_one_program_that_other_values_share(
    backend: Backend, counted: Counted, name: str, text: str
) -> None:
    if name.startswith("flax"):
        pytest.importorskip("flax")
    with counted:
        first = of(backend, name).prepare(inputs_of(text))()
    assert counted.programs == 1
    with counted:
        second = of(backend, name).prepare(inputs_of(text, seed=1))()
    assert counted.programs == 0
    one, other = (x[0] if isinstance(x, tuple) else x for x in (first, second))
    assert not np.array_equal(np.asarray(one), np.asarray(other))


def test_gradients_and_tangents_are_one_program_each(backend: Backend, counted: Counted) -> None:
    inputs = inputs_of(PLAIN)
    prepared = of(backend, "eager").prepare(inputs)
    cotangent = backend.array(draw_cotangent(inputs.case, 0), inputs.dtype)
    with counted:
        _, gradients = backend.vjp(prepared, ("query", "key", "value"), cotangent)
    assert (counted.programs, list(gradients)) == (1, ["query", "key", "value"])
    with counted:
        backend.jvp(prepared, {"query": backend.array(inputs.query, inputs.dtype)})
    assert counted.programs == 1


@pytest.mark.parametrize("scales", [(0.0, -0.0), (0.3, 0.4)])
def test_what_a_program_hangs_on_has_a_program_of_its_own(
    backend: Backend, counted: Counted, scales: tuple[float, float]
) -> None:
    inputs = inputs_of("sdpa/none/mha/f32/b2h3q6k7d8/scale0.5")
    eager = of(backend, "eager")
    for scale in scales:
        prepared = eager.prepare(inputs.replace(scale=scale))
        with counted:
            prepared()
        assert counted.programs == 1


def double(query: Any, flag: Any) -> Any:
    return query * 2.0 if flag is True else query


def test_numbers_and_flags_of_equal_value_are_told_apart(backend: Any) -> None:
    """1 == True, and both are hashed alike."""
    query = backend.array(np.ones((2, 3)), inputs_of(PLAIN).dtype)
    eager = of(backend, "jax-nn")
    answers = []
    for flag in (True, 1):
        plain = PreparedCall(double, {"query": query, "flag": flag}, constants=("double",))
        answers.append(float(backend.jitted(eager, plain)()[0, 0]))
    assert answers == [2.0, 1.0]
    with pytest.raises(ValueError, match="names no constants"):
        backend.jitted(eager, replace(plain, constants=None))


def test_one_array_under_several_names_is_one_argument(backend: Backend) -> None:
    """Its gradient is what it receives as all of them, and its tangent moves all of them."""
    inputs = inputs_of(LAYER.replace("f32", "f64"))
    layer = of(backend, "packed-heads")
    own = layer.prepare(inputs)
    apart = layer.prepare(inputs.replace(self_attention=False))
    cotangent = backend.array(draw_cotangent(inputs.case, 0), inputs.dtype)
    _, whole = backend.vjp(own, ["query"], cotangent)
    _, thirds = backend.vjp(apart, ["query", "key", "value"], cotangent)
    total = sum(backend.to_numpy(thirds[name]) for name in ("query", "key", "value"))
    assert np.abs(backend.to_numpy(whole["query"]) - total).max() < 1e-12
    tangent = backend.array(inputs.key[::-1].copy(), inputs.dtype)
    moved = backend.jvp(own, {"query": tangent})
    parts = backend.jvp(apart, dict.fromkeys(("query", "key", "value"), tangent))
    assert np.abs(backend.to_numpy(moved) - backend.to_numpy(parts)).max() < 1e-12


def programs(*words: str, level: str = "smoke", minutes: int = 25) -> tuple[int, int]:
    """How many programs a green run of a level asks of XLA, and how many cells pass."""
    asked = ("suite", "-p", "tests.programs", "--backend=jax", f"--level={level}", *words)
    out = run(*asked, timeout=60 * minutes)
    assert out.returncode == 0, out.stdout[-3000:]
    count, passed = (
        int(re.findall(pattern, out.stdout)[0]) for pattern in (r"programs: (\d+)", r"(\d+) passed")
    )
    return count, passed


def test_a_call_is_one_program() -> None:
    """What the suite itself computes with JAX, arrays and casts, compiles nothing for a case. One program
    tries which options XLA has."""
    count, passed = programs("--implementation=eager", "--dtype=f32", "-k", "test_values")
    assert 0 < count <= passed + 1


@pytest.mark.slow
def test_smoke_has_a_budget_of_programs() -> None:
    """Programs are nearly all the time of JAX. Those that are found in the cache count, too."""
    count, _ = programs()
    assert 0 < count <= 800


@pytest.mark.slow
def test_standard_has_a_budget_of_programs() -> None:
    """Programs that JAX had to forget, and compiles once more, count again."""
    count, _ = programs(level="standard", minutes=80)
    assert 0 < count <= 4000


def test_functions_see_numbers_of_64_bits_in_float64_alone(backend: Backend) -> None:
    import jax

    seen: list[str] = []

    @jax.custom_vjp
    def attend(query: Any, key: Any, value: Any) -> Any:
        seen.append(str(jax.numpy.arange(2).dtype))
        return query * 1

    def forward(*arrays: Any) -> tuple[Any, Any]:
        return attend(*arrays), arrays

    def backward(arrays: Any, cotangent: Any) -> Any:
        seen.append(str(jax.numpy.arange(2).dtype))
        return (cotangent, *(0 * array for array in arrays[1:]))

    attend.defvjp(forward, backward)
    function, _ = registry.callable_implementation(
        backend, lambda query, key, value: attend(query, key, value), "attend", {}
    )
    for dtype, integers in (("f32", "int32"), ("bf16", "int32"), ("f64", "int64")):
        inputs = draw(Case.parse(f"sdpa/none/mha/{dtype}/b2h3q5k7d8"))
        call, seen[:] = function.prepare(inputs), []
        cotangent = call()
        backend.vjp(call, ["query"], cotangent)
        _, pull = backend.pullback(call, ["query"])
        pull(cotangent)
        step = backend.profiler.step(call, "backward", ["query"])(call.arguments, cotangent)
        step()
        assert {*seen} == {integers}
        assert len(seen) >= 5


@pytest.mark.parametrize("kind", [*registry.OWN.values(), UserFunction, UserLayer])
def test_every_kind_is_asked_as_in_programs(kind: Any) -> None:
    prepare = getattr(kind, "scripted", kind.prepare)
    assert prepare.__code__ is as_in_programs(prepare).__code__


def test_kernels_in_pallas_wait_for_full(backend: Backend) -> None:
    kernel = of(backend, "pallas-gpu-mha")
    values = all_checks()["values"]
    asked = {level: sum(1 for _ in values.cells(level, [kernel])) for level in LEVELS}
    assert asked["smoke"] == asked["standard"] == 0
    assert asked["full"] > 10
    assert backend.compilers.of(kernel) == ()
