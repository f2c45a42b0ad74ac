"""How each framework compiles a prepared call, and which kernels it says ran; the framework is handed
in as a module."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from types import FunctionType
from typing import Any

from backends.base import Backend, Prepared


def by_jit(jax: Any, backend: Backend, prepared: Prepared) -> Prepared:
    """`jax.jit` of the call."""
    return with_constants(jax.jit, backend.is_array, prepared)


def seen_in_program(jax: Any, backend: Backend, prepared: Prepared) -> str:
    """What XLA made of a compiled call; of a call that is none, what it asks of XLA one by one."""
    program = getattr(prepared.function, "compiled", None)
    arrays = {n: a for n, a in prepared.arguments.items() if backend.is_array(a)}
    if program is None:
        traced = jax.make_jaxpr(lambda given: prepared.function(**prepared.arguments | given))
        names = re.findall(r"\b(\w*dot_general\w*|\w+_call\w*)\[", str(traced(arrays)))
        return ", ".join(f"{n} {name}" for name, n in sorted(Counter(names).items()))
    return seen_in_hlo(program.lower(arrays).compile().as_text())


def seen_in_hlo(text: str) -> str:
    """The custom calls, matrix products and fusions of an optimised program in XLA's notation."""
    targets = sorted(set(re.findall(r'custom_call_target="([^"]+)"', text)))
    return ", ".join([*targets, *(f"{text.count(f' {op}(')} {op}" for op in ("dot", "fusion"))])
