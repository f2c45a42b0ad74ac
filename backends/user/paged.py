"""A user's paged attention as an implementation; see docs/operators.md."""

from __future__ import annotations

from typing import Any

from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.memory import paged
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.user.function import SCALES, UserCallable
from attention_conformance.backends.user.packed import longest
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.paged import FEATURES, PAGED


def window(inputs: Inputs) -> tuple[int, int] | None:
    """(left, right) keys beside a query's own one; None without a window."""
    left = inputs.case.option("left")
    return None if left is None else (left, 0)


LAYOUT: Parameter[Inputs] = Parameter(
    "kv_layout", ("heads-before-slots",), lambda inputs: inputs.case.option("layout").upper()
)
"""The order of slots and heads in a page."""

KEYWORDS: tuple[Parameter[Inputs], ...] = (
    Parameter("max_seqlen_q", value=lambda inputs: longest(inputs, "query_lengths")),
    Parameter("max_seqlen_k", value=lambda inputs: longest(inputs, "key_lengths")),
    Parameter("causal", ("causal",), lambda inputs: inputs.case.option("alignment") == "causal"),
    Parameter("window_size", ("window",), window),
    Parameter("softcap", ("softcap",), lambda inputs: inputs.case.option("softcap")),
    LAYOUT,
    *SCALES,
)
"""The keyword parameters of paged attention."""


class UserPaged(UserCallable):
    """A user's `function(query, key_cache, value_cache, cu_seqlens_q, seqused_k, block_table, ...)`.

    The function returns (Lq, H, Dv), and receives the `KEYWORDS` that it takes.

    - query (Lq, H, D), key_cache (P, S, Hkv, D), value_cache (P, S, Hkv, Dv)
    - cu_seqlens_q (B + 1,), seqused_k (B,) and block_table (B, T), int32
    """

    operator = PAGED
    arrays = ("query", "key_cache", "value_cache", "cu_seqlens_q", "seqused_k", "block_table")
    table = KEYWORDS
    features = FEATURES | {"length-arrays"}

    def call_of(self, inputs: Inputs) -> PreparedCall:
        keywords = self.binder.bind(inputs, inputs.needs)
        arguments = paged(self.backend, inputs)

        def call(
            query: Any, key: Any, value: Any, query_offsets: Any, key_lengths: Any, page_table: Any
        ) -> Any:
            return self.called(
                query, key, value, query_offsets, key_lengths, page_table, **keywords
            )

        return PreparedCall(call, arguments, constants=tuple(keywords.items()))
