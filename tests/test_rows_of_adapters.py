"""Promise: adapters do what they declare: values cross exactly, rows are right, refusals say why, and
the faults of the manifests are seen. In MLX one word is one mask, and a cache that is cut holds its
window alone; ExecuTorch's ring is asked with windows."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import find
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import draw
from tests.runtimes import crossed, judged, loaded, of

RING = "cached/none/mha/f32/b3h2q8k20d8/c1.5.1.1/win3/room8"
LARGER = "cached/none/gqa2/f32/b2h4q9k9d8/c3.6/win2/room4"
PLAIN = "sdpa/none/mha/f32/b2h3q5k7d8"
SCATTER = "tensor-scatter-24"
RUNTIMES = ("onnxruntime", "onnx-reference")


def rows(names: Iterable[str], *of_names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Rows of several backends."""
    return [(name, *row) for name in names for row in of_names]


RIGHT = [
    *rows(
        RUNTIMES,
        ("eager", "sdpa/causal/gqa2/f32/b2h4q5k7d8/bias.qk/sinks"),
        ("eager", "sdpa/none/mha/f32/b2h3q17k23d8/lse"),
        ("attention-23", "sdpa/bool.b1qk/gqa2/f32/b2h4q5k7d8v6/cap2.0/dense"),
        ("attention-24", "sdpa/pad/mha/f32/b2h3q5k7d8/scale0.3"),
        ("attention-24", "sdpa/causal+pad/mha/f32/b2h3q5k7d8"),
        ("attention-24-packed", "sdpa/causal/gqa2/f32/b2h4q5k7d8v6/bias.1hqk"),
        ("attention-24-cache", "sdpa/causalbr/gqa2/f32/b2h4q5k7d8v6"),
        ("attention-24-cache", "sdpa/bool.bhq1.empty/mha/f32/b2h3q5k7d8/dense"),
        ("attention-25", "sdpa/win2.1/mha/f32/b2h3q5k7d8"),
        ("attention-24-past", "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3/bias.1hqk"),
        ("attention-24-past", f"{RING}/pad5.0.12/bias.bhqk"),
        (SCATTER, "cached/none/gqa2/f32/b2h4q9k9d8/c5.back2.1.3"),
        (SCATTER, "cached/none/gqa2/f32/b3h4q9k9d8/c5.pick210.1.3/win2"),
        (SCATTER, "cached/none/gqa2/f32/b2h4q9k9d8/c5.tree1121"),
        (SCATTER, "cached/none/mha/f32/b3h2q8k20d8/c1.5of20.5of1.2/win3/room8"),
        (SCATTER, "cached/none/mha/f32/b3h2q8k20d8/c1.5.back2.1.1/win3/room8"),
        (SCATTER, f"{RING}/pad5.0.12/bias.bhqk"),
        ("rotary-embedding", "rotary/none/mha/f32/b2h3q17k1d16/interleaved/at4097"),
        ("rotary-embedding", "rotary/none/mha/f32/b2h3q17k1d16/yarn/at4097"),
        ("rotary-embedding-ids", "rotary/none/mha/f32/b2h3q17k1d16/rot8/gathered"),
        ("rotary-embedding-ids", "rotary/none/mha/f32/b2h3q17k1d16/ntk/at4097"),
        ("packed-heads", "multi-head/causal/gqa3/f32/b2h6q5k5d4/e12.12.12.12/self/head"),
        ("bahdanau", "additive/pad/mha/f32/b2h1q5k9d16v14/e16.16.14.14/identity/head"),
        ("textbook-rotary", "rotary/none/mha/f32/b2h3q17k1d16/llama3/at4097"),
        ("textbook-quantized", "quantized/none/mqa/f32/b3h2q1k23d8v6/perchannel/writes/page4"),
        # ONNX Runtime is handed bfloat16 as values of its own, since it takes no such NumPy array.
        *(
            ("layer-normalization", f"layer-norm/none/mha/{dt}/b4h1q4k4d4/e4.4.4.4/plain/self")
            for dt in DTYPES
        ),
    ),
    *rows(
        ("onnxruntime",),
        ("ms-multi-head", "sdpa/pad/mha/f32/b2h3q5k7d8v6/bias.qk"),
        ("ms-multi-head", "sdpa/causal/mha/f32/b2h3q7k7d8/scale-0.2"),
        ("ms-group-query", "sdpa/causal+win6.x/gqa2/f32/b2h4q9k9d8/sinks"),
        ("ms-group-query", "sdpa/win4.0/gqa2/f16/b2h4q9k9d8/cap2.0"),
        ("ms-group-query", "sdpa/bool.1hqk/gqa2/f32/b2h4q9k9d8/bias.b1qk/dense"),
        ("ms-group-query-cache", "sdpa/causalbr/gqa2/f32/b2h4q3k9d8"),
        ("ms-group-query-cache", "sdpa/padleft/gqa2/f32/b2h4q1k9d8"),
    ),
    *rows(
        ("mlx",),
        ("fast-attention", "sdpa/causalbr/gqa2/f32/b2h4q5k7d8v6"),
        ("fast-attention", "sdpa/causal/mha/bf16/b2h3q7k7d8/sinks"),
        ("fast-attention", "sdpa/pad/mqa/f16/b2h4q5k7d8/bias.1hqk"),
        ("fast-attention", "sdpa/bool.b1qk/gqa2/f32/b2h4q5k7d8/scale0.3/dense", "gradients"),
        ("fast-attention", "sdpa/none/mha/bf16/b2h3q5k7d8/bias.bhqk", "gradients"),
        ("fast-rope", "rotary/none/mha/f32/b2h3q17k1d16/interleaved/at4097"),
        ("fast-rope", "rotary/none/mha/f32/b2h3q17k1d16/rot8/linear"),
        ("fast-rope", "rotary/none/mha/f32/b2h3q17k1d16", "gradients"),
        ("lm-kv-cache", RING),
        ("lm-rotating-cache", RING),
        ("lm-batch-rotating-cache", RING),
        ("lm-chunked-cache", RING),
        ("lm-quantized-cache", "cached/none/gqa4/f32/b2h8q3k130d64/c1.2"),
        ("lm-deepseek-v3", "latent/causalbr/mha/f32/b2h3q4k9d8v6"),
        ("lm-deepseek-v3", "latent/pad/mha/bf16/b3h4q1k9d8v6"),
        ("lm-deepseek-v3", "latent/causalbr/mha/f32/b2h3q4k9d8v6", "gradients"),
    ),
    *rows(
        ("openvino",),
        *(
            (name, text)
            for name in ("sdpa", "sdpa-fixed")
            for text in (
                "sdpa/causal/mqa/f32/b2h4q5k7d8v6",
                "sdpa/bool.b1qk/mha/bf16/b2h3q5k7d8/dense",
                "sdpa/pad/mha/f16/b2h3q5k7d8/bias.1hqk",
                f"{PLAIN}/scale0.3/sinks",
                "sdpa/causal+win6.x/mha/bf16/b2h3q5k7d8/sinks",
                "sdpa/none/mha/f64/b2h3q5k7d8",
            )
        ),
    ),
    *rows(
        ("executorch",),
        ("sdpa-with-kv-cache", "cached/none/gqa2/bf16/b2h4q9k9d8/c5.back2.1.3"),
        ("sdpa-with-kv-cache", "cached/none/gqa2/f32/b3h4q9k9d8/c5.pick210.1.3"),
        ("custom-kv-cache", "cached/none/gqa2/f32/b2h4q9k9d8/c3.tree1121.reset.2"),
        ("custom-kv-cache", LARGER.removesuffix("/room4")),
        ("custom-ring-kv-cache", "cached/none/mha/f32/b3h2q8k20d8/c1.5.back2.1.1/win3/room8"),
        ("custom-ring-kv-cache", "cached/none/mha/bf16/b3h2q8k20d8/c1.5of20.5of1.2/win3/room8"),
        ("quantized-kv-cache", "cached/none/gqa2/f32/b3h4q9k9d8/c5.pick210.1.back1.3"),
        ("quantized-kv-cache", "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3/scale0.3"),
        ("attention-sink-kv-cache", "cached/none/mha/f32/b3h2q8k20d8/c1.5.back2.1.1/win3/room8"),
    ),
    *rows(
        ("jax",),
        ("pallas-gpu-mha", "sdpa/causal/mha/f32/b1h2q32k48d6"),
        ("pallas-gpu-decode", "sdpa/pad/gqa2/f32/b2h4q1k64d8"),
        ("pallas-tpu-splash", "sdpa/causal/gqa2/bf16/b1h4q32k128d64"),
        ("pallas-gpu-paged", "paged/none/gqa2/bf16/b2h4q2k65d16/seg1.1x49.16/page16/causal/cap2.0"),
        ("ragged-reference", "paged/none/gqa2/bf16/b2h4q3k12d8/seg1.2x7.5/causal/win3"),
    ),
    *rows(
        ("torch",),
        *(
            (name, "sdpa/causal/mha/f32/b2h3q16k16d8", check)
            for name in ("ring", "ring-alltoall", "ring-balanced", "ring-balanced-alltoall")
            for check in ("values", "gradients")
        ),
    ),
    *rows(
        ("equinox",),
        ("rotary", "rotary/none/mha/f32/b2h3q17k1d16/at255"),
        ("rotary-jit", "rotary/none/mha/f32/b2h3q17k1d16/at255"),
        ("rotary-float32", "rotary/none/mha/f32/b2h3q17k1d16/at255"),
        ("multi-head", "multi-head/pad/mha/f32/b2h2q5k9d6/e12.10.14.12"),
        ("multi-head", "multi-head/none/mha/f32/b2h4q5k9d3v5/e10.11.13.7"),
    ),
    *rows(
        ("keras-hub",),
        ("rotary", "rotary/none/mha/f32/b2h3q17k1d16/linear/at4097"),
        ("rotary", "rotary/none/mha/f32/b2h3q17k1d16/yarn/at4097"),
    ),
    *rows(
        ("transformers",),
        ("mpt-alibi", "sdpa/none/mha/f32/b1h12q5k24d8/bias.alibikeys"),
        ("llama-eager", "sdpa/causal/gqa2/f32/b2h4q5k7d8/bias.qk"),
        ("sdpa-forward", "sdpa/causal/gqa2/f32/b2h4q5k7d8"),
        ("llama-rotary", "rotary/none/mha/f32/b2h3q17k1d16/yarn/at4097"),
        ("glm-rotary", "rotary/none/mha/f32/b2h3q17k1d16/interleaved/rot8"),
        ("cohere-rotary", "rotary/none/mha/f32/b2h3q17k1d16/interleaved"),
        ("packed-sdpa", "packed/none/gqa2/f32/b3h4q24k24d8/seg5.7.12/causal"),
        ("packed-eager", "packed/none/gqa2/f32/b3h4q24k24d8/seg5.7.12/causal"),
        ("dynamic-cache-sdpa", "cached/none/gqa2/f32/b2h4q9k9d8/c5.back2.1.3"),
        ("dynamic-cache-eager", "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3/win3"),
        ("static-cache-sdpa", "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3"),
        ("deepseek-v3-eager", "latent/causalbr/mha/f32/b2h3q4k9d8v6"),
    ),
]
"""A backend, an implementation, a case that it passes, and the check if that is not `values`."""

