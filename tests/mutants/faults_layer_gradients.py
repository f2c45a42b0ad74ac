"""An honest multi-head layer with a backward pass in NumPy, and its mutants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from backends._numpy import Rounded
from backends.base import Prepared
from references.gradients import multi_head_gradients
from references.running import NO_ROUNDING
from suite.spec.dtypes import round_to
from suite.spec.layers import LayerInputs
from tests.mutants.layer_kernel import MultiHeadKernel
from tests.mutants.registry import mutant


class LayerDifferentiable(MultiHeadKernel):
    """Multi-head attention whose gradients are computed in float64 and rounded once."""

    def prepare(self, inputs: LayerInputs) -> Prepared:  # type: ignore[override]
        made = super().prepare(inputs)

        def backward(cotangent: Rounded, wrt: list[str], **arguments: Any) -> dict[str, Any]:
            given = {n: a.values for n, a in arguments.items() if isinstance(a, Rounded)}
            found = self.gradients(given, cotangent.values, inputs)
            return {n: Rounded(round_to(x, inputs.dtype), inputs.dtype) for n, x in found.items()}

        return replace(made, backward=backward)

    def gradients(
        self, given: dict[str, np.ndarray], cotangent: np.ndarray, inputs: LayerInputs
    ) -> dict[str, np.ndarray]:
        """Gradients by argument, float64."""
        found = multi_head_gradients(
            given["query"], given["key"], given["value"],
            {name: given[name] for name in inputs.parameters}, cotangent,
            rounding=NO_ROUNDING, allowed=inputs.dense_mask, bias=inputs.bias,
        )  # fmt: skip
        return {name: made.value for name, made in found.items()}


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
