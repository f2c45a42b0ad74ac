"""Features of attention beyond scale, mask and bias, each described once in a file here.

The operator `sdpa` takes options, arrays, outputs and cases from these descriptors. Names of inputs, of
arguments and of parameters of user functions are the features' names.
"""

from __future__ import annotations

from attention_conformance.suite.spec.features.feature import Feature, Reduction
from attention_conformance.suite.spec.features.logit_scale import LOGIT_SCALE
from attention_conformance.suite.spec.features.lse import LSE
from attention_conformance.suite.spec.features.sinks import SINKS
from attention_conformance.suite.spec.features.slopes import SLOPES
from attention_conformance.suite.spec.features.softcap import SOFTCAP
from attention_conformance.suite.spec.features.window import WINDOW

FEATURES: dict[str, Feature] = {
    feature.name: feature for feature in (WINDOW, SOFTCAP, SINKS, LSE, SLOPES, LOGIT_SCALE)
}
"""All features by name, in the order of their tokens in ids."""

ARRAYS = tuple(name for name, feature in FEATURES.items() if feature.axes)
"""The features that are arrays."""

__all__ = ["ARRAYS", "FEATURES", "Feature", "Reduction"]
