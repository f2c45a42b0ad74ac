"""Ring attention on a mesh of devices: textbook code on `jax.shard_map` and `jax.lax.ppermute`.

Every device holds a part of the queries, keys and values. Keys and values go around the ring, and each
device adds its softmax over the keys at hand to a running one. A CPU counts as four devices under
`XLA_FLAGS=--xla_force_host_platform_device_count=4`.

Source: Liu et al., Ring Attention with Blockwise Transformers, 2023; Brandon et al., Striped Attention,
2023.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends._jax.pallas import LENGTHS
from attention_conformance.backends.binder import arguments
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.masks import AttentionCall, split_native
from attention_conformance.backends.prepared import PreparedCall, attention_call
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS

RANKS = 4
"""The devices of a ring."""

AXIS = "ring"


def blocks(length: int) -> np.ndarray:
    """The positions in the order in which ranks hold them: a block each."""
    return np.arange(length)


def balanced(length: int) -> np.ndarray:
    """Of 2 n blocks, rank r holds blocks r and 2 n - 1 - r: equal work under a causal mask."""
    halves = np.arange(length).reshape(2 * RANKS, -1)
    return np.concatenate([halves[[r, 2 * RANKS - 1 - r]].ravel() for r in range(RANKS)])


def interleaved(length: int) -> np.ndarray:
    """Rank r holds positions r, r + n, r + 2 n, ..."""
    return np.arange(length).reshape(-1, RANKS).T.ravel()


ORDERS = (blocks, balanced, interleaved)


class Ring(Implementation):
    """A ring of four devices, each with a part of the sequence by `order`."""

    backend: JaxEngine

    axis_order = "blhd"
    textbook = True
    later = frozenset({"kernels"})
    declared = Declared(
        numerics="fused",
        features=frozenset(
            {
                "causal",
                "native-causal",
                "padding",
                "scale",
                "gradient",
                "value-size",
                "other-shapes",
            }
        ),
        elections={"causal-alignment": "top-left"},
        limits=Limits(lengths_multiple_of=(2 * RANKS,), equal_heads=True),
    )

    def __init__(self, backend: JaxEngine, order: Callable[[int], np.ndarray]) -> None:
        self.order = order
        self.program = backend.jax.jit(self.ring, static_argnames=("is_causal", "scale"))
        super().__init__(backend, f"ring-{order.__name__}")

    def unsupported(self, case: AnyCase) -> str | None:
        if len(self.backend.jax.devices(self.backend.on.platform)) < RANKS:
            return (
                f"a ring needs {RANKS} devices; a CPU counts as {RANKS} under "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={RANKS}"
            )
        return super().unsupported(case)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        native = split_native(inputs, causal=True, lengths=True)
        operands = zip(OPERANDS, self.backend.memory.operands(inputs, "blhd"), strict=True)
        lengths = arguments((LENGTHS,), AttentionCall(self.backend, inputs, native))
        jax, on = self.backend.jax, self.backend.on
        everywhere = jax.sharding.NamedSharding(self.mesh(), jax.sharding.PartitionSpec())
        settings = {"is_causal": native.causal, "scale": inputs.effective_scale}

        def call(**arrays: Any) -> Any:
            whole = {name: jax.device_put(array, everywhere) for name, array in arrays.items()}
            output = self.program(**whole, **settings)
            return jax.device_put(output, on)

        constants = tuple(settings.items())
        given = dict(operands) | lengths
        return attention_call(call, given, inputs, axis_order="blhd", constants=constants)

    def mesh(self) -> Any:
        """The first devices of this process, in a ring."""
        jax = self.backend.jax
        return jax.sharding.Mesh(np.array(jax.devices(self.backend.on.platform)[:RANKS]), (AXIS,))

    def ring(
        self, query: Any, key: Any, value: Any, lengths: Any = None, is_causal: bool = False,
        scale: float = 1.0,
    ) -> Any:  # fmt: skip
        """The output (B, Lq, H, Dv) of arrays (B, L, H, .); sample b has `lengths[b]` keys (B,)."""
        jax, jnp = self.backend.jax, self.backend.numpy
        part = jax.sharding.PartitionSpec
        shared, place = part(None, AXIS), part(AXIS)
        rows, keys = self.order(query.shape[1]), self.order(key.shape[1])
        if lengths is None:
            lengths = jnp.full(query.shape[0], key.shape[1])
        attend = jax.shard_map(
            partial(self.of_rank, is_causal=is_causal, scale=scale),
            mesh=self.mesh(),
            in_specs=(shared, shared, shared, part(), place, place),
            out_specs=shared,
        )
        output = attend(
            query[:, rows], key[:, keys], value[:, keys], lengths, jnp.array(rows), jnp.array(keys)
        )
        return output[:, np.argsort(rows)]

    def of_rank(
        self, query: Any, key: Any, value: Any, lengths: Any, rows: Any, keys: Any, is_causal: bool,
        scale: float,
    ) -> Any:  # fmt: skip
        """The rows of one rank: `rows` and `keys` are the positions of the queries and keys at hand."""
        jax, jnp = self.backend.jax, self.backend.numpy
        work = jnp.promote_types(query.dtype, jnp.float32)
        samples, length, heads, _ = query.shape
        largest = jnp.full((samples, heads, length), -jnp.inf, work)
        total, output = (
            jnp.zeros((samples, heads, length), work),
            jnp.zeros((samples, heads, length, value.shape[-1]), work),
        )
        for step in range(RANKS):
            scores = scale * jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=work)
            seen = (keys < lengths[:, None])[:, None, None]
            if is_causal:
                seen &= keys <= rows[:, None]
            scores = jnp.where(seen, scores, -jnp.inf)
            raised = jnp.maximum(largest, scores.max(-1))
            # exp(-inf - -inf) is NaN, also in derivatives.
            anchor = jax.lax.stop_gradient(jnp.where(jnp.isneginf(raised), 0, raised))
            before, weights = jnp.exp(largest - anchor), jnp.exp(scores - anchor[..., None])
            total = before * total + weights.sum(-1)
            output = before[..., None] * output + jnp.einsum(
                "bhqk,bkhd->bhqd", weights, value, preferred_element_type=work
            )
            largest = jax.lax.stop_gradient(raised)
            if step < RANKS - 1:
                around = [(rank, (rank + 1) % RANKS) for rank in range(RANKS)]
                key, value, keys = (
                    jax.lax.ppermute(held, AXIS, around) for held in (key, value, keys)
                )
        output = output / jnp.where(total == 0, 1, total)[..., None]
        return jnp.moveaxis(output, 1, 2).astype(query.dtype)
