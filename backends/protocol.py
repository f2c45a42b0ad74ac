"""What an adapter provides: a backend, its implementations, and calls prepared for the suite.

A third-party adapter subclasses `Backend` and `Implementation` and hands the backend object to
`pytest suite --backend=package.module:object`. The suite asks of an adapter:

- Values arrive as NumPy arrays that hold only numbers of the case's dtype; bfloat16 arrives as
  float32. `Backend.array` must give the framework's own array with exactly these values.
- `Implementation.prepare` does every conversion; the call it returns does nothing but call the
  framework, so that what it raises is the framework's and what it takes is the framework's time.
- Forcing an implementation means that one or an error, never another one silently.
- What an implementation can be asked is declared, feature by feature (`Declared`); what cannot be
  computed is refused there or by `unsupported`; nothing is approximated.
- All that is known of a call is in its `PreparedCall`; nothing hangs on attributes of functions.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from backends.claims import Claims
from backends.declared import (
    ATTENTION_FEATURES,
    LAYER_FEATURES,
    OF_BACKENDS,
    THROUGH,
    DeclarationError,
    Declared,
    Election,
    UsageError,
    checked_name,
    checked_words,
)
from backends.implementation import Implementation
from backends.limits import Limits
from backends.memory import arranged, in_order
from backends.prepared import (
    ARRAYS,
    ENDS,
    LAYER_OUTPUTS,
    ForwardOnly,
    PreparedCall,
    TimeOver,
)
from backends.sources import Dialect
from suite.spec.dtypes import DType, round_to
from suite.spec.inputs import Inputs


class Setting(NamedTuple):
    """How a setting of a framework, or of the process, is read and written. What is read can be compared,
    shown to people, and written back."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]


Step = Callable[[Mapping[str, Any], Any], Callable[[], Any]]
"""What `Backend.step` returns."""


__all__ = [
    "ARRAYS", "ATTENTION_FEATURES", "ENDS", "LAYER_FEATURES", "LAYER_OUTPUTS", "OF_BACKENDS", "THROUGH",
    "Backend", "BackendUnavailable", "BrokenFramework", "DeclarationError", "Declared", "Election",
    "ForwardOnly", "Implementation", "Limits", "PreparedCall", "Setting", "Step", "TimeOver",
    "UsageError", "checked_name",
]  # fmt: skip


class BackendUnavailable(Exception):
    """The framework is not installed, failed to import, or lacks the device; the message says why."""


class BrokenFramework(BackendUnavailable):
    """The framework is installed, and failed to import."""


