"""The reference of layers' gradients: against central differences of the layers' definitions in extended
precision, and against fifty digits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest

from backends.registry import load
from references import layers
from references.layer_gradients import concat_gradients
from references.running import NO_ROUNDING
from suite.judge.gradients import layer_cotangent, layer_gradients
from suite.spec.layers import LayerCase, LayerInputs, draw_layer
from tests.mutants.layer_gradient_kernel import LayerDifferentiable

CASES = (
    "multi-head/none/mha/f64/b2h3q3k4d2/e5.6.7.4",
    "multi-head/bool.bhqk.empty/gqa2/f64/b1h4q3k3d2v3/e4.4.5.4/bias.bhqk/nobias/dense",
    "additive/pad/mha/f64/b2h1q3k4d5v3/e4.6.3.3",
    "additive/padempty/mha/f64/b2h1q3k4d4v3/e4.4.3.3/identity/vector",
    "additive/none/mha/f64/b2h1q3k4d4v3/e4.4.3.3/identity",
    "concat/causal/mha/f64/b2h1q3k3d4v3/e4.4.3.3",
    "concat/none/mha/f64/b2h1q3k4d4v3/e4.4.3.3/unscaled",
    "dot/padempty/mha/f64/b2h1q3k4d4v3/e4.4.3.3",
    "dot/causal/mha/f64/b2h1q3k3d4v3/e4.4.3.3/unscaled",
)

DEFINITIONS: dict[str, Any] = {
    "multi-head": layers.multi_head,
    "additive": layers.additive,
    "concat": layers.concat,
    "dot": layers.dot,
}


def loss(inputs: LayerInputs, cotangent: np.ndarray, empty_rows: str) -> np.longdouble:
    """The cotangent's product with the output, in extended precision."""
    given = {} if inputs.bias is None else {"bias": inputs.bias.astype(np.longdouble)}
    made = DEFINITIONS[inputs.operator](
        *(x.astype(np.longdouble) for x in (inputs.query, inputs.key, inputs.value)),
        {n: np.asarray(x).astype(np.longdouble) for n, x in inputs.parameters.items()},
        allowed=inputs.dense_mask, empty_rows=empty_rows, rounding=NO_ROUNDING, **given,
    )  # fmt: skip
    return (made.output.value * cotangent).sum()


@pytest.mark.parametrize("empty_rows", ["zeros", "uniform"])
@pytest.mark.parametrize("text", CASES)
def test_central_differences(text: str, empty_rows: str) -> None:
    """(f(x + h) - f(x - h)) / 2h in extended precision, off by h^2 and 2^-64 / h: 1e-11 together."""
    inputs = draw_layer(LayerCase.parse(text))
    cotangent = layer_cotangent(inputs, text)
    layer = LayerDifferentiable(load("tests.mutants:honest"))
    found = layer_gradients(layer, inputs, cotangent, "exact", False, empty_rows)
    rng, step = np.random.default_rng(0), np.longdouble(2.0) ** -20
    operands = {n: getattr(inputs, n) for n in ("query", "key", "value")}
    for name, array in (operands | dict(inputs.parameters)).items():
        got = found[name].value
        assert got.shape == np.shape(array), name
        for at in map(tuple, rng.permutation(np.argwhere(np.ones_like(array)))[:6]):
            moved = []
            for sign in (1, -1):
                changed = np.asarray(array).astype(np.longdouble)
                changed[at] += sign * step
                if name in operands:
                    other = replace(inputs, **{name: changed})
                else:
                    other = replace(inputs, parameters={**inputs.parameters, name: changed})
                moved.append(loss(other, cotangent, empty_rows))
            slope = (moved[0] - moved[1]) / (2 * step)
            assert abs(slope - got[at]) < 1e-10 * max(1, abs(slope)), (name, at)


def test_fifty_digits() -> None:
    """Every gradient of a small concat layer by mpmath, from the definition with exact derivatives."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {n: rng.standard_normal((1, 3, 2)) for n in ("query", "key", "value")}
    cotangent = rng.standard_normal((1, 3, 2))
    numbers = {"scale": np.array(0.75), "concat_weight": np.array(1.5)}
    allowed = np.tril(np.ones((3, 3), bool))
    wide = [x.astype(np.longdouble) for x in (*arrays.values(), cotangent)]
    found = concat_gradients(
        *wide[:3], {n: x.astype(np.longdouble) for n, x in numbers.items()}, wide[3],
        rounding=NO_ROUNDING, allowed=allowed,
    )  # fmt: skip
    with mpmath.workdps(50):
        given = {
            n: [mpmath.mpf(float(x)) for x in np.ravel(a)] for n, a in (arrays | numbers).items()
        }

        def value() -> mpmath.mpf:
            total = mpmath.mpf(0)
            q, k, v = (given[n] for n in ("query", "key", "value"))
            (scale,), (weight,) = given["scale"], given["concat_weight"]
            for i in range(3):
                weights = [
                    mpmath.exp(
                        weight
                        * sum(mpmath.tanh(scale * (q[2 * i + u] + k[2 * j + u])) for u in range(2))
                    )
                    for j in range(i + 1)
                ]
                for c in range(2):
                    mixed = mpmath.fdot(weights, [v[2 * j + c] for j in range(i + 1)])
                    total += mpmath.mpf(float(cotangent[0, i, c])) * mixed / mpmath.fsum(weights)
            return total

        for name, numbers_of in given.items():
            for index in range(len(numbers_of)):

                def along(x: mpmath.mpf, row=numbers_of, index=index) -> mpmath.mpf:
                    kept, row[index] = row[index], x
                    out = value()
                    row[index] = kept
                    return out

                slope = mpmath.diff(along, numbers_of[index])
                got = found[name].value.reshape(-1)[index]
                assert abs(slope - mpmath.mpf(str(got))) < 1e-17 * max(1, abs(slope)), name


@pytest.mark.parametrize("text", CASES)
def test_bounds_grow_with_the_class(text: str) -> None:
    inputs = draw_layer(LayerCase.parse(text.replace("f64", "bf16")))
    cotangent = layer_cotangent(inputs, text)
    layer = LayerDifferentiable(load("tests.mutants:honest"))
    before = None
    for numerics in ("exact", "fused", "eager", "stepwise", "working"):
        found = layer_gradients(layer, inputs, cotangent, numerics, False)
        for name in found if before is not None else ():
            assert (found[name].error >= before[name].error).all(), (name, numerics)
        before = found
