"""Faults of logit scales: a factor of the scores for every query head."""

from __future__ import annotations

import numpy as np

from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.attention import Call, Kernel
from attention_conformance.suite.faults.kernels.gradient import Differentiable

FAMILY = "scores"


@fault(
    "logit_scale_equals_scaled_query",
    "`logit_scale` is accepted and not used; `scores * logit_scale[:, None, None]` is missing",
)
class LogitScaleIgnored(Kernel):
    """Logit scales have no effect."""

    def factors(self, call: Call) -> np.ndarray:
        return np.ones_like(super().factors(call))


@fault("values", "`logit_scale[h + 1]`; head h has `logit_scale[h]`", family="heads")
class LogitScaleOfNextHead(Kernel):
    """Every head has the logit scale of the head after it."""

    def factors(self, call: Call) -> np.ndarray:
        return np.roll(super().factors(call), -1)


@fault(
    "values",
    "`logit_scale[h // group * group]`; there is one a query head, `logit_scale[h]`",
    family="heads",
)
class LogitScaleOfGroup(Kernel):
    """With grouped heads every head of a group has the logit scale of the first one."""

    def factors(self, call: Call) -> np.ndarray:
        return np.repeat(super().factors(call)[:: call.sizes.group], call.sizes.group)


@fault(
    "values",
    "`logit_scale.exp()`, as for parameters that are logarithms; here it is the factor itself",
)
class LogitScaleExponentiated(Kernel):
    """Scores are multiplied by exp(logit scale), not by the logit scale."""

    def factors(self, call: Call) -> np.ndarray:
        return np.exp(super().factors(call))


@fault("values", "`softcap * tanh(s / softcap) * logit_scale`; multiply before the cap")
class LogitScaleBehindTheCap(Kernel):
    """Scores are multiplied by the logit scale after the softcap, not before."""

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if call.softcap is None or call.logit_scale is None:
            return super().capped(scores, call)
        cap = call.work(call.softcap)
        return self.tempered(cap * np.tanh(scores / cap), call)


@fault(
    "gradients",
    "`dq = scale * ds @ k`; with a logit scale, `dq = scale * logit_scale * ds @ k`",
    family="gradient",
)
class LogitScaleForgottenBackward(Differentiable):
    """The gradients of queries and keys lack the logit scale."""

    def backward_tempered(self, dt: np.ndarray, call: Call) -> np.ndarray:
        return dt


@fault(
    "gradients",
    "`(ds * s)[0].sum((1, 2))`; sum over samples, too: `(ds * s).sum((0, 2, 3))`",
    family="gradient",
)
class LogitScaleGradientOfOneSample(Differentiable):
    """The gradient of the logit scales is summed over the rows of the first sample alone."""

    def logit_scale_gradient(self, dt: np.ndarray, product: np.ndarray) -> np.ndarray:
        return super().logit_scale_gradient(dt[:1], product[:1])
