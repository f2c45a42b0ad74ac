"""Batch norm: (x - mean) / sqrt(variance + epsilon) gain + offset. Mean and variance (divided by B L) are
those of each feature over samples and positions in training, and those it has learned in evaluation: E
statistics, whatever B and L.

query (B, L, E) is x; key and value are not looked at; mean, variance, gain and offset (E,), the last two
or neither. Learned statistics are constants to a derivative. See `references.norms`.

Statistics that training leaves (the option `averaged`) carry what their averages round, besides. With
tokens t of at most `averaged` times the query, of which each batch has statistics as in training, and s
the share of a batch, m <- (1 - s) m + s mean(t) rounds 1 - s, two products and a sum, each relative to no
more than |m| + 2 mean(|t|), where m is what comes out last; a variance that is divided by n - 1 twice
more, and what it inherits grows by n / (n - 1). In two steps these are no more than 12 roundings. The
value m itself is rounded once.

Source: Ioffe, Szegedy, ICML 2015, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from references import norms
from references.norms import Norm, Statistics, statistics
from references.outputs import Outputs, wide
from references.rounding import Bounded, Roundoffs, magnitude, narrowed
from suite.spec.inputs import Inputs

AXES = (0, 1)


def _norm(inputs: Inputs, u: Roundoffs) -> Norm:
    learned = None if inputs.training else _learned(inputs, u)
    return norms.of(inputs, AXES, learned, inputs.epsilon, u)


def _learned(inputs: Inputs, u: Roundoffs) -> Statistics:
    """The statistics (E,) that inputs are evaluated with."""
    arrays, factor = wide(inputs), inputs.case.option("averaged")
    moments = (narrowed(arrays["mean"], u), narrowed(arrays["variance"], u))
    if factor is None:
        return moments
    tokens = narrowed(factor * arrays["query"], u)
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


@np.errstate(all="ignore")
def forward(inputs: Inputs, rounding: Roundoffs, empty_rows: str = "zeros") -> Outputs:
    """The output (B, L, E) with its bound. Raises NoExtendedPrecision.

    There are no rows without keys: `empty_rows` is of no influence.
    """
    return norms.forward(_norm(inputs, rounding))


@np.errstate(all="ignore")
def vjp(
    inputs: Inputs, cotangent: np.ndarray, rounding: Roundoffs, empty_rows: str = "zeros"
) -> Outputs:
    """The gradients of query, gain and offset, in their shapes, for a cotangent (B, L, E)."""
    return norms.vjp(_norm(inputs, rounding), inputs, cotangent)


@np.errstate(all="ignore")
def jvp(
    inputs: Inputs,
    tangents: Mapping[str, np.ndarray],
    rounding: Roundoffs,
    empty_rows: str = "zeros",
) -> Outputs:
    """How the output moves, (B, L, E), as any of query, gain and offset move along `tangents`.

    Raises ValueError for the tangent of a statistic or an unknown array.
    """
    return norms.jvp(_norm(inputs, rounding), inputs, tangents)
