"""Mutants of the backward passes of layers."""

from __future__ import annotations

import numpy as np

from suite.spec.dtypes import round_to
from suite.spec.layers import LayerInputs
from tests.mutants.layer_gradient_kernel import (
    AdditiveDifferentiable,
    ConcatDifferentiable,
    DotDifferentiable,
    LayerDifferentiable,
)
from tests.mutants.registry import mutant


@mutant("layer_gradients")
class KernelGradientOfFirstSample(LayerDifferentiable):
    """The gradients of the kernels are those of the first sample."""

    def gradients(self, given, cotangent, inputs):  # type: ignore[no-untyped-def]
        kept = np.zeros_like(cotangent)
        kept[0] = cotangent[0]
        first = super().gradients(given, kept, inputs)
        found = super().gradients(given, cotangent, inputs)
        return found | {n: x for n, x in first.items() if n.endswith("kernel")}


@mutant("layer_gradients")
class OutputKernelGradientUnmerged(LayerDifferentiable):
    """The gradient of the output kernel merges heads and their features in the other order."""

    def gradients(self, given, cotangent, inputs):  # type: ignore[no-untyped-def]
        found = super().gradients(given, cotangent, inputs)
        kernel = found["output_kernel"]
        H, Dv, width = kernel.shape
        found["output_kernel"] = kernel.swapaxes(0, 1).reshape(H, Dv, width)
        return found


@mutant("layer_gradients")
class ProjectionBiasWithoutGradient(LayerDifferentiable):
    """The biases of the projections of queries have no gradient."""

    def gradients(self, given, cotangent, inputs):  # type: ignore[no-untyped-def]
        found = super().gradients(given, cotangent, inputs)
        if "query_bias" in found:
            found["query_bias"] = np.zeros_like(found["query_bias"])
        return found


@mutant("layer_gradients")
class ValueInputTakesKeyKernel(LayerDifferentiable):
    """The gradient of the values goes back through the kernel of the keys where it fits."""

    def gradients(self, given, cotangent, inputs):  # type: ignore[no-untyped-def]
        found = super().gradients(given, cotangent, inputs)
        if given["key_kernel"].shape == given["value_kernel"].shape:
            swapped = given | {"value_kernel": given["key_kernel"]}
            found["value"] = super().gradients(swapped, cotangent, inputs)["value"]
        return found


def summed_narrowly(cotangent: np.ndarray, inputs: LayerInputs) -> np.ndarray:
    """The sum over samples and positions, row after row in the case's dtype."""
    total = np.zeros(cotangent.shape[-1])
    for row in cotangent.reshape(-1, cotangent.shape[-1]):
        total = round_to(total + row, inputs.dtype)
    return total


@mutant("layer_gradients")
class OutputBiasSummedNarrowly(LayerDifferentiable):
    """The gradient of the output bias is a sum in the case's dtype, which is not declared."""

    def gradients(self, given, cotangent, inputs):  # type: ignore[no-untyped-def]
        found = super().gradients(given, cotangent, inputs)
        if "output_bias" in found:
            found["output_bias"] = summed_narrowly(cotangent, inputs)
        return found


@mutant("layer_gradients", like="I15")
class LayerEmptyRowNan(LayerDifferentiable):
    """The gradients of inputs are NaN in rows without keys, though these answer."""

    def gradients(self, given, cotangent, inputs):  # type: ignore[no-untyped-def]
        found = super().gradients(given, cotangent, inputs)
        empty = np.asarray(~inputs.attends.any(-1)).any(1)[..., None]
        return found | {"query": np.where(empty, np.nan, found["query"])}


@mutant("layer_gradients", like="I15")
class LayerEmptyRowPoisonsValues(LayerDifferentiable):
    """A row without keys shares its cotangent out among the values, and so with their kernel."""

    empty_rows = "uniform"


@mutant("layer_gradients")
class TanhSlopeForgotten(AdditiveDifferentiable):
    """The slope of the tanh is missing."""

    def slope(self, h: np.ndarray) -> np.ndarray:
        return np.ones_like(h)


@mutant("layer_gradients")
class ScoreVectorOfFirstQuery(AdditiveDifferentiable):
    """The gradient of the score vector is that of the first query."""

    def vector_gradient(self, dr: np.ndarray, h: np.ndarray) -> np.ndarray:
        return super().vector_gradient(dr[:, :1], h[:, :1])


@mutant("layer_gradients")
class ConcatWeightForgotten(ConcatDifferentiable):
    """The gradients through the scores lack the weight these are multiplied with."""

    def weighted(self, ds: np.ndarray, weight: float) -> np.ndarray:
        return ds


@mutant("layer_gradients")
class ScaleGradientOfScaledScores(DotDifferentiable):
    """The gradient of the scale sums the scores after it, not those before."""

    def scale_gradient(self, ds, product, given):  # type: ignore[no-untyped-def]
        return super().scale_gradient(ds, product, given) * self.number(given)


@mutant("layer_gradients")
class ScaleWithoutGradient(DotDifferentiable):
    """The scale has no gradient."""

    def scale_gradient(self, ds, product, given):  # type: ignore[no-untyped-def]
        return np.zeros(())
