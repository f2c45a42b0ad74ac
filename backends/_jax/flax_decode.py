"""Flax's layers with a cache, which decode one token per call.

Projections are the identity or its negative, so that the layer is attention over its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.backends._jax.engine import JaxEngine
from attention_conformance.backends.caching import Projected, StepContext
from attention_conformance.backends.declared import SINGLE_FUSED, Declared
from attention_conformance.backends.implementation import ALL_BUT_FLOAT32
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators.cached import FEATURES
from attention_conformance.suite.spec.operators.scripts import capacity
from attention_conformance.suite.spec.operators.views import allowed

NO_METHOD = "the layer has no method for it"
RING = "the layer writes no ring"


@dataclass(frozen=True)
class Decoding:
    """The state between steps: the layer's cache, its empty cache, projections that are identities, and
    the projections of the next step, which are identities or their negatives."""

    cache: Any
    empty_cache: Any
    identity_projections: Any
    projections: Any


PROJECTIONS = ("query", "key", "value", "out")


class NnxDecode(Projected):
    """The layer with `decode=True`. Windows and left padding are masks over the slots."""

    backend: JaxEngine

    name = "flax-nnx-decode"
    declared = Declared(
        numerics=SINGLE_FUSED,
        features=FEATURES,
        refusals={
            "softcap": "Flax has no softcap",
            "sinks": "Flax has no sinks",
            "alibi-slopes": "Flax has no slopes",
            "scale": "Flax divides by the root of the head size",
            "value-size": "the cache holds keys and values of one size",
            "rollback": NO_METHOD,
            "reorder": NO_METHOD,
            "subsets": "the cache has one index for all samples",
            **dict.fromkeys(("bias", "bias-with-mask"), "Flax has no bias"),
            **dict.fromkeys(("rotary", "halves", "interleaved"), "Flax rotates nothing"),
            "tree": "the layer takes one token a call",
            "keep": NO_METHOD,
            "ring": RING,
            "window-rollback": RING,
        },
        elections={"nan-in-freed-slot": "blocked"},
    )
    axis_order = "blhd"
    postponed = frozenset(ALL_BUT_FLOAT32)
    passes_dtype = True
    """True if `init_cache` gets the dtype of the layer."""

    def __init__(self, backend: JaxEngine) -> None:
        super().__init__(backend)
        self.programs: dict[Any, Callable[..., Any]] = {}

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        without_dtype = copy(self)
        without_dtype.passes_dtype = False
        return {"a cache without a dtype": without_dtype.prepare(inputs)}

    def init(self, inputs: Inputs, key: Any) -> Decoding:
        from flax import nnx

        s, jnp = inputs.sizes, self.backend.numpy
        width, kv_width = s.H * s.D, s.Hkv * s.D
        settings = {
            "num_heads": s.H, "num_kv_heads": s.Hkv, "in_features": width, "in_kv_features": kv_width,
            "use_bias": False, "decode": True, "dtype": key.dtype, "param_dtype": key.dtype,
        }  # fmt: skip
        layer = nnx.eval_shape(
            lambda: nnx.MultiHeadAttention(**settings, rngs=nnx.Rngs(0), keep_rngs=False)
        )
        for part, heads in (("query", s.H), ("key", s.Hkv), ("value", s.Hkv)):
            kernel = np.eye(heads * s.D).reshape(-1, heads, s.D)
            getattr(layer, part).kernel = nnx.Param(jnp.asarray(kernel, key.dtype))
        layer.out.kernel = nnx.Param(jnp.asarray(np.eye(width).reshape(s.H, s.D, -1), key.dtype))
        dtypes = [key.dtype] if self.passes_dtype else []
        layer.init_cache((s.B, capacity(inputs.case), width), *dtypes)
        parameters, cache = nnx.state(layer, nnx.Param), nnx.state(layer, nnx.Cache)
        self.programs.setdefault(self.program_key(inputs), self.program(nnx.graphdef(layer)))
        return Decoding(cache, cache, parameters, parameters)

    def program_key(self, inputs: Inputs) -> Any:
        """Returns the key of a program: sizes and dtype, which are not among its arguments."""
        s = inputs.sizes
        return s.B, s.H, s.Hkv, s.D, capacity(inputs.case), inputs.dtype.name

    def program(self, graph: Any) -> Callable[..., Any]:
        """Returns a program that decodes one token: the token `index` of arrays (B, L, H, D)."""
        jax = self.backend.jax

        def step(
            projections: Any, cache: Any, query: Any, key: Any, value: Any, mask: Any, index: Any
        ) -> Any:
            tokens = (jax.lax.dynamic_slice_in_dim(x, index, 1, 1) for x in (query, key, value))
            flat_tokens = [x.reshape((*x.shape[:2], -1)) for x in tokens]
            rows, new_cache = self.apply_layer(graph, projections, cache, flat_tokens, mask)
            return rows.reshape((*rows.shape[:2], *query.shape[2:])), new_cache

        compiled: Callable[..., Any] = jax.jit(step)
        return compiled

    def apply_layer(
        self, graph: Any, projections: Any, cache: Any, tokens: Sequence[Any], mask: Any
    ) -> tuple[Any, Any]:
        """Returns the layer's rows (B, 1, width) for query, key and value of one token, and its new
        cache."""
        from flax import nnx

        layer = nnx.merge(graph, projections, cache)
        rows = layer(*tokens, mask=mask)
        return rows, nnx.state(layer, nnx.Cache)

    def project(self, state: Decoding, signs: Sequence[int]) -> Decoding:
        jax, projections = self.backend.jax, dict(state.identity_projections.items())
        for name, sign in zip(PROJECTIONS, signs, strict=True):
            projections[name] = jax.tree.map(lambda x, sign=sign: sign * x, projections[name])
        return replace(state, projections=type(state.identity_projections)(projections))

    def layer_step(
        self, state: Decoding, query: Any, key: Any, value: Any, context: StepContext
    ) -> tuple[Any, Decoding]:
        case, rows = context.inputs.case, []
        if not query.shape[1] == key.shape[1] == value.shape[1]:
            raise ValueError("query, key and value differ in their number of tokens")
        program, slots = self.programs[self.program_key(context.inputs)], np.arange(capacity(case))
        for n in range(key.shape[1]):
            token = slice(n, n + 1)
            mask = allowed(
                case, context.token_positions[:, token], context.begins[:, token], slots
            )[:, None]
            row, cache = program(state.projections, state.cache, query, key, value, mask, n)
            state = replace(state, cache=cache)
            rows.append(row)
        return self.concat(rows, 1), state

    def reset(self, state: Decoding, *samples: Any) -> Decoding:
        return replace(state, cache=state.empty_cache)

    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        return self.backend.numpy.concatenate(list(arrays), axis)


class LinenDecode(NnxDecode):
    """`flax.linen.MultiHeadDotProductAttention` with `decode=True`, whose cache is a collection."""

    name = "flax-linen-decode"
    declared = NnxDecode.declared.refusing(
        {"grouped-heads": "Linen has as many key heads as query heads"}
    ).but(numerics="stepwise")

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        return {}  # the cache has the dtype of the keys

    def init(self, inputs: Inputs, key: Any) -> Decoding:
        from flax import linen

        s, jax, jnp = inputs.sizes, self.backend.jax, self.backend.numpy
        width = s.H * s.D
        layer = linen.MultiHeadDotProductAttention(
            num_heads=s.H, qkv_features=width, out_features=width, use_bias=False, decode=True,
            dtype=key.dtype, param_dtype=key.dtype, deterministic=True,
        )  # fmt: skip
        x = jnp.zeros((s.B, capacity(inputs.case), width), key.dtype)
        shapes = jax.eval_shape(lambda: layer.init(jax.random.key(0), x, x, x))
        cache = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes["cache"])
        identity = jnp.asarray(np.eye(width), key.dtype)
        kernels = {part: identity.reshape(width, s.H, s.D) for part in ("query", "key", "value")}
        kernels["out"] = identity.reshape(s.H, s.D, width)
        parameters = {part: {"kernel": kernel} for part, kernel in kernels.items()}
        self.programs.setdefault(self.program_key(inputs), self.program(layer))
        return Decoding(cache, cache, parameters, parameters)

    def apply_layer(
        self, graph: Any, projections: Any, cache: Any, tokens: Sequence[Any], mask: Any
    ) -> tuple[Any, Any]:
        variables = {"params": projections, "cache": cache}
        rows, new_variables = graph.apply(variables, *tokens, mask=mask, mutable=["cache"])
        return rows, new_variables["cache"]