TRAINED = "batch-norm/none/mha/f32/b4h1q4k4d4/e4.4.4.4/plain/self/train"

WRONG = (
    ("onnxruntime", "ms-group-query-cache", "sdpa/causalbr+padleft/gqa2/f32/b2h4q17k23d8",
     "values", "non-finite"),
    ("onnxruntime", "ms-group-query", "sdpa/none/mha/f32/b2h3q7k7d8/scale0.0", "values", "value"),
    ("onnxruntime", "attention-23", "sdpa/pad/mha/f32/b2h3q5k7d8", "values", "raised"),
    ("onnxruntime", "batch-normalization", TRAINED, "contract", "mutated-input"),
    ("onnx-reference", "attention-23", "sdpa/causal+pad/mha/f32/b2h3q5k7d8", "values", "value"),
    ("executorch", "custom-ring-kv-cache", LARGER, "values", "value"),
    ("executorch", "attention-sink-kv-cache", LARGER, "values", "value"),
    ("transformers", "falcon-alibi", "sdpa/none/mha/f32/b1h12q5k24d8/bias.alibikeys",
     "values", "value"),
)  # fmt: skip
"""What the manifests speak of: a check fails, with a kind."""

REFUSED = [
    *rows(
        RUNTIMES,
        ("attention-24", "sdpa/none/mha/f64/b2h3q5k7d8/scale0.3", "is float32"),
        ("attention-24", f"{PLAIN}/scale-0.2", "declares scales"),
        ("attention-24-cache", "sdpa/none/mha/f32/b2h3q7k7d8", "no keys before the queries"),
        ("attention-24", f"{PLAIN}/lse", "does not declare lse"),
        (SCATTER, "cached/none/gqa2/f32/b2h4q9k9d8/c3.6/win2/room4", "before it is attended"),
    ),
    *rows(
        ("onnxruntime",),
        ("ms-group-query", PLAIN, "equal lengths"),
        ("ms-group-query", "sdpa/none/mha/f32/b0h2q5k5d8", "divides by the number of its"),
        ("ms-group-query-cache", "sdpa/none/gqa2/f32/b2h4q3k9d8", "several samples"),
        ("attention-24", "sdpa/none/mha/bf16/b2h3q5k7d8", "bfloat16"),
    ),
    *rows(
        ("mlx",),
        ("fast-attention", f"{PLAIN}/cap2.0", "no softcap"),
        ("fast-attention", f"{PLAIN}/lse", "does not declare lse"),
        ("fast-rope", "rotary/none/mha/f32/b2h3q17k1d16/yarn", "only linear"),
        ("fast-rope", "rotary/none/mha/f32/b2h3q17k1d16/gathered", "from an offset"),
        (
            "lm-rotating-cache",
            "cached/none/mha/f32/b3h2q8k20d8/c1.5.reset.1.1/win3/room8",
            "cannot be trimmed",
        ),
    ),
    *rows(
        ("openvino",),
        ("sdpa", "sdpa/none/gqa2/f32/b2h4q5k7d8", "broadcasts heads"),
        ("sdpa", "sdpa/none/mha/bf16/b2h3q5k7d8/scale0.3", "cannot hold"),
        ("sdpa-fixed", "sdpa/none/mha/f32/b2h3q5k0d8", "uninitialised memory"),
        ("sdpa", f"{PLAIN}/cap2.0", "no softcap"),
        ("sdpa", f"{PLAIN}/lse", "does not declare lse"),
    ),
    *rows(
        ("executorch",),
        ("custom-ring-kv-cache", "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3", "has a window"),
        ("custom-ring-kv-cache", "cached/none/gqa2/f32/b2h4q9k9d8/c2.7/win0/room1", "as the ring"),
        ("custom-kv-cache", "cached/none/mha/f32/b3h2q8k20d8/c1.3.1.3/pad5.0.12", "no samples"),
        ("custom-kv-cache", "bad/cached/key-value-heads-differ/f32", "end the process"),
        ("sdpa-with-kv-cache", LARGER, "no window"),
    ),
    *rows(("jax",), ("pallas-gpu-mha", "sdpa/causal/mha/f32/b1h2q32k16d8", "behind the keys")),
    *rows(
        ("torch",),
        ("ring-balanced", "sdpa/causal/mha/f32/b2h3q17k17d8", "multiples of 4"),
        ("ring-balanced", "sdpa/causal/mha/f32/b2h3q16k32d8", "equal lengths"),
    ),
    *rows(
        ("keras-hub",),
        *(
            ("rotary", f"rotary/none/mha/f32/b2h3q17k1d16/{scaling}", "the")
            for scaling in ("ntk", "llama3", "longrope")
        ),
        ("rotary-start-index", "rotary/none/mha/f32/b2h3q17k1d16/gathered", "first position"),
    ),
    *rows(("equinox",), ("rotary", "rotary/none/mha/f32/b2h3q17k1d16/at1000000", "as many rows")),
]
"""A backend, an implementation, a case that it refuses, and a part of the reason."""


