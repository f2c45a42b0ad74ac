"""Promise: libraries are called as their adapters say, and who makes an ALiBi is given none. Runtimes of
models: ONNX's models are kept and shared, and each implementation hands over what it says; what
torch's exporter makes of a call is what ONNX Runtime answers; OpenVINO's models have the sizes and
numbers of a call, and no verdict depends on an earlier one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.recipes import alibi_slopes
from tests.runtimes import judged, loaded, of, verdict_of

NUMBERED = "sdpa/none/mha/f32/b1h12q5k24d8/bias.alibikeys"
ROTATION = "rotary/none/mha/f32/b2h3q17k1d16"
LAYER = "multi-head/pad/mha/f32/b2h2q5k9d6/e12.10.14.12"
MAKERS = {
    "bloom-alibi": "transformers", "falcon-alibi": "transformers", "mpt-alibi": "transformers",
    "alibi-bias": "keras-hub",
}  # fmt: skip


def library(backend: str, name: str) -> Implementation:
    """An implementation of a library; the test is skipped where it cannot be loaded in this process."""
    return of(loaded(backend), name)


def by_the_authors(heads: int) -> list[float]:
    """The slopes as the authors' code says them, number by number."""
    powers = [1]
    while 2 * powers[-1] <= heads:
        powers.append(2 * powers[-1])
    below = powers[-1]
    first = [2.0 ** (-8 * i / below) for i in range(1, below + 1)]
    every = [2.0 ** (-8 * i / (2 * below)) for i in range(1, 2 * below + 1)]
    return [*first, *every[::2]][:heads]


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 8, 12, 16])
def test_slopes_of_every_number_of_heads(heads: int) -> None:
    slopes = alibi_slopes(heads)
    assert slopes.shape == (heads,)
    assert slopes == pytest.approx(by_the_authors(heads), rel=1e-15)
    inputs = draw(Case.parse(f"sdpa/none/mha/f64/b1h{heads}q2k9d4/bias.alibikeys"))
    assert inputs.bias is not None
    assert inputs.bias.shape == (1, heads, 1, 9)
    assert np.array_equal(inputs.bias[0, :, 0, -2], -slopes)
    assert (inputs.bias[..., -1] == 0).all()


@pytest.mark.parametrize("name", MAKERS)
def test_who_makes_a_bias_is_given_none(name: str) -> None:
    maker = library(MAKERS[name], name)
    inputs = draw(Case.parse(NUMBERED))
    prepared = maker.prepare(inputs)
    assert "bias" not in prepared.arguments
    assert prepared.constants is None
    backend = maker.backend
    answer = backend.to_numpy(prepared())
    other = maker.prepare(inputs.replace(bias=np.zeros((1, 12, 1, 24))))
    assert np.array_equal(backend.to_numpy(other()), answer)
    plain = maker.prepare(inputs.replace(bias=None))
    assert not np.array_equal(backend.to_numpy(plain()), answer)
    for text in ("sdpa/none/mha/f32/b2h3q17k23d8", "sdpa/none/mha/f32/b2h3q17k23d8/bias.alibi"):
        assert "numbered keys" in str(maker.unsupported(Case.parse(text)))
    assert maker.unsupported(inputs.case) is None


def test_two_bases_share_a_table_whatever_was_asked_before() -> None:
    rotary = library("equinox", "rotary")
    for before in (f"{ROTATION}/at4097", f"{ROTATION}/base500000.0"):
        assert verdict_of(rotary, before).status == "pass"
        verdict = verdict_of(rotary, ROTATION, "stateless")
        assert (verdict.status, verdict.kind) == ("fail", "stale")


def test_equinox_maps_over_masks() -> None:
    layer = library("equinox", "multi-head")
    paths = layer.paths(draw(Case.parse(LAYER)))
    assert {"operation by operation", "mask of every head", "inference in the call"} == {*paths}
    assert paths["mask of every head"].arguments["mask"].shape == (2, 2, 5, 9)


