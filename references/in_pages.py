"""Operators whose tokens lie in pages: the reference of what a page table takes from the pools.

Taking and storing tokens rounds nothing, so bounds are those of the operator without pages. A slot that
no token takes keeps its bits, and has the gradient 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from references.composition import Reference
from references.outputs import Outputs
from references.rounding import Bounded, Roundoffs
from suite.spec.inputs import Inputs
from suite.spec.operators.in_pages import flat, gathered, is_pooled, put, slots


class InPages(Reference):
    """An operator, with or without pages."""

    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """As `Reference.forward`."""
        found = super().forward(gathered(inputs), rounding, empty_rows)
        return pooled(inputs, found, inputs.operator.outputs(flat(inputs.case)))

    def vjp(
        self, inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs,
        empty_rows: str = "zeros", of: str = "output",
    ) -> Outputs:  # fmt: skip
        """As `Reference.vjp`; gradients of pools have their shapes."""
        found = super().vjp(gathered(inputs), cotangent, rounding, empty_rows, of)
        return pooled(inputs, found, flat(inputs.case).axes)

    def jvp(
        self, inputs: Inputs, tangents: Mapping[str, np.ndarray], rounding: Roundoffs,
        empty_rows: str = "zeros",
    ) -> Outputs:  # fmt: skip
        """As `Reference.jvp`."""
        moved = gathered(replace(inputs, arrays={**inputs.arrays, **tangents})).arrays
        tangents = {name: moved[name] for name in tangents}
        return super().jvp(gathered(inputs), tangents, rounding, empty_rows)


def pooled(inputs: Inputs, found: Outputs, axes: Mapping[str, str]) -> Outputs:
    """Outputs or gradients with these axes without pages, in pools if the inputs have pages."""
    if "page_table" not in inputs.arrays:
        return found
    arrays, at = dict(found.arrays), slots(inputs)
    for name, x in found.arrays.items():
        if is_pooled(axes[name]):
            pool = inputs.arrays[name.replace("_output", "_codes")].astype(x.value.dtype)
            pool = 0 * pool if name in inputs.arrays else pool
            value = put(pool, at, x.value, axes[name])
            arrays[name] = Bounded(value, put(np.zeros(pool.shape), at, x.error, axes[name]))
    return replace(found, arrays=arrays)
