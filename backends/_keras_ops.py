"""`keras.ops.dot_product_attention`, shared by the adapters of every engine Keras runs on.

Arrays are the engine's own, made by the adapter; Keras is imported when the first call is prepared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from backends.base import (
    Backend,
    BackendUnavailable,
    Implementation,
    Prepared,
    accepted_parameters,
    dense_of,
    lacking,
    rank4,
    split_native,
)
from backends.sources import call_source, function_source
from suite.spec.problem import Inputs

NATIVE = "keras.ops.dot_product_attention"
KNOWN = ("bias", "mask", "scale", "is_causal")


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
    numerics: str | Mapping[str, str] = "eager"
    elections: Mapping[str, str | Mapping[str, str]] = {}
    lacks = {
        "softcap": "keras.ops takes attn_logits_soft_cap on a TPU only",
        "native-window": "keras.ops.dot_product_attention has no window",
    }
    function: Callable[..., Any] | None = None
    takes_flag = True

    def prepare(self, inputs: Inputs) -> Prepared:
        function = self.function
        if function is None:
            import keras

            function = keras.ops.dot_product_attention
        backend = self.backend
        query, key, value = backend.operands(inputs, "blhd")
        arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
        native, rest = split_native(inputs, causal=self.takes_flag)
        if "causal" in native:
            arguments["is_causal"] = True
        mask = dense_of(inputs, rest)
        if mask is not None:
            arguments["mask"] = backend.array(rank4(mask), None)
        if inputs.bias is not None:
            arguments["bias"] = backend.array(rank4(inputs.bias), inputs.dtype)
        if inputs.scale is not None:
            arguments["scale"] = inputs.scale
        source = self.source(arguments)
        return Prepared(function, arguments, layout="blhd", source=source, constants=())

    def source(self, arguments: Mapping[str, Any]) -> str:
        """The call as text (see `Prepared`)."""
        return f"import keras\n{call_source(NATIVE, arguments)}"


class KerasFunction(KerasOps):
    """A user's function with the signature of `keras.ops.dot_product_attention`."""

    may_be_forward_only = True
    elections = {}

    def __init__(
        self, backend: Backend, function: Callable[..., Any], name: str, numerics: str
    ) -> None:
        super().__init__(backend)
        accepted = accepted_parameters(function, KNOWN, 3, NATIVE)
        self.name, self.numerics = name, numerics
        self.takes_flag = "is_causal" in accepted
        lacks = {
            "softcap": "the native signature takes attn_logits_soft_cap on a TPU only",
            "native-window": "the native signature has no window",
        }
        needed: dict[str, tuple[str, ...]] = {
            "mask": ("mask", "window", "padding"),
            "bias": ("bias", "bias-with-mask"),
            "scale": ("scale",),
            "is_causal": ("native-causal",),
        }
        lacks |= lacking(accepted, needed)
        if not accepted & {"is_causal", "mask"}:
            lacks["causal"] = "the function has neither is_causal nor mask"
        self.lacks = lacks

        def call(query, key, value, **rest):  # type: ignore[no-untyped-def]
            return function(query, key, value, **rest)

        self.function, self.judged = call, function

    def source(self, arguments: Mapping[str, Any]) -> str:
        return function_source(self.judged, self.name, arguments)
