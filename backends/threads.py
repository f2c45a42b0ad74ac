"""Environment variables with the number of threads, which frameworks read at import."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS", "PJRT_NPROC",
)  # fmt: skip
"""The variables of OpenMP, MKL, OpenBLAS, TensorFlow and XLA's CPU client."""


def thread_variables(threads: int, processes: int = 1) -> dict[str, str]:
    """Returns `VARIABLES` with their values for `threads` threads. 0 threads: each of `processes`
    processes gets an equal share of the CPUs, at least one."""
    count = threads or max(1, (os.cpu_count() or 1) // processes)
    return dict.fromkeys(VARIABLES, str(count))


def limit_threads(
    threads: int, processes: int = 1, environment: MutableMapping[str, str] = os.environ
) -> None:
    """Set those environment variables of `VARIABLES` that are not set yet (see `thread_variables`). Must
    be called before a framework is imported."""
    for name, count in thread_variables(threads, processes).items():
        environment.setdefault(name, count)


def present_thread_variables() -> dict[str, str]:
    """Returns the environment variables of `VARIABLES` that are set, with their values."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def requested_threads() -> int:
    """Returns the number of threads in OMP_NUM_THREADS, or 1 if it has no number. Used for runtimes that
    read no environment variable."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) else 1
