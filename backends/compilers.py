"""Implementations that are called through a compiler of their framework."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attention_conformance.backends.declared import THROUGH, checked_name
from attention_conformance.backends.implementation import Implementation
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.sources import DIALECTS
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.features import ARRAYS
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operators import WORDS

if TYPE_CHECKING:
    from attention_conformance.backends.protocol import Backend


def mode_of(name: str) -> str:
    """Returns "compiled" if the name has the part of a compiler ("sdpa@inductor"), else "eager"."""
    return Compiled.mode if THROUGH in name else Implementation.mode


class Compiled(Implementation):
    """An implementation that is called through one of `Engine.compilers`. Its name is such as
    "sdpa@inductor".

    Its declaration is `Engine.declared_through`, by default that of the implementation `inner`. Each
    prepared call is compiled anew.
    """

    mode = "compiled"

    def __init__(self, inner: Implementation, compiler: str) -> None:
        self.inner, self.compiler = inner, checked_name("a compiler", compiler)
        self.operator, self.beside = inner.operator, inner.beside
        self.argument_names, self.judged = inner.argument_names, inner.judged
        self.lacking = inner.backend.lacking_through(inner, compiler)
        refusals = {n: reason for n, reason in self.lacking.items() if n in WORDS}
        name = f"{inner.name}{THROUGH}{compiler}"
        declared = inner.backend.declared_through(inner, compiler)
        super().__init__(inner.backend, name, declared.refusing(refusals))

    def prepare(self, inputs: Inputs) -> PreparedCall:
        prepared = self.inner.prepare(inputs)
        compiled = self.backend.compiled(prepared, self.compiler, inputs.sizes.B)
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
    """Returns each implementation through each of its compilers (`Engine.compilers_of`).
    `Engine.only_compiled` is included if `implementations` has any of the backend's own."""
    own = {i.name for i in implementations} & {i.name for i in backend.implementations()}
    return [
        Compiled(inner, compiler)
        for inner in [*implementations, *(backend.only_compiled() if own else [])]
        if inner.mode == "eager"
        for compiler in backend.compilers_of(inner)
    ]


def over_batch(
    vmap: Callable[..., Any],
    moveaxis: Callable[[Any, int, int], Any],
    is_array: Callable[[Any], bool],
    prepared: PreparedCall,
    batch: int,
) -> PreparedCall:
    """Returns the call mapped over its samples by `vmap(function, axes)`.

    The key is mapped over its last axis, to find batching rules that assume axis 0. Other operands are
    mapped over axis 0. Arrays per head, and masks and biases that all samples share, are not mapped.
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
    """Returns the call compiled as a function of the dictionary of its arrays. All other arguments are
    constants. The field `compiled` is the compiled function."""
    constants: Mapping[str, Any] = {n: a for n, a in prepared.arguments.items() if not is_array(a)}
    inner = prepared.function  # a reference to `prepared` would keep its arrays alive
    function = compiler(lambda arrays: inner(**arrays, **constants))

    def call(**arguments: Any) -> Any:
        return function({n: a for n, a in arguments.items() if n not in constants})

    return replace(prepared, function=call, compiled=function)


def kernels_in(text: str) -> str:
    """Returns a text with the custom calls, and the numbers of matrix products and fusions, of an
    optimised program in XLA's notation."""
    targets = sorted(set(re.findall(r'custom_call_target="([^"]+)"', text)))
    return ", ".join([*targets, *(f"{text.count(f' {op}(')} {op}" for op in ("dot", "fusion"))])