@pytest.mark.parametrize("backend", ["numpy", "torch", "tf", "jax", *RUNTIMES, "mlx", "openvino"])
@pytest.mark.parametrize("name", DTYPES)
def test_values_cross_exactly(backend: str, name: str) -> None:
    of_backend = loaded(backend)
    crossed(of_backend, name)
    assert of_backend.to_numpy(of_backend.array(np.array([True, False]), None)).dtype == bool
    number = of_backend.array(np.asarray(0.5), DTYPES[name])
    assert (tuple(number.shape), float(of_backend.to_numpy(number))) == ((), 0.5)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=[pytest.mark.seldom] if row[0] == "jax" else [], id=" ".join(row))
        for row in RIGHT
    ],
)
def test_a_row_is_right(row: tuple[str, ...]) -> None:
    backend, name, text, *check = row
    if name.startswith("lm-") and find_spec("mlx_lm") is None:
        pytest.skip("needs mlx-lm")
    verdict = judged(loaded(backend), name, text, *check)
    assert verdict.status == "pass", verdict.message


@pytest.mark.parametrize("row", WRONG, ids=" ".join)
def test_a_known_fault_is_seen(row: tuple[str, ...]) -> None:
    backend, name, text, check, kind = row
    verdict = judged(loaded(backend), name, text, check)
    assert (verdict.status, verdict.kind) == ("fail", kind), verdict.message


