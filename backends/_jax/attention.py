"""Scaled dot-product attention in JAX: as textbooks write it, and `jax.nn.dot_product_attention`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from backends._jax.engine import FLUSHED, JaxEngine
from backends.declared import ATTENTION_FEATURES, Declared
from backends.masks import dense_arguments, dense_of, rank4, split_native
from backends.prepared import PreparedCall
from backends.protocol import Implementation
from backends.sources import call_source, function_source, textbook_source
from backends.user import lacking
from suite.spec.inputs import Inputs

NATIVE = "jax.nn.dot_product_attention"

PARAMETERS = (
    "bias", "mask", "scale", "is_causal", "query_seq_lengths", "key_value_seq_lengths",
    "local_window_size",
)  # fmt: skip
"""What it takes besides query, key and value."""


class Eager(Implementation):
    """einsum, softmax, einsum in jax.numpy; hidden scores are the dtype's lowest number."""

    backend: JaxEngine

    name = "eager"
    declared = Declared(
        numerics="stepwise",
        features=ATTENTION_FEATURES | {"sinks"},
        refusals={
            "native-causal": "textbook code has no causal flag",
            "native-window": "textbook code has no window",
        },
        elections={
            "fully-masked-row": "uniform",
            "fully-masked-row-gradient": "values",
            "minus-inf-row": "nan",
            "no-keys": "zeros",
            "nan-in-masked-key": "blocked",
            "nan-in-masked-key-gradient": "leaks",
            "nan-in-masked-value-gradient": "leaks",
            "nan-in-masked-value": "leaks",
            "nan-in-attended-value": "reaches-them",
            "nan-in-query": "nan",
            "value-size": "accepted",
            "integer-mask": "cast-to-bool",
            "subnormal-output": FLUSHED,
            "score-overflow": "nan",
        },
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        jax, jnp, backend = self.backend.jax, self.backend.numpy, self.backend
        scale, softcap = inputs.effective_scale, inputs.softcap

        def attention(query, key, value, mask, bias, sinks=None):
            if key.shape[1] != query.shape[1]:
                groups = query.shape[1] // key.shape[1]
                key = jnp.repeat(key, groups, axis=1)  # (B, H, Lk, D)
                value = jnp.repeat(value, groups, axis=1)
            scores = jnp.einsum("bhid,bhjd->bhij", query, key) * scale
            if softcap is not None:
                scores = softcap * jnp.tanh(scores / softcap)
            if bias is not None:
                scores = scores + bias
            if mask is not None:
                scores = jnp.where(mask, scores, jnp.finfo(scores.dtype).min)
            if sinks is not None:  # one more logit a head, whose value is 0
                sinks = jnp.broadcast_to(sinks[:, None, None], (*scores.shape[:-1], 1))
                scores = jnp.concatenate([scores, sinks], axis=-1)  # (B, H, Lq, Lk + 1)
            weights = jax.nn.softmax(scores, axis=-1)
            if sinks is not None:
                weights = weights[..., :-1]
            return jnp.einsum("bhij,bhjd->bhid", weights, value)

        arguments = dense_arguments(backend, inputs)
        source = textbook_source(
            attention,
            "import jax\nimport jax.numpy as jnp",
            arguments,
            scale=repr(scale),
            softcap=repr(softcap),
        )
        plain = PreparedCall(attention, arguments, source=source, constants=(scale, softcap))
        return backend.jitted(self, plain)


class JaxNn(Implementation):
    """`jax.nn.dot_product_attention(implementation="xla")`."""

    backend: JaxEngine

    name = "jax-nn"
    declared = Declared(
        # Softmax runs in float32 whatever the dtype.
        numerics={"f64": "single", "f32": "fused", "bf16": "fused", "f16": "fused"},
        features=ATTENTION_FEATURES,
        refusals={
            "softcap": "jax.nn.dot_product_attention has no softcap",
            "value-size": "jax.nn.dot_product_attention requires values of the keys' shape",
            "sinks": "jax.nn.dot_product_attention has no sinks",
        },
        elections={
            "fully-masked-row": "uniform",
            "fully-masked-row-gradient": "values",
            "minus-inf-row": "nan",
            "no-keys": "zeros",
            "causal-alignment": "top-left",
            "causal-with-mask": "intersect",
            "nan-in-masked-key": "blocked",
            "nan-in-masked-key-gradient": "leaks",
            "nan-in-masked-value-gradient": "leaks",
            "nan-in-masked-value": "leaks",
            "nan-in-attended-value": "reaches-them",
            "nan-in-query": "nan",
            "value-size": "raises",
            "integer-mask": "raises",
            "subnormal-output": FLUSHED,
            "score-overflow": "finite",
        },
    )
    kernel = "xla"

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.backend.jitted_native(self, self.plain(inputs), inputs.dtype)

    def plain(
        self, inputs: Inputs, causal: bool = True, window: bool = True, lengths: bool = True
    ) -> PreparedCall:
        """The call operation by operation; the flags say which of the function's may be used: all else
        is in the dense mask."""
        backend = self.backend
        query, key, value = backend.operands(inputs, "blhd")
        arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
        native = split_native(inputs, causal, window, lengths)
        if native.causal:
            arguments["is_causal"] = True
        if native.window is not None:
            far = max(inputs.sizes.Lq, inputs.sizes.Lk)
            sides = (native.window.left, native.window.right)
            arguments["local_window_size"] = tuple(far if n is None else n for n in sides)
        if native.lengths is not None:
            counts = native.lengths.lengths(inputs.sizes, inputs.seed)
            arguments["key_value_seq_lengths"] = backend.array(counts.astype(np.int32), None)
        mask = dense_of(inputs, native.rest)
        if mask is not None:
            arguments["mask"] = backend.array(rank4(mask), None)
        if inputs.bias is not None:
            arguments["bias"] = backend.array(rank4(inputs.bias), inputs.dtype)
        if inputs.scale is not None:
            arguments["scale"] = inputs.scale
        source = self.source(arguments)
        return PreparedCall(
            self.caller(), arguments, axis_order="blhd", source=source, constants=()
        )

    def source(self, arguments: Mapping[str, Any]) -> str:
        """The call as text (see `PreparedCall`)."""
        chosen = f"implementation={self.kernel!r}"
        return f"import jax\n{call_source(NATIVE, arguments, chosen)}"

    def caller(self) -> Callable[..., Any]:
        function, kernel = self.backend.jax.nn.dot_product_attention, self.kernel

        def call(**arguments: Any) -> Any:
            return function(**arguments, implementation=kernel)

        return call


class JaxNnCudnn(JaxNn):
    """`jax.nn.dot_product_attention(implementation="cudnn")`, on CUDA."""

    name = "jax-nn-cudnn"
    declared = JaxNn.declared.but(dtypes=("bf16", "f16"))
    kernel = "cudnn"


class JaxNnFunction(JaxNn):
    """A user's function with the signature of `jax.nn.dot_product_attention`, called as it is."""

    def __init__(
        self,
        backend: JaxEngine,
        function: Callable[..., Any],
        name: str,
        numerics: str,
        accepted: frozenset[str],
    ) -> None:
        self.judged, self.accepted = function, accepted
        needed: dict[str, tuple[str, ...]] = {
            "mask": ("mask",),
            "bias": ("bias", "bias-with-mask"),
            "scale": ("scale",),
            "is_causal": ("native-causal",),
            "local_window_size": ("native-window",),
        }
        refusals = {"softcap": "the native signature has no softcap"} | lacking(accepted, needed)
        if "mask" not in accepted:
            for parameter, feature in (
                ("is_causal", "causal"),
                ("local_window_size", "window"),
                ("key_value_seq_lengths", "padding"),
            ):
                if parameter not in accepted:
                    refusals[feature] = f"the function has neither {parameter} nor mask"
        declared = Declared(
            numerics, ATTENTION_FEATURES, refusals, dtypes=JaxNn.declared.dtypes,
            may_be_forward_only=True,
        )  # fmt: skip
        super().__init__(backend, name, declared)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.plain(
            inputs,
            causal="is_causal" in self.accepted,
            window="local_window_size" in self.accepted,
            lengths="key_value_seq_lengths" in self.accepted,
        )

    def source(self, arguments: Mapping[str, Any]) -> str:
        return function_source(self.judged, self.name, arguments)

    def caller(self) -> Callable[..., Any]:
        function = self.judged

        def call(query: Any, key: Any, value: Any, **rest: Any) -> Any:
            return function(query, key, value, **rest)

        return call
