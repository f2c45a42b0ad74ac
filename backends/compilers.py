"""The compilers of a framework, and implementations through them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attention_conformance.backends.declared import THROUGH, Declared, checked_name, checked_words
from attention_conformance.backends.implementation import Implementation
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.sources import DIALECTS
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.features import ARRAYS
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators import WORDS

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
    """True if every call, also of textbook code, is compiled to a model that the runtime rewrites."""

    ambient: Mapping[str, str] = {}
    """The names of transformations that users' programs apply around calls: no answer may depend on them,
    in eager mode, too. By name the election question whose answer "raises" allows an error."""

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
        """The features that an implementation loses in a compiler, with the reason. Other keys: the long
        name of an unsupported dtype, and "compiled" if nothing can be compiled."""
        return {}

    def surroundings(self, dtype: DType) -> Callable[[], AbstractContextManager[Any]]:
        """A function that makes the context in which users' programs run with arrays of a dtype; by
        default that context changes nothing."""
        return nullcontext

    def raised_inside(self, error: BaseException) -> BaseException:
        """The original error, if a compiler wraps errors of the compiled function; else `error`."""
        return error

    def as_program(self, function: Implementation, prepared: PreparedCall) -> PreparedCall:
        """The call of a user's function, by default unchanged. A quick backend may compile it to one
        program, if `PreparedCall.constants` is known."""
        return prepared

    def quick(self) -> Backend | None:
        """The same backend with reduced optimisation, which compiles faster; None if there is none. The
        speed of such a backend is never measured."""
        return None


def mode_of(name: str) -> str:
    """The mode of the implementation `name`."""
    return Compiled.mode if THROUGH in name else Implementation.mode


class Compiled(Implementation):
    """One implementation through one of `Compilers.names`, with a name such as "sdpa@inductor".

    Its declaration is `Compilers.declared`, by default the declaration of the implementation. Every
    prepared call is compiled anew.
    """

    mode = "compiled"

    def __init__(self, inner: Implementation, compiler: str) -> None:
        self.inner, self.compiler = inner, checked_name("a compiler", compiler)
        self.operator, self.beside = inner.operator, inner.beside
        self.argument_names, self.judged = inner.argument_names, inner.judged
        self.lacking = inner.backend.compilers.lacking(inner, compiler)
        refusals = {n: reason for n, reason in self.lacking.items() if n in WORDS}
        name = f"{inner.name}{THROUGH}{compiler}"
        declared = inner.backend.compilers.declared(inner, compiler)
        super().__init__(inner.backend, name, declared.refusing(refusals))

    def prepare(self, inputs: Inputs) -> PreparedCall:
        prepared, compilers = self.inner.prepare(inputs), self.backend.compilers
        compiled = compilers.compiled(prepared, self.compiler, inputs.sizes.B)
        dialect = DIALECTS.get(self.backend.name)
        expressions = {} if dialect is None else dialect.compiled
        source = prepared.source if self.compiler in expressions else ""
        return replace(
            prepared, function=compiled.function, compiled=compiled.compiled, source=source,
            through=expressions.get(self.compiler, ""),
        )  # fmt: skip

    def unsupported(self, case: AnyCase) -> str | None:
        refused = self.lacking.get("compiled") or self.lacking.get(case.dtype.long_name)
        return refused or super().unsupported(case) or self.inner.unsupported(case)


def compiled_forms(backend: Backend, implementations: list[Implementation]) -> list[Compiled]:
    """Every implementation through each of its compilers (`Compilers.of`).

    If `implementations` has any of the backend's own, `Compilers.implementations` are included.
    """
    own = {i.name for i in implementations} & {i.name for i in backend.implementations()}
    return [
        Compiled(inner, compiler)
        for inner in [*implementations, *(backend.compilers.implementations() if own else [])]
        if inner.mode == "eager"
        for compiler in backend.compilers.of(inner)
    ]


def over_batch(
    vmap: Callable[..., Any],
    moveaxis: Callable[[Any, int, int], Any],
    is_array: Callable[[Any], bool],
    prepared: PreparedCall,
    batch: int,
) -> PreparedCall:
    """The call mapped over its samples by `vmap(function, axes)`.

    The key is mapped over its last axis, where batching rules that assume axis 0 fail. Other operands are
    mapped over axis 0. Masks and biases that all samples share, and arrays per head, are not mapped.
    """
    function = prepared.function
    feature_arguments = {prepared.argument(name) for name in ARRAYS}

    def axis(name: str, array: Any) -> int | None:
        has_batch = len(array.shape) in (1, 3, 4) and name not in feature_arguments
        if not has_batch or array.shape[0] != batch:
            return None
        return 3 if name == "key" and len(array.shape) == 4 else 0

    def call(**arguments: Any) -> Any:
        arrays = {n: a for n, a in arguments.items() if is_array(a)}
        constants = {n: a for n, a in arguments.items() if n not in arrays}
        axes = {n: axis(n, a) for n, a in arrays.items()}

        def single(*samples: Any) -> Any:
            sample = {
                n: x if axes[n] is None else x[None] for n, x in zip(arrays, samples, strict=True)
            }
            return function(**sample, **constants)[0]

        mapped = [moveaxis(a, 0, 3) if axes[n] == 3 else a for n, a in arrays.items()]
        return vmap(single, tuple(axes.values()))(*mapped)

    return replace(prepared, function=call)


def with_constants(
    compiler: Callable[[Callable[..., Any]], Callable[..., Any]],
    is_array: Callable[[Any], bool],
    prepared: PreparedCall,
) -> PreparedCall:
    """The call compiled as a function of a dictionary of its arrays; flags and numbers are constants. The
    compiled function is the handle `compiled`."""
    constants: Mapping[str, Any] = {n: a for n, a in prepared.arguments.items() if not is_array(a)}
    inner = prepared.function  # a reference to `prepared` would keep its arrays alive
    function = compiler(lambda arrays: inner(**arrays, **constants))

    def call(**arguments: Any) -> Any:
        return function({n: a for n, a in arguments.items() if n not in constants})

    return replace(prepared, function=call, compiled=function)
