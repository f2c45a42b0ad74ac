"""Implementations through their framework's compilers and transformations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from backends.base import Backend, Implementation, Prepared
from suite.spec.catalogue import AnyCase
from suite.spec.problem import Inputs


class Compiled(Implementation):
    """One implementation through one of `Backend.compilers`, called "sdpa@inductor".

    It is held to all that the implementation itself declares: a compiler may round less, and may not
    change what is answered.
    """

    mode = "compiled"

    def __init__(self, inner: Implementation, compiler: str) -> None:
        super().__init__(inner.backend)
        self.inner, self.compiler = inner, compiler
        self.name = f"{inner.name}@{compiler}"
        for declared in (
            "operator", "dtypes", "numerics", "elections", "deterministic", "exp_error",
            "gradient_blocks", "may_be_forward_only", "merges_mask_into_bias",
        ):  # fmt: skip
            setattr(self, declared, getattr(inner, declared))
        self.lacks = {**inner.lacks, **inner.backend.lacking_compiled(inner, compiler)}

    def prepare(self, inputs: Inputs) -> Prepared:
        return self.backend.compiled(self.inner.prepare(inputs), self.compiler, inputs.sizes.B)

    def unsupported(self, case: AnyCase) -> str | None:
        refused = self.lacks.get("compiled") or self.lacks.get(case.dtype.long_name)
        return refused or super().unsupported(case) or self.inner.unsupported(case)


def compiled_forms(backend: Backend, found: list[Implementation]) -> list[Compiled]:
    """Every implementation of attention itself through every compiler that can take it.

    Where `found` are a backend's own, those it has for compilers alone are among them.
    """
    own = {i.name for i in found} & {i.name for i in backend.implementations()}
    return [
        Compiled(inner, compiler)
        for inner in [*found, *(backend.for_compilers() if own else [])]
        if inner.operator == "sdpa" and inner.mode == "eager"
        for compiler in backend.compilers
    ]


def over_batch(
    vmap: Callable[..., Any],
    moved: Callable[[Any, int, int], Any],
    is_array: Callable[[Any], bool],
    prepared: Prepared,
    batch: int,
) -> Prepared:
    """The call mapped over its samples by `vmap(function, axes)`.

    Operands are mapped over axis 0 but for the key, whose samples lie along its last axis (a rule that
    takes the batch from an unmoved array fails there); masks and biases that all samples share are
    not mapped.
    """

    def axis(name: str, array: Any) -> int | None:
        has_batch = len(array.shape) == 4 or len(array.shape) == 1
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
            return prepared.function(**one, **rest)[0]

        given = [moved(a, 0, 3) if axes[n] == 3 else a for n, a in arrays.items()]
        return vmap(single, tuple(axes.values()))(*given)

    return replace(prepared, function=call)


def with_constants(
    compiler: Callable[[Callable[..., Any]], Callable[..., Any]],
    is_array: Callable[[Any], bool],
    prepared: Prepared,
) -> Prepared:
    """The call compiled as a function of its arrays alone; flags and numbers are constants of it."""
    rest: Mapping[str, Any] = {n: a for n, a in prepared.arguments.items() if not is_array(a)}
    function = compiler(lambda arrays: prepared.function(**arrays, **rest))

    def call(**arguments: Any) -> Any:
        return function({n: a for n, a in arguments.items() if n not in rest})

    call.compiled = function  # type: ignore[attr-defined]
    return replace(prepared, function=call)
