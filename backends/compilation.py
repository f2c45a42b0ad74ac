"""Implementations through their framework's compilers, and helpers for the compilers of several
frameworks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from attention_conformance.backends.declared import THROUGH, checked_name
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.backends.sources import DIALECTS
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.features import ARRAYS
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators import WORDS


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
        plain, compilers = self.inner.prepare(inputs), self.backend.compilers
        through = compilers.compiled(plain, self.compiler, inputs.sizes.B)
        dialect = DIALECTS.get(self.backend.name)
        words = {} if dialect is None else dialect.compiled
        source, text = (plain.source, words[self.compiler]) if self.compiler in words else ("", "")
        return replace(
            plain, function=through.function, compiled=through.compiled, source=source, through=text
        )

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
    moved: Callable[[Any, int, int], Any],
    is_array: Callable[[Any], bool],
    prepared: PreparedCall,
    batch: int,
) -> PreparedCall:
    """The call mapped over its samples by `vmap(function, axes)`.

    The key is mapped over its last axis, where batching rules that assume axis 0 fail. Other operands are
    mapped over axis 0. Masks and biases that all samples share, and arrays per head, are not mapped.
    """
    function = prepared.function
    of_features = {prepared.argument(name) for name in ARRAYS}

    def axis(name: str, array: Any) -> int | None:
        has_batch = len(array.shape) in (1, 3, 4) and name not in of_features
        if not has_batch or array.shape[0] != batch:
            return None
        return 3 if name == "key" and len(array.shape) == 4 else 0

    def call(**arguments: Any) -> Any:
        arrays = {n: a for n, a in arguments.items() if is_array(a)}
        rest = {n: a for n, a in arguments.items() if n not in arrays}
        axes = {n: axis(n, a) for n, a in arrays.items()}

        def single(*samples: Any) -> Any:
            one = {
                n: x if axes[n] is None else x[None] for n, x in zip(arrays, samples, strict=True)
            }
            return function(**one, **rest)[0]

        places = [moved(a, 0, 3) if axes[n] == 3 else a for n, a in arrays.items()]
        return vmap(single, tuple(axes.values()))(*places)

    return replace(prepared, function=call)


def with_constants(
    compiler: Callable[[Callable[..., Any]], Callable[..., Any]],
    is_array: Callable[[Any], bool],
    prepared: PreparedCall,
) -> PreparedCall:
    """The call compiled as a function of a dictionary of its arrays; flags and numbers are constants. The
    compiled function is the handle `compiled`."""
    rest: Mapping[str, Any] = {n: a for n, a in prepared.arguments.items() if not is_array(a)}
    inner = prepared.function  # a reference to `prepared` would keep its arrays alive
    function = compiler(lambda arrays: inner(**arrays, **rest))

    def call(**arguments: Any) -> Any:
        return function({n: a for n, a in arguments.items() if n not in rest})

    return replace(prepared, function=call, compiled=function)
