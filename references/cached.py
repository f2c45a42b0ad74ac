"""Attention with a cache: every chunk is plain attention (`references.sdpa`) over the tokens that are in
the cache, in the order of their positions, under a causal mask that ends at the chunk's last token.

Bound: that of the chunk alone, over the keys that attend. A cache holds keys and values in the dtype of
the case, and copies, moves and overwrites their bits, so keeping them adds no rounding. A ring attends
its slots in another order: the bound of a row of n keys allows any order of the sums. Slots that hold no
key, or a hidden one, add exact zeros.

The output is forward only: serving differentiates nothing.

Source: Vaswani et al. 2017, section 3.2.3 (masked positions); Shazeer, Fast Transformer Decoding, arXiv
1911.02150 (2019), section 2.4.
"""

from __future__ import annotations

import numpy as np

from references.blocked import bounded
from references.composition import Composition, Problem, Reference
from references.outputs import Outputs
from references.primitives.segments import concatenated
from references.rounding import Roundoffs
from suite.spec.inputs import Inputs
from suite.spec.operators.scripts import views


class OfChunks(Reference):
    """Plain attention chunk by chunk. It has no derivatives."""

    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """The output (B, H, Lq, Dv), with its standard deviation in 16-bit dtypes.

        Every row has keys, so `empty_rows` has no influence. Raises NoExtendedPrecision.
        """
        parts, deviations = [], []
        for n, view in enumerate(views(inputs.case)):
            operands = (
                inputs.query[:, :, view.rows],
                *map(view.gathered, (inputs.key, inputs.value)),
            )
            mask = view.mask[:, None]
            part = bounded(inputs, rounding, *operands, part=n, mask=mask, features=inputs.features)
            parts.append(part.arrays["output"].moved(2, 0))
            if part.deviation is not None:
                deviations.append(part.deviation)
        deviation = np.concatenate(deviations, 2) if deviations else None
        output = concatenated(parts).moved(0, 2)
        return Outputs({"output": output}, np.ones((1, 1, inputs.sizes.Lq), int), deviation)


def compose(problem: Problem) -> Composition:
    """Raises NotImplementedError: derivatives are not asked."""
    raise NotImplementedError(f"{problem.inputs.operator} is forward only")


reference = OfChunks(compose)
