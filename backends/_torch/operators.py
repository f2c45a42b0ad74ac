"""Custom operators of torch.library as users' functions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

from attention_conformance.backends.claims import Claims
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.protocol import ForwardOnly, PreparedCall
from attention_conformance.backends.user.function import UserFunction
from attention_conformance.backends.user.signature import CallBinder
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS, REGISTERED

OF_TORCH = ("aten", "prim", "prims")
"""Namespaces of torch's own operators."""

RULES = {
    "test_schema": "its schema does not say which arguments it writes to, or that its output is one",
    "test_autograd_registration": "its backward pass is not registered for the key Autograd",
    "test_faketensor": "its fake function (register_fake) is missing, or says other shapes, strides or "
    "dtypes than it returns",
    "test_aot_dispatch_dynamic": "traced with symbolic sizes it answers otherwise, or fails",
}
"""By test of `torch.library.opcheck`: the fault of an operator that fails it."""


def overload_of(function: object) -> Any:
    """Returns the overload of a custom operator, which has a schema. None for other functions, and for an
    operator with several overloads."""
    torch: Any = sys.modules.get("torch")
    if torch is None:  # in a process that judges what runs in another one
        return None
    if isinstance(function, torch.library.CustomOpDef):
        return function._opoverload
    if isinstance(function, torch._ops.OpOverloadPacket):
        names = function.overloads()
        function = getattr(function, names[0]) if len(names) == 1 else None
    is_custom = isinstance(function, torch._ops.OpOverload) and function.namespace not in OF_TORCH
    return function if is_custom else None


def signature_of(overload: Any) -> inspect.Signature:
    """Returns the signature that an operator's schema states."""
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature([
        inspect.Parameter(
            a.name,
            kinds[a.kwarg_only],
            default=a.default_value if a.has_default_value() else inspect.Parameter.empty,
        )
        for a in overload._schema.arguments
    ])  # fmt: skip


class CustomOperator(UserFunction):
    """A custom operator. Its parameters are those of its schema."""

    def bound(self, function: Callable[..., Any], name: str) -> CallBinder:
        self.overload = overload_of(function)
        function.__signature__ = signature_of(self.overload)  # type: ignore[attr-defined]
        return super().bound(function, name)

    def declaration(self, claims: Claims) -> Declared:
        return super().declaration(claims).taking(REGISTERED)

    def broken_rules(self, inputs: Inputs) -> Mapping[str, str]:
        """Returns the tests of `torch.library.opcheck` that fail, each with the reason. Tensors require
        gradients only if the operator has a backward pass."""
        import torch

        prepared = self.prepare(inputs)
        arguments = dict(prepared.arguments)
        operands = [arguments.pop(name).detach().clone() for name in OPERANDS]
        if self.has_backward(prepared):
            operands = [x.requires_grad_() for x in operands]
        outcomes = torch.library.opcheck(
            self.overload, tuple(operands), arguments, raise_exception=False
        )
        failed = {name: why for name, why in outcomes.items() if why != "SUCCESS"}
        return {
            name: f"{RULES.get(name, 'fails')}: {first_line(why)}" for name, why in failed.items()
        }

    def has_backward(self, prepared: PreparedCall) -> bool:
        """True unless the operator has no backward pass. Also True if its backward pass fails: opcheck
        reports that."""
        import torch

        try:
            self.backend.vjp(prepared, OPERANDS, torch.ones_like(prepared()))
        except ForwardOnly:
            return False
        except Exception:
            return True
        return True


def first_line(error: object) -> str:
    """Returns the first line of an error of opcheck, at most 300 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
