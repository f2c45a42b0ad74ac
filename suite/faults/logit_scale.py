"""Faults of logit scales: a factor of the scores for every query head."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.suite.faults.deviation import deviation
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.kernels.gradient import Differentiable


def logit_scale_of_group(right: Kernel, call: Call) -> np.ndarray:
    return np.repeat(right.factors(call)[:: call.sizes.group], call.sizes.group)


def logit_scale_behind_the_cap(right: Kernel, scores: np.ndarray, call: Call) -> np.ndarray:
    if call.softcap is None or call.logit_scale is None:
        return right.capped(scores, call)
    cap = call.work(call.softcap)
    return right.tempered(cap * np.tanh(scores / cap), call)


def logit_scale_gradient_of_one_sample(
    right: Differentiable, dt: np.ndarray, product: np.ndarray
) -> np.ndarray:
    return right.logit_scale_gradient(dt[:1], product[:1])


row = partial(deviation, family="scores", right=Kernel)

DEVIATIONS = [
    row("logit-scale-ignored", "logit_scale_equals_scaled_query", "Logit scales have no effect.",
        "`logit_scale` is accepted and not used; `scores * logit_scale[:, None, None]` is missing",
        factors=lambda right, call: np.ones_like(right.factors(call))),
    row("logit-scale-of-next-head", "values",
        "Every head has the logit scale of the head after it.",
        "`logit_scale[h + 1]`; head h has `logit_scale[h]`", family="heads",
        factors=lambda right, call: np.roll(right.factors(call), -1)),
    row("logit-scale-of-group", "values",
        "With grouped heads every head of a group has the logit scale of the first one.",
        "`logit_scale[h // group * group]`; there is one a query head, `logit_scale[h]`",
        family="heads", factors=logit_scale_of_group),
    row("logit-scale-exponentiated", "values",
        "Scores are multiplied by exp(logit scale), not by the logit scale.",
        "`logit_scale.exp()`, as for parameters that are logarithms; here it is the factor itself",
        factors=lambda right, call: np.exp(right.factors(call))),
    row("logit-scale-behind-the-cap", "values",
        "Scores are multiplied by the logit scale after the softcap, not before.",
        "`softcap * tanh(s / softcap) * logit_scale`; multiply before the cap",
        capped=logit_scale_behind_the_cap),
    row("logit-scale-forgotten-backward", "gradients",
        "The gradients of queries and keys lack the logit scale.",
        "`dq = scale * ds @ k`; with a logit scale, `dq = scale * logit_scale * ds @ k`",
        family="gradient", right=Differentiable, backward_tempered=lambda right, dt, call: dt),
    row("logit-scale-gradient-of-one-sample", "gradients",
        "The gradient of the logit scales is summed over the rows of the first sample alone.",
        "`(ds * s)[0].sum((1, 2))`; sum over samples, too: `(ds * s).sum((0, 2, 3))`",
        family="gradient", right=Differentiable,
        logit_scale_gradient=logit_scale_gradient_of_one_sample),
]  # fmt: skip
