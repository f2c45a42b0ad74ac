"""JAX as an engine: arrays, devices, programs, derivatives and clocks, for all backends on JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from backends._jax import clocks, settings, transforms
from backends._jax.compilers import AHEAD, compiled
from backends._jax.programs import Gradients, JitPrograms, together
from backends._jax.quickly import known_options
from backends.prepared import PreparedCall
from backends.protocol import Backend, BackendUnavailable, Implementation, Setting, Step
from backends.user.layer import UserLayer
from suite.spec.dtypes import DType
from suite.spec.inputs import Inputs

_PLATFORMS = {"cpu": "cpu", "cuda": "gpu"}

FLUSHED = {"f64": "flushed", "f32": "flushed", "bf16": "flushed", "f16": "kept"}
"""XLA's CPU programs flush subnormals to zero; float16 is computed in float32."""

JIT = "jax.jit({function})"
"""Source text of a function through `jax.jit`."""


class JaxEngine(Backend):
    """Arrays of JAX; subclasses list the implementations.

    The suite's own array operations use NumPy, since JAX would compile each for every new shape.
    """

    compiles_shapes = True
    narrow_reductions = True
    handed_over: tuple[type[Implementation], ...] = (UserLayer,)
    """Classes of user code, which is called unchanged; all other calls go through `jax.jit`."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        try:
            import jax
        except Exception as error:
            raise BackendUnavailable(f"{type(error).__name__}: {error}") from error
        # Without this float64 silently becomes float32.
        jax.config.update("jax_enable_x64", True)
        # The default lets a GPU or TPU multiply float32 in TF32 or bfloat16.
        jax.config.update("jax_default_matmul_precision", "highest")
        self.jax: Any = jax
        self.numpy: Any = jax.numpy
        try:
            self.on = jax.devices(_PLATFORMS[device])[0]
        except RuntimeError as error:
            raise BackendUnavailable(f"jax has no {device} device: {error}") from error
        self.programs = JitPrograms(JIT)

    @property
    def versions(self) -> dict[str, str]:
        import jaxlib

        return {"jax": self.jax.__version__, "jaxlib": jaxlib.__version__}

    def array(self, values: np.ndarray, dtype: DType | None) -> Any:
        if dtype is not None:
            values = values.astype(self.numpy.dtype(dtype.long_name))
        return self.jax.device_put(np.asarray(values, order="C"), self.on)

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

    def operand(self, values: np.ndarray, inputs: Inputs, axis_order: str) -> Any:
        # JAX arrays have no strides that a caller can choose: an axis order changes the shape.
        if values.ndim == 4 and axis_order == "blhd":
            values = values.swapaxes(1, 2)
        return self.array(values, inputs.dtype)

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        return settings.settings(self.jax)

    def jitted(self, owner: Implementation, prepared: PreparedCall) -> PreparedCall:
        """The call through `jax.jit`; calls of an implementation with equal constants
        share a function."""
        return self.programs.jitted(owner.name, prepared)

    @property
    def stepwise_dtypes(self) -> tuple[str, ...]:
        """The dtypes in which `jax.nn.dot_product_attention` runs operation by operation: float16 on a
        CPU (finding float16-jit)."""
        return ("f16",) if self.device == "cpu" else ()

    def jitted_native(
        self, owner: Implementation, prepared: PreparedCall, dtype: DType
    ) -> PreparedCall:
        """A call of `jax.nn.dot_product_attention`, through `jax.jit` unless in `stepwise_dtypes`."""
        return prepared if dtype.name in self.stepwise_dtypes else self.jitted(owner, prepared)

    def quick(self) -> Backend | None:
        options = known_options() if self.device == "cpu" else {}
        if not options:
            return None
        backend = type(self)(self.device)
        backend.programs.options = options
        return backend

    def together(self, calls: Mapping[str, PreparedCall]) -> Mapping[str, PreparedCall]:
        return together(calls)

    def vjp(self, prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
        return transforms.vjp(prepared, wrt, cotangent)

    def jvp(self, prepared: PreparedCall, tangents: Mapping[str, Any]) -> Any:
        return transforms.jvp(prepared, tangents)

    def step(self, prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
        return transforms.step(prepared, direction, wrt)

    def compilers_of(self, implementation: Implementation) -> tuple[str, ...]:
        own = "ops" if isinstance(implementation, self.handed_over) else "jit"
        return tuple(name for name in super().compilers_of(implementation) if name != own)

    def compiled(self, prepared: PreparedCall, compiler: str, batch: int) -> PreparedCall:
        return compiled(self, prepared, compiler, batch)

    def lacking_compiled(self, implementation: Implementation, compiler: str) -> dict[str, str]:
        if compiler == "vmap":
            return {"empty-batch": "vmap cannot map over an empty batch"}
        return AHEAD if compiler == "aot" else {}

    def kernels(self, prepared: PreparedCall) -> str:
        return clocks.kernels(prepared)

    def sync(self, outputs: Any) -> None:
        self.jax.block_until_ready(outputs)

    @cached_property
    def _compilations(self) -> clocks.Compilations:
        return clocks.Compilations()

    def compilations(self, prepared: PreparedCall) -> int:
        return self._compilations.count

    def copied(self, array: Any) -> Callable[[], Any]:
        return lambda: -array

    def peak_bytes(self, call: Callable[[], Any], prepared: PreparedCall) -> int | None:
        return clocks.peak_bytes(prepared)

    def empty_caches(self) -> None:
        if self.device != "cpu":
            zeros = self.numpy.zeros(clocks.COLD_BYTES, np.uint8, device=self.on)
            zeros.block_until_ready()
