"""Keras on NumPy, on the CPU, forward only: this engine differentiates nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.metadata import version
from typing import Any

from backends._keras.layers import keras_layers
from backends._keras.ops import KerasFunction, KerasOps, import_keras
from backends._keras.settings import settings
from backends.arrays import NumpyArrays
from backends.claims import Claims
from backends.protocol import Implementation, Setting
from backends.sources import Dialect

FORWARD = {"gradient": "Keras on NumPy has no automatic differentiation"}

DIALECT = Dialect(
    imports="""import os
os.environ["KERAS_BACKEND"] = "numpy"
import keras""",
    array='keras.ops.convert_to_tensor({values}.astype("{carrier}"), dtype="{dtype}")',
    plain="{values}",
    values="{array}.astype(np.float64)",
    gradients="",
)


class KerasNumpyBackend(NumpyArrays):
    """Keras on NumPy."""

    name = "keras-numpy"
    native = "keras-ops"
    dialect = DIALECT

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.keras: Any = import_keras("numpy")

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        return {**super().settings, **settings(self.keras)}

    @property
    def versions(self) -> dict[str, str]:
        return {"keras": self.keras.__version__, "numpy": version("numpy")}

    def implementations(self) -> list[Implementation]:
        every = [KerasNumpyOps(self), *keras_layers(self, "numpy")]
        for implementation in every:
            implementation.declared = implementation.declared.refusing(FORWARD)
        return every

    def function(self, function: Callable[..., Any], name: str, claims: Claims) -> Implementation:
        return KerasFunction(self, function, name, claims)


class KerasNumpyOps(KerasOps):
    """`keras.ops.dot_product_attention` on NumPy: einsum, softmax, einsum."""

    declared = KerasOps.declared.but(
        # Softmax runs in float32 whatever the dtype; einsum adds up in float16.
        numerics={"f64": "single", "f32": "fused", "bf16": "fused", "f16": "working"},
        elections={
            "fully-masked-row": "uniform",
            "minus-inf-row": "nan",
            "no-keys": "raises",
            "causal-alignment": "top-left",
            "causal-with-mask": "intersect",
            "nan-in-masked-key": "blocked",
            "nan-in-masked-value": "leaks",
            "nan-in-attended-value": "reaches-them",
            "nan-in-query": "nan",
            "value-size": "accepted",
            "integer-mask": "cast-to-bool",
            # float64 is cast to float32, where 2^-1024 is zero.
            "subnormal-output": {"f64": "flushed", "f32": "kept", "bf16": "kept", "f16": "kept"},
            "score-overflow": "nan",
        },
    )
