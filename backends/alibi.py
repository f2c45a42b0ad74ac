"""Implementations that compute the ALiBi bias themselves, instead of taking the case's bias."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs

NO_OPERAND = {"gradient-of-bias": "the bias is no argument of the call"}
"""Refusals of every implementation that computes its bias."""


def refusal(case: AnyCase) -> str | None:
    """Why a case is refused by an implementation that adds slope (k - Lk + 1), up to a constant per row;
    None if the case is supported."""
    numbered = isinstance(case, Case) and case.option("bias") == "alibikeys"
    return None if numbered else "its bias is an ALiBi of numbered keys, and no other"


def with_own_bias(prepared: PreparedCall, inputs: Inputs, make: Callable[[], Any]) -> PreparedCall:
    """The call with `bias=make()`, computed within the call; the unchanged call if the inputs have no
    bias."""
    if inputs.bias is None:
        return prepared
    attention = prepared.function

    def call(**arguments: Any) -> Any:
        return attention(**arguments, bias=make())

    arguments = {n: a for n, a in prepared.arguments.items() if n != "bias"}
    return replace(prepared, function=call, arguments=arguments, source="", constants=None)
