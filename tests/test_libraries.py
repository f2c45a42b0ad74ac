"""Promise: libraries are called as their adapters say, and who makes an ALiBi is given none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.protocol import BackendUnavailable, Implementation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.spec.recipes import alibi_slopes
from tests import runtimes
from tests.runtimes import verdict_of

NUMBERED = "sdpa/none/mha/f32/b1h12q5k24d8/bias.alibikeys"
ROTATION = "rotary/none/mha/f32/b2h3q17k1d16"
LAYER = "multi-head/pad/mha/f32/b2h2q5k9d6/e12.10.14.12"
MAKERS = {
    "bloom-alibi": "transformers", "falcon-alibi": "transformers", "mpt-alibi": "transformers",
    "alibi-bias": "keras-hub",
}  # fmt: skip


def of(backend: str, name: str) -> Implementation:
    """An implementation of a library; the test is skipped where it cannot be loaded in this process."""
    for module in registry.modules(backend):
        pytest.importorskip(module)
    try:
        loaded = registry.load(backend)
    except BackendUnavailable as error:
        pytest.skip(str(error))
    return runtimes.of(loaded, name)


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
    maker = of(MAKERS[name], name)
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
    rotary = of("equinox", "rotary")
    for before in (f"{ROTATION}/at4097", f"{ROTATION}/base500000.0"):
        assert verdict_of(rotary, before).status == "pass"
        verdict = verdict_of(rotary, ROTATION, "stateless")
        assert (verdict.status, verdict.kind) == ("fail", "stale")


def test_equinox_maps_over_masks() -> None:
    layer = of("equinox", "multi-head")
    paths = layer.paths(draw(Case.parse(LAYER)))
    assert {"operation by operation", "mask of every head", "inference in the call"} == {*paths}
    assert paths["mask of every head"].arguments["mask"].shape == (2, 2, 5, 9)


def test_a_statistic_that_an_optimizer_would_train_is_the_layers_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    norm = of("tf", "keras-batch-norm")
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
    cache = of("transformers", "dynamic-cache-flex")
    counters = pytest.importorskip("torch._dynamo.utils").counters
    before = counters["frames"]["total"]
    for more in ("win3/cap2.0", "bias.1hqk", "pad5.0.12/bias.bhqk"):
        text = "b3h2q8k20d8/c1.5.1.1" if "pad" in more else "b2h4q9k9d8/c5.1.3"
        heads = "mha" if "pad" in more else "gqa2"
        verdict = verdict_of(cache, f"cached/none/{heads}/f32/{text}/{more}")
        assert verdict.status == "pass", verdict.message
    assert counters["frames"]["total"] == before
