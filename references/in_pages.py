"""References of operators whose tokens lie in pages: the tokens are taken from the pools first.

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
from attention_conformance.suite.spec.operator import Axes
from attention_conformance.suite.spec.operators.in_pages import (
    NEW,
    case_without_pages,
    gather_tokens,
    is_pooled,
    pool_of,
    slots,
    stored_pool_names,
    take_tokens,
    tokens_first,
    with_stored_tokens,
    write_tokens,
)


class InPages(Reference):
    """The reference of an operator whose tokens may lie in pages."""

    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """As `Reference.forward`. Pools in which a call stores tokens come back with exact values."""
        outputs = super().forward(gather_tokens(inputs), rounding, empty_rows)
        outputs = outputs_in_pools(
            inputs, outputs, inputs.operator.outputs(case_without_pages(inputs.case))
        )
        if names := stored_pool_names(inputs.case):
            written = with_stored_tokens(inputs).arrays
            pools = {f"{name}_output": Bounded.exact(written[name]) for name in names}
            outputs = replace(outputs, arrays={**outputs.arrays, **pools})
        return outputs

    def vjp(
        self, inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs,
        empty_rows: str = "zeros", output: str = "output",
    ) -> Outputs:  # fmt: skip
        """As `Reference.vjp`. Gradients of pools have the shapes of the pools, and are 0 in slots into
        which the call stores tokens."""
        if stored_pool_names(inputs.case):
            outputs = self.vjp(with_stored_tokens(inputs), cotangent, rounding, empty_rows, output)
            return with_new_tokens(inputs, outputs)
        outputs = super().vjp(gather_tokens(inputs), cotangent, rounding, empty_rows, output)
        return pool_gradients(inputs, outputs, case_without_pages(inputs.case).axes, rounding)

    def jvp(
        self, inputs: Inputs, tangents: Mapping[str, np.ndarray], rounding: Roundoffs,
        empty_rows: str = "zeros",
    ) -> Outputs:  # fmt: skip
        """As `Reference.jvp`."""
        if names := stored_pool_names(inputs.case):
            zeros = {name: np.zeros_like(inputs.arrays[name]) for name in names}
            zeros |= {
                f"{NEW}{name}": np.zeros_like(inputs.arrays[f"{NEW}{name}"]) for name in names
            }
            written = with_stored_tokens(
                replace(inputs, arrays={**inputs.arrays, **zeros, **tangents})
            ).arrays
            stored_tangents = {
                name: written[name] for name in {*tangents, *names} if name in written
            }
            return self.jvp(with_stored_tokens(inputs), stored_tangents, rounding, empty_rows)
        gathered_arrays = gather_tokens(
            replace(inputs, arrays={**inputs.arrays, **tangents})
        ).arrays
        tangents = {name: gathered_arrays[name] for name in tangents}
        return super().jvp(gather_tokens(inputs), tangents, rounding, empty_rows)


def outputs_in_pools(inputs: Inputs, outputs: Outputs, axes: Axes) -> Outputs:
    """Returns `outputs` with the arrays of tokens written into their pools. Outputs of inputs without
    pages are returned unchanged. `axes`: the axes of the outputs without pages, by name."""
    if "page_table" not in inputs.arrays:
        return outputs
    arrays, slot, case = dict(outputs.arrays), slots(inputs), inputs.case
    for name, x in outputs.arrays.items():
        if is_pooled(array_axes := axes[name]):
            pool = inputs.arrays[name.replace("_output", "_codes")].astype(x.value.dtype)
            value = write_tokens(case, pool, slot, x.value, array_axes)
            error = write_tokens(case, np.zeros(pool.shape), slot, x.error, array_axes)
            arrays[name] = Bounded(value, error)
    return replace(outputs, arrays=arrays)


def with_new_tokens(inputs: Inputs, outputs: Outputs) -> Outputs:
    """Returns `outputs`, gradients of pools after a store, with each gradient split in two: that of the
    new tokens, and that of the pool before the store, which is 0 in their slots."""
    arrays, case, axes = dict(outputs.arrays), inputs.case, case_without_pages(inputs.case).axes
    slot = slots(inputs)[:, -inputs.sizes.Lq :]
    for name in stored_pool_names(case):
        parts = arrays[name].value, arrays[name].error
        tokens = [take_tokens(case, part, slot, axes[name]) for part in parts]
        pools = (
            write_tokens(case, p, slot, 0 * x, axes[name])
            for p, x in zip(parts, tokens, strict=True)
        )
        arrays |= {name: Bounded(*pools), f"{NEW}{name}": Bounded(*tokens)}
    return replace(outputs, arrays=arrays)


def pool_gradients(inputs: Inputs, outputs: Outputs, axes: Axes, u: Roundoffs) -> Outputs:
    """Returns `outputs`, gradients of tokens, as gradients of the pools. Gradients for inputs without
    pages are returned unchanged. `axes`: the axes of the arrays without pages, by name.
    A slot that several samples share has the sum of their gradients, and every partial sum is stored."""
    if "page_table" not in inputs.arrays:
        return outputs
    arrays, slot, case = dict(outputs.arrays), slots(inputs), inputs.case
    samples_of_slot = np.zeros(inputs.letters["p"] * inputs.letters["s"])
    np.add.at(samples_of_slot, slot[slot >= 0], 1)
    for name, x in outputs.arrays.items():
        if is_pooled(array_axes := axes[name]):
            parts = []
            for part in (x.value, x.error, x.magnitude):
                tokens = tokens_first(part, array_axes)
                sums = np.zeros((len(samples_of_slot), *tokens.shape[2:]), tokens.dtype)
                np.add.at(sums, slot[slot >= 0], tokens[slot >= 0])
                parts.append(sums)
            value, error, size = parts
            store_counts = np.maximum(samples_of_slot - 1, 0).reshape(-1, *[1] * (size.ndim - 1))
            error = error + store_counts * (u.output * size + u.floor)
            arrays[name] = Bounded(
                pool_of(case, value, array_axes), pool_of(case, error, array_axes)
            )
    return replace(outputs, arrays=arrays)
