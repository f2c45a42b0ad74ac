"""Derivatives of prepared calls by `torch.autograd.grad`, for checks and for timing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from backends.prepared import ForwardOnly, PreparedCall
from backends.protocol import Step

Gradients = tuple[Any, dict[str, Any]]
"""The output of a call, and its gradients by operand."""


def by_autograd(prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
    """Output and gradients by `torch.autograd.grad`.

    Leaves have the strides of the call's arguments; a parameter of a layer is itself the leaf. Raises
    ForwardOnly if the output has no gradient function.
    """
    import torch

    def leaf(array: Any) -> Any:
        own = isinstance(array, torch.nn.Parameter)
        return array if own else array.detach().requires_grad_(True)

    leaves = {n: leaf(prepared.arguments[prepared.argument(n)]) for n in wrt}
    out = prepared.output(prepared.with_operands(leaves))
    if not (isinstance(out, torch.Tensor) and out.requires_grad):
        raise ForwardOnly("the output of the call has no gradient function")
    gradients = torch.autograd.grad(out, list(leaves.values()), cotangent, allow_unused=True)
    return out.detach(), dict(zip(leaves, gradients, strict=True))


def step_by_autograd(prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
    """`Profiler.step` by `torch.autograd.grad`; "backward" keeps its graph between calls."""
    import torch

    # A compiled derivative that reuses the memory of its graph cannot run twice. `import torch` does
    # not import the module with this option.
    config: Any = import_module("torch._functorch.config")
    config.donated_buffer = False

    def ready(arguments: Mapping[str, Any], cotangent: Any) -> Callable[[], Any]:
        call = replace(prepared, arguments=dict(arguments))
        if direction == "forward+backward":
            return lambda: by_autograd(call, wrt, cotangent)
        leaves = {n: arguments[call.argument(n)].detach().requires_grad_(True) for n in wrt}
        out = call.output(call.with_operands(leaves))
        arrays = list(leaves.values())

        def backward() -> Any:
            gradients = torch.autograd.grad(
                out, arrays, cotangent, retain_graph=True, allow_unused=True
            )
            return None, dict(zip(leaves, gradients, strict=True))

        return backward

    return ready
