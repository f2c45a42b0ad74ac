"""An honest layer that holds its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attention_conformance.backends._numpy import Rounded
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.deviations.kernels.layer import MultiHeadKernel
from attention_conformance.suite.spec.inputs import Inputs


class LayerHolding(MultiHeadKernel):
    """The layer holds its parameters, which are no arguments of its calls."""

    def prepare(self, inputs: Inputs) -> PreparedCall:
        call = super().prepare(inputs)
        held = {name: call.arguments.pop(name) for name in inputs.parameters}
        made = {name: Rounded(array.values.copy(), array.fmt) for name, array in held.items()}

        def function(**arguments: Any) -> Any:
            return call.function(**arguments, **self.taken(held, made))

        return replace(call, function=function, layer_parameters=tuple(held.values()))

    def taken(
        self, held: Mapping[str, Rounded], made: Mapping[str, Rounded]
    ) -> Mapping[str, Rounded]:
        """The parameters of a call: those that the layer holds, and not what it made of them when it was
        created."""
        return held
