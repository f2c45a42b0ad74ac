"""Triton's interpreter, which runs kernels on a CPU in NumPy.

`patch_interpreter` changes the interpreter for the whole process:

- A load or store outside of the memory of the kernel's arguments raises OutOfBounds. On a GPU such a load
  may go unnoticed.
- Kernels of several threads run one after the other. The interpreter has one state for all threads.
- `triton.autotune` takes the first configuration. The interpreter has no clock.

`mended` is a context in which bfloat16 is computed as on a GPU. The interpreter stores bfloat16 as the
integers of its bits (triton#11584).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.backends.prepared import set_to
from attention_conformance.suite.spec.dtypes import DTYPES, round_to

Extent = tuple[int, int]
"""The first address of a block of memory, and the address behind its end."""


class OutOfBounds(Exception):
    """A kernel loads or stores outside of the memory of its arguments."""


class State(threading.local):
    """The state of a thread: the memory of the arguments of each running kernel, and True in
    `mends_bfloat16` if bfloat16 is computed as on a GPU."""

    def __init__(self) -> None:
        self.launched: list[list[Extent]] = []
        self.mends_bfloat16 = False


STATE = State()

KERNEL_LOCK = threading.RLock()
"""Locked while a kernel runs."""

REPLACED_METHODS: list[str] = []
"""The names of the interpreter's methods that `patch_interpreter` has replaced."""


def is_used() -> bool:
    """True if triton's own kernels are interpreted. User kernels are then also interpreted."""
    from triton.language import standard
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(standard.cdiv, InterpretedFunction)


def patch_interpreter() -> None:
    """Replace methods of Triton's interpreter in this process, once: accesses are checked against bounds,
    one kernel runs at a time, nothing is tuned, and bfloat16 can be mended."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

    if REPLACED_METHODS:
        return
    replace_method(GridExecutor, "__call__", launch)
    replace_method(Autotuner, "_bench", lambda bench, *arguments, **keywords: [0.0, 0.0, 0.0])
    for name, index in {"load": 1, "store": 2}.items():
        replace_method(InterpreterBuilder, f"create_masked_{name}", checked_access(name, 0, index))
    replace_method(InterpreterBuilder, "create_atomic_rmw", checked_access("atomic", 1, 3))
    replace_method(InterpreterBuilder, "create_atomic_cas", checked_access("atomic", 0, None))
    for name, index in DTYPE_ARGUMENTS.items():
        replace_method(InterpreterBuilder, name, mended_operation(index))
    for name in ("cast_impl", "create_fp_to_fp"):
        replace_method(InterpreterBuilder, name, cast)


def replace_method(owner: type, name: str, new: Callable[..., Any]) -> None:
    """Replace a method by `new`, whose first argument is the old method."""
    old = getattr(owner, name)
    REPLACED_METHODS.append(name)
    setattr(owner, name, lambda *arguments, **keywords: new(old, *arguments, **keywords))


def launch(run: Callable[..., Any], executor: Any, *arguments: Any, **keywords: Any) -> Any:
    """Run a kernel by `run` and return its value. Loads and stores outside of the memory of its arguments
    raise OutOfBounds."""
    with KERNEL_LOCK:
        STATE.launched.append([*memory_extents((*arguments, *keywords.values()))])
        try:
            return run(executor, *arguments, **keywords)
        finally:
            STATE.launched.pop()


def memory_extents(arguments: tuple[Any, ...]) -> Iterator[Extent]:
    """Yields the memory of each tensor, also in tuples and descriptors. It is the tensor's whole storage,
    because a kernel may get one view of a fused tensor and reach the others."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from memory_extents(argument)
        elif hasattr(argument, "untyped_storage"):
            storage = argument.untyped_storage()
            yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        elif hasattr(getattr(argument, "base", None), "data_ptr"):  # of a descriptor or a wrapper
            yield from memory_extents((argument.base,))


