"""The machine and the checkout a run is made on, as far as results depend on them."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import suite

ROOT = Path(__file__).resolve().parents[2]
"""The checkout this file is in."""

PACKAGES = ("suite", "backends", "references", "attention_conformance")
"""The import packages of the checkout."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What the header of every file of records says: the suite's commit, versions, machine, options."""

    commit: str = ""
    dirty: bool = False
    suite_version: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    python: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    started: str = ""


def facts() -> dict[str, Any]:
    """The system, the kind of machine, its processors, and the threads that were asked for."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
    }


def origin() -> dict[str, Any]:
    """The fields of an `Origin` that say where a run is made, and when it began."""
    revision, dirty = commit()
    return {
        "commit": revision,
        "dirty": dirty,
        "suite_version": suite.__version__,
        "python": platform.python_version(),
        "machine": facts(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def cpu_model(path: Path = Path("/proc/cpuinfo")) -> str:
    """What the processor calls itself; empty where it is not said."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")


def commit() -> tuple[str, bool]:
    """The commit of the checkout, and whether files differ from it; "" and False where there is none."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError):
        return "", False


@lru_cache(maxsize=1)
def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What the CPU says it can do, by Linux' names ("amx_bf16"); nothing where it is not said."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(flags, "").split())


def cpu_is(wanted: Iterable[str]) -> bool:
    """Whether the CPU can do all that is wanted, and nothing that is wanted away ("!avx512_fp16")."""
    return all((flag.removeprefix("!") in cpu_flags()) != flag.startswith("!") for flag in wanted)
