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
    function = prepared.function

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
            return function(**one, **rest)[0]

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
    inner = prepared.function  # and not `prepared`, whose arrays would live as long as the program
    function = compiler(lambda arrays: inner(**arrays, **rest))

    def call(**arguments: Any) -> Any:
        return function({n: a for n, a in arguments.items() if n not in rest})

    call.compiled = function  # type: ignore[attr-defined]
    return replace(prepared, function=call)


_TWINS = count()


def by_torch_compile(
    torch: Any, backend: Backend, prepared: Prepared, compiler: str, one_graph: bool = True
) -> Prepared:
    """`torch.compile` with fixed shapes, differentiated calls for themselves.

    `one_graph` raises where the call does not make one graph. Where it may be more, what dynamo knows
    of other calls is forgotten, those prepared before included.
    """
    if not one_graph:
        torch._dynamo.reset()
    torch._dynamo.config  # noqa: B018  (imports what follows)
    # Its key leaves out which kernel is forced (pytorch#185449): a hit would judge another one.
    torch._functorch.config.enable_autograd_cache = False

    def one(function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(_twin(function), backend=compiler, dynamic=False, fullgraph=one_graph)

    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        plain, differentiated = one(function), one(function)

        def call(arrays: Any) -> Any:
            asked = any(a.requires_grad for a in arrays.values())
            return (differentiated if asked else plain)(arrays)

        return call

    return with_constants(made, backend.is_array, prepared)


def _twin(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a code object of its own.

    Dynamo keeps what it compiled by code object, tries the guards of each in turn and gives up after
    eight: all functions from one line of source would be one to it.
    """
    code = function.__code__.replace(co_name=f"program_{next(_TWINS)}")  # type: ignore[attr-defined]
    return FunctionType(code, function.__globals__, code.co_name, None, function.__closure__)  # type: ignore[attr-defined]


def seen_by_profiler(torch: Any, prepared: Prepared) -> str:
    """The fused attention kernels that torch's profiler sees, or else the matrix products."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        prepared()
    names = {event.key.removeprefix("aten::") for event in found.key_averages()}
    fused = sorted(n for n in names if re.match(r"_scaled_dot_product_\w*(attention|math)", n))
    products = sorted(n for n in names if n in ("bmm", "baddbmm", "matmul"))
    return ", ".join(fused or products) or "no attention kernel and no matrix product"


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
