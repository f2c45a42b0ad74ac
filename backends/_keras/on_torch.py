"""Keras on PyTorch, on the CPU."""

from __future__ import annotations

from attention_conformance.backends._keras.engine import KerasBackend
from attention_conformance.backends._keras.ops import KERAS_OPS
from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._torch.kernels import SDPA
from attention_conformance.backends.declared import (
    ADDED,
    INTERSECTED,
    LEAKING_GRADIENTS,
    LOWEST_IN_FLOAT32,
)
from attention_conformance.backends.kernel import FrameworkFunction
from attention_conformance.backends.protocol import Implementation

ON_TORCH = KERAS_OPS.but(
    declared=KERAS_OPS.declared.refusing(
        {"bias-with-mask": "on torch keras.ops allows a bias or a mask, not both"}
    ).but(
        numerics="fused",
        rounding=SDPA.declared.rounding,
        elections=ADDED
        | LEAKING_GRADIENTS
        | INTERSECTED
        | {
            # The mask becomes a bias of -0.7 max. In float16 (-45853) the bias does not absorb float32
            # scores: a fully masked row attends as if nothing were masked.
            "fully-masked-row": LOWEST_IN_FLOAT32,
            "fully-masked-row-gradient": "scores",
            "minus-inf-row": "zeros",
            "lowest-row": LOWEST_IN_FLOAT32 | {"f64": "zeros"},
            "no-keys": "zeros",
            "nan-in-query": "zeros",
            "integer-mask": "cast-to-bool",
            # In float64 the cast to float32 makes 2^-1024 zero. bfloat16 depends on the CPU, as in torch.
            "subnormal-output": {"f64": "flushed", "f32": "kept", "f16": "kept"},
            "score-overflow": "finite",
        },
    )
)
"""`keras.ops.dot_product_attention` on PyTorch: it calls scaled_dot_product_attention."""


class KerasTorchBackend(KerasBackend, TorchEngine):
    """Keras on PyTorch."""

    name = "keras-torch"
    modules = distributions = ("keras", "torch")
    engine_of_keras = "torch"
    compilers = ("inductor", "aot_eager")
    # Keras breaks its attention into two graphs (keras#23327). Dynamo keeps the second graph of all
    # programs under one code object of Keras, with eight programs at most.
    one_graph = False

    def implementations(self) -> list[Implementation]:
        return [FrameworkFunction(self, ON_TORCH), *self.layers()]
