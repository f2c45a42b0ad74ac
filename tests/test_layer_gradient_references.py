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
from references.norm_gradients import batch_norm_gradients, layer_norm_gradients
from references.running import NO_ROUNDING
from suite.judge.gradients import layer_cotangent, layer_gradients
from suite.spec.layers import EPSILON, NORMS, STATISTICS, LayerCase, LayerInputs, draw_layer
from tests.mutants.layer_gradient_kernel import LayerDifferentiable
from tests.mutants.norm_gradient_kernel import LayerNormDifferentiable

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
    "masked/causal+pad/mha/f64/b2h1q3k4d4v3/e4.4.3.3",
    "masked/padempty/mha/f64/b2h1q3k4d4v3/e4.4.3.3",
    "self-attention/causal/mha/f64/b2h1q3k3d2v4/e5.5.5.4/self",
    "self-attention/none/mha/f64/b2h1q3k3d2v4/e5.5.5.4/nobias/self",
    "multi-head/pad/gqa2/f64/b2h4q3k3d2/e5.5.5.4/self",
    "layer-norm/none/mha/f64/b2h1q3k3d5/e5.5.5.5/self",
    "layer-norm/none/mha/f64/b2h1q3k3d5/e5.5.5.5/plain/self",
    "batch-norm/none/mha/f64/b2h1q3k3d5/e5.5.5.5/self/train",
    "batch-norm/none/mha/f64/b2h1q3k3d5/e5.5.5.5/plain/self/train",
    "batch-norm/none/mha/f64/b2h1q3k3d5/e5.5.5.5/self",
)

DEFINITIONS: dict[str, Any] = {
    "multi-head": layers.multi_head,
    "additive": layers.additive,
    "concat": layers.concat,
    "dot": layers.dot,
    "masked": layers.masked,
    "self-attention": layers.multi_head,
    "layer-norm": layers.layer_norm,
    "batch-norm": layers.batch_norm,
}


def loss(inputs: LayerInputs, cotangent: np.ndarray, empty_rows: str) -> np.longdouble:
    """The cotangent's product with the output, in extended precision."""
    given: dict[str, Any] = {"allowed": inputs.dense_mask, "empty_rows": empty_rows}
    if inputs.bias is not None:
        given["bias"] = inputs.bias.astype(np.longdouble)
    if inputs.operator in NORMS:
        given = {"epsilon": EPSILON, "training": inputs.training}
    made = DEFINITIONS[inputs.operator](
        *(x.astype(np.longdouble) for x in (inputs.query, inputs.key, inputs.value)),
        {n: np.asarray(x).astype(np.longdouble) for n, x in inputs.parameters.items()},
        rounding=NO_ROUNDING, **given,
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
    names = ("query",) if inputs.own else ("query", "key", "value")
    operands = {n: getattr(inputs, n) for n in names}
    learned = {n: x for n, x in inputs.parameters.items() if n not in STATISTICS}
    for name, array in (operands | learned).items():
        got = found[name].value
        assert got.shape == np.shape(array), name
        for at in map(tuple, rng.permutation(np.argwhere(np.ones_like(array)))[:6]):
            moved = []
            for sign in (1, -1):
                changed = np.asarray(array).astype(np.longdouble)
                changed[at] += sign * step
                if inputs.own and name in operands:
                    other = replace(inputs, query=changed, key=changed, value=changed)
                elif name in operands:
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


@pytest.mark.parametrize("function", [layer_norm_gradients, batch_norm_gradients])
def test_fifty_digits_of_norms(function: Any) -> None:
    """Every gradient of a small norm by mpmath, from the definition with exact derivatives."""
    rng = np.random.default_rng(0)
    arrays = {"query": rng.standard_normal((2, 2, 3)) + 3.0}
    arrays |= {n: rng.standard_normal(3) for n in ("gain", "offset")}
    cotangent = rng.standard_normal((2, 2, 3))
    wide = {n: x.astype(np.longdouble) for n, x in arrays.items()}
    x, parameters = wide.pop("query"), wide
    found = function(
        x, x, x, parameters, cotangent.astype(np.longdouble),
        epsilon=EPSILON, training=True, rounding=NO_ROUNDING,
    )  # fmt: skip
    tokens = list(np.ndindex(2, 2))
    axis = [[(*t, e) for e in range(3)] for t in tokens]
    if function is batch_norm_gradients:
        axis = [[(*t, e) for t in tokens] for e in range(3)]
    with mpmath.workdps(50):
        given: dict[str, Any] = {
            n: {at: mpmath.mpf(float(a[at])) for at in np.ndindex(*a.shape)}
            for n, a in arrays.items()
        }

        def value() -> mpmath.mpf:
            total = mpmath.mpf(0)
            for together in axis:
                numbers = [given["query"][at] for at in together]
                mean = mpmath.fsum(numbers) / len(numbers)
                variance = mpmath.fsum([(n - mean) ** 2 for n in numbers]) / len(numbers)
                for at, number in zip(together, numbers, strict=True):
                    gain, offset = (given[n][at[2:]] for n in ("gain", "offset"))
                    normal = (number - mean) / mpmath.sqrt(variance + mpmath.mpf(EPSILON))
                    total += mpmath.mpf(float(cotangent[at])) * (normal * gain + offset)
            return total

        for name, numbers in given.items():
            for at in numbers:

                def along(x: mpmath.mpf, numbers=numbers, at=at) -> mpmath.mpf:
                    kept, numbers[at] = numbers[at], x
                    out = value()
                    numbers[at] = kept
                    return out

                slope = mpmath.diff(along, numbers[at])
                got = found[name].value[at]
                assert abs(slope - mpmath.mpf(str(got))) < 1e-17 * max(1, abs(slope)), name


def test_what_a_norm_declares_widens_its_bounds() -> None:
    text = "layer-norm/none/mha/bf16/b4h1q3k3d8/e8.8.8.8/self"
    inputs = draw_layer(LayerCase.parse(text))
    cotangent = layer_cotangent(inputs, text)

    class NarrowStatistics(LayerNormDifferentiable):
        narrow_statistics = ("bf16",)

    class NarrowSums(LayerNormDifferentiable):
        narrow_biases = {"bf16": ("gain", "offset")}

    class NarrowReductions(LayerNormDifferentiable):
        narrow_reductions = ("bf16",)

    backend = load("tests.mutants:honest")
    plain, statistics, sums, reductions = (
        layer_gradients(kind(backend), inputs, cotangent, "exact", False)
        for kind in (LayerNormDifferentiable, NarrowStatistics, NarrowSums, NarrowReductions)
    )

    def wider(found: dict[str, Any]) -> set[str]:
        return {n for n, made in found.items() if (made.error > plain[n].error).all()}

    assert wider(statistics) == {"query", "gain"}
    assert wider(sums) == {"gain", "offset"}
    assert wider(reductions) == {"query", "gain", "offset"}


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
