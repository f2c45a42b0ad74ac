"""A user's packed attention as an implementation; see docs/operators.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.memory import segmented
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.user.function import SCALES, UserCallable
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.operators.packed import FEATURES, PACKED, hidden_pairs

SUMMED = ("cu_seqlens_q", "cu_seqlens_k")
"""Cumulative segment lengths of queries and keys."""


def longest(inputs: Inputs, lengths: str) -> int:
    """The length of the longest segment."""
    return int(inputs.arrays[lengths].max(initial=0))


KEYWORDS: tuple[Parameter[Inputs], ...] = (
    Parameter("max_seqlen_q", value=lambda inputs: longest(inputs, "query_lengths")),
    Parameter("max_seqlen_k", value=lambda inputs: longest(inputs, "key_lengths")),
    Parameter(
        "causal",
        ("causal", "causal-bottom-right"),
        lambda inputs: inputs.case.option("alignment") != "all",
    ),
    *SCALES,
)
"""The keyword parameters of packed attention."""


class UserPacked(UserCallable):
    """A user's `function(query, key, value, cu_seqlens_q, cu_seqlens_k, ...)`, which returns (Lq, H, Dv).

    query is (Lq, H, D), key (Lk, Hkv, D), value (Lk, Hkv, Dv), cumulative lengths (B + 1,) of int32. The
    function receives the `KEYWORDS` that it takes.

    With more keys than queries `causal` is aligned at the last query, unless it is seen to be aligned at
    the first one.
    """

    operator = PACKED
    arrays = ("query", "key", "value", *SUMMED)
    table = KEYWORDS
    features = FEATURES | {"length-arrays"}

    def observed(self) -> dict[str, str]:
        if "causal" not in self.binder.taken or not self.aligns_first():
            return {}
        return {"causal-bottom-right": "its causal flag is aligned at the first query"}

    def aligns_first(self) -> bool:
        """True if the first query of a causal segment attends its first key alone."""
        fmt = DTYPES[self.declared.dtypes[0]]
        inputs = draw(Case.parse(PROBE.format(dt=fmt.name)))
        try:
            got = self.backend.to_numpy(self.prepare(inputs)())
        except Exception:
            return True  # the cells report the error
        want = expected(inputs)
        return got.shape == want.shape and bool(np.abs(got - want).max() < 0.1)

    def call_of(self, inputs: Inputs) -> PreparedCall:
        keywords = self.binder.bind(inputs, inputs.needs)
        arguments = segmented(self.backend, inputs, SUMMED, np.int32)

        def call(query: Any, key: Any, value: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> Any:
            return self.called(query, key, value, cu_seqlens_q, cu_seqlens_k, **keywords)

        return PreparedCall(call, arguments, constants=tuple(keywords.items()))


PROBE = "packed/none/mha/{dt}/b2h2q5k12d8/seg2.3x5.7/causal/integers"
"""A case whose answer depends on the alignment."""


def expected(inputs: Inputs) -> np.ndarray:
    """Packed attention in float64, (Lq, H, Dv), for H = Hkv."""
    scores = np.einsum("qhd,khd->hqk", inputs.query, inputs.key) * inputs.effective_scale
    scores = np.where(hidden_pairs(inputs.case), -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khv->qhv", weights / weights.sum(-1, keepdims=True), inputs.value)