def checked_access(action: str, pointer_index: int, mask_index: int | None) -> Callable[..., Any]:
    """Returns a method that checks addresses before the replaced method accesses memory. Addresses are
    `arguments[pointer_index]`, where `arguments[mask_index]` is True. `action` is the access in
    messages."""

    def access(old: Callable[..., Any], builder: Any, *arguments: Any, **keywords: Any) -> Any:
        handle = arguments[pointer_index]
        addresses = handle.data
        if mask_index is not None:
            addresses = addresses[arguments[mask_index].data.astype(bool)]
        check_addresses(action, addresses, max(1, handle.get_element_ty().primitive_bitwidth // 8))
        return old(builder, *arguments, **keywords)

    return access


def check_addresses(action: str, addresses: np.ndarray, size: int) -> None:
    """Raise OutOfBounds if an element of `size` bytes lies outside of the running kernel's memory."""
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
            f"the kernel's {action} takes {int(outside.sum())} of {addresses.size} elements from outside "
            "of the memory of its arguments"
        )


def mended() -> AbstractContextManager[None]:
    """A context in which kernels compute bfloat16 as a GPU does: operations in float32, results rounded
    to the nearest."""
    attribute = "mends_bfloat16"
    return set_to(True, partial(getattr, STATE, attribute), partial(setattr, STATE, attribute))


DTYPE_ARGUMENTS = {
    "binary_op": 0, "unary_op": 0, "ternary_op": 2, "create_fma": 2, "create_dot": 2, "create_rsqrt": 0,
    "create_erf": 0,
}  # fmt: skip
"""By method that computes: the index of the argument that has the dtype of the result."""


def is_bfloat16(handle: Any) -> bool:
    """True if an argument of a method has the bits of bfloat16 numbers."""
    kind = getattr(getattr(handle, "dtype", None), "scalar", None)
    return str(kind) == "bf16" and handle.data.dtype == np.uint16


def mended_operation(index: int) -> Callable[..., Any]:
    """Returns the replacement of a method of the interpreter's builder. It computes bfloat16 in float32
    if `STATE.mends_bfloat16`. Argument `index` has the result's dtype."""

    def operation(old: Callable[..., Any], builder: Any, *arguments: Any) -> Any:
        if not STATE.mends_bfloat16 or not any(map(is_bfloat16, arguments)):
            return old(builder, *arguments)
        result = old(builder, *(to_float32(x) if is_bfloat16(x) else x for x in arguments))
        dtype_argument = arguments[index]
        if is_bfloat16(dtype_argument) and result.data.dtype == np.float32:
            return type(result)(to_bits(result.data), dtype_argument.dtype.scalar)
        return result

    return operation


def cast(old: Callable[..., Any], builder: Any, source: Any, to: Any, *arguments: Any) -> Any:
    """Replaces a method `old` that converts numbers. From and to bfloat16 it converts by value if
    `STATE.mends_bfloat16`."""
    if not STATE.mends_bfloat16:
        return old(builder, source, to, *arguments)
    if is_bfloat16(source):
        source = to_float32(source)
        if source.dtype == to.scalar:
            return source
    if str(to.scalar) == "bf16" and source.data.dtype.kind in "fiub":
        return type(source)(to_bits(source.data), to.scalar)
    return old(builder, source, to, *arguments)


def to_float32(handle: Any) -> Any:
    """Returns the interpreter's handle of an array in float32, from a handle of bfloat16 bits."""
    import triton.language as tl

    numbers = (handle.data.astype(np.uint32) << 16).view(np.float32)
    return type(handle)(numbers, tl.float32)


def to_bits(numbers: np.ndarray) -> np.ndarray:
    """Returns the bits of the nearest bfloat16 numbers."""
    rounded = np.asarray(round_to(numbers.astype(np.float64), DTYPES["bf16"]), np.float32)
    return (rounded.view(np.uint32) >> 16).astype(np.uint16)
