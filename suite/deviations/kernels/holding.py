"""A right layer that is an object with parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.deviations.kernels.layer import MultiHeadKernel
from attention_conformance.suite.spec.inputs import Inputs


class LayerHolding(MultiHeadKernel):
    """Multi-head attention as an object: its parameters are no arguments of its calls."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        call = super().prepare(inputs)
        own_arrays = {name: call.arguments.pop(name) for name in inputs.parameters}
        copies = {n: Rounded(array.values.copy(), array.fmt) for n, array in own_arrays.items()}

        def function(**arguments: Any) -> Any:
            return call.function(**arguments, **self.used_parameters(own_arrays, copies))

        return replace(call, function=function, layer_parameters=tuple(own_arrays.values()))

    def used_parameters(
        self, own_arrays: Mapping[str, Rounded], copies: Mapping[str, Rounded]
    ) -> Mapping[str, Rounded]:
        """Returns the parameters that a call uses: the layer's own arrays, which callers may change, not
        the `copies` made when the layer was created."""
        return own_arrays
