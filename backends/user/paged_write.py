"""A user's function that writes into pages, as an implementation; see docs/operators.md."""

from __future__ import annotations

from typing import Any

from attention_conformance.backends.binder import Parameter
from attention_conformance.backends.memory import written
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.user.function import UserCallable
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.paged_write import FEATURES, PAGED_WRITE

KEYWORDS: tuple[Parameter[Inputs], ...] = (
    Parameter("kv_layout", ("heads-before-slots",), lambda i: i.case.option("layout").upper()),
)


def own(cache: Any) -> Any:
    """A copy of a pool that a function may write into; frameworks without `clone` never write."""
    return cache.clone() if hasattr(cache, "clone") else cache


class UserPagedWrite(UserCallable):
    """A user's `function(key, value, key_cache, value_cache, slot_mapping)`.

    The function returns both pools, or writes into those of the call, which are copies, and returns None.

    - key (N, Hkv, D), value (N, Hkv, Dv), slot_mapping (N,) of int64 (int32 in JAX)
    - key_cache (P, S, Hkv, D), value_cache (P, S, Hkv, Dv)
    """

    operator = PAGED_WRITE
    arrays = ("key", "value", "key_cache", "value_cache", "slot_mapping")
    table = KEYWORDS
    features = FEATURES

    def call_of(self, inputs: Inputs) -> PreparedCall:
        keywords = self.binder.bind(inputs, inputs.needs)

        def call(key: Any, value: Any, key_cache: Any, value_cache: Any, slot_mapping: Any) -> Any:
            pools = own(key_cache), own(value_cache)
            answer = self.called(key, value, *pools, slot_mapping, **keywords)
            return pools if answer is None else answer

        constants = tuple(keywords.items())
        return PreparedCall(
            call, written(self.backend, inputs), inputs.outputs, constants=constants
        )