def test_a_statistic_that_an_optimizer_would_train_is_the_layers_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    norm = library("tf", "keras-batch-norm")
    import keras

    build = keras.layers.BatchNormalization.build

    def trained(self: Any, shape: Any) -> None:
        build(self, shape)
        self.moving_mean.trainable = True

    text = "batch-norm/none/mha/f32/b4h1q4k4d4/e4.4.4.4/plain/self/train"
    assert verdict_of(norm, text, "gradients").status == "pass"
    monkeypatch.setattr(keras.layers.BatchNormalization, "build", trained)
    verdict = verdict_of(norm, text, "gradients")
    assert (verdict.status, verdict.kind) == ("fail", "raised")
    assert "mean: an optimizer would change these statistics" in verdict.message


def test_flex_attention_behind_a_cache_is_not_compiled() -> None:
    cache = library("transformers", "dynamic-cache-flex")
    counters = pytest.importorskip("torch._dynamo.utils").counters
    before = counters["frames"]["total"]
    for more in ("win3/cap2.0", "bias.1hqk", "pad5.0.12/bias.bhqk"):
        text = "b3h2q8k20d8/c1.5.1.1" if "pad" in more else "b2h4q9k9d8/c5.1.3"
        heads = "mha" if "pad" in more else "gqa2"
        verdict = verdict_of(cache, f"cached/none/{heads}/f32/{text}/{more}")
        assert verdict.status == "pass", verdict.message
    assert counters["frames"]["total"] == before


SMALL = "sdpa/none/mha/f32/b2h3q5k7d8"


@pytest.fixture(scope="module", params=["onnxruntime", "onnx-reference"])
def backend(request: pytest.FixtureRequest) -> Any:
    return loaded(request.param)


@pytest.fixture(scope="module")
def runtime() -> Any:
    return loaded("onnxruntime")


def inputs_of(text: str) -> Inputs:
    return draw(Case.parse(text))


