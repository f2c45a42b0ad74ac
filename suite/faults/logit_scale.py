"""Faults of logit scales: a factor of the scores for every query head."""

from __future__ import annotations

import numpy as np

from suite.faults.fault import fault
from suite.faults.kernels.attention import Call, Kernel
from suite.faults.kernels.gradient import Differentiable


@fault("logit_scale_equals_scaled_query")
class LogitScaleIgnored(Kernel):
    """Logit scales are taken and not used."""

    def factors(self, call: Call) -> np.ndarray:
        return np.ones_like(super().factors(call))


@fault("values")
class LogitScaleOfNextHead(Kernel):
    """Every head has the logit scale of the head after it."""

    def factors(self, call: Call) -> np.ndarray:
        return np.roll(super().factors(call), -1)


@fault("values")
class LogitScaleOfGroup(Kernel):
    """The query heads of a group share the logit scale of the first one."""

    def factors(self, call: Call) -> np.ndarray:
        return np.repeat(super().factors(call)[:: call.sizes.group], call.sizes.group)


@fault("values")
class LogitScaleExponentiated(Kernel):
    """The logit scale is taken for the logarithm of the factor, as models keep it."""

    def factors(self, call: Call) -> np.ndarray:
        return np.exp(super().factors(call))


@fault("values")
class LogitScaleBehindTheCap(Kernel):
    """Scores are capped first, and multiplied then."""

    def capped(self, scores: np.ndarray, call: Call) -> np.ndarray:
        if call.softcap is None or call.logit_scale is None:
            return super().capped(scores, call)
        cap = call.work(call.softcap)
        return self.tempered(cap * np.tanh(scores / cap), call)


@fault("gradients")
class LogitScaleForgottenBackward(Differentiable):
    """The gradients of queries and keys lack the logit scale."""

    def backward_tempered(self, dt: np.ndarray, call: Call) -> np.ndarray:
        return dt


@fault("gradients")
class LogitScaleGradientOfOneSample(Differentiable):
    """The gradient of the logit scales is summed over the rows of the first sample alone."""

    def logit_scale_gradient(self, dt: np.ndarray, product: np.ndarray) -> np.ndarray:
        return super().logit_scale_gradient(dt[:1], product[:1])
