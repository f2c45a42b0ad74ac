"""The compilers of a framework: their names, compiled calls, and declarations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attention_conformance.backends.declared import Declared, checked_words
from attention_conformance.backends.implementation import Implementation
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.dtypes import DType

if TYPE_CHECKING:
    from attention_conformance.backends.protocol import Backend


class Compilers:
    """The compilers of a backend, by default none.

    - `names`: all compilers
    - `timed`: compilers for deployment, whose speed is measured
    - `layers`: compilers that layers are also judged through

    Raises DeclarationError for a compiler that is not in `names`.
    """

    compiles_shapes = False
    """True if calls, also eager calls, are compiled for every new shape."""
    runs_models = False
    """True if every call, also of textbook code, is a model that a runtime rewrites."""

    ambient: Mapping[str, str] = {}
    """Those of the names that surround calls in other people's programs: no answer may depend on them, in
    eager mode, too. With the election question whose answer "raises" allows an error."""

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
        """The compilers that an implementation is judged through: none for costly kernels, which are
        interpreted or run in several processes."""
        if "kernels" in implementation.later:
            return ()
        return self.layers if implementation.operator.is_layer else self.names

    def implementations(self) -> list[Implementation]:
        """Implementations that are judged only through compilers."""
        return []

    def compiled(self, prepared: PreparedCall, compiler: str, batch: int) -> PreparedCall:
        """The call with its function compiled by one of `names`, at the first call. `batch` is the number
        of samples."""
        raise NotImplementedError

    def recomputed(
        self, prepared: PreparedCall, rate: float, compiler: str
    ) -> dict[str, PreparedCall]:
        """Calls that drop weights at `rate` and compute the forward pass again in the backward pass, by
        name. `prepared` drops nothing; `compiler` is "" in eager mode."""
        return {}

    def dropping(self, rate: float) -> Callable[[Any], Any]:
        """A function that drops elements of an array at this rate, as a layer of dropout does."""
        raise NotImplementedError

    def gradient(self, prepared: PreparedCall, operand: str, cotangent: Any) -> PreparedCall:
        """The call whose output is the gradient by one operand, for a cotangent of the output."""

        def gradient(**arguments: Any) -> Any:
            call = replace(prepared, arguments=arguments)
            return self.backend.pullback(call, (operand,))[1](cotangent)[operand]

        return replace(prepared, function=gradient, outputs=("output",), vjp=None)

    def declared(self, implementation: Implementation, compiler: str) -> Declared:
        """The declaration of an implementation in a compiler, by default unchanged: a compiler may round
        less, but must not change elections."""
        return implementation.declared

    def lacking(self, implementation: Implementation, compiler: str) -> dict[str, str]:
        """The features that an implementation loses in a compiler, with the reason. A key may also be a
        dtype's long name, or "compiled" if the compiler cannot compile the implementation."""
        return {}

    def surroundings(self, dtype: DType) -> Callable[[], AbstractContextManager[Any]]:
        """What makes the context in which people's programs call with arrays of a dtype; by default
        none."""
        return nullcontext

    def raised_inside(self, error: BaseException) -> BaseException:
        """The original error, if a compiler wraps errors of the compiled function; else `error`."""
        return error

    def quick(self) -> Backend | None:
        """The same backend with reduced optimisation, which compiles faster; None if there is none. The
        speed of such a backend is never measured."""
        return None
