"""Implementations through their framework's compilers, and the programs that cells share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from backends.base import Backend, Implementation, Prepared
from backends.sources import compiled_source
from suite.spec.catalogue import AnyCase

THROUGH = "@"
"""Stands between the names of an implementation and of the compiler it goes through."""


def mode_of(name: str) -> str:
    """The mode of the implementation that is called `name`."""
    return Compiled.mode if THROUGH in name else Implementation.mode


KEPT = 64
"""Compiled programs that are kept of one implementation."""

PLAIN = (type(None), bool, int, float, str, tuple)


def signature(backend: Backend, prepared: Prepared) -> str | None:
    """What a compiled program of the call hangs on: shapes, dtypes and strides of its arrays, and the
    values of all else that it is given or made of. None where that is not known."""
    given = prepared.arguments
    rest = {n: a for n, a in given.items() if not backend.is_array(a)}
    if prepared.constants is None or not all(isinstance(a, PLAIN) for a in rest.values()):
        return None
    arrays = {n: backend.signature(a) for n, a in given.items() if n not in rest}
    # Text, since 1 == True and 0.0 == -0.0.
    return repr((arrays, rest, prepared.constants))


class Programs:
    """The compiled programs of one implementation, by signature; the least used go first.

    No verdict may hang on another cell's. A program is kept once the cell that made it has passed, and
    forgotten when one that took it does not; that cell is then judged with programs of its own.
    """

    def __init__(self) -> None:
        self.kept: OrderedDict[str, Callable[..., Any]] = OrderedDict()
        self.made: dict[str, Callable[..., Any]] = {}
        self.taken: set[str] = set()

    def find(self, key: str) -> Callable[..., Any] | None:
        """The program of this cell, or of an earlier one."""
        if key in self.made:
            return self.made[key]
        if key not in self.kept:
            return None
        self.taken.add(key)
        self.kept.move_to_end(key)
        return self.kept[key]

    def settle(self, passed: bool) -> bool:
        """The end of a cell (see `Implementation.settle`)."""
        took = bool(self.taken)
        for key in self.made.keys() if passed else self.taken:
            self.kept.pop(key, None)
        self.kept |= self.made if passed else {}
        while len(self.kept) > KEPT:
            self.kept.popitem(last=False)
        self.made, self.taken = {}, set()
        return took


class Compiled(Implementation):
    """One implementation through one of `Backend.compilers`, called "sdpa@inductor".

    It is held to all that the implementation itself declares: a compiler may round less, and may not
    change what is answered.
    """

    mode = "compiled"

    def __init__(self, inner: Implementation, compiler: str) -> None:
        super().__init__(inner.backend)
        self.inner, self.compiler = inner, compiler
        self.programs = Programs()
        self.name = f"{inner.name}{THROUGH}{compiler}"
        for declared in (
            "operator", "dtypes", "numerics", "elections", "deterministic", "exp_error",
            "gradient_blocks", "may_be_forward_only", "merges_mask_into_bias",
        ):  # fmt: skip
            setattr(self, declared, getattr(inner, declared))
        self.lacks = {**inner.lacks, **inner.backend.lacking_compiled(inner, compiler)}

    def prepare(self, inputs: Any) -> Prepared:
        return self._prepared(inputs, anew=False)

    def prepare_anew(self, inputs: Any) -> Prepared:
        return self._prepared(inputs, anew=True)

    def _prepared(self, inputs: Any, anew: bool) -> Prepared:
        made = self.inner.prepare(inputs)
        key = signature(self.backend, made) if self.backend.shares_programs else None
        function = None if anew or key is None else self.programs.find(key)
        if function is None:
            function = self.backend.compiled(made, self.compiler, inputs.sizes.B).function
            if key is not None:
                self.programs.made[key] = function
        return replace(made, function=function, source=self._source(made))

    def _source(self, made: Prepared) -> str:
        dialect = self.backend.dialect
        compiled = "" if dialect is None else dialect.compiled.get(self.compiler, "")
        arrays = [n for n, a in made.arguments.items() if self.backend.is_array(a)]
        return compiled_source(made.source, compiled, arrays)

    def settle(self, passed: bool) -> bool:
        return self.programs.settle(passed)

    def unsupported(self, case: AnyCase) -> str | None:
        refused = self.lacks.get("compiled") or self.lacks.get(case.dtype.long_name)
        return refused or super().unsupported(case) or self.inner.unsupported(case)


def compiled_forms(backend: Backend, found: list[Implementation]) -> list[Compiled]:
    """Every implementation through every compiler that can take it: of attention itself all, of layers
    those that the backend names for them.

    Where `found` are a backend's own, those it has for compilers alone are among them.
    """
    own = {i.name for i in found} & {i.name for i in backend.implementations()}
    return [
        Compiled(inner, compiler)
        for inner in [*found, *(backend.for_compilers() if own else [])]
        if inner.mode == "eager"
        for compiler in (backend.compilers if inner.operator == "sdpa" else backend.layer_compilers)
    ]
