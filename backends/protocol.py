"""The interface of adapters: a backend, its implementations, and prepared calls.

A third-party adapter subclasses `Backend`, which lists implementations: rows (`backends.kernel.Kernel`)
or subclasses of `Implementation`. It hands the backend object to
`pytest suite --backend=package.module:object`. The suite asks of an adapter:

- Values arrive as NumPy arrays that hold only numbers of the case's dtype; bfloat16 arrives as
  float32. `Backend.array` must give the framework's own array with exactly these values.
- `Implementation.prepare` does every conversion. The returned call only calls the framework, so that
  its errors and its time are the framework's.
- An implementation calls the kernel that its name says, or raises; it never falls back silently.
- An implementation declares its features (`Declared`). Cases that it cannot compute exactly are refused
  by the declaration or by `unsupported`.
- `PreparedCall` has all facts about a call; attributes of functions are not read.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from attention_conformance.backends.claims import Claims
from attention_conformance.backends.declared import (
    AS_CLASS,
    DeclarationError,
    Declared,
    DeclaredRounding,
    Election,
    UsageError,
    checked_name,
    checked_words,
)
from attention_conformance.backends.engine import Engine
from attention_conformance.backends.implementation import Implementation
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.prepared import (
    ENDS,
    FORK_RETURNED,
    ForbiddenCall,
    ForwardOnly,
    NoKernel,
    PreparedCall,
    TimeOver,
    end_fork,
)
from attention_conformance.suite.spec.inputs import Inputs


class Ambient(NamedTuple):
    """A mode of a framework or of the process in which users make calls.

    - `within()` makes the context of the mode.
    - `dtype`: the short name of the dtype in which calls may compute; "" for the dtype of the operands.
    - `question`: the election question whose answer "raises" allows an error; "" if a call must answer.
    - `forward_only`: True if no gradients are computed in the mode.
    """

    within: Callable[[], AbstractContextManager[Any]]
    dtype: str = ""
    question: str = ""
    forward_only: bool = False


class Setting(NamedTuple):
    """A setting of a framework or of the process.

    - `read()` returns its value, which can be compared, printed, and written back.
    - `write(value)` sets it.
    - `modes`: other values of the setting, by name. Calls must give the same answers under them.
    """

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    modes: Mapping[str, Ambient] = {}


__all__ = [ "AS_CLASS", "ENDS", "FORK_RETURNED", "Ambient", "Backend", "BackendUnavailable",
    "BrokenFramework", "DeclarationError", "Declared",
    "DeclaredRounding", "Election", "ForbiddenCall", "ForwardOnly", "Implementation",
    "Limits", "NoKernel", "PreparedCall", "Setting",
    "TimeOver", "UsageError", "end_fork", "needed",
]  # fmt: skip


class BackendUnavailable(Exception):
    """The framework is not installed, failed to import, or lacks the device; the message says why."""


class BrokenFramework(BackendUnavailable):
    """The framework is installed, but its import failed."""


@contextmanager
def needed() -> Iterator[None]:
    """A context for the import of a framework. Any exception is raised again as BackendUnavailable."""
    try:
        yield
    except Exception as error:
        raise BackendUnavailable(f"{type(error).__name__}: {error}") from error


class Backend(Engine):
    """A framework on one device, seen through its adapter: an engine with a list of implementations.

    `name` is the name for --backend. The constructor imports the framework. It raises BackendUnavailable
    if the import fails or the device is missing, and DeclarationError for an invalid name, or for
    compilers of `timed_compilers` or `layer_compilers` that are not in `compilers`.
    """

    modules: tuple[str, ...] = ()
    """The modules that must be installed."""
    distributions: tuple[str, ...] = ()
    """The distributions that `versions` reports, the framework's own first."""
    devices: tuple[str, ...] = ("cpu",)
    native = ""
    """The name of the framework's own attention; "" if there is none. A user's function must have its
    signature."""
    rounding: DeclaredRounding = AS_CLASS
    """The rounding of all implementations on every device, as far as it differs from their numerics
    classes."""
    validation_errors: tuple[type[Exception], ...] = (ValueError, TypeError)
    """The exceptions by which the framework's functions refuse invalid arguments."""

    def __init__(self, device: str = "cpu") -> None:
        checked_name("a backend", self.name)
        listed = (*self.timed_compilers, *self.layer_compilers)
        checked_words(f"compiler of {self.name}", listed, self.compilers)
        if device not in self.devices:
            raise BackendUnavailable(
                f"{self.name} is judged on {', '.join(self.devices)} only, not on {device}"
            )
        self.device = device

    @property
    def versions(self) -> dict[str, str]:
        """Versions by distribution name."""
        return {name: version(name) for name in self.distributions}

    @property
    def expectations(self) -> Path:
        """The path of the manifest of known failures, by default NAME.toml in the folder of the backend's
        module."""
        return Path(inspect.getfile(type(self))).with_name(f"{self.name}.toml")

    @property
    def refusals(self) -> dict[str, str]:
        """The features of `OF_BACKENDS` that the backend lacks, each with the reason."""
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
        """Returns all implementations that exist on this device. What lists and declares them reads
        attributes of the framework, and calls nothing of it: a process that judges what another process
        runs does not import the framework."""

    def function(self, function: Callable[..., Any], name: str, claims: Claims) -> Implementation:
        """Returns the implementation of a user's function with the framework's native signature.

        Raises TypeError, with the expected signature, if the function's signature does not fit.
        """
        raise TypeError(f"backend {self.name} has no native signature to judge a function by")

    def begin_cell(self) -> Callable[[], list[str]] | None:
        """If another process makes the calls: begin a cell there. Returns the function that restores the
        settings there, and returns their changes as texts. None if this process makes the calls."""
        return None

    def __str__(self) -> str:
        return self.name


def own_attention(backend: Backend) -> Implementation | None:
    """Returns the framework's own attention, the implementation named `backend.native`; None if there is
    none."""
    return next((i for i in backend.implementations() if i.name == backend.native), None)


def seeded(backend: Backend, function: Callable[..., Any], inputs: Inputs) -> Callable[..., Any]:
    """Returns a function that sets the seed of dropout before every call of `function`; without dropout
    returns `function` itself."""
    if not (inputs.training and inputs.rate):
        return function

    def call(*arrays: Any, **arguments: Any) -> Any:
        backend.reseed(inputs.dropout_seed)
        return function(*arrays, **arguments)

    return call
