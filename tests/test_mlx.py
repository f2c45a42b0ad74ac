"""MLX: one word is one mask, and a cache that is cut holds its window alone."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import pytest

from attention_conformance.backends import registry
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import draw
from tests.runtimes import of

pytest.importorskip("mlx")

NEEDS_LM = pytest.mark.skipif(find_spec("mlx_lm") is None, reason="needs mlx-lm")
RING = "cached/none/mha/f32/b3h2q8k20d8/c1.5.1.1/win3/room8"


@pytest.fixture(scope="module")
def backend() -> Any:
    return registry.load("mlx")


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
