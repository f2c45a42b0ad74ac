"""Norms: (x - mean) / sqrt(variance + epsilon) gain + offset, x = query (B, L, E).

Layer norm takes mean and variance of each token over its features. Batch norm takes them of each feature
over samples and positions (divided by B L) in training; evaluation uses learned statistics, which are
constants for derivatives. mean, variance, gain and offset are (E,); gain and offset are both given or
both absent. Key and value are unused. No row is fully masked. Bounds: `references.primitives.norm`.

With the option `averaged` the learned statistics are running averages, and their rounding counts, too.
The batches t are at most `averaged` times the query; each has the statistics of training. With s the
momentum of a batch, the update

    m <- (1 - s) m + s mean(t)

rounds 1 - s, two products and a sum, each relative to at most |m| + 2 mean(|t|), m the final value. An
unbiased variance (divided by n - 1) rounds twice more, and its inherited error grows by n / (n - 1).
Two updates are at most 12 roundings. The value m is rounded once.

Sources: Ba, Kiros, Hinton 2016, section 3; Ioffe, Szegedy, ICML 2015, section 3.
"""

from __future__ import annotations

import numpy as np

from attention_conformance.references.composition import Composition, Problem, Reference
from attention_conformance.references.primitives.norm import Norm, Statistics, statistics
from attention_conformance.references.rounding import Bounded, magnitude, rounded_input

AXES = (0, 1)
"""The axes of batch norm's mean and variance."""


def compose(problem: Problem) -> Composition:
    """The output (B, L, E)."""
    x, inputs, is_batch_norm = problem.leaf("query"), problem.inputs, "mean" in problem.arrays
    gain, offset = problem.optional_leaf("gain"), problem.optional_leaf("offset")
    learned = _learned_statistics(problem) if is_batch_norm and not inputs.training else None
    axes = AXES if is_batch_norm else (2,)
    return Composition(Norm(problem.u, x, gain, offset, axes, inputs.epsilon, learned))


def _learned_statistics(problem: Problem) -> Statistics:
    """Returns the learned mean and variance (E,). With the option `averaged` they have the errors of
    running averages."""
    u, inputs = problem.u, problem.inputs
    factor = inputs.case.option("averaged")
    moments = problem.leaf("mean").array, problem.leaf("variance").array
    if factor is None:
        return moments
    tokens = rounded_input(factor * problem.arrays["query"], u)
    magnitudes = magnitude(tokens.value).mean(AXES), np.square(magnitude(tokens.value)).mean(AXES)
    unit = max(u.accumulate, u.step, u.output)
    count = inputs.sizes.B * inputs.sizes.Lq
    unbiased = count / max(count - 1, 1)
    mean, variance = (
        Bounded(
            x.value,
            x.error + unbiased * (batch.error.reshape(-1) + 13 * unit * (x.magnitude + 2 * size)),
        )
        for x, batch, size in zip(moments, statistics(tokens, AXES, u), magnitudes, strict=True)
    )
    return mean, variance


reference = Reference(compose)
