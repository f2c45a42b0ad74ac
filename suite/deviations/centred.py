"""Faults of a constant that is subtracted from the keys."""

from __future__ import annotations

from functools import partial

import numpy as np

from attention_conformance.backends.protocol import DeclaredRounding
from attention_conformance.suite.deviations.deviation import deviation
from attention_conformance.suite.deviations.kernels.attention import Call
from attention_conformance.suite.deviations.kernels.centred import (
    CentredEager,
    CentredKeys,
    CentredRestored,
    mean_of,
)


def centred_twice(
    right: CentredEager, query: np.ndarray, key: np.ndarray, call: Call
) -> np.ndarray:
    query = query - mean_of(query) if right.centres_keys(call) else query
    return right.scores(query, key, call)


row = partial(deviation, family="scores", right=CentredKeys)

DEVIATIONS = [
    row("centred-over-components", "values", "Every key loses the mean of its own components.",
        "`key.mean(-1)`; the mean of the keys over the sequence is `key.mean(-2, keepdim=True)`",
        constant=lambda right, key, call: key.mean(-1, keepdims=True)),
    row("centred-values", "values",
        "The values lose their mean, too, and the output does not get it back.",
        "`value - value.mean(-2)`; only keys may be centred",
        compute=lambda right, call:
            right.compute(call) - mean_of(right.expand(right.load(call.value, call), call))),
    row("centred-before-cap", "values",
        "The keys lose their mean in spite of a softcap and of sinks.",
        "the cap and the sinks see scores less `q @ mean`; add it again before them",
        centres_keys=lambda right, call: not call.lse),
    row("centred-log-sum-exp", "values", "The log-sum-exp is that of scores of centred keys.",
        "`lse` of centred scores; add `scale * (q @ mean)`", family="lse",
        centres_keys=lambda right, call: call.softcap is None and call.sinks is None),
    row("restored-constant-detached", "gradients",
        "What is added to the scores again has no part in the gradient of the queries.",
        "`(q @ mean).detach()`; its sum of `ds` over the keys is not 0 behind a cap",
        family="gradient", right=CentredRestored,
        query_gradient=lambda right, dt, key, factor:
            right.query_gradient(dt, key - mean_of(key), factor)),
    row("centred-gradient-over-components", "gradients",
        "The gradient of a key loses the mean of its own components.",
        "`dk - dk.mean(-1)`; of `k - k.mean(-2)` the gradient is `dk - dk.mean(-2)`",
        family="gradient", uncentred=lambda right, dk: dk - dk.mean(-1, keepdims=True)),
    row("centred-twice", "values", "Queries and keys lose their means.",
        "queries are centred, too, which moves the scores of a row by different numbers",
        right=CentredEager, scores=centred_twice),
    row("centred-undeclared", "gradients",
        "Gradients that are exactly zero are not, because of a constant that is not declared.",
        "keys are centred without the claim `centred_keys`", family="numerics",
        facts={"rounding": DeclaredRounding()}, stored=lambda right, key, call: key),
]  # fmt: skip
