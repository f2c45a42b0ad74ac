"""Packed attention: every segment is plain attention (`references.sdpa`) over its own queries and keys.

Bounds are those of the segments, and count only the keys that attend. A kernel that computes and hides
the pairs of different segments adds exact zeros.

Source: "varlen" interfaces; Dao, FlashAttention-2, arXiv 2307.08691 (2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from attention_conformance.references.blocked import bounded
from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.outputs import Outputs
from attention_conformance.references.primitives.arranged import MovedAxis, Reshaped, SharedTensor
from attention_conformance.references.primitives.pairs import Pairs
from attention_conformance.references.primitives.scores import has_exact_scores
from attention_conformance.references.primitives.segments import (
    Concatenated,
    Packed,
    Segment,
    concatenated,
)
from attention_conformance.references.rounding import Roundoffs, errors_are_random, precision_for
from attention_conformance.references.sdpa import attended
from attention_conformance.references.steps import split_steps
from attention_conformance.references.tape import Node
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import parts

Part = tuple[slice, slice | np.ndarray, np.ndarray]
"""A part of the problem that is plain attention: the slice of its queries, the slice or indices of its
keys, and its mask (queries, keys), True attends."""


class ByParts(Reference):
    """Attention of packed queries (Lq, H, D), part by part, with the features of the scores.

    `parts(inputs)` gives the parts, which index key and value (N, Hkv, .). `token_nodes(problem)` gives
    key and value as nodes, `token_arrays(inputs)` as arrays.
    """

    def __init__(
        self,
        parts: Callable[[Inputs], Iterable[Part]],
        token_nodes: Callable[[Problem], tuple[SharedTensor, SharedTensor]],
        token_arrays: Callable[[Inputs], tuple[np.ndarray, np.ndarray]],
    ) -> None:
        super().__init__(self.composed)
        self.parts, self.token_nodes, self.token_arrays = parts, token_nodes, token_arrays

    def composed(self, problem: Problem) -> Composition:
        """Returns the composition of the output (Lq, H, Dv)."""
        u, s, inputs = problem.u, problem.sizes, problem.inputs
        query, (key, value) = Packed(problem.leaf("query")), self.token_nodes(problem)
        outputs: list[Node] = []
        for rows, keys, mask in self.parts(inputs):
            q, k, v = (
                _by_head(Segment(x, segment_rows))
                for x, segment_rows in ((query, rows), (key, keys), (value, keys))
            )
            pairs = Pairs((1, s.H, *mask.shape), mask)
            precision = precision_for(inputs.dtype)
            steps = split_steps(inputs.features, len(mask), mask.shape[1], precision)
            attend = attended(problem, q, k, v, pairs, None, *steps)
            outputs.append(MovedAxis(Reshaped(attend, (s.H, len(mask), s.Dv)), 0, 1))
        return Composition(Concatenated(u, outputs), keys=np.ones((1, 1, s.Lq), int))

    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """Returns the output (Lq, H, Dv), in 16 bits with the standard deviation of its rounding error.

        Every row has keys, so `empty_rows` has no influence. Raises NoExtendedPrecision.
        """
        if errors_are_random():
            return self.recomputed(inputs, rounding)
        if has_exact_scores(inputs):
            return super().forward(inputs, rounding, empty_rows)
        part_outputs, (key, value) = [], self.token_arrays(inputs)
        for n, (rows, keys, mask) in enumerate(self.parts(inputs)):
            part_arrays = (inputs.query[rows], key[keys], value[keys])
            operands = [x.swapaxes(0, 1)[None] for x in part_arrays]
            features = inputs.features
            part_outputs.append(
                bounded(inputs, rounding, *operands, part=n, mask=mask, features=features)
            )
        output = concatenated([part.arrays["output"][0].move_axis(0, 1) for part in part_outputs])
        deviations = [
            part.deviation[0].swapaxes(0, 1) for part in part_outputs if part.deviation is not None
        ]
        deviation = np.concatenate(deviations) if deviations else None
        key_counts = np.ones((1, 1, inputs.sizes.Lq), int)  # every row has keys
        return Outputs({"output": output}, key_counts, deviation)


def _key_and_value(problem: Problem) -> tuple[SharedTensor, SharedTensor]:
    """Returns the nodes of packed keys (Lk, Hkv, D) and values (Lk, Hkv, Dv)."""
    return Packed(problem.leaf("key")), Packed(problem.leaf("value"))


reference = ByParts(
    lambda inputs: parts(inputs.case), _key_and_value, lambda inputs: (inputs.key, inputs.value)
)


def _by_head(x: Segment) -> Node:
    """Returns a segment x (l, H, D) as (1, H, l, D)."""
    length, heads, size = x.shape
    return Reshaped(MovedAxis(x, 0, 1), (1, heads, length, size))
