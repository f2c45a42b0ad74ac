"""TensorFlow as an engine: arrays, devices and derivatives, for all backends on TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from attention_conformance.backends._tensorflow.profiler import (
    TensorflowProfiler,
    by_tape,
    pullback,
)
from attention_conformance.backends.compilers import with_constants
from attention_conformance.backends.prepared import Gradients, PreparedCall, Pullback
from attention_conformance.backends.protocol import (
    Backend,
    BackendUnavailable,
    DeclaredRounding,
    Setting,
    needed,
)
from attention_conformance.backends.textbook.attention import TextbookAttention
from attention_conformance.backends.textbook.operations import Operations, operations_of
from attention_conformance.suite.spec.dtypes import DTYPES, DType

FLUSHED = {"f64": "flushed", "f32": "flushed", "bf16": "flushed", "f16": "kept"}
"""TensorFlow's threads flush subnormals to zero; float16 is converted to float32 and back."""

NUMERICS = {"f64": "eager", "f32": "eager", "bf16": "stepwise", "f16": "working"}
"""Numerics classes on the CPU, as measured.

float16 products are summed in float16: the error of tf.einsum over 257 unit normals is 4.4 unit roundoffs
of sum |q k|; sums in float32 have less than 0.5. The softmax stores differences, exponentials and their
sum in bfloat16: its error for 8 normal scores is 10.7 unit roundoffs of a weight; one rounding has 0.5.
"""


EAGER = TextbookAttention.declared.but(numerics=NUMERICS).electing({"subnormal-output": FLUSHED})
"""The declaration of textbook attention; masked scores are the dtype's lowest number."""


def operations(tf: Any) -> Operations:
    """Returns the operations of textbook code in TensorFlow."""
    return operations_of(
        tf,
        softmax=lambda x: tf.nn.softmax(x, axis=-1),
        fill=lambda x, hidden, number: tf.where(hidden, tf.constant(number, x.dtype), x),
        mask_scores=lambda scores, mask: tf.where(mask, scores, scores.dtype.min),
        logsumexp=lambda x: tf.reduce_logsumexp(
            tf.cast(x, tf.float64 if x.dtype == tf.float64 else tf.float32), axis=-1
        ),
        take=tf.gather,
        put=lambda x, indices, values: tf.tensor_scatter_nd_update(x, indices[:, None], values),
        astype=tf.cast,
        cast_like=lambda x, other: tf.cast(x, other.dtype),
        arange_like=lambda n, x: tf.cast(tf.range(n), x.dtype),
        sum=tf.reduce_sum,
        mean=tf.reduce_mean,
        max=tf.reduce_max,
        permute_dims=tf.transpose,
        log=tf.math.log,
        clip=tf.clip_by_value,
        # TensorFlow converts a Python float to float32 first; NumPy rounds it once, to the tensor's
        # dtype.
        number=lambda value, x: tf.constant(np.asarray(value, x.dtype.as_numpy_dtype)),
    )


class TensorflowEngine(TensorflowProfiler, Backend):
    """Arrays of TensorFlow. Subclasses list the implementations, and may list compilers: `tf.function`,
    alone ("function") and through XLA ("xla")."""

    has_views = False
    ambient = {"function": "traced"}

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        with needed():
            import tensorflow
        self.tf: Any = tensorflow
        self.validation_errors = (
            *Backend.validation_errors,
            tensorflow.errors.InvalidArgumentError,
        )
        if device == "cuda" and not tensorflow.config.list_physical_devices("GPU"):
            raise BackendUnavailable("tensorflow sees no CUDA device")
        self.device_scope = "/CPU:0" if device == "cpu" else "/GPU:0"
        # With TF32 products float32 cases on recent GPUs would have another numerics class.
        tensorflow.config.experimental.enable_tensor_float_32_execution(False)

    @cached_property
    def rounding(self) -> DeclaredRounding:  # type: ignore[override]
        """Truncated bfloat16 products if a sum 1 + 0.75 ulp is 1 (finding bfloat16-products-cut-off)."""
        bf16 = DTYPES["bf16"]
        ulp = 2 * bf16.unit_roundoff
        row = self.array(np.array([[1.0, 0.75 * ulp]]), bf16)
        (total,) = self.to_numpy(self.tf.matmul(row, self.tf.ones_like(row), transpose_b=True))
        return DeclaredRounding(truncates_matmul=() if total[0] == 1.0 + ulp else ("bf16",))

    @property
    def versions(self) -> dict[str, str]:
        return {"tensorflow": self.tf.__version__}

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        config = self.tf.config
        tf32, optimizer = config.experimental, config.optimizer
        return {
            "TF32 products": Setting(
                tf32.tensor_float_32_execution_enabled, tf32.enable_tensor_float_32_execution
            ),
            "the running of functions": Setting(
                config.functions_run_eagerly, config.run_functions_eagerly
            ),
            "the compiling of functions": Setting(
                optimizer.get_jit, lambda enabled: optimizer.set_jit(enabled or False)
            ),
        }

    def array(self, values: np.ndarray, dtype: DType | None) -> Any:
        # NumPy converts, since TensorFlow's cast flushes subnormals.
        if dtype is not None:
            values = values.astype(self.tf.as_dtype(dtype.long_name).as_numpy_dtype)
        with self.tf.device(self.device_scope):
            return self.tf.constant(np.asarray(values, order="C"))

    def to_numpy(self, array: Any) -> np.ndarray:
        values = array.numpy()
        return values if values.dtype.kind in "bi" else values.astype(np.float64)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, self.tf.Tensor)

    def dtype_name(self, array: Any) -> str:
        return array.dtype.name

    def device_name(self, array: Any) -> str:
        return {"GPU": "cuda", "CPU": "cpu"}[array.device.rsplit(":", 2)[-2]]

    def vjp(self, prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
        return by_tape(prepared, wrt, cotangent)

    def pullback(self, prepared: PreparedCall, wrt: Sequence[str]) -> Pullback:
        return pullback(prepared, wrt)

    def compiled(self, prepared: PreparedCall, compiler: str, batch: int) -> PreparedCall:
        def compiled_function(function: Callable[..., Any]) -> Callable[..., Any]:
            return self.tf.function(function, jit_compile=compiler == "xla")

        return with_constants(compiled_function, self.is_array, prepared)
