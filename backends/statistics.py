"""Paths of norms: evaluation after steps of training, and other epsilons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from attention_conformance.backends.implementation import Implementation
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.inputs import Inputs

STEPS = (1.0, 2.0)
"""The factor of the query in each step of training."""


def can_train(inputs: Inputs) -> bool:
    """True if evaluation shows the statistics that training stored: not in 16 bits, which are too
    coarse."""
    held = inputs.operator.array_kinds.statistics
    return bool(held) and not inputs.training and not inputs.dtype.is_half


def with_epsilon(norm: Implementation, inputs: Inputs, epsilon: float) -> PreparedCall:
    """The norm's call with another epsilon."""
    problem = inputs.replace(epsilon=epsilon)
    return replace(norm.prepare(problem), problem=problem)


def after_training(call: Callable[..., PreparedCall], inputs: Inputs) -> PreparedCall:
    """The evaluation after training on `STEPS`, where each batch has the share 0.01 of the statistics.
    `call(inputs, steps=...)` makes the norm's call after these steps."""
    return replace(call(inputs, steps=STEPS), problem=trained(inputs, (0.01, 0.01)))


def trained(inputs: Inputs, shares: Sequence[float], unbiased: bool = False) -> Inputs:
    """The inputs of an evaluation after a step of training on each of `STEPS`. New statistics are a
    weighted mean of the batch's (weights `shares`) and the old. `unbiased` divides the batch's variance
    by n - 1."""
    mean, variance = inputs.parameters["mean"], inputs.parameters["variance"]
    count = inputs.query.shape[0] * inputs.query.shape[1]
    for factor, share in zip(STEPS, shares, strict=True):
        batch = factor * inputs.query.astype(np.longdouble)
        spread = batch.var((0, 1)) * (count / (count - 1) if unbiased else 1.0)
        mean = (1 - share) * mean + share * batch.mean((0, 1))
        variance = (1 - share) * variance + share * spread
    statistics = {"mean": np.float64(mean), "variance": np.float64(variance)}
    return inputs.replace(**statistics, averaged=max(STEPS))
