"""Packed attention by `jax.nn.dot_product_attention`: each segment is a sample of a batch."""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import numpy as np

from attention_conformance.backends._jax.attention import JAX_NN
from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.memory import sequences
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.packed import FEATURES, PACKED, summed


class JaxNnPacked(Implementation):
    """Segments as a batch (B, longest, H, D), padded with zeros, with `query_seq_lengths` and
    `key_value_seq_lengths`. The answer is packed again."""

    backend: JaxEngine

    name = "jax-nn-packed"
    operator = PACKED
    declared = Declared(
        numerics=JAX_NN.declared.numerics,
        features=FEATURES,
        refusals={
            "causal-bottom-right": "is_causal is aligned at the first query",
            "value-size": JAX_NN.declared.refusals["value-size"],
        },
        elections={"nan-in-other-segment": "nobody", "segment-without-keys": "zeros"},
    )

    @cached_property
    def layouts(self) -> tuple[Any, Any]:
        """`laid_out` and `put_back` as programs in every dtype; their operations are not judged."""
        jit = self.backend.jax.jit
        return jit(laid_out), jit(partial(put_back, self.backend.numpy))

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend, (rows_of, tokens_of) = self.backend, self.layouts
        if len(inputs.key) != len(inputs.value):
            raise ValueError("a batch needs as many values as keys")
        arguments = sequences(backend, inputs)
        for name in ("query", "key"):
            lengths = inputs.arrays[f"{name}_lengths"].astype(np.int32)
            arguments[f"{name}_lengths"] = backend.array(lengths, None)
            arguments[f"{name}_places"] = backend.array(places(lengths), None)
        attend = partial(
            backend.jax.nn.dot_product_attention,
            scale=inputs.scale,
            is_causal=inputs.case.option("alignment") != "all",
            implementation="xla",
        )

        def call(
            query: Any, key: Any, value: Any, query_lengths: Any, key_lengths: Any,
            query_places: Any, key_places: Any,
        ) -> Any:  # fmt: skip
            rows = rows_of(query, key, value, query_places, key_places)
            answer = attend(
                *rows, query_seq_lengths=query_lengths, key_value_seq_lengths=key_lengths
            )
            return tokens_of(query, answer, query_places)

        constants = (inputs.scale, inputs.case.option("alignment"))
        plain = PreparedCall(call, arguments, constants=constants)
        return backend.jitted_native(self, plain, inputs.dtype)


def laid_out(query: Any, key: Any, value: Any, query_places: Any, key_places: Any) -> list[Any]:
    """Unpack tokens (L, H, D) to a batch (B, longest, H, D), padded with zeros."""
    of = ((query, query_places), (key, key_places), (value, key_places))
    return [tokens.at[at].get(mode="fill", fill_value=0) for tokens, at in of]


def put_back(numpy: Any, query: Any, answer: Any, query_places: Any) -> Any:
    """Pack a batch (B, longest, H, Dv) to the tokens (Lq, H, Dv) of `query`; `numpy` is `jax.numpy`."""
    tokens = numpy.zeros_like(answer, shape=(len(query), *answer.shape[2:]))
    return tokens.at[query_places].set(answer, mode="drop")


def places(lengths: np.ndarray) -> np.ndarray:
    """Indices (B, longest) of the tokens of segments; padding has an index beyond all tokens."""
    starts, steps = summed(lengths), np.arange(max(int(lengths.max(initial=0)), 1))
    there = steps < lengths[:, None]
    return np.where(there, starts[:-1, None] + steps, starts[-1]).astype(np.int32)