@pytest.mark.parametrize("row", REFUSED, ids=" ".join)
def test_what_cannot_be_said_is_refused(row: tuple[str, ...]) -> None:
    backend, name, text, reason = row
    if name.startswith("lm-") and find_spec("mlx_lm") is None:
        pytest.skip("needs mlx-lm")
    assert reason in str(of(loaded(backend), name).unsupported(find(text)))


def test_the_word_causal_stands_for_one_mask() -> None:
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
        mask = of(loaded("mlx"), "fast-attention").prepare(draw(Case.parse(text))).arguments["mask"]
        assert (mask if isinstance(mask, str) else tuple(mask.shape)) == want, text


@pytest.mark.skipif(find_spec("mlx_lm") is None, reason="needs mlx-lm")
def test_a_chunked_cache_holds_its_window_alone() -> None:
    from mlx_lm.models.cache import ChunkedKVCache

    cut, kept = list[int](), ChunkedKVCache.update_and_fetch

    def update(cache: Any, keys: Any, values: Any) -> Any:
        cut.append(cache.start_position)
        return kept(cache, keys, values)

    with patch.object(ChunkedKVCache, "update_and_fetch", update):
        prepared = of(loaded("mlx"), "lm-chunked-cache").prepare(draw(Case.parse(RING)))
        prepared.function(**prepared.arguments)
    assert cut == [0, 8, 9, 14, 15]  # 12, 13, 18 and 19 tokens, of which four stay


def test_a_ring_has_as_many_slots_as_two_windows_have_keys() -> None:
    ring = of(loaded("executorch"), "custom-ring-kv-cache")
    inputs = draw(Case.parse(LARGER))
    state = ring.init(inputs, ring.backend.array(inputs.key, inputs.dtype))
    assert [one.cache.k_cache.shape[1] for one in state] == [6, 6]


def test_the_first_token_keeps_its_slot() -> None:
    ring = of(loaded("executorch"), "attention-sink-kv-cache")
    made, init = list[Any](), ring.init

    def kept(*arguments: Any) -> Any:
        made.append(init(*arguments))
        return made[-1]

    with patch.object(ring, "init", kept):
        ring.prepare(draw(Case.parse(RING)))()
    ((first, *_),) = made
    assert first.cache.cache_positions_manager.cache_positions.tolist() == [
        0, 17, 18, 19, 12, 13, 14, 15, 16,
    ]  # fmt: skip
