"""Packed attention: every segment is plain attention (`references.sdpa`) over its own queries and keys.

Bounds are those of the segments, and count only the keys that attend. A kernel that computes and hides
the pairs of different segments adds exact zeros.

Source: "varlen" interfaces; Dao, FlashAttention-2, arXiv 2307.08691 (2023).
"""

from __future__ import annotations

import numpy as np

from references.blocked import bounded
from references.composition import Composition, Problem, Reference
from references.outputs import Outputs
from references.primitives.arranged import Moved, Reshaped
from references.primitives.attend import Attend
from references.primitives.pairs import Pairs
from references.primitives.scores import Scores
from references.primitives.segments import Concatenated, Packed, Segment, concatenated
from references.rounding import Roundoffs, drawing
from references.tape import Node
from suite.spec.inputs import Inputs
from suite.spec.operators.packed import allowed_pairs, segments
from suite.spec.vocabulary import OPERANDS


def compose(problem: Problem) -> Composition:
    """The output (Lq, H, Dv)."""
    u, s = problem.u, problem.sizes
    query, key, value = (Packed(problem.leaf(name)) for name in OPERANDS)
    outputs: list[Node] = []
    for rows, keys in segments(problem.inputs.case):
        q, k, v = (
            _by_head(Segment(x, place)) for x, place in ((query, rows), (key, keys), (value, keys))
        )
        mask = _mask(problem.inputs, rows, keys)
        pairs = Pairs((1, s.H, *mask.shape), mask)
        attend = Attend(u, Scores(u, q, k, problem.scale, pairs), v, pairs)
        outputs.append(Moved(Reshaped(attend, (s.H, len(mask), s.Dv)), 0, 1))
    return Composition(Concatenated(u, outputs), keys=np.ones((1, 1, s.Lq), int))


class _Packed(Reference):
    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """The output (Lq, H, Dv), with its standard deviation in 16-bit dtypes.

        Every row has keys, so `empty_rows` has no influence. Raises NoExtendedPrecision.
        """
        if drawing():
            return self.recomputed(inputs, rounding)
        parts = []
        for n, (rows, keys) in enumerate(segments(inputs.case)):
            segment = (inputs.query[rows], inputs.key[keys], inputs.value[keys])
            operands = [x.swapaxes(0, 1)[None] for x in segment]
            mask = _mask(inputs, rows, keys)
            parts.append(bounded(inputs, rounding, *operands, part=n, mask=mask))
        output = concatenated([part.arrays["output"][0].moved(0, 1) for part in parts])
        deviations = [
            part.deviation[0].swapaxes(0, 1) for part in parts if part.deviation is not None
        ]
        deviation = np.concatenate(deviations) if deviations else None
        return Outputs({"output": output}, np.ones((1, 1, inputs.sizes.Lq), int), deviation)


reference = _Packed(compose)


def _mask(inputs: Inputs, rows: slice, keys: slice) -> np.ndarray:
    """The mask of one segment, True attends."""
    alignment = inputs.case.option("alignment")
    return allowed_pairs(rows.stop - rows.start, keys.stop - keys.start, alignment)


def _by_head(x: Segment) -> Node:
    """A segment (l, H, D) as (1, H, l, D)."""
    length, heads, size = x.shape
    return Reshaped(Moved(x, 0, 1), (1, heads, length, size))
