"""`keras.ops.dot_product_attention`, for every engine of Keras.

Arrays are the engine's. Keras is imported when the first call is prepared.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Any

from attention_conformance.backends._keras import models
from attention_conformance.backends.declared import ATTENTION_FEATURES, Declared
from attention_conformance.backends.kernel import (
    FrameworkFunction,
    Kernel,
    calls_with_explicit_arguments,
)
from attention_conformance.backends.masks import FLAGGED
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import BackendUnavailable, needed
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import OPERANDS

NATIVE = "keras.ops.dot_product_attention"


def import_keras(engine: str) -> Any:
    """Returns Keras, imported on `engine`. Raises BackendUnavailable if this process has Keras on another
    engine.

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


def paths(impl: FrameworkFunction, inputs: Inputs, call: PreparedCall) -> dict[str, PreparedCall]:
    """Returns calls with explicit neutral arguments, and in a functional model."""
    return calls_with_explicit_arguments(impl, inputs, call) | {
        "in a model": call_in_model(impl, inputs, call)
    }


def call_in_model(impl: FrameworkFunction, inputs: Inputs, call: PreparedCall) -> PreparedCall:
    """Returns a call of a functional model with the inputs query, key and value."""
    options = {name: array for name, array in call.arguments.items() if name not in OPERANDS}
    model = models.in_model(impl, inputs, None, partial(call.function, **options))
    operands = {name: call.arguments[name] for name in OPERANDS}
    return replace(call, function=model, arguments=operands, constants=None)


KERAS_OPS = Kernel(
    "keras-ops",
    NATIVE,
    FLAGGED,
    Declared(
        features=ATTENTION_FEATURES | {"no-heads"},
        refusals={
            "softcap": "keras.ops has attn_logits_soft_cap only on a TPU",
            "native-window": "keras.ops.dot_product_attention has no window",
            "sinks": "keras.ops.dot_product_attention has no sinks",
        },
    ),
    source=f"import keras\n\nfunction = {NATIVE}",
    neutral={"flash_attention": False, "attn_logits_soft_cap": None},
    paths=paths,
    wrong=({"attn_logits_soft_cap": 1.0},),  # without a TPU
)
"""The function on any engine."""
