"""Triton's interpreter, which runs kernels on a CPU in NumPy.

`watch` changes the interpreter for the whole process:

- A load or store outside of the memory of the kernel's arguments raises OutOfBounds. On a GPU such a
  load may go unnoticed.
- Kernels of several threads run one after the other. The interpreter has one state for all threads.
- `triton.autotune` takes the first configuration. The interpreter has no clock.

`mended` is a context in which bfloat16 is computed as on a GPU. The interpreter keeps bfloat16 as the
integers of its bits (triton#11584).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from attention_conformance.backends.prepared import set_to
from attention_conformance.suite.spec.dtypes import DTYPES, round_to

Extent = tuple[int, int]
"""The first address of a memory, and the address behind its end."""


class OutOfBounds(Exception):
    """A kernel loads or stores outside of the memory of its arguments."""


class State(threading.local):
    """In each thread: the memory of the kernels that run, and is bfloat16 mended."""

    def __init__(self) -> None:
        self.launched: list[list[Extent]] = []
        self.mends = False


STATE = State()

ONE_AT_A_TIME = threading.RLock()
"""Held while a kernel runs."""

WATCHED: list[str] = []
"""The methods of the interpreter that are replaced."""


def is_used() -> bool:
    """True if kernels of triton's own library are interpreted, so that those of people can be."""
    from triton.language import standard
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(standard.cdiv, InterpretedFunction)


def watch() -> None:
    """Change the interpreter (see above), once."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

    if WATCHED:
        return
    around(GridExecutor, "__call__", launch)
    around(Autotuner, "_bench", lambda bench, *details, **settings: [0.0, 0.0, 0.0])
    for name, place in {"load": 1, "store": 2}.items():
        around(InterpreterBuilder, f"create_masked_{name}", accessing(name, 0, place))
    around(InterpreterBuilder, "create_atomic_rmw", accessing("atomic", 1, 3))
    around(InterpreterBuilder, "create_atomic_cas", accessing("atomic", 0, None))
    for name, place in RESULTS.items():
        around(InterpreterBuilder, name, computing(place))
    for name in ("cast_impl", "create_fp_to_fp"):
        around(InterpreterBuilder, name, cast)


def around(owner: type, name: str, new: Callable[..., Any]) -> None:
    """Replace a method by `new`, which takes the old one before the method's arguments."""
    old = getattr(owner, name)
    WATCHED.append(name)
    setattr(owner, name, lambda *arguments, **named: new(old, *arguments, **named))


def launch(run: Callable[..., Any], executor: Any, *arguments: Any, **named: Any) -> Any:
    """Run a kernel; its loads and stores are held against the memory of its arguments."""
    with ONE_AT_A_TIME:
        STATE.launched.append([*extents((*arguments, *named.values()))])
        try:
            return run(executor, *arguments, **named)
        finally:
            STATE.launched.pop()


def extents(arguments: tuple[Any, ...]) -> Iterator[Extent]:
    """The memory of each tensor, in tuples and descriptors, too: its whole storage, since a kernel may
    take one view of a fused tensor and reach the others."""
    for one in arguments:
        if isinstance(one, tuple):
            yield from extents(one)
        elif hasattr(one, "untyped_storage"):
            storage = one.untyped_storage()
            yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        elif hasattr(getattr(one, "base", None), "data_ptr"):  # of a descriptor or a wrapper
            yield from extents((one.base,))


def accessing(what: str, pointers: int, mask: int | None) -> Callable[..., Any]:
    """A replacement of a method that accesses memory; the places of pointers and mask among its
    arguments."""

    def access(old: Callable[..., Any], builder: Any, *arguments: Any, **named: Any) -> Any:
        handle = arguments[pointers]
        taken = handle.data if mask is None else handle.data[arguments[mask].data.astype(bool)]
        expect_inside(what, taken, max(1, handle.get_element_ty().primitive_bitwidth // 8))
        return old(builder, *arguments, **named)

    return access


def expect_inside(what: str, addresses: np.ndarray, size: int) -> None:
    """Raise OutOfBounds if an element of so many bytes lies outside of the running kernel's memory."""
    if not STATE.launched or not addresses.size:
        return
    memory = STATE.launched[-1]
    low, high = int(addresses.min()), int(addresses.max()) + size
    if any(start <= low and high <= stop for start, stop in memory):
        return
    outside = np.ones(addresses.shape, bool)
    for start, stop in memory:
        outside &= (addresses < start) | (addresses + np.uint64(size) > stop)
    if outside.any():
        raise OutOfBounds(
            f"the kernel's {what} takes {int(outside.sum())} of {addresses.size} elements from outside "
            "of the memory of its arguments"
        )


def mended() -> AbstractContextManager[None]:
    """A context in which kernels compute bfloat16 as a GPU does: operations in float32, results rounded
    to the nearest."""
    return set_to(True, lambda: STATE.mends, lambda mends: setattr(STATE, "mends", mends))


RESULTS = {
    "binary_op": 0, "unary_op": 0, "ternary_op": 2, "create_fma": 2, "create_dot": 2, "create_rsqrt": 0,
    "create_erf": 0,
}  # fmt: skip
"""The methods that compute, with the argument that has the dtype of the result."""


def is_bfloat16(handle: Any) -> bool:
    """True if an argument of a method holds the bits of bfloat16 numbers."""
    kind = getattr(getattr(handle, "dtype", None), "scalar", None)
    return str(kind) == "bf16" and handle.data.dtype == np.uint16


def computing(place: int) -> Callable[..., Any]:
    """A replacement of a method that computes; the place of the argument with the result's dtype."""

    def compute(old: Callable[..., Any], builder: Any, *arguments: Any) -> Any:
        if not STATE.mends or not any(map(is_bfloat16, arguments)):
            return old(builder, *arguments)
        result = old(builder, *(widened(x) if is_bfloat16(x) else x for x in arguments))
        own = arguments[place]
        if is_bfloat16(own) and result.data.dtype == np.float32:
            return type(result)(bits(result.data), own.dtype.scalar)
        return result

    return compute


def cast(old: Callable[..., Any], builder: Any, source: Any, to: Any, *more: Any) -> Any:
    """A replacement of a method that converts numbers."""
    if not STATE.mends:
        return old(builder, source, to, *more)
    if is_bfloat16(source):
        source = widened(source)
        if source.dtype == to.scalar:
            return source
    if str(to.scalar) == "bf16" and source.data.dtype.kind in "fiub":
        return type(source)(bits(source.data), to.scalar)
    return old(builder, source, to, *more)


def widened(handle: Any) -> Any:
    """The numbers of bfloat16 bits, in float32."""
    import triton.language as tl

    numbers = (handle.data.astype(np.uint32) << 16).view(np.float32)
    return type(handle)(numbers, tl.float32)


def bits(numbers: np.ndarray) -> np.ndarray:
    """The bits of the nearest bfloat16 numbers."""
    rounded = np.asarray(round_to(numbers.astype(np.float64), DTYPES["bf16"]), np.float32)
    return (rounded.view(np.uint32) >> 16).astype(np.uint16)
