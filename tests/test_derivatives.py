"""Derivatives of every operator: tangents against central differences of the definition in extended
precision, gradients against tangents, and both against their own chain computed in float32."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from attention_conformance import references
from attention_conformance.references import outputs, sdpa
from attention_conformance.references.rounding import NO_ROUNDING
from attention_conformance.suite.judge.tolerance import roundoffs
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.inputs import Inputs, draw, draw_cotangent
from attention_conformance.suite.spec.recipes import generator

CASES = (
    "sdpa/none/mha/f64/b2h3q5k7d4",
    "sdpa/causalbr/gqa2/f64/b2h4q6k4d4",
    "sdpa/bool.bhqk.empty/gqa3/f64/b2h6q4k5d3v6/bias.bhqk/scale-0.3/dense",
    "sdpa/pad/mqa/f64/b2h4q4k5d3/bias.1hqk/cap0.7",
    "sdpa/none/mha/f64/b2h3q4k5d3/bias.inf",
    "sdpa/causal/gqa2/f64/b2h4q6k4d4/sinks",
    "sdpa/causalbr/gqa2/f64/b2h4q4k6d4/slopes",
    "sdpa/bool.bhqk.empty/mha/f64/b2h3q4k5d3/bias.qk/cap0.7/sinks/dense",
    "multi-head/none/mha/f64/b2h3q3k4d2/e5.6.7.4",
    "multi-head/bool.bhqk.empty/gqa2/f64/b1h4q3k3d2v3/e4.4.5.4/bias.bhqk/nobias/dense",
    "multi-head/pad/gqa2/f64/b2h4q3k3d2/e5.5.5.4/self",
    "multi-head/pad/mqa/f64/b2h2q3k3d6/e5.5.5.4/nobias/qknorm/eps0.5/self",
    "multi-head/causal/mqa/f64/b2h2q3k3d8/e4.4.4.3/qknorm/eps0.5",
    "additive/pad/mha/f64/b2h1q3k4d5v3/e4.6.3.3",
    "additive/padempty/mha/f64/b2h1q3k4d4v3/e4.4.3.3/identity/vector",
    "additive/none/mha/f64/b2h1q3k4d4v3/e4.4.3.3/identity",
    "additive/pad/mha/f64/b2h1q3k3d5v4/e4.4.4.4/self",
    "concat/causal/mha/f64/b2h1q3k3d4v3/e4.4.3.3",
    "concat/none/mha/f64/b2h1q3k4d4v3/e4.4.3.3/unscaled",
    "concat/pad/mha/f64/b2h1q3k3d4/e4.4.4.4/self",
    "dot/padempty/mha/f64/b2h1q3k4d4v3/e4.4.3.3",
    "dot/causal/mha/f64/b2h1q3k3d4v3/e4.4.3.3/unscaled",
    "dot/causal/mha/f64/b2h1q3k3d4/e4.4.4.4/self",
    "multi-head/causal/mha/f64/b2h1q3k3d2v4/e5.5.5.4/self-attention/self",
    "multi-head/none/mha/f64/b2h1q3k3d2v4/e5.5.5.4/nobias/self-attention/self",
    "layer-norm/none/mha/f64/b2h1q3k3d5/e5.5.5.5/self",
    "layer-norm/none/mha/f64/b2h1q3k3d5/e5.5.5.5/plain/self",
    "batch-norm/none/mha/f64/b2h1q3k3d5/e5.5.5.5/self/train",
    "batch-norm/none/mha/f64/b2h1q3k3d5/e5.5.5.5/plain/self/train",
    "batch-norm/none/mha/f64/b2h1q3k3d5/e5.5.5.5/self",
    "batch-norm/none/mha/f64/b2h1q3k3d5/e5.5.5.5/averaged2.0/self",
    "packed/none/mqa/f64/b3h2q6k7d4v3/seg2.1.3x3.2.2",
    "packed/none/gqa2/f64/b3h4q5k8d4/seg2.0.3x2.1.5/causalbr",
    "paged/none/mqa/f64/b3h2q5k9d4v3/seg1.3.1x5.3.1/page3/scale0.3",
    "paged/none/gqa2/f64/b2h4q4k9d4/seg1.3x5.4/shared/hnd/causal",
    "merge/none/mha/f64/b2h2q3k4d4",
    "latent/causalbr/mha/f64/b2h2q3k4d3v2/r4e2/scale0.3",
    "latent/pad/mha/f64/b2h2q3k4d3/r3e2",
    "rotary/none/mha/f64/b2h2q3k1d6/interleaved",
    "multi-head/causal/gqa2/f64/b2h4q3k3d2v3/e5.5.5.4/gated/self",
)

VALUES_ALONE = (
    "quantized/none/gqa2/f64/b2h4q3k5d4/pertoken/zero/causal",
    "paged-write/none/mha/f64/b2h2q4k9d4v3/seg1.3x5.4/skipped",
    "encoder/pad/mha/f64/b2h2q3k3d2/e4.4.4.5/gelu/self",
    "encoder/causal/mha/f64/b2h2q3k3d2/e4.4.4.5/pre/self",
)
"""Cases without a chain in float32: keys that are wide, derivatives that do not round, and a chain that
is so long that bounds say little."""

EMPTY = tuple(text for text in CASES if draw(Case.parse(text)).has_empty_rows)

ROWS = [(text, "zeros") for text in (*CASES, *VALUES_ALONE)] + [(text, "uniform") for text in EMPTY]
"""Every case, and those with rows without keys by what these stand for."""

STEP = np.longdouble(2.0) ** -20
"""Central differences are off by STEP^2 and 2^-64 / STEP: 1e-11 together."""


def differentiable(inputs: Inputs) -> list[str]:
    """The names of the arrays that have a gradient."""
    left_out = set(inputs.operator.array_kinds.constants) | (
        {"key", "value"} if inputs.self_attention else set()
    )
    if not inputs.operator.has_keys:
        left_out |= {"key", "value"}
    return [name for name in inputs.arrays if name not in left_out]


def directions(inputs: Inputs) -> dict[str, np.ndarray]:
    """Along what every array moves; where a bias is -inf it stands still."""
    rng = generator(f"{inputs.case.id}/directions", 0)
    drawn = {n: rng.standard_normal(inputs.arrays[n].shape) for n in differentiable(inputs)}
    return {n: np.where(np.isfinite(inputs.arrays[n]), d, 0.0) for n, d in drawn.items()}


def along(inputs: Inputs, direction: dict[str, np.ndarray], step: np.longdouble) -> Inputs:
    """The inputs moved by `step` along some arrays, in extended precision."""
    moved = {
        n: inputs.arrays[n].astype(np.longdouble) + step * d.astype(np.longdouble)
        for n, d in direction.items()
    }
    if inputs.self_attention and "query" in moved:
        moved |= {"key": moved["query"], "value": moved["query"]}
    return inputs.replace(**moved)


def slope(inputs: Inputs, direction: dict[str, np.ndarray], empty_rows: str) -> np.ndarray:
    """How the output moves, by central differences."""
    above, below = (
        references.find(inputs.operator)
        .forward(along(inputs, direction, sign * STEP), NO_ROUNDING, empty_rows)
        .arrays["output"]
        .value
        for sign in (1, -1)
    )
    return (above - below) / (2 * STEP)


@pytest.mark.parametrize(("text", "empty_rows"), ROWS)
def test_tangents_are_central_differences(text: str, empty_rows: str) -> None:
    """As all arrays move together, and each of them alone."""
    inputs = draw(Case.parse(text))
    whole = directions(inputs)
    for names in (list(whole), *([name] for name in whole)):
        moving = {name: whole[name] for name in names}
        tangent = references.find(inputs.operator).jvp(inputs, moving, NO_ROUNDING, empty_rows)
        got = tangent.arrays["output"]
        assert not got.error.any()
        assert got.shape == inputs.full_shape("output")
        want = slope(inputs, moving, empty_rows)
        assert np.abs(want - got.value).max() < 1e-10 * max(1, np.abs(want).max()), names


@pytest.mark.parametrize(("text", "empty_rows"), [*ROWS, *((text, "scores") for text in EMPTY)])
def test_tangents_are_the_other_side_of_gradients(text: str, empty_rows: str) -> None:
    """<cotangent, J t> = <J^T cotangent, t>, in extended precision."""
    inputs = draw(Case.parse(text))
    cotangent, moving = draw_cotangent(inputs.case), directions(inputs)
    reference = references.find(inputs.operator)
    gradients = reference.vjp(inputs, cotangent, NO_ROUNDING, empty_rows)
    tangent = reference.jvp(inputs, moving, NO_ROUNDING, empty_rows)
    left = (cotangent * tangent.arrays["output"].value).sum()
    parts = [gradients.arrays[name].value * moved for name, moved in moving.items()]
    right = sum(part.sum() for part in parts)
    assert abs(left - right) < 1e-16 * sum(np.abs(part).sum() for part in parts)
    assert np.array_equal(gradients.keys, tangent.keys)


@pytest.mark.parametrize("text", CASES)
def test_bounds_hold_where_the_chain_is_computed_in_float32(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The references' own steps with float32 values: an implementation of the class `exact`."""
    inputs = draw(Case.parse(text.replace("f64", "f32")))
    reference, u = references.find(inputs.operator), roundoffs("exact", inputs.dtype)
    calls = {
        "vjp": functools.partial(reference.vjp, inputs, draw_cotangent(inputs.case), u),
        "jvp": functools.partial(reference.jvp, inputs, directions(inputs), u),
    }
    wide = {name: call().arrays for name, call in calls.items()}
    monkeypatch.setattr(outputs, "precision_for", lambda dtype: np.float32)
    monkeypatch.setattr(sdpa, "precision_for", lambda dtype: np.float32)
    for name, call in calls.items():
        ratios = []
        for operand, array in call().arrays.items():
            want = wide[name][operand]
            assert array.value.dtype == np.float32, operand
            error = np.abs(array.value - want.value)
            assert (error <= want.error).all(), (name, operand)
            ratios.append((error / np.where(want.error == 0, 1, want.error)).max())
        # Beyond a thousandth of it: the bound is no formality.
        assert max(ratios) > 1e-3, name
