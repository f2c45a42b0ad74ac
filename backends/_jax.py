"""JAX: textbook attention in jax.numpy and `jax.nn.dot_product_attention`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

from backends.base import (
    Backend,
    BackendUnavailable,
    Implementation,
    Prepared,
    accepted_parameters,
    dense_arguments,
    dense_of,
    lacking,
    rank4,
    split_native,
)
from backends.clocks import COLD_BYTES, JaxCompilations, jax_peak
from backends.compilers import by_jit, over_batch, seen_in_program, with_constants
from backends.differentiation import Step, by_transform, pushed_by_transform, step_by_transform
from backends.layers import Operations, textbooks
from backends.sources import Dialect, call_source, function_source, textbook_source
from suite.spec.dtypes import DType
from suite.spec.problem import Inputs

JAX_NN = "jax.nn.dot_product_attention"
_PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}


FLUSHED = {"f64": "flushed", "f32": "flushed", "bf16": "flushed", "f16": "kept"}
"""XLA compiles for the CPU with flush-to-zero; float16 is computed in float32."""


DIALECT = Dialect(
    imports="""import jax
import jax.numpy as jnp
jax.config.update("jax_enable_x64", True)""",
    array='jnp.asarray({values}.astype(jnp.dtype("{dtype}")))',
    plain="jnp.asarray({values})",
    values="np.asarray({array}).astype(np.float64)",
    gradients="""

def call({names}):
{indented}
    return output


