"""What JAX keeps: what it compiled, on disk for a second run and in memory, and what it lowered."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FORGET_EVERY = 20
"""Cells after which `forget_lowered` is called."""

COUNT_EVERY = 40
"""Cells after which `forget` counts areas of memory."""

AREAS = 45_000
"""Areas of memory that a process may have before `forget_programs` is called. A program of XLA takes some
25 of them, and Linux allows 65,530 (vm.max_map_count): beyond them LLVM says "Cannot allocate memory",
and the process dies. At smoke it has 24,000, at standard it would have 100,000. What goes operation by
operation makes 16 programs a cell: 16,000 areas between two counts."""

LOWERED = (
    ("jax._src.interpreters.pxla", "_cached_lowering_to_hlo"),
    ("jax._src.pjit", "_pjit_lower"),
)
"""Where JAX keeps what it lowered: module and function with a cache (see `forget_lowered`)."""

FOLDER = "JAX_COMPILATION_CACHE_DIR"
"""The variable that says where compilations are kept."""


def keep_compilations(folder: str | Path) -> None:
    """Let JAX keep its compilations in a folder, before it is imported: a second run then compiles
    nothing. Where somebody has named a folder already, that stays."""
    os.environ |= compilations_in(folder)


def compilations_in(folder: str | Path) -> dict[str, str]:
    """The variables by which a process has JAX keep its compilations in a folder; none where somebody
    has named one already."""
    if FOLDER in os.environ:
        return {}
    wanted = {
        FOLDER: str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


def forget(judged: int) -> None:
    """Forget what is to be forgotten when so many cells are judged."""
    if judged % FORGET_EVERY == 0:
        forget_lowered()
    if judged % COUNT_EVERY == 0 and "jax" in sys.modules and areas() > AREAS:
        forget_programs()


def areas() -> int:
    """The areas of memory that this process has; 0 where no system says so."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


def forget_programs() -> None:
    """Have JAX forget what it traced and compiled, as its public function does. A program that is called
    again is traced again, and found among the compilations that are kept on disk."""
    sys.modules["jax"].clear_caches()


def forget_lowered() -> None:
    """Have JAX forget the modules it lowered. Executables stay: nothing is compiled again.

    JAX keeps the modules of the last 2048 compilations, each with an MLIR context of over a megabyte.
    Among these 3 GB every further lowering takes three times as long. No public function drops them
    alone; where a release keeps them elsewhere this does nothing.
    """
    for module, name in LOWERED:
        cache = getattr(sys.modules.get(module), name, None)
        if cache is not None and hasattr(cache, "cache_clear"):
            cache.cache_clear()
