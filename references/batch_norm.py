"""Batch norm: (x - mean) / sqrt(variance + epsilon) gain + offset. Mean and variance (divided by B L) are
those of each feature over samples and positions in training, and those it has learned in evaluation: E
statistics, whatever B and L.

query (B, L, E) is x; key and value are not looked at; mean, variance, gain and offset (E,), the last two
or neither. Learned statistics are constants to a derivative. See `references.primitives.norm`.

Statistics that training leaves (the option `averaged`) carry what their averages round, besides. With
tokens t of at most `averaged` times the query, of which each batch has statistics as in training, and s
the share of a batch, m <- (1 - s) m + s mean(t) rounds 1 - s, two products and a sum, each relative to no
more than |m| + 2 mean(|t|), where m is what comes out last; a variance that is divided by n - 1 twice
more, and what it inherits grows by n / (n - 1). In two steps these are no more than 12 roundings. The
value m itself is rounded once.

Source: Ioffe, Szegedy, ICML 2015, section 3.
"""

from __future__ import annotations

import numpy as np

from references.composition import Composition, Problem, Reference
from references.primitives.norm import Norm, Statistics, statistics
from references.rounding import Bounded, magnitude, narrowed

AXES = (0, 1)


def compose(problem: Problem) -> Composition:
    """The output (B, L, E)."""
    x, gain, offset = problem.leaf("query"), problem.optional("gain"), problem.optional("offset")
    learned = None if problem.inputs.training else _learned(problem)
    return Composition(Norm(problem.u, x, gain, offset, AXES, problem.inputs.epsilon, learned))


def _learned(problem: Problem) -> Statistics:
    """The statistics (E,) that inputs are evaluated with."""
    u, inputs = problem.u, problem.inputs
    factor = inputs.case.option("averaged")
    moments = problem.leaf("mean").array, problem.leaf("variance").array
    if factor is None:
        return moments
    tokens = narrowed(factor * problem.arrays["query"], u)
    sizes = magnitude(tokens.value).mean(AXES), np.square(magnitude(tokens.value)).mean(AXES)
    unit = max(u.accumulate, u.step, u.output)
    count = inputs.sizes.B * inputs.sizes.Lq
    unbiased = count / max(count - 1, 1)
    mean, variance = (
        Bounded(
            x.value,
            x.error + unbiased * (batch.error.reshape(-1) + 13 * unit * (x.size + 2 * size)),
        )
        for x, batch, size in zip(moments, statistics(tokens, AXES, u), sizes, strict=True)
    )
    return mean, variance


reference = Reference(compose)
