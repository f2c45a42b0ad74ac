"""Textbook attention, written once: product, softmax, product, with every feature.

A framework supplies its operations (`Operations`), and declares its elections and numerics class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.backends.declared import LOWEST_FILL, TEXTBOOK_FEATURES, Declared
from attention_conformance.backends.masks import dense_arguments
from attention_conformance.backends.prepared import PreparedCall, attention_call
from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.backends.textbook.operations import Operations
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.features import FEATURES
from attention_conformance.suite.spec.inputs import Inputs


def attention(
    ops, query, key, value, mask, bias, scale,
    softcap=None, logit_scale=None, sinks=None, alibi_slopes=None, lse=False, hidden=None,
):  # fmt: skip
    """Returns the output (B, H, Lq, Dv); with `lse` the pair of output and log-sum-exp (B, H, Lq).

    query (B, H, Lq, D), key (B, Hkv, Lk, D), value (B, Hkv, Lk, Dv). `Operations.mask_scores` sets scores
    where `mask` is False. Scores are -inf where `hidden` is True.
    """
    if key.shape[1] != query.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key = ops.repeat(key, groups, 1)  # (B, H, Lk, D)
        value = ops.repeat(value, groups, 1)
    scores = (
        query @ ops.permute_dims(key, (0, 1, 3, 2)) * ops.number(scale, query)
    )  # (B, H, Lq, Lk)
    if logit_scale is not None:
        scores = scores * ops.reshape(logit_scale, (1, -1, 1, 1))
    if softcap is not None:
        scores = ops.tanh(scores / ops.number(softcap, query)) * ops.number(softcap, query)
    if bias is not None:
        scores = scores + bias
    if alibi_slopes is not None:  # -slope times the distance; the last row is at the last key
        rows, keys = scores.shape[-2], scores.shape[-1]
        row = ops.reshape(ops.arange_like(rows, alibi_slopes), (rows, 1)) + (keys - rows)
        distance = abs(row - ops.arange_like(keys, alibi_slopes))
        scores = scores + ops.cast_like(-ops.reshape(alibi_slopes, (-1, 1, 1)) * distance, scores)
    if mask is not None:
        scores = ops.mask_scores(scores, mask)
    if hidden is not None:
        scores = ops.fill(scores, hidden, -np.inf)
    if sinks is None:
        weights = ops.softmax(scores)
    else:  # one more logit per head, with value 0
        shape = (*scores.shape[:-1], 1)
        column = ops.broadcast_to(ops.reshape(sinks, (1, -1, 1, 1)), shape)
        weights = ops.softmax(ops.concat([scores, column], -1))[..., :-1]
    output = weights @ value  # (B, H, Lq, Dv)
    return (output, ops.logsumexp(scores)) if lse else output


class TextbookAttention(Implementation):
    """`attention` in a framework's operations."""

    name = "eager"
    textbook = True
    declared = Declared(
        features=TEXTBOOK_FEATURES | {"no-heads"},
        refusals={
            "native-causal": "textbook code has no causal flag",
            "native-window": "textbook code has no window",
        },
        elections=LOWEST_FILL | {"lse-of-empty-row": "lowest", "lse-gradient": "flows"},
    )

    def __init__(self, backend: Backend, ops: Operations, declared: Declared | None = None) -> None:
        super().__init__(backend, declared=declared)
        self.ops = ops

    def prepare(self, inputs: Inputs) -> PreparedCall:
        ops = self.ops
        numbers = {name: inputs.feature(name) for name, f in FEATURES.items() if not f.axes}
        settings = {name: x for name, x in numbers.items() if x}
        settings["scale"] = inputs.effective_scale

        def call(query: Any, key: Any, value: Any, mask: Any, bias: Any, **features: Any) -> Any:
            return attention(ops, query, key, value, mask, bias, **features, **settings)

        arguments = dense_arguments(self.backend, inputs)
        constants = tuple(sorted(settings.items()))
        return ops.called(self, attention_call(call, arguments, inputs, constants=constants))


class OwnAlibi(TextbookAttention):
    """Textbook attention with a framework's own ALiBi, which adds slope (k - Lk + 1) for key k of Lk, up
    to a constant per row.

    `make(inputs)` returns a function without arguments. It computes the bias, (1, H, 1, Lk) or (1, H, Lq,
    Lk), in the call.
    """

    textbook = False

    def __init__(
        self, backend: Backend, name: str, ops: Operations, declared: Declared,
        make: Callable[[Inputs], Callable[[], Any]],
    ) -> None:  # fmt: skip
        self.name, self.make = name, make
        refusals = {"gradient-of-bias": "the bias is no argument of the call"}
        super().__init__(backend, ops, declared.refusing(refusals))

    def unsupported(self, case: AnyCase) -> str | None:
        if not isinstance(case, Case) or case.option("bias") != "alibikeys":
            return "its bias is an ALiBi of numbered keys, and no other"
        return super().unsupported(case)

    def refuses(self, inputs: Inputs) -> str | None:
        # Probes of undeclared elections have no bias.
        return None if inputs.bias is None else super().refuses(inputs)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        prepared, bias = super().prepare(inputs), self.make(inputs)
        if inputs.bias is None:
            return prepared

        def call(**arguments: Any) -> Any:
            return prepared.function(**arguments, bias=bias())

        arguments = {n: a for n, a in prepared.arguments.items() if n != "bias"}
        return replace(prepared, function=call, arguments=arguments, source="", constants=None)
