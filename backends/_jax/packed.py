"""Packed attention by `jax.nn.dot_product_attention`: a row of the batch a segment, with its lengths."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from backends._jax.attention import JaxNn
from backends._jax.engine import JaxEngine
from backends.declared import PACKED_FEATURES, Declared
from backends.memory import sequences
from backends.prepared import PreparedCall
from backends.protocol import Implementation
from suite.spec.inputs import Inputs
from suite.spec.operators.packed import PACKED, summed


class JaxNnPacked(Implementation):
    """Segments are rows of a batch, (B, longest, H, D), filled up with zeros; `query_seq_lengths` and
    `key_value_seq_lengths` say how long they are. The answer's tokens are put one behind the other again.
    """

    backend: JaxEngine

    name = "jax-nn-packed"
    operator = PACKED
    declared = Declared(
        numerics=JaxNn.declared.numerics,
        features=PACKED_FEATURES,
        refusals={
            "causal-bottom-right": "is_causal is aligned at the first query",
            "value-size": JaxNn.declared.refusals["value-size"],
        },
        elections={"nan-in-other-segment": "nobody"},
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend, jnp = self.backend, self.backend.numpy
        if len(inputs.key) != len(inputs.value):
            raise ValueError("rows of the batch are laid out for as many values as keys")
        arguments = sequences(backend, inputs)
        for name in ("query", "key"):
            lengths = inputs.arrays[f"{name}_lengths"].astype(np.int32)
            arguments[f"{name}_lengths"] = backend.array(lengths, None)
            arguments[f"{name}_places"] = backend.array(places(lengths), None)
        attend = partial(
            backend.jax.nn.dot_product_attention,
            scale=inputs.scale,
            is_causal=inputs.case.option("alignment") != "all",
            implementation=JaxNn.kernel,
        )

        def call(
            query: Any, key: Any, value: Any, query_lengths: Any, key_lengths: Any,
            query_places: Any, key_places: Any,
        ) -> Any:  # fmt: skip
            def rows(x: Any, at: Any) -> Any:
                return x.at[at].get(mode="fill", fill_value=0)  # (B, longest, H, D)

            answer = attend(
                rows(query, query_places), rows(key, key_places), rows(value, key_places),
                query_seq_lengths=query_lengths, key_value_seq_lengths=key_lengths,
            )  # fmt: skip
            return (
                jnp.zeros_like(answer, shape=(len(query), *answer.shape[2:]))
                .at[query_places]
                .set(answer, mode="drop")
            )

        constants = (inputs.scale, inputs.case.option("alignment"))
        plain = PreparedCall(call, arguments, constants=constants)
        return backend.jitted_native(self, plain, inputs.dtype)


def places(lengths: np.ndarray) -> np.ndarray:
    """Where the tokens of segments lie, (B, longest); behind all of them where a segment has no more."""
    starts, steps = summed(lengths), np.arange(max(int(lengths.max(initial=0)), 1))
    there = steps < lengths[:, None]
    return np.where(there, starts[:-1, None] + steps, starts[-1]).astype(np.int32)
