"""A person's own packed attention as an implementation; see docs/packed.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from backends.binder import Parameter
from backends.declared import PACKED_FEATURES
from backends.memory import segmented
from backends.prepared import PreparedCall
from backends.user.function import UserCallable
from suite.spec.case import Case
from suite.spec.dtypes import DTYPES
from suite.spec.inputs import Inputs, draw
from suite.spec.operators.packed import PACKED, hidden_pairs

SUMMED = ("cu_seqlens_q", "cu_seqlens_k")
"""Lengths of segments, of queries and of keys, summed up."""


def longest(inputs: Inputs, lengths: str) -> int:
    """The longest segment, as a whole number."""
    return int(inputs.arrays[lengths].max(initial=0))


KEYWORDS: tuple[Parameter[Inputs], ...] = (
    Parameter("max_seqlen_q", value=lambda inputs: longest(inputs, "query_lengths")),
    Parameter("max_seqlen_k", value=lambda inputs: longest(inputs, "key_lengths")),
    Parameter(
        "causal",
        ("causal", "causal-bottom-right"),
        lambda inputs: inputs.case.option("alignment") != "all",
    ),
    Parameter("scale", ("scale",), lambda inputs: inputs.scale),
    Parameter("softmax_scale", ("scale",), lambda inputs: inputs.scale, unless="scale"),
)
"""What a function may be told by keyword; interfaces have two names for the scale."""


class UserPacked(UserCallable):
    """A person's `function(query, key, value, cu_seqlens_q, cu_seqlens_k, ...)`: query (Lq, H, D), key
    (Lk, Hkv, D), value (Lk, Hkv, Dv), lengths summed up from 0 on, (B + 1,) of int32; it returns
    (Lq, H, Dv). Of `KEYWORDS` it is passed those that it takes.

    One that takes `causal` is judged in the alignment that it was seen to follow where a segment has more
    keys than queries.
    """

    operator = PACKED
    arrays = ("query", "key", "value", *SUMMED)
    table = KEYWORDS
    features = PACKED_FEATURES | {"length-arrays"}

    def observed(self) -> dict[str, str]:
        if "causal" not in self.binder.taken or self.aligns_last():
            return {}
        return {"causal-bottom-right": "its causal flag is not aligned at the last query"}

    def aligns_last(self) -> bool:
        """Whether the last query of a causal segment attends all of its keys."""
        fmt = DTYPES[self.declared.dtypes[0]]
        inputs = draw(Case.parse(PROBE.format(dt=fmt.name)))
        try:
            got = self.backend.to_numpy(self.prepare(inputs)())
        except Exception:
            return False  # what it raises is said of the cells
        want = expected(inputs)
        return got.shape == want.shape and bool(np.abs(got - want).max() < 0.1)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        keywords = self.binder.bind(inputs, inputs.needs)
        arguments = segmented(self.backend, inputs, SUMMED, np.int32)

        def call(query: Any, key: Any, value: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> Any:
            return self.judged(query, key, value, cu_seqlens_q, cu_seqlens_k, **keywords)

        return PreparedCall(call, arguments, constants=tuple(keywords.items()))


PROBE = "packed/none/mha/{dt}/b2h2q5k12d8/seg2.3x5.7/causalbr/integers"
"""What tells alignments apart."""


def expected(inputs: Inputs) -> np.ndarray:
    """Packed attention in float64, (Lq, H, Dv), of as many key/value heads as query heads."""
    scores = np.einsum("qhd,khd->hqk", inputs.query, inputs.key) * inputs.effective_scale
    scores = np.where(hidden_pairs(inputs.case), -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khv->qhv", weights / weights.sum(-1, keepdims=True), inputs.value)
