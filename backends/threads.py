"""How many threads frameworks start: variables of the environment, read as they are imported."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS", "PJRT_NPROC",
)  # fmt: skip
"""Where OpenMP, MKL, OpenBLAS, TensorFlow and XLA's client for the CPU look."""


def thread_variables(threads: int, processes: int = 1) -> dict[str, str]:
    """The variables of a process whose frameworks may start so many threads, 0 for all CPUs, which
    `processes` share."""
    count = threads or max(1, (os.cpu_count() or 1) // processes)
    return dict.fromkeys(VARIABLES, str(count))


def limit_threads(
    threads: int, processes: int = 1, environment: MutableMapping[str, str] = os.environ
) -> None:
    """Set the variables that nobody has set, before a framework is imported."""
    for name, count in thread_variables(threads, processes).items():
        environment.setdefault(name, count)


def threads_as_set() -> dict[str, str]:
    """The variables as they are."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def threads_asked() -> int:
    """The number of threads in the variable that OpenMP reads, for runtimes that read none; 1 where it
    is not set, or names no number."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else 1
