"""JAX's caches: compiled programs, on disk for a second run and in memory, and lowered modules."""

from __future__ import annotations

import os
import sys
from pathlib import Path

FORGET_EVERY = 20
"""The number of cells between two calls of `forget_lowered`."""

COUNT_EVERY = 40
"""The number of cells between two counts of memory areas in `forget`."""

MOST_AREAS = 45_000
"""The number of memory areas of a process above which `forget_programs` is called. An XLA program has
some 25 areas, and Linux allows 65,530 (vm.max_map_count): beyond them LLVM says "Cannot allocate
memory", and the process dies. A run at smoke has 24,000 areas, a run at standard would have 100,000.
Operation by operation a cell has 16 programs: 16,000 areas between two counts."""

LOWERED = (
    ("jax._src.interpreters.pxla", "_cached_lowering_to_hlo"),
    ("jax._src.pjit", "_pjit_lower"),
)
"""JAX's caches of lowered modules, each as module and function (see `forget_lowered`)."""

FOLDER = "JAX_COMPILATION_CACHE_DIR"
"""The environment variable that names the folder of compiled programs."""


def keep_compilations(folder: str | Path) -> None:
    """Let JAX keep compiled programs in a folder, so that a second run compiles nothing. Must be called
    before JAX is imported. Does nothing if a folder is set already."""
    os.environ |= compilations_in(folder)


def compilations_in(folder: str | Path) -> dict[str, str]:
    """Returns the environment variables by which JAX keeps compiled programs in a folder; {} if a folder
    is set already."""
    if FOLDER in os.environ:
        return {}
    variables = {
        FOLDER: str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    return {name: os.environ.get(name, value) for name, value in variables.items()}


def forget(judged: int) -> None:
    """Have JAX forget lowered modules every `FORGET_EVERY` cells, and programs if there are too many
    memory areas. `judged`: the number of cells that this process has judged."""
    if judged % FORGET_EVERY == 0:
        forget_lowered()
    if judged % COUNT_EVERY == 0 and "jax" in sys.modules and areas() > MOST_AREAS:
        forget_programs()


def areas() -> int:
    """Returns the number of memory areas of this process; 0 if the system does not list them."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


def forget_programs() -> None:
    """Have JAX forget traced and compiled programs, by its public function. A program that is called
    again is traced again, and then found on disk."""
    sys.modules["jax"].clear_caches()


def forget_lowered() -> None:
    """Have JAX forget lowered modules. Compiled programs stay.

    JAX keeps the modules of the last 2048 compilations, each with an MLIR context of over a megabyte.
    With these 3 GB every further lowering takes three times as long. JAX has no public function for
    this; if a release keeps the modules elsewhere, nothing happens.
    """
    for module, name in LOWERED:
        cache = getattr(sys.modules.get(module), name, None)
        if cache is not None and hasattr(cache, "cache_clear"):
            cache.cache_clear()
