"""Promise: ExecuTorch's operators are called as its layers call them; its ring is asked with windows."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from attention_conformance.backends import registry
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.spec.malformed import MALFORMED_CASES
from tests.runtimes import judged, of

pytest.importorskip("executorch")

LARGER = "cached/none/gqa2/f32/b2h4q9k9d8/c3.6/win2/room4"


@pytest.fixture(scope="module")
def backend() -> Any:
    return registry.load("executorch")


@pytest.mark.parametrize("name", ["custom-ring-kv-cache", "attention-sink-kv-cache"])
def test_a_ring_loses_keys_in_a_chunk_of_more_than_a_window(backend: Any, name: str) -> None:
    verdict = judged(backend, name, LARGER)
    assert (verdict.status, verdict.kind) == ("fail", "value")


def test_a_ring_has_as_many_slots_as_two_windows_have_keys(backend: Any) -> None:
    ring = of(backend, "custom-ring-kv-cache")
    inputs = draw(Case.parse(LARGER))
    state = ring.init(inputs, backend.array(inputs.key, inputs.dtype))
    assert [one.cache.k_cache.shape[1] for one in state] == [6, 6]


def test_what_ends_the_process_is_not_asked(backend: Any) -> None:
    refusals = (
        ("custom-ring-kv-cache", "cached/none/gqa2/f32/b2h4q9k9d8/c5.1.3", "has a window"),
        ("custom-ring-kv-cache", "cached/none/gqa2/f32/b2h4q9k9d8/c2.7/win0/room1", "as the ring"),
        ("custom-kv-cache", "cached/none/mha/f32/b3h2q8k20d8/c1.3.1.3/pad5.0.12", "no samples"),
        ("sdpa-with-kv-cache", LARGER, "no window"),
    )
    for name, text, reason in refusals:
        assert reason in (of(backend, name).unsupported(Case.parse(text)) or ""), text
    malformed = {c.name: c for c in MALFORMED_CASES if c.operator.name == "cached"}
    plain = of(backend, "custom-kv-cache")
    assert "end the process" in (plain.unsupported(malformed["key-value-heads-differ"]) or "")
    assert plain.unsupported(malformed["rollback-beyond-length"]) is None


def test_the_first_token_keeps_its_slot(backend: Any) -> None:
    ring = of(backend, "attention-sink-kv-cache")
    made, init = list[Any](), ring.init

    def kept(*arguments: Any) -> Any:
        made.append(init(*arguments))
        return made[-1]

    with patch.object(ring, "init", kept):
        ring.prepare(draw(Case.parse("cached/none/mha/f32/b3h2q8k20d8/c1.5.1.1/win3/room8")))()
    ((first, *_),) = made
    assert first.cache.cache_positions_manager.cache_positions.tolist() == [
        0, 17, 18, 19, 12, 13, 14, 15, 16,
    ]  # fmt: skip
