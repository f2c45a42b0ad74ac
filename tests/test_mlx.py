"""MLX: values cross exactly, flags and gradients are those of its functions, rotations have an offset."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from attention_conformance.backends import registry
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import draw
from tests.runtimes import crossed, judged, of

pytest.importorskip("mlx")

NEEDS_LM = pytest.mark.skipif(find_spec("mlx_lm") is None, reason="needs mlx-lm")
RING = "cached/none/mha/f32/b3h2q8k20d8/c1.5.1.1/win3/room8"


def of_lm(name: str, text: str, check: str = "values") -> Any:
    """A row of a parametrized test that needs mlx-lm."""
    return pytest.param(name, text, check, marks=NEEDS_LM)


@pytest.fixture(scope="module")
def backend() -> Any:
    return registry.load("mlx")


@pytest.mark.parametrize("name", DTYPES)
def test_values_cross_exactly(backend: Any, name: str) -> None:
    crossed(backend, name)
    assert backend.to_numpy(backend.array(np.array([True, False]), None)).dtype == bool


@pytest.mark.parametrize(
    ("name", "text", "check"),
    [
        ("fast-attention", "sdpa/causalbr/gqa2/f32/b2h4q5k7d8v6", "values"),
        ("fast-attention", "sdpa/causal/mha/bf16/b2h3q7k7d8/sinks", "values"),
        ("fast-attention", "sdpa/pad/mqa/f16/b2h4q5k7d8/bias.1hqk", "values"),
        ("fast-attention", "sdpa/bool.b1qk/gqa2/f32/b2h4q5k7d8/scale0.3/dense", "gradients"),
        ("fast-attention", "sdpa/none/mha/bf16/b2h3q5k7d8/bias.bhqk", "gradients"),
        ("fast-rope", "rotary/none/mha/f32/b2h3q17k1d16/interleaved/at4097", "values"),
        ("fast-rope", "rotary/none/mha/f32/b2h3q17k1d16/rot8/linear", "values"),
        ("fast-rope", "rotary/none/mha/f32/b2h3q17k1d16", "gradients"),
        of_lm("lm-kv-cache", RING),
        of_lm("lm-rotating-cache", RING),
        of_lm("lm-batch-rotating-cache", RING),
        of_lm("lm-chunked-cache", RING),
        of_lm("lm-quantized-cache", "cached/none/gqa4/f32/b2h8q3k130d64/c1.2"),
        of_lm("lm-deepseek-v3", "latent/causalbr/mha/f32/b2h3q4k9d8v6"),
        of_lm("lm-deepseek-v3", "latent/pad/mha/bf16/b3h4q1k9d8v6"),
        of_lm("lm-deepseek-v3", "latent/causalbr/mha/f32/b2h3q4k9d8v6", "gradients"),
    ],
)
def test_implementations_are_right(backend: Any, name: str, text: str, check: str) -> None:
    verdict = judged(backend, name, text, check)
    assert verdict.status == "pass", verdict.message


def test_the_word_causal_stands_for_one_mask(backend: Any) -> None:
    """It is bottom-right, and takes the place of every other mask."""
    masks = {
        "sdpa/causalbr/mha/f32/b2h3q5k7d8": "causal",
        "sdpa/causal/mha/f32/b2h3q7k7d8": "causal",
        "sdpa/causal/mha/f32/b2h3q5k7d8": (5, 7),
        "sdpa/causalbr/mha/f32/b2h3q5k7d8/dense": (5, 7),
        "sdpa/causalbr+pad/mha/f32/b2h3q5k7d8": (2, 1, 5, 7),
        "sdpa/causalbr/mha/f32/b2h3q5k7d8/bias.1hqk": (1, 3, 5, 7),
    }
    for text, want in masks.items():
        mask = of(backend, "fast-attention").prepare(draw(Case.parse(text))).arguments["mask"]
        assert (mask if isinstance(mask, str) else tuple(mask.shape)) == want, text


def test_what_cannot_be_said_is_refused(backend: Any) -> None:
    refusals = (
        ("fast-attention", "sdpa/none/mha/f32/b2h3q5k7d8/cap2.0", "no softcap"),
        ("fast-attention", "sdpa/none/mha/f32/b2h3q5k7d8/lse", "does not declare lse"),
        ("fast-rope", "rotary/none/mha/f32/b2h3q17k1d16/yarn", "only linear"),
        ("fast-rope", "rotary/none/mha/f32/b2h3q17k1d16/gathered", "from an offset"),
    )
    for name, text, reason in refusals:
        assert reason in (of(backend, name).unsupported(Case.parse(text)) or ""), text


@NEEDS_LM
def test_a_full_ring_of_mlx_lm_refuses_to_go_back(backend: Any) -> None:
    ring = of(backend, "lm-rotating-cache")
    back = Case.parse("cached/none/mha/f32/b3h2q8k20d8/c1.5.reset.1.1/win3/room8")
    assert "cannot be trimmed" in str(ring.unsupported(back))


@NEEDS_LM
def test_a_chunked_cache_holds_its_window_alone(backend: Any) -> None:
    from mlx_lm.models.cache import ChunkedKVCache

    cut, kept = list[int](), ChunkedKVCache.update_and_fetch

    def update(cache: Any, keys: Any, values: Any) -> Any:
        cut.append(cache.start_position)
        return kept(cache, keys, values)

    with patch.object(ChunkedKVCache, "update_and_fetch", update):
        prepared = of(backend, "lm-chunked-cache").prepare(draw(Case.parse(RING)))
        prepared.function(**prepared.arguments)
    assert cut == [0, 8, 9, 14, 15]  # 12, 13, 18 and 19 tokens, of which four stay
