"""OpenVINO: models have the sizes and numbers of a call, and no verdict depends on an earlier one."""

from __future__ import annotations

from typing import Any

import pytest

from attention_conformance.backends import registry
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import draw
from tests.runtimes import judged, of

pytest.importorskip("openvino")

PLAIN = "sdpa/none/mha/f32/b2h3q17k23d8"


@pytest.fixture(scope="module")
def backend() -> Any:
    return registry.load("openvino")


@pytest.fixture
def models(backend: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that are compiled, in their order."""
    seen: list[Any] = []
    compiled = backend.compiled_model

    def kept(model: Any, **config: Any) -> Any:
        seen.append(model)
        return compiled(model, **config)

    monkeypatch.setattr(backend, "compiled_model", kept)
    backend._models.clear()
    backend._requests.clear()
    return seen


@pytest.mark.parametrize(
    "text",
    [
        "cached/none/gqa2/bf16/b2h4q9k9d8/c5.1.3",
        "cached/none/gqa2/f16/b2h4q9k9d8/c5.back2.1.3/bias.1hqk",
        "cached/none/gqa2/f32/b3h4q9k9d8/c5.pick210.1.3/sinks",
        "cached/none/gqa2/bf16/b2h4q9k9d8/c3.tree1121.keep3.2",
        "cached/none/mqa/f32/b2h4q9k9d8v6/c5.1.3",
    ],
)
def test_a_model_keeps_the_tokens_of_a_request(backend: Any, models: list[Any], text: str) -> None:
    verdict = judged(backend, "sdpa-stateful", text)
    assert verdict.status == "pass", verdict.message
    (model,) = models
    compiled = backend.compiled_model(model)
    names = {node.get_rt_info()["layerType"] for node in compiled.get_runtime_model().get_ops()}
    assert "ScaledDotProductAttention" in {str(name.astype(str)) for name in names}


def test_a_state_holds_keys_in_their_dtype(backend: Any) -> None:
    """By default the plugin stores 8 bits."""
    case = Case.parse("cached/none/mha/f32/b2h4q9k9d8/c5.1.3")
    inputs = draw(case)
    stateful = of(backend, "sdpa-stateful")
    state = stateful.init(inputs, backend.array(inputs.key, case.dtype))
    compiled = state.request.get_compiled_model()
    assert compiled.get_property("KV_CACHE_PRECISION") == backend.openvino.Type.f32


def test_what_a_model_fixes(backend: Any, models: list[Any]) -> None:
    shapes = (("sdpa", "[?,3,?,8]"), ("sdpa-fixed", "[2,3,17,8]"))
    for name, shape in shapes:
        prepared = of(backend, name).prepare(draw(Case.parse(PLAIN)))
        prepared(), prepared()
        assert str(models[-1].input(0).partial_shape) == shape
    assert len(models) == 2


def test_a_call_of_other_lengths_is_another_model(backend: Any, models: list[Any]) -> None:
    """What a model keeps of a call with one key spoils later ones."""
    for text in ("sdpa/none/mha/f32/b2h3q17k1d8", PLAIN):
        assert judged(backend, "sdpa", text).status == "pass"
    assert len(models) == 2
    verdict = judged(backend, "sdpa", PLAIN, "paths")
    assert (verdict.kind, "after a call with one key" in verdict.message) == ("value", True)


def test_threads_are_those_of_the_model(backend: Any, models: list[Any]) -> None:
    prepared = of(backend, "sdpa").prepare(draw(Case.parse(PLAIN)))
    with backend.profiler.threads(backend.thread_count + 1):
        prepared()
    prepared()
    counts = [
        request.get_compiled_model().get_property("INFERENCE_NUM_THREADS")
        for request in backend._requests
    ]
    assert counts == [backend.thread_count + 1, backend.thread_count]
