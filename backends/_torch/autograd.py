"""Derivatives of prepared calls by `torch.autograd.grad`, for checks and for timing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from attention_conformance.backends.engine import Step
from attention_conformance.backends.prepared import (
    ForwardOnly,
    Gradients,
    PreparedCall,
    Pullback,
    no_derivative_as_forward_only,
)

DERIVED_BY = "suite_derived_by"
"""The attribute of an output that holds a function; this function makes the calls for the output's
derivatives."""

UNDERIVABLE = (
    "no autograd formula was registered|You must implement either the backward or vjp method"
    "|^derivative for .* is not implemented"
)
"""Pattern of torch's messages about an operator or `torch.autograd.Function` without a backward pass."""


def by_autograd(prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
    """Returns output and gradients by `torch.autograd.grad`. Raises as `pullback`."""
    output, gradients_for = pullback(prepared, wrt, keeps_graph=False)
    return output, gradients_for(cotangent)


def pullback(
    prepared: PreparedCall, wrt: Sequence[str], keeps_graph: bool = True, passes_leaves: bool = True
) -> Pullback:
    """Returns output and pullback by `torch.autograd.grad`. `keeps_graph`: the pullback can be called
    several times.

    Leaves have the strides of the call's arguments. A parameter of a layer, or an array that is part of a
    graph, is itself the leaf. Without `passes_leaves` the call gets views of the leaves. Raises
    ForwardOnly if the output has no gradient function, or an operation no derivative.
    """
    import torch

    def is_leaf(array: Any) -> bool:
        return isinstance(array, torch.nn.Parameter) or array.requires_grad

    arguments = {n: prepared.arguments[prepared.argument(n)] for n in wrt}
    leaves = {n: a if is_leaf(a) else a.detach().requires_grad_() for n, a in arguments.items()}
    passed = {
        n: leaf if passes_leaves or leaf is arguments[n] else leaf.view_as(leaf)
        for n, leaf in leaves.items()
    }
    output = prepared.output(prepared.with_operands(passed))
    if not (isinstance(output, torch.Tensor) and output.requires_grad):
        raise ForwardOnly("the output of the call has no gradient function")
    in_graph = any(
        isinstance(a, torch.Tensor) and a.requires_grad and not isinstance(a, torch.nn.Parameter)
        for a in prepared.arguments.values()
    )

    def gradients_for(cotangent: Any) -> dict[str, Any]:
        """Returns the gradients by operand. If `Engine.derive_by` marked the output, its function makes
        the call that computes them."""
        derivative = partial(
            torch.autograd.grad, output, [*leaves.values()], cotangent, create_graph=in_graph,
            retain_graph=keeps_graph or in_graph, allow_unused=True,
        )  # fmt: skip
        derive_by = getattr(output, DERIVED_BY, None)
        with no_derivative_as_forward_only(UNDERIVABLE):
            gradients = derivative() if derive_by is None else derive_by(derivative)
        # torch leaves out the error of `once_differentiable`: no input lies behind it.
        if any(gradient is None for gradient in gradients) and _delays_error(output.grad_fn):
            raise RuntimeError("differentiated twice, and marked with @once_differentiable")
        return dict(zip(leaves, gradients, strict=True))

    return output.detach(), gradients_for


def _delays_error(root: Any) -> bool:
    """True if a graph has the error node of `once_differentiable`. No input lies behind this node, so
    `torch.autograd.grad` would not raise the error."""
    visited, nodes = set(), [root]
    while nodes:
        node = nodes.pop()
        if node is not None and node not in visited:
            visited.add(node)
            nodes += [parent for parent, _ in node.next_functions]
    return any(node.name() == "torch::autograd::Error" for node in visited)


def step_by_autograd(prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
    """Returns `Engine.timed_step` by `torch.autograd.grad`. "backward" keeps its graph between calls."""

    # A compiled derivative that reuses the memory of its graph cannot run twice. `import torch` does
    # not import the module with this option.
    config: Any = import_module("torch._functorch.config")
    config.donated_buffer = False

    def timed_function(arguments: Mapping[str, Any], cotangent: Any) -> Callable[[], Any]:
        call = replace(prepared, arguments=dict(arguments))
        if direction == "forward+backward":
            return lambda: by_autograd(call, wrt, cotangent)
        _, gradients_for = pullback(call, wrt)
        return lambda: (None, gradients_for(cotangent))

    return timed_function
