"""TensorFlow: textbook attention, and `keras.ops.dot_product_attention` on the TensorFlow engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from backends import _keras_layers as keras_layers
from backends._keras_ops import KerasFunction, KerasOps, import_keras
from backends.base import (
    Backend,
    BackendUnavailable,
    Implementation,
    Prepared,
    dense_arguments,
)
from backends.clocks import tensorflow_compilations, tensorflow_peak
from backends.compilers import seen_in_hlo, with_constants
from backends.differentiation import Step, by_tape, step_by_tape
from backends.layers import Operations, textbooks
from backends.sources import Dialect, textbook_source
from suite.spec.dtypes import DType
from suite.spec.problem import Inputs

NUMERICS = {"f64": "eager", "f32": "eager", "bf16": "eager", "f16": "working"}
"""On CPU float16 products are summed in float16: tf.einsum over 257 unit normals is off by 4.4 unit
roundoffs of sum |q k|, where summing in float32 leaves less than half of one."""

FLUSHED = {"f64": "flushed", "f32": "flushed", "bf16": "flushed", "f16": "kept"}
"""TensorFlow sets flush-to-zero in its threads; float16 is converted to float32 and back."""


DIALECT = Dialect(
    imports="""import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import tensorflow as tf""",
    array="tf.constant({values}.astype(tf.{dtype}.as_numpy_dtype))",
    plain="tf.constant({values})",
    values="{array}.numpy().astype(np.float64)",
    gradients="""with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch([{names}])
{indented}
gradients = tape.gradient(output, [{names}], output_gradients=cotangent)""",
    compiled={
        "function": "tf.function({function})",
        "xla": "tf.function({function}, jit_compile=True)",
    },
)


class TensorflowBackend(Backend):
    """TensorFlow on "cpu" or "cuda"."""

    name = "tf"
    dialect = DIALECT
    devices = ("cpu", "cuda")
    timed_compilers = ("function", "xla")
    compilers = ("function", "xla")
    layer_compilers = ("function",)

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        try:
            import tensorflow
        except Exception as error:
            raise BackendUnavailable(f"{type(error).__name__}: {error}") from error
        self.tf = tensorflow
        if device == "cuda" and not tensorflow.config.list_physical_devices("GPU"):
            raise BackendUnavailable("tensorflow sees no CUDA device")
        self.place = "/CPU:0" if device == "cpu" else "/GPU:0"
        self.keras = import_keras("tensorflow")
        # TF32 products would turn float32 cases into another numerics class on recent GPUs.
        tensorflow.config.experimental.enable_tensor_float_32_execution(False)

    @property
    def versions(self) -> dict[str, str]:
        return {"tensorflow": self.tf.__version__, "keras": self.keras.__version__}

    def implementations(self) -> list[Implementation]:
        own = [Eager(self), TensorflowKerasOps(self)]
        return [*own, *textbooks(self, _operations(self.tf), NUMERICS), *keras_layers.layers(self)]

    def array(self, values: np.ndarray, dtype: DType | None) -> Any:
        # Converted in NumPy, since TensorFlow's own cast flushes subnormals.
        if dtype is not None:
            values = values.astype(getattr(self.tf, dtype.long_name).as_numpy_dtype)
        with self.tf.device(self.place):
            return self.tf.constant(np.ascontiguousarray(values))

    def to_numpy(self, array: Any) -> np.ndarray:
        values = array.numpy()
        return values if values.dtype.kind in "bi" else values.astype(np.float64)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, self.tf.Tensor)

    def dtype_name(self, array: Any) -> str:
        return array.dtype.name

    def device_name(self, array: Any) -> str:
        return {"GPU": "cuda", "CPU": "cpu"}[array.device.rsplit(":", 2)[-2]]

    def operand(self, values: np.ndarray, inputs: Inputs, layout: str) -> Any:
        # Tensors have no strides that a caller could choose: a layout is a shape.
        if values.ndim == 4 and layout == "blhd":
            values = values.swapaxes(1, 2)
        return self.array(values, inputs.dtype)

    def differentiate(
        self, prepared: Prepared, wrt: Sequence[str], cotangent: Any
    ) -> tuple[Any, dict[str, Any]]:
        return by_tape(self.tf, prepared, wrt, cotangent)

    def step(self, prepared: Prepared, direction: str, wrt: Sequence[str]) -> Step:
        if direction == "forward":
            return super().step(prepared, direction, wrt)
        return step_by_tape(self.tf, prepared, direction, wrt)

    def sync(self, outputs: Any) -> None:
        self.tf.test.experimental.sync_devices()

    def compilations(self, prepared: Prepared) -> int:
        return tensorflow_compilations(prepared)

    def multiplied(self, array: Any) -> Callable[[], Any]:
        return lambda: self.tf.matmul(array, array)

    def copied(self, array: Any) -> Callable[[], Any]:
        return lambda: self.tf.negative(array)

    def peak_bytes(self, call: Callable[[], Any], prepared: Prepared) -> int | None:
        return tensorflow_peak(self.tf, self.device, call)

    def compiled(self, prepared: Prepared, compiler: str, batch: int) -> Prepared:
        def made(function: Callable[..., Any]) -> Callable[..., Any]:
            return self.tf.function(function, jit_compile=compiler == "xla")

        return with_constants(made, self.is_array, prepared)

    def witness(self, prepared: Prepared) -> str:
        function = getattr(prepared.function, "compiled", None)
        if function is None:
            return ""
        arrays = {n: a for n, a in prepared.arguments.items() if self.is_array(a)}
        if function._jit_compile:
            return seen_in_hlo(function.experimental_get_compiler_ir(arrays)("optimized_hlo"))
        graph = function.get_concrete_function(arrays).graph
        types = {op.type for op in graph.get_operations()}
        return ", ".join(sorted(t for t in types if "MatMul" in t or t in ("Einsum", "Softmax")))

    def function(self, function: Callable[..., Any], name: str, numerics: str) -> Implementation:
        return KerasFunction(self, function, name, numerics)


def _operations(tf: Any) -> Operations:
    return Operations(
        softmax=lambda x: tf.nn.softmax(x, axis=-1),
        fill=lambda x, hidden, number: tf.where(hidden, tf.constant(number, x.dtype), x),
        tanh=tf.tanh,
        total=lambda x, axis: tf.reduce_sum(x, axis),
        mean=lambda x, axis: tf.reduce_mean(x, axis),
        root=tf.sqrt,
        concat=lambda arrays, axis: tf.concat(list(arrays), axis),
        transpose=lambda x, axes: tf.transpose(x, axes),
        reshape=lambda x, shape: tf.reshape(x, shape),
        repeat=lambda x, times, axis: tf.repeat(x, times, axis),
        overflowing_fill="nan",
    )


class Eager(Implementation):
    """matmul, softmax, matmul; hidden scores are the dtype's lowest number."""

    backend: TensorflowBackend

    name = "eager"
    numerics = NUMERICS
    lacks = {
        "native-causal": "textbook code has no causal flag",
        "native-window": "textbook code has no window",
    }
    elections = {
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
        "integer-mask": "raises",
        "subnormal-output": FLUSHED,
        "score-overflow": "nan",
    }

    def prepare(self, inputs: Inputs) -> Prepared:
        tf, backend = self.backend.tf, self.backend
        softcap = inputs.softcap
        # A Python float that meets a tensor goes through float32 in TensorFlow; made in NumPy it
        # is rounded to the tensor's dtype once.
        scale = backend.array(np.asarray(inputs.effective_scale), inputs.dtype)

        def attention(query, key, value, mask, bias):  # type: ignore[no-untyped-def]
            if key.shape[1] != query.shape[1]:
                groups = query.shape[1] // key.shape[1]
                key = tf.repeat(key, groups, axis=1)  # (B, H, Lk, D)
                value = tf.repeat(value, groups, axis=1)
            scores = tf.matmul(query, key, transpose_b=True) * scale
            if softcap is not None:
                cap = tf.constant(softcap, scores.dtype)
                scores = cap * tf.tanh(scores / cap)
            if bias is not None:
                scores = scores + bias
            if mask is not None:
                scores = tf.where(mask, scores, scores.dtype.min)
            return tf.matmul(tf.nn.softmax(scores, axis=-1), value)  # (B, H, Lq, Dv)

        made = f"np.asarray({inputs.effective_scale!r}, tf.{inputs.dtype.long_name}.as_numpy_dtype)"
        source = textbook_source(
            attention,
            "import numpy as np\nimport tensorflow as tf",
            scale=f"tf.constant({made})",
            softcap=repr(softcap),
        )
        arguments = dense_arguments(backend, inputs)
        constants = (inputs.effective_scale, softcap)
        return Prepared(attention, arguments, source=source, constants=constants)


class TensorflowKerasOps(KerasOps):
    """`keras.ops.dot_product_attention` on TensorFlow."""

    # The default scale, and any Python number given as scale, pass through float32.
    numerics = NUMERICS | {"f64": "single"}

    elections = {
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
        "value-size": "accepted",
        "integer-mask": "raises",
        "subnormal-output": FLUSHED,
        "score-overflow": "nan",
    }
