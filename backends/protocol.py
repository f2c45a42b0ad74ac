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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from backends.claims import Claims
from backends.compilers import Compilers
from backends.declared import (
    AS_CLASS,
    ATTENTION_FEATURES,
    LAYER_FEATURES,
    OF_BACKENDS,
    THROUGH,
    DeclarationError,
    Declared,
    DeclaredRounding,
    Election,
    UsageError,
    checked_name,
)
from backends.implementation import Implementation
from backends.limits import Limits
from backends.memory import Memory
from backends.prepared import (
    ARRAYS,
    ENDS,
    LAYER_OUTPUTS,
    ForwardOnly,
    PreparedCall,
    TimeOver,
)
from backends.profiler import Profiler, Step
from backends.sources import Dialect
from suite.spec.dtypes import DType


class Setting(NamedTuple):
    """How a setting of a framework, or of the process, is read and written. What is read can be compared,
    shown to people, and written back."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]


__all__ = [
    "ARRAYS", "AS_CLASS", "ATTENTION_FEATURES", "ENDS", "LAYER_FEATURES", "LAYER_OUTPUTS", "OF_BACKENDS",
    "THROUGH", "Backend", "BackendUnavailable", "BrokenFramework", "Compilers", "DeclarationError",
    "Declared", "DeclaredRounding", "Election", "ForwardOnly", "Implementation", "Limits", "Memory",
    "PreparedCall", "Profiler", "Setting", "Step", "TimeOver", "UsageError", "checked_name",
]  # fmt: skip


class BackendUnavailable(Exception):
    """The framework is not installed, failed to import, or lacks the device; the message says why."""


class BrokenFramework(BackendUnavailable):
    """The framework is installed, and failed to import."""


class Backend(ABC):
    """A framework on one device, seen through its adapter.

    `name` is what --backend takes. `memory`, `compilers` and `profiler` hold what only some frameworks
    have: their base classes have none of it, and an adapter's constructor replaces them by subclasses.
    The constructor imports the framework. It raises BackendUnavailable with the reason if that fails, and
    DeclarationError for a bad name, and for a class attribute that belongs to one of these objects.
    """

    name: str
    devices: tuple[str, ...] = ("cpu",)
    device: str
    memory: Memory
    compilers: Compilers
    profiler: Profiler
    native = ""
    """The implementation that is the framework's own attention, whose signature a person's function has;
    "" if there is none."""
    rounding: DeclaredRounding = AS_CLASS
    """Where all implementations round otherwise than their numerics classes say, on every device."""
    validation_errors: tuple[type[Exception], ...] = (ValueError, TypeError)
    """The errors by which functions of the framework refuse their arguments."""
    dialect: Dialect | None = None
    """How calls are written as text; None if no script can show them."""

    def __init__(self, device: str = "cpu") -> None:
        checked_name("a backend", self.name)
        _check_places(type(self))
        if device not in self.devices:
            raise BackendUnavailable(
                f"{self.name} is judged on {', '.join(self.devices)} only, not on {device}"
            )
        self.device = device
        self.memory, self.compilers = Memory(self), Compilers(self)
        self.profiler = Profiler(self)

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
        if not self.memory.has_strides:
            reasons["strides"] = f"arrays of {self.name} lie in memory as the framework likes"
        if not self.profiler.has_threads:
            reasons["threads"] = (
                f"the number of threads of {self.name} is fixed once it has started"
            )
        return reasons

    @abstractmethod
    def implementations(self) -> list[Implementation]:
        """All implementations that exist on this device."""

    def function(self, function: Callable[..., Any], name: str, claims: Claims) -> Implementation:
        """An implementation around a person's function with the framework's native signature.

        Raises TypeError, saying what was expected, where the signature does not fit.
        """
        raise TypeError(f"backend {self.name} has no native signature to judge a function by")

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

    def pullback(
        self, prepared: PreparedCall, wrt: Sequence[str]
    ) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
        """`vjp` in two steps: the output, and the function from cotangents to gradients.

        Other forward passes may lie between the two, and the function may be called again. By default it
        repeats the forward pass.
        """
        output = prepared.output(prepared.arguments)
        return output, lambda cotangent: self.vjp(prepared, wrt, cotangent)[1]

    def jvp(self, prepared: PreparedCall, tangents: Mapping[str, Any]) -> Any:
        """How the call's output moves as its operands move along `tangents`, by operand.

        Raises ForwardOnly if nothing is differentiated in this direction.
        """
        raise ForwardOnly(f"{self.name} is asked no directional derivatives", declared=True)

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

    def __str__(self) -> str:
        return self.name


PARTS = {
    "memory": Memory, "compilers": Compilers, "profiler": Profiler, "rounding": DeclaredRounding
}  # fmt: skip
"""What a backend consists of besides its own names, by attribute."""


def _check_places(backend: type[Backend]) -> None:
    """Raise DeclarationError if a class of backends has an attribute that nobody would read."""
    for place, part in PARTS.items():
        if hasattr(backend, place) and not hasattr(Backend, place):
            raise DeclarationError(
                f"{backend.__name__}.{place} is an attribute of the class, where nobody reads it; set "
                f"self.{place} to a {part.__name__} in the constructor, after that of Backend"
            )
        for name in dir(part):
            if not name.startswith("_") and hasattr(backend, name) and not hasattr(Backend, name):
                raise DeclarationError(
                    f"{backend.__name__}.{name} is an attribute of the backend, where nobody reads it; "
                    f"expected in self.{place}, a {part.__name__}"
                )


def own_attention(backend: Backend) -> Implementation | None:
    """The implementation called `backend.native`; None if there is none."""
    return next((i for i in backend.implementations() if i.name == backend.native), None)