class Backend(ABC):
    """A framework on one device, seen through its adapter.

    `name` is what --backend takes. The constructor imports the framework and raises
    BackendUnavailable with the reason where it cannot, and DeclarationError for a bad name, and for
    timed compilers or compilers of layers that are not among `compilers`.
    """

    name: str
    devices: tuple[str, ...] = ("cpu",)
    has_strides = False
    narrow_reductions = False
    """Whether gradients are summed over broadcast axes in the case's dtype."""
    truncates_matmul: tuple[str, ...] = ()
    """The dtypes in which matrix products are cut off as they are stored, and not rounded."""
    has_threads = False
    compilers: tuple[str, ...] = ()
    timed_compilers: tuple[str, ...] = ()
    """Of `compilers`, those that people deploy: the ones whose speed is measured."""
    native = ""
    """The implementation that is the framework's own attention, whose signature a person's function has;
    "" where there is none."""
    layer_compilers: tuple[str, ...] = ()
    """Those of the compilers that layers go through, too."""
    shares_programs = True
    """Whether compiled programs can be kept side by side, for more calls than they were made for."""
    compiles_shapes = False
    validation_errors: tuple[type[Exception], ...] = (ValueError, TypeError)
    """The errors by which functions of the framework refuse their arguments."""
    runs_models = False
    """Whether a call is a model that a runtime rewrites, textbook code, too."""
    dialect: Dialect | None = None

    def __init__(self, device: str = "cpu") -> None:
        checked_name("a backend", self.name)
        for compilers in ("timed_compilers", "layer_compilers"):
            words = getattr(self, compilers)
            checked_words(f"compiler in {compilers} of {self.name}", words, self.compilers)
        if device not in self.devices:
            raise BackendUnavailable(
                f"{self.name} is judged on {', '.join(self.devices)} only, not on {device}"
            )
        self.device = device

    @property
    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Versions by distribution name, the framework's own first."""

    @property
    def expectations(self) -> Path:
        """The manifest of known failures, by default NAME.toml beside the backend's module."""
        return Path(inspect.getfile(type(self))).with_name(f"{self.name}.toml")

    @property
    def refusals(self) -> dict[str, str]:
        """The features of `OF_BACKENDS` that the backend lacks, with the reason."""
        reasons = {}
        if not self.has_strides:
            reasons["strides"] = f"arrays of {self.name} lie in memory as the framework likes"
        if not self.has_threads:
            reasons["threads"] = (
                f"the number of threads of {self.name} is fixed once it has started"
            )
        return reasons

    @abstractmethod
    def implementations(self) -> list[Implementation]:
        """All implementations that exist on this device."""

    def for_compilers(self) -> list[Implementation]:
        """Implementations that are judged through compilers alone."""
        return []

    def function(self, function: Callable[..., Any], name: str, claims: Claims) -> Implementation:
        """An implementation around a person's function with the framework's native signature.

        Raises TypeError, saying what was expected, where the signature does not fit.
        """
        raise TypeError(f"backend {self.name} has no native signature to judge a function by")

    def own_attention(self) -> Implementation | None:
        """The implementation called `native`; None where there is none."""
        return next((i for i in self.implementations() if i.name == self.native), None)

    # Arrays.

    @abstractmethod
    def array(self, values: np.ndarray, dtype: DType | None) -> Any:
        """The framework's array with exactly these values, C-contiguous, on the device.

        `dtype` None keeps the NumPy dtype (boolean and integer masks, lengths).
        """

    @abstractmethod
    def to_numpy(self, array: Any) -> np.ndarray:
        """The array's values as float64 (bool and integers unchanged)."""

    @abstractmethod
    def is_array(self, value: Any) -> bool:
        """Whether `value` is an array of this framework."""

    @abstractmethod
    def dtype_name(self, array: Any) -> str:
        """Long dtype name: float64, float32, bfloat16, float16."""

    @abstractmethod
    def device_name(self, array: Any) -> str:
        """The device the array is on, as --device names it."""

    def overwrite(self, array: Any, values: Any) -> bool:
        """Write the values of one of the framework's arrays into another one; False where arrays never
        change."""
        return False

    def transpose(self, array: Any, *axes: int) -> Any:
        """The array with its axes in another order: a view where the framework has views."""
        return array.transpose(*axes)

    def expand(self, array: Any, shape: tuple[int, ...]) -> Any:
        """The array as one of `shape`, with stride 0 along the axis in which it has size 1 instead."""
        raise NotImplementedError

    def restrided(self, array: Any) -> Any:
        """The array with a stride of 7 elements along every axis of size 1."""
        raise NotImplementedError

    def arranged(self, values: np.ndarray, dtype: DType | None, how: str) -> Any:
        """The framework's array with these values, in memory as `ARRANGEMENTS` says.

        Contiguous where the framework has no strides. Raises KeyError for an unknown arrangement, and
        ValueError where slices differ that are to be one (those of `memory.EXPANDED`).
        """
        return arranged(self, values, dtype, how)

    def operands(self, inputs: Inputs, axis_order: str) -> tuple[Any, Any, Any]:
        """query, key and value as the framework's arrays, (B, H, L, D) or (B, L, H, D).

        Memory follows the case's own axis order, so that where the two differ the arrays are transposed
        views in frameworks that have views.
        """
        query, key, value = (
            self.operand(x, inputs, axis_order) for x in (inputs.query, inputs.key, inputs.value)
        )
        return query, key, value

    def operand(self, values: np.ndarray, inputs: Inputs, axis_order: str) -> Any:
        """One (B, H, L, D) operand in an axis order, in memory as the case says."""
        return in_order(self, values, inputs, axis_order)

    # Derivatives.

    def vjp(
        self, prepared: PreparedCall, wrt: Sequence[str], cotangent: Any
    ) -> tuple[Any, dict[str, Any]]:
        """The call's output and its gradients by operand, for a cotangent like the output.

        `wrt` names the operands and parameters that ask for a gradient; the others ask for none. One
        without influence has the gradient None. Where query, key and value are one array, that of the
        query is what it receives as all three. Raises ForwardOnly where the output cannot be
        differentiated.
        """
        raise ForwardOnly(f"{self.name} has no automatic differentiation", declared=True)

    def jvp(self, prepared: PreparedCall, tangents: Mapping[str, Any]) -> Any:
        """How the call's output moves as its operands move along `tangents`, by operand.

        Raises ForwardOnly where nothing is differentiated in this direction.
        """
        raise ForwardOnly(f"{self.name} is asked no directional derivatives", declared=True)

    # Compilers.

    def compiled(self, prepared: PreparedCall, compiler: str, batch: int) -> PreparedCall:
        """The call with its function through one of `compilers`, all else as it was; compiled when it is
        first called. `batch` is the number of samples."""
        raise NotImplementedError

    def signature(self, array: Any) -> tuple[Any, ...]:
        """What a compiler may have fixed of an array: shape and dtype, strides where there are any."""
        return (tuple(array.shape), self.dtype_name(array))

    def compilers_of(self, implementation: Implementation) -> tuple[str, ...]:
        """The compilers that an implementation is asked through."""
        return self.layer_compilers if implementation.operator.is_layer else self.compilers

    def declared_compiled(self, implementation: Implementation, compiler: str) -> Declared:
        """What an implementation says of itself in a compiler: what it says anyway, since a compiler may
        round less, and may not change what is answered."""
        return implementation.declared

    def lacking_compiled(self, implementation: Implementation, compiler: str) -> dict[str, str]:
        """The features an implementation loses in a compiler, with the reason; a dtype by its long name,
        and "compiled" where it cannot be compiled at all."""
        return {}

    def placed(self, layer: Any, dtype: DType, training: bool = False) -> Any:
        """A person's layer in the dtype, on the device, switched to evaluation or to training, where the
        framework's layers have these notions."""
        return layer

    def raised_inside(self, error: BaseException) -> BaseException:
        """The error of a compiled function that its compiler reports as another one; else the error."""
        return error

    # What calls must leave as it is.

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The framework's settings that change what other calls compute, by name, for people."""
        return {}

    def begin_cell(self) -> None:
        """What is to be as it was in the beginning whenever a cell begins, besides seeds and settings."""
        return

    def reseed(self, seed: int = 0) -> None:
        """Seed the framework's random generators, by default as every cell begins."""
        return

    # Time, memory, and what ran.

    def threads(self, count: int) -> AbstractContextManager[None]:
        """A context in which calls run on `count` threads, where the backend has `has_threads`."""
        raise NotImplementedError

    def quick(self) -> Backend | None:
        """A backend like this one that compiles with few optimisations, in less time; None for none. No
        time is measured of such a backend."""
        return None

    def together(self, calls: Mapping[str, PreparedCall]) -> Mapping[str, PreparedCall]:
        """Calls whose answers are all asked for, as cheaply as they come: a backend may share what they
        have in common."""
        return calls

    def kernels(self, prepared: PreparedCall) -> str:
        """Which kernels the call runs, in the framework's own words; empty where it does not say."""
        return ""

    def step(self, prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
        """What is timed: a function of the call's arguments and a cotangent that makes ready whatever is
        not part of the direction, and returns the rest as a function without arguments.

        `direction` is one of `DIRECTIONS`. What is timed returns the output ("forward"), or the pair of
        the output and the gradients by the operands `wrt`, without the output for "backward" alone.
        Raises ForwardOnly where the backend has no differentiation.
        """
        if direction == "forward":
            return lambda arguments, cotangent: lambda: prepared.call(arguments)
        raise ForwardOnly(f"{self.name} has no automatic differentiation", declared=True)

    def sync(self, outputs: Any) -> None:
        """Wait until all these outputs (arrays, and pairs and dictionaries of them) are computed."""
        return

    def compilations(self, prepared: PreparedCall) -> int | None:
        """A number that grows whenever the process, or the call's own function, traces or compiles.

        None where the framework does not say.
        """
        return None

    def limit(self, what: str, size: int, dtype: DType) -> tuple[Callable[[], Any], int]:
        """What the machine can do at best: a function that multiplies two square matrices of `size` rows
        ("gemm"), or copies an array of `size` elements ("copy"), and its operations or bytes."""
        shape = (size, size) if what == "gemm" else (size,)
        values = np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape)
        array = self.array(round_to(values, dtype), dtype)
        if what == "gemm":
            return self.multiplied(array), 2 * size**3
        return self.copied(array), 2 * size * dtype.itemsize

    def multiplied(self, array: Any) -> Callable[[], Any]:
        """A function that multiplies a matrix by itself as fast as the framework can."""
        return lambda: array @ array

    def copied(self, array: Any) -> Callable[[], Any]:
        """A function that reads an array once and writes as much."""
        return lambda: array.copy()

    def peak_bytes(self, call: Callable[[], Any], prepared: PreparedCall) -> int | None:
        """The most memory that one `call` holds at a time beyond what was there, as the framework's
        allocator counts it, or as the compiler of `prepared` planned it; None where neither says."""
        return None

    def device_seconds(self, call: Callable[[], Any]) -> float | None:
        """Seconds of one call by the device's own clock; None where it has none."""
        return None

    def empty_caches(self) -> None:
        """Empty the device's caches of what lies in them, where that can be done."""
        return

    def __str__(self) -> str:
        return self.name
