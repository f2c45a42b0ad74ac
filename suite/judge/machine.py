"""The machine a run is made on, as far as answers depend on it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What the CPU says it can do, by Linux' names ("amx_bf16"); nothing where it is not said."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    found = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(found, "").split())


def cpu_is(wanted: Iterable[str]) -> bool:
    """Whether the CPU can do all that is wanted, and nothing that is wanted away ("!avx512_fp16")."""
    return all((flag.removeprefix("!") in cpu_flags()) != flag.startswith("!") for flag in wanted)
