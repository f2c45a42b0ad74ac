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
from references.rounding import Bounded, Roundoffs, precision_for
from suite.spec.inputs import Inputs
from suite.spec.operators.scripts import views


class OfChunks(Reference):
    """Plain attention chunk by chunk. It has no derivatives."""

    def forward(self, inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
        """The output (B, H, Lq, Dv), with its standard deviation in 16-bit dtypes.

        Every row has keys, so `empty_rows` has no influence. Raises NoExtendedPrecision.
        """
        s = inputs.sizes
        shape = (s.B, s.H, s.Lq, s.Dv)
        output = Bounded(np.zeros(shape, precision_for(inputs.dtype)), np.zeros(shape))
        deviation = np.zeros(shape) if inputs.dtype.is_half else None
        for n, view in enumerate(views(inputs.case)):
            part = bounded(
                inputs, rounding, view.queries(inputs.query),
                *map(view.gathered, (inputs.key, inputs.value)),
                part=n, mask=view.mask[:, None], bias=view.bias(inputs.bias),
                features=view.features(inputs.features),
            )  # fmt: skip
            found = part.arrays["output"]
            view.put(output.value, found.value)
            view.put(output.error, found.error)
            if deviation is not None and part.deviation is not None:
                view.put(deviation, part.deviation)
        return Outputs({"output": output}, np.ones((1, 1, s.Lq), int), deviation)


def compose(problem: Problem) -> Composition:
    """Raises NotImplementedError: derivatives are not asked."""
    raise NotImplementedError(f"{problem.inputs.operator} is forward only")


reference = OfChunks(compose)
