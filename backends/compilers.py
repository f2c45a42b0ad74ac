"""The compilers of a framework: which there are, what they make of a call, and what is known of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from backends.declared import Declared, checked_words
from backends.implementation import Implementation
from backends.prepared import PreparedCall

if TYPE_CHECKING:
    from backends.protocol import Backend


class Compilers:
    """The compilers of a backend, by default none.

    `names` are all of them. `timed` are those that people deploy: their speed is measured. `layers` are
    those that layers go through, too. Raises DeclarationError for a word that is not among `names`.
    """

    shares_programs = True
    """Whether compiled programs can be kept side by side, for more calls than they were made for."""
    compiles_shapes = False
    """Whether a call is compiled for every new shape, eager ones, too."""
    runs_models = False
    """Whether a call is a model that a runtime rewrites, textbook code, too."""

    def __init__(
        self,
        backend: Backend,
        names: tuple[str, ...] = (),
        timed: tuple[str, ...] = (),
        layers: tuple[str, ...] = (),
    ) -> None:
        checked_words(f"timed compiler of {backend.name}", timed, names)
        checked_words(f"compiler of layers of {backend.name}", layers, names)
        self.backend, self.names, self.timed, self.layers = backend, names, timed, layers

    def of(self, implementation: Implementation) -> tuple[str, ...]:
        """The compilers that an implementation is asked through."""
        return self.layers if implementation.operator.is_layer else self.names

    def implementations(self) -> list[Implementation]:
        """Implementations that are judged through compilers alone."""
        return []

    def compiled(self, prepared: PreparedCall, compiler: str, batch: int) -> PreparedCall:
        """The call with its function through one of `names`, all else as it was; compiled when it is
        first called. `batch` is the number of samples."""
        raise NotImplementedError

    def declared(self, implementation: Implementation, compiler: str) -> Declared:
        """What an implementation says of itself in a compiler: what it says anyway, since a compiler may
        round less, and may not change what is answered."""
        return implementation.declared

    def lacking(self, implementation: Implementation, compiler: str) -> dict[str, str]:
        """The features that an implementation loses in a compiler, with the reason; a dtype by its long
        name, and "compiled" if it cannot be compiled at all."""
        return {}

    def signature(self, array: Any) -> tuple[Any, ...]:
        """What a compiler may have fixed of an array: shape and dtype, strides if there are any."""
        return (tuple(array.shape), self.backend.dtype_name(array))

    def raised_inside(self, error: BaseException) -> BaseException:
        """The error of a compiled function that its compiler reports as another one; else the error."""
        return error

    def quick(self) -> Backend | None:
        """A backend like this one that compiles with few optimisations, in less time; None for none. No
        time is measured of such a backend."""
        return None

    def together(self, calls: Mapping[str, PreparedCall]) -> Mapping[str, PreparedCall]:
        """Calls whose answers are all asked for, as cheaply as they come: a compiler may share what they
        have in common."""
        return calls
