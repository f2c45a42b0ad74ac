"""`keras.ops.dot_product_attention`, for every engine of Keras.

Arrays are those of the engine. Keras is imported when the first call is prepared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends._keras import models
from attention_conformance.backends.declared import ATTENTION_FEATURES, Declared
from attention_conformance.backends.masks import FLAGGED, flagged_arguments, split_native
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import BackendUnavailable, Implementation, needed
from attention_conformance.backends.user.function import NativeSignature
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS

NATIVE = "keras.ops.dot_product_attention"

SIGNATURE = NativeSignature(
    NATIVE, FLAGGED, neutral={"flash_attention": False, "attn_logits_soft_cap": None}
)


def import_keras(engine: str) -> Any:
    """Import Keras on `engine`. Raises BackendUnavailable if this process has Keras on another engine.

    Keras reads KERAS_BACKEND at its first import, so a process has one engine.
    """
    os.environ.setdefault("KERAS_BACKEND", engine)
    with needed():
        import keras
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
        features=ATTENTION_FEATURES | {"no-heads"},
        refusals={
            "softcap": "keras.ops has attn_logits_soft_cap only on a TPU",
            "native-window": "keras.ops.dot_product_attention has no window",
            "sinks": "keras.ops.dot_product_attention has no sinks",
        },
    )

    def prepare(self, inputs: Inputs) -> PreparedCall:
        arguments = flagged_arguments(self.backend, inputs, split_native(inputs, causal=True))
        return PreparedCall(
            self.function,
            arguments,
            axis_order="blhd",
            source=f"import keras\n\nfunction = {NATIVE}",
            constants=(),
        )

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        ways = SIGNATURE.ways(SIGNATURE.neutral, inputs.default_scale)
        paths = {**self.prepare(inputs).written_out(ways), "in a model": self.in_a_model(inputs)}
        if inputs.dtype.is_half:
            return paths | self.widened(inputs)
        if inputs.dense_mask is not None:
            problem = lowered(inputs)
            paths["low scores"] = replace(self.prepare(problem), problem=problem)
        return paths

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself."""
        import keras

        function: Callable[..., Any] = keras.ops.dot_product_attention
        return function

    def widened(self, inputs: Inputs) -> dict[str, PreparedCall]:
        """Calls with some operands in float32, whose answers are then float32; a bias is cast down."""
        problem = inputs.replace(dtype=DTYPES["f32"])
        plain, wide = self.prepare(inputs), self.prepare(problem).arguments
        ways = {
            f"{' and '.join(names)} in float32": {name: wide[name] for name in names}
            for names in (("query",), ("key", "value"), ("bias",))
            if all(name in wide for name in names)
        }
        return {
            name: replace(call, problem=None if "bias" in ways[name] else problem)
            for name, call in plain.written_out(ways).items()
        }

    def in_a_model(self, inputs: Inputs) -> PreparedCall:
        """A call of a functional model with the inputs query, key and value."""
        plain, names = self.prepare(inputs), OPERANDS
        rest = {name: array for name, array in plain.arguments.items() if name not in names}
        function = partial(self.function, **rest)
        model = models.functional(self.backend, function, {n: n for n in names}, inputs, "function")
        own = {name: plain.arguments[name] for name in names}
        return replace(plain, function=model, arguments=own, constants=None)

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        arguments = self.prepare(inputs).arguments
        query, key, value = (arguments[name] for name in OPERANDS)
        flash = partial(self.function, query, key, value, flash_attention=True)
        return {
            "operands of rank 3": lambda: self.function(query[0], key[0], value[0]),
            "attn_logits_soft_cap without a TPU": lambda: self.function(
                query, key, value, attn_logits_soft_cap=1.0
            ),
            **({"flash_attention on a CPU": flash} if self.backend.device == "cpu" else {}),
        }


def lowered(inputs: Inputs) -> Inputs:
    """Inputs whose scores are all lower (by 60000 with the default scale), which does not
    change a softmax.

    Such scores lie below constants that some code uses for masked scores.
    """
    number = np.ceil(np.sqrt(60_000 * np.sqrt(inputs.sizes.D)))
    query, key = inputs.query.copy(), inputs.key.copy()
    query[..., 0], key[..., 0] = number, -number
    return inputs.replace(query=query, key=key)
