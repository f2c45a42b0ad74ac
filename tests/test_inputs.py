"""Inputs: values are exact in their dtype and the same everywhere; a variation changes what it names,
and nothing else; an array lies in memory as its arrangement says."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_conformance.backends import registry
from attention_conformance.backends.memory import EXPANDED, INNER
from attention_conformance.suite.spec import catalogue
from attention_conformance.suite.spec.case import Case, Widths
from attention_conformance.suite.spec.dtypes import CODES, DTYPES, round_to
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.spec.operators.sdpa import SDPA
from attention_conformance.suite.spec.recipes import exponentials
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import ARRANGEMENTS

S = Sizes(B=3, H=2, Hkv=2, Lq=7, Lk=5, D=4, Dv=4)


def bfloat16_by_bits(x: np.ndarray) -> np.ndarray:
    """Round-to-nearest-even of float32 values to bfloat16 on their bit patterns."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).astype(np.float64)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False, width=32))
@settings(max_examples=500, deadline=None)
def test_rounding_agrees_with_numpy_and_with_bits(wide: float, x: float) -> None:
    assert round_to(wide, DTYPES["f64"]) == wide
    with np.errstate(over="ignore"):
        assert round_to(wide, DTYPES["f32"]) == np.float32(wide)
        assert round_to(x, DTYPES["f16"]) == np.float16(x)
        assert round_to(x, DTYPES["bf16"]) == bfloat16_by_bits(np.array([x]))[0]


def test_inputs_are_the_same_bytes_and_fit_their_dtype() -> None:
    for case in catalogue.cases("smoke"):
        one, again, other = draw(case), draw(case), draw(case, seed=1)
        assert one.digest == again.digest
        assert one.arrays.keys() >= case.axes.keys()
        for name, array in one.arrays.items():
            assert np.array_equal(array, again.arrays[name])
            fits = (
                array.astype(int)
                if name in case.operator.array_kinds.integers
                else round_to(array, case.dtype_of(name))
            )
            assert np.array_equal(array, fits), (case.id, name)
            assert array.dtype == np.float64
        first = next(iter(case.axes))
        if one.arrays[first].size and case.recipe != "integers":
            assert not np.array_equal(one.arrays[first], other.arrays[first])


def test_a_bias_hides_by_the_number_of_its_name() -> None:
    for kind, number in {"inf": -np.inf, "lowest": -DTYPES["f32"].max}.items():
        bias = draw(Case.of(SDPA, S, DTYPES["f32"], bias=kind)).bias
        assert bias is not None
        assert bias.min() == number


MASKED = "sdpa/causal+pad/gqa2/f32/b3h4q6k5d8v7/bias.bhqk/scale0.5"


def test_a_variation_changes_what_it_names_and_nothing_else() -> None:
    x = draw(Case.parse(MASKED))
    shorter = x.replace(key=x.key[:, :, :3], value=x.value[:, :, :3], bias=None, mask=None)
    assert (shorter.sizes.Lk, shorter.sizes.Lq) == (3, 6)
    assert shorter.bias is None
    assert shorter.dense_mask is None
    assert shorter.query is x.query
    assert (shorter.scale, x.replace(scale=None).scale) == (0.5, None)
    assert x.replace(scale=None).effective_scale == 1 / np.sqrt(8)
    assert x.replace(form="dense").case.id == f"{MASKED}/dense"
    assert x.replace(seed=1).query is x.query
    with pytest.raises(ValueError, match="sdpa has no array or option 'query_kernel'"):
        x.replace(query_kernel=x.query)
    with pytest.raises(ValueError, match="sdpa has no array or option 'loud'"):
        x.replace(loud=True)
    layer = draw(Case.parse("multi-head/pad/mha/f32/b2h2q5k9d6/e12.10.14.12"))
    doubled = layer.replace(query_kernel=2 * layer.arrays["query_kernel"])
    assert doubled.widths == layer.widths == Widths(12, 10, 14, 12)
    assert doubled.parameters.keys() == layer.parameters.keys()
    assert np.array_equal(doubled.arrays["key_kernel"], layer.arrays["key_kernel"])


def test_what_is_asked_is_in_the_digest() -> None:
    x = draw(Case.parse(MASKED))
    others = [
        x.replace(value=-x.value),
        x.replace(bias=None),
        x.replace(scale=0.25),
        x.replace(mask=None),
        x.replace(form="dense"),
        x.with_dense(),
        x.replace(seed=1),
        x.replace(dropout_seed=1),
    ]
    assert len({x.digest, *(other.digest for other in others)}) == len(others) + 1
    assert x.replace(value=x.value.copy()).digest == x.digest


@pytest.mark.parametrize(("letter", "axis"), [("b", 0), ("q", 2), ("k", 3)])
def test_what_is_taken_along_an_axis_is_taken_of_arrays_and_mask(letter: str, axis: int) -> None:
    x = draw(Case.parse(MASKED))
    order = np.random.default_rng(0).permutation(x.letters[letter])[:-1]
    taken = x.select(letter, order)
    assert np.array_equal(taken.attends, np.take(x.attends, order, axis))
    for name, array in taken.arrays.items():
        place = x.axes(name).find(letter)
        whole = x.arrays[name]
        assert np.array_equal(array, whole if place < 0 else np.take(whole, order, place)), name
    assert taken.letters[letter] == len(order)


def test_exponentials_are_those_of_every_cpu() -> None:
    values = np.random.default_rng(0).standard_normal((40, 50))
    with mpmath.workdps(60):
        expected = [float(mpmath.exp(mpmath.mpf(value))) for value in values.ravel().tolist()]
    assert exponentials(values).ravel().tolist() == expected
    assert exponentials(np.zeros((0, 3))).shape == (0, 3)


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
    for source, to in ((values, DTYPES["f32"]), (values > 0, None)):
        array = backend.arranged(source, to, how)
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


NUMBERS = {
    "int8": np.arange(-127.0, 128.0),
    "int4": np.arange(-7.0, 8.0),
    "e4m3": np.array(
        [(m / 8 + (e > 0)) * 2.0 ** (max(e, 1) - 7) for e in range(16) for m in range(8)][:-1]
    ),
    "e5m2": np.array(
        [(m / 4 + (e > 0)) * 2.0 ** (max(e, 1) - 15) for e in range(31) for m in range(4)]
    ),
}
"""All codes of a format; of floating-point formats those without a sign, from their bits."""


@pytest.mark.parametrize("name", CODES)
def test_formats_have_the_numbers_of_their_bits(name: str) -> None:
    code, numbers = CODES[name], NUMBERS[name]
    assert np.array_equal(round_to(numbers, code), numbers)
    assert numbers.max() == code.max
    between = np.random.default_rng(0).uniform(numbers.min(), code.max, 500)
    near = np.abs(numbers - between[:, None]).min(1)
    assert np.array_equal(np.abs(round_to(between, code) - between), near)