@pytest.fixture
def models(backend: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that are run, in their order."""
    onnx, seen = pytest.importorskip("onnx"), list[Any]()
    runs = backend.run

    def kept(model: bytes, arrays: Any) -> Any:
        seen.append(onnx.load_model_from_string(model))
        return runs(model, arrays)

    monkeypatch.setattr(backend, "run", kept)
    return seen


def attributes(node: Any) -> dict[str, Any]:
    import onnx

    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def test_sizes_are_open_and_equal_models_are_kept_once(runtime: Any) -> None:
    implementation = of(runtime, "attention-24")
    runtime._sessions.clear()
    for text in (SMALL, "sdpa/none/mha/f32/b1h2q9k3d16", "sdpa/none/gqa2/f32/b2h4q5k7d8"):
        implementation.prepare(inputs_of(text))()
    assert len(runtime._sessions) == 1
    implementation.prepare(inputs_of("sdpa/causal/mha/f32/b2h3q5k7d8"))()
    assert len(runtime._sessions) == 2


def test_threads_are_those_of_the_session(runtime: Any) -> None:
    runtime._sessions.clear()
    prepared = of(runtime, "eager").prepare(inputs_of(SMALL))
    before = runtime.thread_count
    with runtime.threads(before + 1):
        prepared()
    prepared()
    assert runtime.thread_count == before
    counts = [s.get_session_options().intra_op_num_threads for s in runtime._sessions]
    assert counts == [before + 1, before]


def test_what_has_an_argument_of_its_own_is_passed_by_it(backend: Any, models: list[Any]) -> None:
    import onnx

    window = {"left_window_size": 2, "right_window_size": -1}
    calls = (
        ("attention-23", "sdpa/causal/mha/f32/b2h3q5k7d8", {"is_causal": 1}, 3),
        ("attention-23", f"{SMALL}/scale0.25/cap2.0", {"scale": 0.25, "softcap": 2.0}, 3),
        ("attention-24", "sdpa/pad/mha/f32/b2h3q5k7d8", {}, 7),
        ("attention-24-cache", "sdpa/causalbr/mha/f32/b2h3q5k7d8", {"is_causal": 1}, 6),
        ("attention-25", "sdpa/win2.x/mha/f32/b2h3q5k7d8", window, 3),
        ("attention-24-packed", SMALL, {"q_num_heads": 3, "kv_num_heads": 3}, 3),
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


def exported(name: str, compiler: str, case: str) -> tuple[np.ndarray, np.ndarray]:
    """The answer of an implementation, and that of the model that is exported of its call."""
    for module in ("torch", "onnxscript", "onnxruntime"):
        pytest.importorskip(module)
    chosen = of(registry.load("torch"), name)
    backend, prepared = chosen.backend, chosen.prepare(draw(Case.parse(case)))
    model = backend.compiled(prepared, compiler, 2)
    return backend.to_numpy(prepared()), backend.to_numpy(model())


@pytest.mark.parametrize("compiler", ["onnx", "onnx-23"])
@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_a_model_answers_as_the_call_does(name: str, compiler: str) -> None:
    call, model = exported(name, compiler, "sdpa/bool.bhqk/mha/f32/b2h3q5k7d8/scale0.3/dense")
    assert np.abs(model - call).max() < 1e-5
    assert np.abs(call).max() > 0.1


def test_a_model_of_opset_23_has_the_operator_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    onnx, onnxruntime = (pytest.importorskip(name) for name in ("onnx", "onnxruntime"))
    models: list[Any] = []
    session = onnxruntime.InferenceSession

    def seen(model: bytes, *rest: Any, **more: Any) -> Any:
        models.append(onnx.load_model_from_string(model))
        return session(model, *rest, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", seen)
    exported("sdpa", "onnx-23", "sdpa/causal/mha/f32/b2h3q5k5d8")
    assert [o.version for o in models[0].opset_import if o.domain == ""] == [23]
    assert "Attention" in {node.op_type for node in models[0].graph.node}


PLAIN = "sdpa/none/mha/f32/b2h3q17k23d8"


@pytest.fixture(scope="module")
def openvino() -> Any:
    return loaded("openvino")


@pytest.fixture
def compiled_models(openvino: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The compiled_models that are compiled, in their order."""
    seen: list[Any] = []
    compiled = openvino.compiled_model

    def kept(model: Any, **config: Any) -> Any:
        seen.append(model)
        return compiled(model, **config)

    monkeypatch.setattr(openvino, "compiled_model", kept)
    openvino._models.clear()
    openvino._requests.clear()
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
def test_a_model_keeps_the_tokens_of_a_request(
    openvino: Any, compiled_models: list[Any], text: str
) -> None:
    verdict = judged(openvino, "sdpa-stateful", text)
    assert verdict.status == "pass", verdict.message
    (model,) = compiled_models
    compiled = openvino.compiled_model(model)
    names = {node.get_rt_info()["layerType"] for node in compiled.get_runtime_model().get_ops()}
    assert "ScaledDotProductAttention" in {str(name.astype(str)) for name in names}


def test_a_state_holds_keys_in_their_dtype(openvino: Any) -> None:
    """By default the plugin stores 8 bits."""
    case = Case.parse("cached/none/mha/f32/b2h4q9k9d8/c5.1.3")
    inputs = draw(case)
    stateful = of(openvino, "sdpa-stateful")
    state = stateful.init(inputs, openvino.array(inputs.key, case.dtype))
    compiled = state.request.get_compiled_model()
    assert compiled.get_property("KV_CACHE_PRECISION") == openvino.openvino.Type.f32


def test_what_a_model_fixes(openvino: Any, compiled_models: list[Any]) -> None:
    shapes = (("sdpa", "[?,3,?,8]"), ("sdpa-fixed", "[2,3,17,8]"))
    for name, shape in shapes:
        prepared = of(openvino, name).prepare(draw(Case.parse(PLAIN)))
        prepared(), prepared()
        assert str(compiled_models[-1].input(0).partial_shape) == shape
    assert len(compiled_models) == 2


def test_a_call_of_other_lengths_is_another_model(
    openvino: Any, compiled_models: list[Any]
) -> None:
    """What a model keeps of a call with one key spoils later ones."""
    for text in ("sdpa/none/mha/f32/b2h3q17k1d8", PLAIN):
        assert judged(openvino, "sdpa", text).status == "pass"
    assert len(compiled_models) == 2
    verdict = judged(openvino, "sdpa", PLAIN, "paths")
    assert (verdict.kind, "after a call with one key" in verdict.message) == ("value", True)


def test_threads_are_those_of_the_model(openvino: Any, compiled_models: list[Any]) -> None:
    prepared = of(openvino, "sdpa").prepare(draw(Case.parse(PLAIN)))
    with openvino.threads(openvino.thread_count + 1):
        prepared()
    prepared()
    counts = [
        request.get_compiled_model().get_property("INFERENCE_NUM_THREADS")
        for request in openvino._requests
    ]
    assert counts == [openvino.thread_count + 1, openvino.thread_count]
