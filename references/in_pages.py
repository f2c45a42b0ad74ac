"""Operators whose tokens lie in pages: the reference of what a page table takes from the pools.

Taking and storing tokens rounds nothing, so bounds are those of the operator without pages. A slot that
no token takes keeps its bits, and has the gradient 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from attention_conformance.references.composition import Reference
from attention_conformance.references.outputs import Outputs
from attention_conformance.references.rounding import Bounded, Roundoffs
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.in_pages import (
    NEW,
    flat,
    gathered,
    in_front,
    is_pooled,
    pool_of,
    put,
    slots,
    stored,
    stores,
    taken,
)


class InPages(Reference):
    """An operator, with or without pages."""

    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """As `Reference.forward`. Pools in which a call stores tokens come back with exact values."""
        found = super().forward(gathered(inputs), rounding, empty_rows)
        found = pooled(inputs, found, inputs.operator.outputs(flat(inputs.case)))
        if names := stores(inputs.case):
            after = stored(inputs).arrays
            pools = {f"{name}_output": Bounded.exact(after[name]) for name in names}
            found = replace(found, arrays={**found.arrays, **pools})
        return found

    def vjp(
        self, inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs,
        empty_rows: str = "zeros", output: str = "output",
    ) -> Outputs:  # fmt: skip
        """As `Reference.vjp`; gradients of pools have their shapes. Slots in which a call stores tokens
        have none."""
        if stores(inputs.case):
            after = self.vjp(stored(inputs), cotangent, rounding, empty_rows, output)
            return of_new_tokens(inputs, after)
        found = super().vjp(gathered(inputs), cotangent, rounding, empty_rows, output)
        return added(inputs, found, flat(inputs.case).axes, rounding)

    def jvp(
        self, inputs: Inputs, tangents: Mapping[str, np.ndarray], rounding: Roundoffs,
        empty_rows: str = "zeros",
    ) -> Outputs:  # fmt: skip
        """As `Reference.jvp`."""
        if names := stores(inputs.case):
            zeros = {name: np.zeros_like(inputs.arrays[name]) for name in names}
            zeros |= {
                f"{NEW}{name}": np.zeros_like(inputs.arrays[f"{NEW}{name}"]) for name in names
            }
            after = stored(replace(inputs, arrays={**inputs.arrays, **zeros, **tangents})).arrays
            stored_tangents = {name: after[name] for name in {*tangents, *names} if name in after}
            return self.jvp(stored(inputs), stored_tangents, rounding, empty_rows)
        moved = gathered(replace(inputs, arrays={**inputs.arrays, **tangents})).arrays
        tangents = {name: moved[name] for name in tangents}
        return super().jvp(gathered(inputs), tangents, rounding, empty_rows)


def pooled(inputs: Inputs, found: Outputs, axes: Mapping[str, str]) -> Outputs:
    """Outputs with these axes without pages, in pools if the inputs have pages."""
    if "page_table" not in inputs.arrays:
        return found
    arrays, at, case = dict(found.arrays), slots(inputs), inputs.case
    for name, x in found.arrays.items():
        if is_pooled(array_axes := axes[name]):
            pool = inputs.arrays[name.replace("_output", "_codes")].astype(x.value.dtype)
            value = put(case, pool, at, x.value, array_axes)
            arrays[name] = Bounded(value, put(case, np.zeros(pool.shape), at, x.error, array_axes))
    return replace(found, arrays=arrays)


def of_new_tokens(inputs: Inputs, found: Outputs) -> Outputs:
    """Gradients of pools after tokens were stored, as gradients of the tokens and of other slots."""
    arrays, case, axes = dict(found.arrays), inputs.case, flat(inputs.case).axes
    at = slots(inputs)[:, -inputs.sizes.Lq :]
    for name in stores(case):
        parts = arrays[name].value, arrays[name].error
        new = [taken(case, part, at, axes[name]) for part in parts]
        pools = (put(case, p, at, 0 * x, axes[name]) for p, x in zip(parts, new, strict=True))
        arrays |= {name: Bounded(*pools), f"{NEW}{name}": Bounded(*new)}
    return replace(found, arrays=arrays)


def added(inputs: Inputs, found: Outputs, axes: Mapping[str, str], u: Roundoffs) -> Outputs:
    """Gradients with these axes without pages, in pools if the inputs have pages. A slot that several
    samples share has the sum of their gradients, and every partial sum is stored."""
    if "page_table" not in inputs.arrays:
        return found
    arrays, at, case = dict(found.arrays), slots(inputs), inputs.case
    owners = np.zeros(inputs.letters["p"] * inputs.letters["s"])
    np.add.at(owners, at[at >= 0], 1)
    for name, x in found.arrays.items():
        if is_pooled(array_axes := axes[name]):
            parts = []
            for part in (x.value, x.error, x.size):
                tokens = in_front(part, array_axes)
                sums = np.zeros((len(owners), *tokens.shape[2:]), tokens.dtype)
                np.add.at(sums, at[at >= 0], tokens[at >= 0])
                parts.append(sums)
            value, error, size = parts
            stores = np.maximum(owners - 1, 0).reshape(-1, *[1] * (size.ndim - 1))
            error = error + stores * (u.output * size + u.floor)
            arrays[name] = Bounded(
                pool_of(case, value, array_axes), pool_of(case, error, array_axes)
            )
    return replace(found, arrays=arrays)