output, pull = jax.vjp(call, {names})
gradients = pull(cotangent)""",
    compiled={"jit": "jax.jit({function})", "aot": "jax.jit({function})"},
)


class JaxBackend(Backend):
    """JAX on "cpu" or "cuda"."""

    name = "jax"
    dialect = DIALECT
    compiles_shapes = True
    devices = ("cpu", "cuda")
    narrow_reductions = True
    timed_compilers = ("jit",)
    compilers = ("jit", "aot", "vmap")
    layer_compilers = ("jit",)

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        try:
            import jax
        except Exception as error:
            raise BackendUnavailable(f"{type(error).__name__}: {error}") from error
        # float64 is silently float32 otherwise.
        jax.config.update("jax_enable_x64", True)
        # The default lets a GPU or TPU multiply float32 in TF32 or bfloat16.
        jax.config.update("jax_default_matmul_precision", "highest")
        self.jax = jax
        self.numpy = jax.numpy
        try:
            self.on = jax.devices(_PLATFORMS[device])[0]
        except RuntimeError as error:
            raise BackendUnavailable(f"jax has no {device} device: {error}") from error

    @property
    def versions(self) -> dict[str, str]:
        import jaxlib

        found = {"jax": self.jax.__version__, "jaxlib": jaxlib.__version__}
        if find_spec("flax"):
            found["flax"] = version("flax")
        return found

    def implementations(self) -> list[Implementation]:
        found: list[Implementation] = [Eager(self), JaxNn(self)]
        if self.device == "cuda":
            found.append(JaxNnCudnn(self))
        found += textbooks(self, _operations(self.jax), Eager.numerics)
        if find_spec("flax"):
            from backends._flax import layers

            found += layers(self)
        return found

    def array(self, values: np.ndarray, dtype: DType | None) -> Any:
        # Converted in NumPy: every conversion on the device would be compiled for every new shape.
        if dtype is not None:
            values = values.astype(self.numpy.dtype(dtype.long_name))
        return self.jax.device_put(np.ascontiguousarray(values), self.on)

    def to_numpy(self, array: Any) -> np.ndarray:
        values = np.asarray(array)
        return values if values.dtype.kind in "bi" else values.astype(np.float64)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, self.jax.Array)

    def dtype_name(self, array: Any) -> str:
        return str(array.dtype)

    def device_name(self, array: Any) -> str:
        platform = next(iter(array.devices())).platform
        return next((name for name, p in _PLATFORMS.items() if p == platform), platform)

    def operand(self, values: np.ndarray, inputs: Inputs, layout: str) -> Any:
        # JAX arrays have no strides that a caller could choose: a layout is a shape.
        if values.ndim == 4 and layout == "blhd":
            values = values.swapaxes(1, 2)
        return self.array(values, inputs.dtype)

    def differentiate(
        self, prepared: Prepared, wrt: Sequence[str], cotangent: Any
    ) -> tuple[Any, dict[str, Any]]:
        return by_transform(self.jax, prepared, wrt, cotangent)

    def step(self, prepared: Prepared, direction: str, wrt: Sequence[str]) -> Step:
        if direction == "forward":
            return super().step(prepared, direction, wrt)
        return step_by_transform(self.jax, prepared, direction, wrt)

    def sync(self, outputs: Any) -> None:
        self.jax.block_until_ready(outputs)

    @cached_property
    def _compilations(self) -> JaxCompilations:
        return JaxCompilations(self.jax)

    def compilations(self, prepared: Prepared) -> int:
        return self._compilations.count

    def copied(self, array: Any) -> Callable[[], Any]:
        return lambda: -array

    def peak_bytes(self, call: Callable[[], Any], prepared: Prepared) -> int | None:
        return jax_peak(self.jax, prepared)

    def cool(self) -> None:
        if self.device != "cpu":
            self.numpy.zeros(COLD_BYTES, np.uint8, device=self.on).block_until_ready()

    def pushed(self, prepared: Prepared, tangents: Mapping[str, Any]) -> Any:
        return pushed_by_transform(self.jax, prepared, tangents)

    def compiled(self, prepared: Prepared, compiler: str, batch: int) -> Prepared:
        jax = self.jax
        if compiler == "vmap":
            return over_batch(jax.vmap, jax.numpy.moveaxis, self.is_array, prepared, batch)
        if compiler == "jit":
            return by_jit(jax, self, prepared)
        return with_constants(lambda function: Ahead(jax, function), self.is_array, prepared)

    def lacking_compiled(self, implementation: Implementation, compiler: str) -> dict[str, str]:
        if getattr(implementation, "sows", False):
            return {"compiled": "sown weights are a change of the layer, which nnx.jit alone keeps"}
        if compiler == "vmap":
            return {"empty-batch": "nothing can be mapped over an empty batch"}
        return AHEAD if compiler == "aot" else {}

    def witness(self, prepared: Prepared) -> str:
        return seen_in_program(self.jax, self, prepared)

    def function(self, function: Callable[..., Any], name: str, numerics: str) -> Implementation:
        known = (
            "bias",
            "mask",
            "scale",
            "is_causal",
            "query_seq_lengths",
            "key_value_seq_lengths",
            "local_window_size",
        )
        accepted = accepted_parameters(function, known, 3, JAX_NN)
        return JaxNnFunction(self, function, name, numerics, accepted)


AHEAD = {
    "gradient": "a program compiled ahead has no derivative",
    "other-shapes": "a program compiled ahead takes the shapes it was compiled for",
}
"""What programs that are compiled ahead of their first call lack."""


class Ahead:
    """A function lowered and compiled ahead of its first call, for the shapes of that call."""

    def __init__(self, jax: Any, function: Callable[..., Any]) -> None:
        self.jitted = jax.jit(function)
        self.program: Any = None

    def __call__(self, arrays: Any) -> Any:
        if self.program is None:
            self.program = self.lower(arrays).compile()
        return self.program(arrays)

    def lower(self, arrays: Any) -> Any:
        """The function lowered, as `jax.jit` has it."""
        return self.jitted.lower(arrays)


def _operations(jax: Any) -> Operations:
    jnp = jax.numpy
    return Operations(
        softmax=lambda x: jax.nn.softmax(x, axis=-1),
        fill=lambda x, hidden, number: jnp.where(hidden, number, x),
        tanh=jnp.tanh,
        total=lambda x, axis: x.sum(axis),
        mean=lambda x, axis: x.mean(axis),
        root=jnp.sqrt,
        concat=lambda arrays, axis: jnp.concatenate(list(arrays), axis),
        transpose=jnp.transpose,
        reshape=jnp.reshape,
        repeat=lambda x, times, axis: jnp.repeat(x, times, axis),
        overflowing_fill="nan",
    )


class Eager(Implementation):
    """einsum, softmax, einsum in jax.numpy; hidden scores are the dtype's lowest number."""

    backend: JaxBackend

    name = "eager"
    # jax.nn.softmax called eagerly stores every step of it in the operands' dtype.
    numerics = "stepwise"
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
        "integer-mask": "cast-to-bool",
        "subnormal-output": FLUSHED,
        "score-overflow": "nan",
    }

    def prepare(self, inputs: Inputs) -> Prepared:
        jax, jnp, backend = self.backend.jax, self.backend.numpy, self.backend
        scale, softcap = inputs.effective_scale, inputs.softcap

        def attention(query, key, value, mask, bias):  # type: ignore[no-untyped-def]
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
            weights = jax.nn.softmax(scores, axis=-1)
            return jnp.einsum("bhij,bhjd->bhid", weights, value)

        source = textbook_source(
            attention,
            "import jax\nimport jax.numpy as jnp",
            scale=repr(scale),
            softcap=repr(softcap),
        )
        arguments = dense_arguments(backend, inputs)
        return Prepared(attention, arguments, source=source, constants=(scale, softcap))


