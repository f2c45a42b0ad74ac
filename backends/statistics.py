"""What paths of norms have in common: statistics that steps of training leave for evaluation, and other
epsilons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from backends.implementation import Implementation
from backends.prepared import PreparedCall
from suite.spec.inputs import Inputs

STEPS = (1.0, 2.0)
"""What the query is multiplied by in each step of training."""


def can_train(inputs: Inputs) -> bool:
    """Whether statistics that training leaves are told apart in what evaluation answers: 16 bits store
    them coarsely."""
    held = inputs.operator.array_kinds.statistics
    return bool(held) and not inputs.training and not inputs.dtype.is_half


def with_epsilon(norm: Implementation, inputs: Inputs, epsilon: float) -> PreparedCall:
    """The norm's call with another epsilon."""
    problem = inputs.replace(epsilon=epsilon)
    return replace(norm.prepare(problem), problem=problem)


def after_training(call: Callable[..., PreparedCall], inputs: Inputs) -> PreparedCall:
    """Evaluation after `STEPS` of training, of which each batch is a hundredth of the statistics; `call`
    makes the norm's call of inputs, after so many `steps`."""
    return replace(call(inputs, steps=STEPS), problem=trained(inputs, (0.01, 0.01)))


def trained(inputs: Inputs, shares: Sequence[float], unbiased: bool = False) -> Inputs:
    """The evaluation after a step of training on each of `STEPS`. Of the new statistics the batch has
    one of the `shares`, the old ones the rest; `unbiased`: its variance is divided by n - 1."""
    mean, variance = inputs.parameters["mean"], inputs.parameters["variance"]
    count = inputs.query.shape[0] * inputs.query.shape[1]
    for factor, share in zip(STEPS, shares, strict=True):
        batch = factor * inputs.query.astype(np.longdouble)
        spread = batch.var((0, 1)) * (count / (count - 1) if unbiased else 1.0)
        mean = (1 - share) * mean + share * batch.mean((0, 1))
        variance = (1 - share) * variance + share * spread
    statistics = {"mean": np.float64(mean), "variance": np.float64(variance)}
    return inputs.replace(**statistics, averaged=max(STEPS))
