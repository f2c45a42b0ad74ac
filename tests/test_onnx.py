"""ONNX: models are kept and shared, and each implementation hands over what it says."""

from __future__ import annotations

from typing import Any

import pytest

from attention_conformance.backends import registry
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
