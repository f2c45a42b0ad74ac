"""`keras.ops.dot_product_attention`, shared by the adapters of every engine Keras runs on.

Arrays are the engine's own, made by the adapter; Keras is imported when the first call is prepared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from backends.declared import ATTENTION_FEATURES, Declared
from backends.masks import dense_of, rank4, split_native
from backends.prepared import PreparedCall
from backends.protocol import Backend, BackendUnavailable, Implementation
from backends.sources import call_source, function_source
from backends.user import accepted_parameters, lacking
from suite.spec.inputs import Inputs

NATIVE = "keras.ops.dot_product_attention"
PARAMETERS = ("bias", "mask", "scale", "is_causal")
"""What it takes besides query, key and value."""


def import_keras(engine: str) -> Any:
    """Keras on `engine`. Raises BackendUnavailable where this process has it on another one.

    KERAS_BACKEND is read once, when Keras is first imported, so that a process has one engine.
    """
    os.environ.setdefault("KERAS_BACKEND", engine)
    try:
        import keras
    except Exception as error:
        raise BackendUnavailable(f"{type(error).__name__}: {error}") from error
    if keras.backend.backend() != engine:
        raise BackendUnavailable(
            f"Keras runs on {keras.backend.backend()} in this process, {engine} was asked for; "
            "use one Keras engine per process (KERAS_BACKEND is process-global)"
        )
    return keras


class KerasOps(Implementation):
    """`keras.ops.dot_product_attention` on the engine of the adapter's backend."""

    name = "keras-ops"
    declared = Declared(
        features=ATTENTION_FEATURES,
        refusals={
            "softcap": "keras.ops takes attn_logits_soft_cap on a TPU only",
            "native-window": "keras.ops.dot_product_attention has no window",
            "sinks": "keras.ops.dot_product_attention has no sinks",
        },
    )
    takes_flag = True

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend = self.backend
        query, key, value = backend.operands(inputs, "blhd")
        arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
        native = split_native(inputs, causal=self.takes_flag)
        if native.causal:
            arguments["is_causal"] = True
        mask = dense_of(inputs, native.rest)
        if mask is not None:
            arguments["mask"] = backend.array(rank4(mask), None)
        if inputs.bias is not None:
            arguments["bias"] = backend.array(rank4(inputs.bias), inputs.dtype)
        if inputs.scale is not None:
            arguments["scale"] = inputs.scale
        return PreparedCall(
            self.function(),
            arguments,
            axis_order="blhd",
            source=self.source(arguments),
            constants=(),
        )

    def function(self) -> Callable[..., Any]:
        """What is called."""
        import keras

        return keras.ops.dot_product_attention

    def source(self, arguments: Mapping[str, Any]) -> str:
        """The call as text (see `PreparedCall`)."""
        return f"import keras\n{call_source(NATIVE, arguments)}"


class KerasFunction(KerasOps):
    """A user's function with the signature of `keras.ops.dot_product_attention`, called as it is."""

    def __init__(
        self, backend: Backend, function: Callable[..., Any], name: str, numerics: str
    ) -> None:
        accepted = accepted_parameters(function, PARAMETERS, 3, NATIVE)
        self.judged, self.takes_flag = function, "is_causal" in accepted
        refusals = {
            "softcap": "the native signature takes attn_logits_soft_cap on a TPU only",
            "native-window": "the native signature has no window",
        }
        needed: dict[str, tuple[str, ...]] = {
            "mask": ("mask", "window", "padding"),
            "bias": ("bias", "bias-with-mask"),
            "scale": ("scale",),
            "is_causal": ("native-causal",),
        }
        refusals |= lacking(accepted, needed)
        if not accepted & {"is_causal", "mask"}:
            refusals["causal"] = "the function has neither is_causal nor mask"
        declared = Declared(numerics, ATTENTION_FEATURES, refusals, may_be_forward_only=True)
        super().__init__(backend, name, declared)

    def function(self) -> Callable[..., Any]:
        judged = self.judged

        def call(query: Any, key: Any, value: Any, **rest: Any) -> Any:
            return judged(query, key, value, **rest)

        return call

    def source(self, arguments: Mapping[str, Any]) -> str:
        return function_source(self.judged, self.name, arguments)
