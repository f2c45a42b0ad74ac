"""Textbook attention with an ALiBi that libraries compute, instead of the case's bias."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend
from attention_conformance.backends.textbook.attention import TextbookAttention
from attention_conformance.backends.textbook.layer import Operations
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs


class OwnAlibi(TextbookAttention):
    """Textbook attention that adds slope (k - Lk + 1), up to a constant per row, for key k of Lk.

    `make(inputs)` returns the function that computes the bias, (1, H, 1, Lk) or (1, H, Lq, Lk), within
    the call.
    """

    textbook = False

    def __init__(
        self, backend: Backend, name: str, ops: Operations, declared: Declared,
        make: Callable[[Inputs], Callable[[], Any]],
    ) -> None:  # fmt: skip
        self.name, self.make = name, make
        own = {"gradient-of-bias": "the bias is no argument of the call"}
        super().__init__(backend, ops, declared.refusing(own))

    def unsupported(self, case: AnyCase) -> str | None:
        if not isinstance(case, Case) or case.option("bias") != "alibikeys":
            return "its bias is an ALiBi of numbered keys, and no other"
        return super().unsupported(case)

    def refuses(self, inputs: Inputs) -> str | None:
        # Probes of undeclared elections have no bias.
        return None if inputs.bias is None else super().refuses(inputs)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        plain, bias = super().prepare(inputs), self.make(inputs)
        if inputs.bias is None:
            return plain

        def call(**arguments: Any) -> Any:
            return plain.function(**arguments, bias=bias())

        arguments = {n: a for n, a in plain.arguments.items() if n != "bias"}
        return replace(plain, function=call, arguments=arguments, source="", constants=None)
