"""Promise: an array lies in memory as its arrangement says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_conformance.backends import registry
from attention_conformance.backends.memory import EXPANDED, INNER
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.spec.vocabulary import ARRANGEMENTS

STRIDED = ["numpy", "torch", "tests.honest:honest"]


def strided_backend(name: str) -> Any:
    """The backend; skips the test without its framework."""
    if name == "torch":
        pytest.importorskip("torch")
    return registry.load(name)


def strides_of(array: Any) -> tuple[int, ...]:
    """Strides in elements."""
    if hasattr(array, "stride"):
        return tuple(array.stride())
    return tuple(step // array.values.itemsize for step in array.values.strides)


@pytest.mark.parametrize("name", STRIDED)
@pytest.mark.parametrize("how", ARRANGEMENTS)
def test_arrangements_hold_the_values_where_they_say(name: str, how: str) -> None:
    backend = strided_backend(name)
    values = draw(Case.parse("sdpa/none/mha/f32/b2h3q5k7d8")).query
    values = values[:, :, :1] if how == "odd-strides" else values
    if how in EXPANDED:
        for axis in EXPANDED[how]:
            values = np.broadcast_to(values.take([0], axis), values.shape)
    for source, dtype in ((values, DTYPES["f32"]), (values > 0, None)):
        array = backend.memory.arranged(source, dtype, how)
        assert np.array_equal(backend.to_numpy(array), source)
        strides = strides_of(array)
        want = {
            "contiguous": (120, 40, 8, 1),
            "reversed": (1, 2, 6, 30),
            "transposed": (120, 40, 1, 5),
            "inner-stride": (240, 80, 16, 2),
            "offset": (825, 275, 11, 1),
            "components": (360, 120, 24, 1),
            "cache": (192, 64, 8, 1),
            "more-heads": (200, 40, 8, 1),
            "fused": (360, 8, 72, 1),
            "fused-heads": (360, 24, 72, 1),
            "shifted": (120, 40, 8, 1),
            "negative": (120, 40, 8 if name == "torch" else -8, 1),
            "expanded-rows": (24, 8, 0, 1),
            "expanded": (0, 40, 8, 1),
            "expanded-heads": (40, 0, 8, 1),
            "scalar": (0, 0, 0, 0),
            "odd-strides": (24, 8, 7, 1),
        }[how]
        assert strides == want
        assert (strides[-1] != 1) == (how in (*INNER, "scalar"))


def test_samples_and_heads_that_differ_cannot_lie_in_one_place() -> None:
    values = np.arange(8.0).reshape(2, 2, 2, 1)
    for how in EXPANDED:
        with pytest.raises(ValueError, match="must be equal"):
            registry.load("numpy").memory.arranged(values, DTYPES["f32"], how)
    with pytest.raises(KeyError, match="unknown arrangement"):
        registry.load("numpy").memory.arranged(values, DTYPES["f32"], "backwards")


@pytest.mark.parametrize("name", STRIDED)
def test_a_shifted_array_lies_one_element_behind_a_multiple_of_16_bytes(name: str) -> None:
    array = strided_backend(name).memory.arranged(np.ones((2, 3)), DTYPES["f32"], "shifted")
    address = array.data_ptr() if name == "torch" else array.values.ctypes.data
    assert address % 16 == (4 if name == "torch" else 8)


def test_a_negative_view_of_torch_holds_the_negative_numbers() -> None:
    memory = strided_backend("torch").memory
    array = memory.arranged(np.ones((2, 3)), DTYPES["bf16"], "negative")
    assert array.is_neg()
    assert not memory.arranged(np.ones((2, 3), bool), None, "negative").is_neg()
