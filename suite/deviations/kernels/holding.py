"""A right layer that holds its parameters."""

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
        held = {name: call.arguments.pop(name) for name in inputs.parameters}
        copies = {name: Rounded(array.values.copy(), array.fmt) for name, array in held.items()}

        def function(**arguments: Any) -> Any:
            return call.function(**arguments, **self.used_parameters(held, copies))

        return replace(call, function=function, layer_parameters=tuple(held.values()))

    def used_parameters(
        self, held: Mapping[str, Rounded], copies: Mapping[str, Rounded]
    ) -> Mapping[str, Rounded]:
        """The parameters that a call uses: the arrays that the layer holds, which callers may change, and
        not the copies that it made at creation."""
        return held
