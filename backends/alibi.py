"""ALiBi that an implementation makes itself, in place of the bias that a case brings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from backends.prepared import PreparedCall
from suite.spec.case import Case
from suite.spec.catalogue import AnyCase
from suite.spec.inputs import Inputs

NO_OPERAND = {"gradient-of-bias": "the bias is no argument of the call"}
"""What an implementation that makes its bias cannot be asked, whatever the case."""


def refusal(case: AnyCase) -> str | None:
    """Why an implementation that adds slope (k - Lk + 1), or that and a number, is not asked a case;
    None where it is."""
    numbered = isinstance(case, Case) and case.option("bias") == "alibikeys"
    return None if numbered else "its bias is an ALiBi of numbered keys, and no other"


def with_own_bias(prepared: PreparedCall, inputs: Inputs, make: Callable[[], Any]) -> PreparedCall:
    """The call of an attention whose argument `bias` is what `make` returns, made within the call.
    Without a bias, as some probes are, it is the call itself."""
    if inputs.bias is None:
        return prepared
    attention = prepared.function

    def call(**arguments: Any) -> Any:
        return attention(**arguments, bias=make())

    arguments = {n: a for n, a in prepared.arguments.items() if n != "bias"}
    return replace(prepared, function=call, arguments=arguments, source="", constants=None)
