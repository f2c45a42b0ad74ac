"""JAX as an engine: arrays, devices, derivatives and settings, for all backends on JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from attention_conformance.backends._jax import transforms
from attention_conformance.backends._jax.compilers import JaxCompilers
from attention_conformance.backends._jax.modules import ModuleLayer, made_layer
from attention_conformance.backends._jax.profiler import JaxProfiler
from attention_conformance.backends.prepared import (
    Gradients,
    PreparedCall,
    Pullback,
    no_derivative_as_forward_only,
)
from attention_conformance.backends.protocol import (
    Backend,
    BackendUnavailable,
    DeclaredRounding,
    Implementation,
    Setting,
    needed,
)
from attention_conformance.suite.spec.dtypes import DTYPES, DType

FLAGS = (
    "jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion", "jax_disable_jit",
    "jax_debug_nans", "jax_debug_infs", "jax_default_device",
)  # fmt: skip
"""JAX's settings that the suite records. A release may lack some."""

_PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}
"""JAX's name of each device."""

FLUSHED = {"f64": "flushed", "f32": "flushed", "bf16": "flushed", "f16": "kept"}
"""XLA's CPU programs flush subnormals to zero; float16 is computed in float32."""


class JaxEngine(JaxCompilers, JaxProfiler, Backend):
    """Arrays of JAX; subclasses list the implementations.

    The suite's own array operations use NumPy, since JAX would compile each for every new shape.
    """

    rounding = DeclaredRounding(narrow_reductions=tuple(DTYPES))
    has_views = False

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        with needed():
            import jax
        # Without this float64 silently becomes float32.
        jax.config.update("jax_enable_x64", True)
        # The default lets a GPU or TPU multiply float32 in TF32 or bfloat16.
        jax.config.update("jax_default_matmul_precision", "highest")
        self.jax: Any = jax
        self.numpy: Any = jax.numpy
        try:
            self.jax_device = jax.devices(_PLATFORMS[device])[0]
        except RuntimeError as error:
            raise BackendUnavailable(f"jax has no {device} device: {error}") from error

    @property
    def versions(self) -> dict[str, str]:
        import jaxlib

        return {"jax": self.jax.__version__, "jaxlib": jaxlib.__version__}

    def array(self, values: np.ndarray, dtype: DType | None) -> Any:
        if dtype is not None:
            values = values.astype(self.numpy.dtype(dtype.long_name))
        return self.jax.device_put(np.asarray(values, order="C"), self.jax_device)

    def to_numpy(self, array: Any) -> np.ndarray:
        values = np.asarray(array)
        return values if values.dtype.kind in "bi" else values.astype(np.float64)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, self.jax.Array)

    def dtype_name(self, array: Any) -> str:
        return str(array.dtype)

    def device_name(self, array: Any) -> str:
        platform = next(iter(array.devices())).platform
        return next(
            (name for name, jax_name in _PLATFORMS.items() if jax_name == platform), platform
        )

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        config = self.jax.config
        return {
            flag: Setting(partial(getattr, config, flag), partial(config.update, flag))
            for flag in FLAGS
            if hasattr(config, flag)
        }

    @property
    def stepwise_dtypes(self) -> tuple[str, ...]:
        """The dtypes in which `jax.nn.dot_product_attention` runs operation by operation: float16 on a
        CPU (finding float16-jit)."""
        return ("f16",) if self.device == "cpu" else ()

    def jitted_native(
        self, owner: Implementation, prepared: PreparedCall, dtype: DType
    ) -> PreparedCall:
        """Returns a call of `jax.nn.dot_product_attention`, through `jax.jit` unless `dtype` is in
        `stepwise_dtypes`."""
        return prepared if dtype.name in self.stepwise_dtypes else self.jitted(owner, prepared)

    def layer_variables(self, layer: Any) -> dict[str, tuple[Any, str]]:
        if not isinstance(layer, ModuleLayer):
            return super().layer_variables(layer)
        inputs_first = ("kernel", ".w")  # names of kernels, whose axis of inputs is the first: "io"
        return {
            path: (variable, "io" if path.endswith(inputs_first) else "")
            for path, variable in layer.variables.items()
        }

    def placed_layer(self, make: Callable[[], Any], dtype: DType, training: bool = False) -> Any:
        return made_layer(make, np.dtype(self.numpy.dtype(dtype.long_name)), training)

    def vjp(self, prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
        with prepared.within(), transforms.deriving():
            return transforms.vjp(prepared, wrt, cotangent)

    def pullback(self, prepared: PreparedCall, wrt: Sequence[str]) -> Pullback:
        with prepared.within(), transforms.deriving():
            output, pull = transforms.pullback(prepared, wrt)
        return output, prepared.inside(pull)

    def jvp(self, prepared: PreparedCall, tangents: Mapping[str, Any]) -> Any:
        with (
            prepared.within(),
            transforms.deriving(),
            no_derivative_as_forward_only(transforms.NO_JVP, declared=True),
        ):
            return transforms.jvp(prepared, tangents)
