"""ONNX: what is recorded of a call is the call, models are kept and shared, and each implementation hands
over what it says."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.protocol import PreparedCall
from attention_conformance.backends.threads import threads_asked
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs, draw
from tests.runtimes import of

onnx = pytest.importorskip("onnx")

PLAIN = "sdpa/none/mha/f32/b2h3q5k7d8"


@pytest.fixture(scope="module", params=["onnxruntime", "onnx-reference"])
def backend(request: pytest.FixtureRequest) -> Any:
    for module in registry.modules(request.param):
        pytest.importorskip(module)
    return registry.load(request.param)


@pytest.fixture(scope="module")
def runtime() -> Any:
    pytest.importorskip("onnxruntime")
    return registry.load("onnxruntime")


def inputs_of(text: str) -> Inputs:
    return draw(Case.parse(text))


@pytest.fixture
def models(backend: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that are run, in their order."""
    seen: list[Any] = []
    runs = backend.run

    def kept(model: bytes, arrays: Any) -> Any:
        seen.append(onnx.load_model_from_string(model))
        return runs(model, arrays)

    monkeypatch.setattr(backend, "run", kept)
    return seen


def attributes(node: Any) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


# What is recorded.

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
FLAGS = np.array([[True, False, True, True]] * 3)

RECORDED = {
    "sums": (lambda x, y, m: 2 + x - x * 0.25, lambda x, y: 2 + x - x * 0.25),
    "quotients": (lambda x, y, m: 1 / (x * x + 1), lambda x, y: 1 / (x * x + 1)),
    "order": (lambda x, y, m: 1 - x / 2, lambda x, y: 1 - x / 2),
    "arrays": (lambda x, y, m: X - x * np.float32(2), lambda x, y: X - x * np.float32(2)),
    "product": (lambda x, y, m: x @ y, lambda x, y: x @ y),
    "slices": (lambda x, y, m: x[..., 1:], lambda x, y: x[..., 1:]),
    "one": (lambda x, y, m: x[:, 1], lambda x, y: x[:, 1]),
    "steps": (lambda x, y, m: x[:, ::2], lambda x, y: x[:, ::2]),
    "reshaped": (lambda x, y, m: x.reshape((2, -1, 2)), lambda x, y: x.reshape((2, -1, 2))),
    "turned": (lambda x, y, m: x.transpose((2, 0, 1)), lambda x, y: x.transpose((2, 0, 1))),
    "repeated": (lambda x, y, m: x.repeated(2, 1), lambda x, y: x.repeat(2, 1)),
    "total": (lambda x, y, m: x.reduced("ReduceSum", -1), lambda x, y: x.sum(-1)),
    "chosen": (lambda x, y, m: x.where(m, -np.inf), lambda x, y: np.where(FLAGS, x, -np.inf)),
    "compared": (lambda x, y, m: (x == x).cast(np.float32), lambda x, y: np.ones_like(x)),
    "wide": (lambda x, y, m: x.cast(np.float64) * 0.1, lambda x, y: x.astype(np.float64) * 0.1),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_function_is_the_function(backend: Any, name: str) -> None:
    """Its shape, too, is what the symbol said it would be."""
    build, by_numpy = RECORDED[name]
    shapes: list[tuple[int, ...]] = []

    def call(x: Any, y: Any, mask: Any) -> Any:
        symbol = build(x, y, mask)
        shapes.append(symbol.shape)
        return symbol

    got = backend.recorded(PreparedCall(call, {"x": X, "y": Y, "mask": FLAGS}))()
    want = by_numpy(X, Y)
    assert got.dtype == want.dtype
    assert got.shape == shapes[0] == want.shape
    finite = np.isfinite(want)
    assert np.array_equal(np.isfinite(got), finite)
    assert (np.abs(got[finite] - want[finite]) < 1e-6).all()


def test_what_does_not_fit_is_not_recorded(backend: Any) -> None:
    for build in (lambda x: x.reshape((5, 5)), lambda x: (x @ x).reshape((1,))):
        with pytest.raises(ValueError, match=r"has no shape|a product of"):
            backend.recorded(PreparedCall(build, {"x": X}))()
    with pytest.raises(TypeError, match="of Abs_0_0 is not known"):
        backend.recorded(PreparedCall(lambda x: x.graph.add("Abs", x)[..., 1:], {"x": X}))()


# Arrays and models.


def test_sizes_are_open_and_equal_models_are_kept_once(runtime: Any) -> None:
    implementation = of(runtime, "attention-24")
    runtime._sessions.clear()
    for text in (PLAIN, "sdpa/none/mha/f32/b1h2q9k3d16", "sdpa/none/gqa2/f32/b2h4q5k7d8"):
        implementation.prepare(inputs_of(text))()
    assert len(runtime._sessions) == 1
    implementation.prepare(inputs_of("sdpa/causal/mha/f32/b2h3q5k7d8"))()
    assert len(runtime._sessions) == 2


def test_threads_are_those_of_the_session(runtime: Any) -> None:
    runtime._sessions.clear()
    prepared = of(runtime, "eager").prepare(inputs_of(PLAIN))
    before = runtime.thread_count
    with runtime.profiler.threads(before + 1):
        prepared()
    prepared()
    assert runtime.thread_count == before
    counts = [s.get_session_options().intra_op_num_threads for s in runtime._sessions]
    assert counts == [before + 1, before]


@pytest.mark.parametrize(
    ("text", "count"), [(None, 1), ("", 1), ("3", 3), ("2,1", 2), ("0", 1), ("all", 1)]
)
def test_the_number_of_threads_that_is_asked_for(
    text: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if text is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert threads_asked() == count


# Implementations.


def test_what_has_an_argument_of_its_own_is_passed_by_it(backend: Any, models: list[Any]) -> None:
    window = {"left_window_size": 2, "right_window_size": -1}
    calls = (
        ("attention-23", "sdpa/causal/mha/f32/b2h3q5k7d8", {"is_causal": 1}, 3),
        ("attention-23", f"{PLAIN}/scale0.25/cap2.0", {"scale": 0.25, "softcap": 2.0}, 3),
        ("attention-24", "sdpa/pad/mha/f32/b2h3q5k7d8", {}, 7),
        ("attention-24-cache", "sdpa/causalbr/mha/f32/b2h3q5k7d8", {"is_causal": 1}, 6),
        ("attention-25", "sdpa/win2.x/mha/f32/b2h3q5k7d8", window, 3),
        ("attention-24-packed", PLAIN, {"q_num_heads": 3, "kv_num_heads": 3}, 3),
    )  # fmt: skip
    for name, text, said, inputs in calls:
        of(backend, name).prepare(inputs_of(text))()
        (node,) = (n for n in models[-1].graph.node if n.op_type == "Attention")
        assert (attributes(node), len(node.input)) == (said, inputs), name
        onnx.checker.check_model(models[-1])
        (version,) = (o.version for o in models[-1].opset_import if not o.domain)
        assert name.startswith(f"attention-{version}")


def test_a_mask_of_one_key_is_written_out(backend: Any) -> None:
    """The standard fills a mask that is shorter than the keys with what hides."""
    inputs = inputs_of("sdpa/bool.bhq1.empty/mha/f32/b2h3q5k7d8/dense")
    small = of(backend, "attention-23").prepare(inputs).arguments["mask"]
    full = of(backend, "attention-24").prepare(inputs).arguments["mask"]
    assert small.shape == full.shape == (2, 3, 5, 7)
    padded = inputs_of("sdpa/padleft/mha/f32/b2h3q5k7d8")
    shapes = {
        name: of(backend, name).prepare(padded).arguments["mask"].shape
        for name in ("attention-23", "attention-24")
    }
    assert shapes == {"attention-23": (2, 1, 1, 7), "attention-24": (2, 1, 5, 7)}


def test_textbook_code_is_asked_every_dtype_where_a_runtime_rewrites_it(runtime: Any) -> None:
    """In frameworks it comes a level later in all dtypes but float32."""
    layers = [i for i in runtime.implementations() if i.textbook]
    assert layers
    assert not any(layer.later for layer in layers)
    one = layers[0]
    with patch.object(one.backend.compilers, "runs_models", False):
        assert one.later == {"f64", "bf16", "f16", "variations"}


def test_smoke_asks_textbook_code_of_a_framework_for_one_answer_to_a_case(runtime: Any) -> None:
    """Variations of its cases come at standard; a runtime that rewrites it is asked them at smoke."""
    one = of(runtime, "packed-heads")

    def checks(level: str) -> dict[str, bool]:
        """Whether answers from files would do, of the checks that ask a cell."""
        return {
            c.name: c.single_answer for c in all_checks().values() if any(c.cells(level, [one]))
        }

    standard = checks("standard")
    assert {name: standard[name] for name in ("values", "contract", "poison")} == {
        "values": True,
        "contract": False,
        "poison": False,
    }
    assert not all(checks("smoke").values())
    with patch.object(one.backend.compilers, "runs_models", False):
        assert checks("standard") == standard
        smoke = checks("smoke")
    assert "values" in smoke
    assert all(smoke.values())
