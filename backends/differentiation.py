"""How each framework differentiates a prepared call; the framework is handed in as a module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backends.base import ForwardOnly, Prepared

Found = tuple[Any, dict[str, Any]]
"""A call's output, and its gradients by operand."""


def by_autograd(torch: Any, prepared: Prepared, wrt: Sequence[str], cotangent: Any) -> Found:
    """`torch.autograd.grad` from leaves that lie in memory as the call's own arguments do; a layer's
    own parameter is the leaf."""

    def leaf(array: Any) -> Any:
        own = isinstance(array, torch.nn.Parameter)
        return array if own else array.detach().requires_grad_(True)

    leaves = {n: leaf(prepared.arguments[prepared.operands[n]]) for n in wrt}
    out = prepared.call(prepared.with_operands(leaves))
    if not (isinstance(out, torch.Tensor) and out.requires_grad):
        raise ForwardOnly("the output of the call has no gradient function")
    found = torch.autograd.grad(out, list(leaves.values()), cotangent, allow_unused=True)
    return out.detach(), dict(zip(leaves, found, strict=True))


def by_tape(tf: Any, prepared: Prepared, wrt: Sequence[str], cotangent: Any) -> Found:
    """`tf.GradientTape`, which watches the operands that ask for a gradient and nothing else."""
    sources = {name: prepared.arguments[prepared.operands[name]] for name in wrt}
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(list(sources.values()))
        out = prepared()
    found = tape.gradient(out, list(sources.values()), output_gradients=cotangent)
    return out, dict(zip(sources, found, strict=True))


def by_transform(jax: Any, prepared: Prepared, wrt: Sequence[str], cotangent: Any) -> Found:
    """`jax.vjp` of the call as a function of the operands that ask for a gradient.

    No gradients where the output has another dtype than the cotangent.
    """

    def call(*arrays: Any) -> Any:
        return prepared.call(prepared.with_operands(dict(zip(wrt, arrays, strict=True))))

    out, pull = jax.vjp(call, *(prepared.arguments[prepared.operands[name]] for name in wrt))
    if out.dtype != cotangent.dtype:
        return out, {}  # the answer's dtype is the fault; vjp would refuse the cotangent
    return out, dict(zip(wrt, pull(cotangent), strict=True))


def pushed_by_transform(jax: Any, prepared: Prepared, tangents: Mapping[str, Any]) -> Any:
    """`jax.jvp` of the call as a function of the operands that move."""
    names = list(tangents)

    def call(*arrays: Any) -> Any:
        return prepared.call(prepared.with_operands(dict(zip(names, arrays, strict=True))))

    given = tuple(prepared.arguments[prepared.operands[name]] for name in names)
    return jax.jvp(call, given, tuple(tangents.values()))[1]