class JaxNn(Implementation):
    """`jax.nn.dot_product_attention(implementation="xla")`."""

    backend: JaxBackend

    name = "jax-nn"
    # Softmax runs in float32 whatever the dtype.
    numerics: str | Mapping[str, str] = {
        "f64": "single",
        "f32": "fused",
        "bf16": "fused",
        "f16": "fused",
    }
    lacks = {
        "softcap": "jax.nn.dot_product_attention has no softcap",
        "value-size": "jax.nn.dot_product_attention requires values of the keys' shape",
    }
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
        "value-size": "raises",
        "integer-mask": "raises",
        "subnormal-output": FLUSHED,
        "score-overflow": "finite",
    }
    kernel = "xla"

    def prepare(self, inputs: Inputs) -> Prepared:
        return self.made(inputs, causal=True, window=True, lengths=True)

    def made(self, inputs: Inputs, causal: bool, window: bool, lengths: bool) -> Prepared:
        """The call, with the flags that may be used and everything else in the dense mask."""
        backend = self.backend
        query, key, value = backend.operands(inputs, "blhd")
        arguments: dict[str, Any] = {"query": query, "key": key, "value": value}
        native, rest = split_native(inputs, causal, window, lengths)
        if "causal" in native:
            arguments["is_causal"] = True
        if "window" in native:
            asked, far = native["window"], max(inputs.sizes.Lq, inputs.sizes.Lk)
            arguments["local_window_size"] = (
                far if asked.left is None else asked.left,
                far if asked.right is None else asked.right,
            )
        if "lengths" in native:
            found = native["lengths"].lengths(inputs.sizes, inputs.seed)
            arguments["key_value_seq_lengths"] = backend.array(found.astype(np.int32), None)
        mask = dense_of(inputs, rest)
        if mask is not None:
            arguments["mask"] = backend.array(rank4(mask), None)
        if inputs.bias is not None:
            arguments["bias"] = backend.array(rank4(inputs.bias), inputs.dtype)
        if inputs.scale is not None:
            arguments["scale"] = inputs.scale
        source = self.source(arguments)
        return Prepared(self.caller(), arguments, layout="blhd", source=source, constants=())

    def source(self, arguments: Mapping[str, Any]) -> str:
        """The call as text (see `Prepared`)."""
        chosen = f"implementation={self.kernel!r}"
        return f"import jax\n{call_source(JAX_NN, arguments, chosen)}"

    def caller(self) -> Callable[..., Any]:
        function, kernel = self.backend.jax.nn.dot_product_attention, self.kernel

        def call(**arguments: Any) -> Any:
            return function(**arguments, implementation=kernel)

        return call


class JaxNnCudnn(JaxNn):
    """`jax.nn.dot_product_attention(implementation="cudnn")`, on CUDA."""

    name = "jax-nn-cudnn"
    kernel = "cudnn"
    dtypes = ("bf16", "f16")


class JaxNnFunction(JaxNn):
    """A user's function with the signature of `jax.nn.dot_product_attention`."""

    may_be_forward_only = True
    elections = {}

    def __init__(
        self,
        backend: Backend,
        function: Callable[..., Any],
        name: str,
        numerics: str,
        accepted: frozenset[str],
    ) -> None:
        super().__init__(backend)
        self.judged, self.name, self.numerics, self.accepted = function, name, numerics, accepted
        lacks = {"softcap": "the native signature has no softcap"}
        needed: dict[str, tuple[str, ...]] = {
            "mask": ("mask",),
            "bias": ("bias", "bias-with-mask"),
            "scale": ("scale",),
            "is_causal": ("native-causal",),
            "local_window_size": ("native-window",),
        }
        lacks |= lacking(accepted, needed)
        if "mask" not in accepted:
            for parameter, feature in (
                ("is_causal", "causal"),
                ("local_window_size", "window"),
                ("key_value_seq_lengths", "padding"),
            ):
                if parameter not in accepted:
                    lacks[feature] = f"the function has neither {parameter} nor mask"
        self.lacks = lacks

    def prepare(self, inputs: Inputs) -> Prepared:
        return self.made(
            inputs,
            causal="is_causal" in self.accepted,
            window="local_window_size" in self.accepted,
            lengths="key_value_seq_lengths" in self.accepted,
        )

    def source(self, arguments: Mapping[str, Any]) -> str:
        return function_source(self.judged, self.name, arguments)

    def caller(self) -> Callable[..., Any]:
        def call(query, key, value, **rest):  # type: ignore[no-untyped-def]
            return self.judged(query, key, value, **rest)

        return call
