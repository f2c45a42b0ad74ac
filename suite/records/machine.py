"""Facts about the machine and the checkout of a run."""

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

from attention_conformance import suite

ROOT = Path(__file__).parents[3].resolve()
"""The folder that the package lies in: the root of a checkout."""

MATMUL_CPU_FLAGS = (
    "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16",
    "asimdhp", "sve", "i8mm", "bf16",
)  # fmt: skip
"""The CPU flags, by Linux' names, by which frameworks choose their matrix products. Expectations and
findings of this project depend on no other flags. Every run records which of these its CPU has."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The fields that all headers share: commit, versions, machine, options."""

    commit: str = ""
    dirty: bool = False
    suite_version: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    python: str = ""
    machine: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    started: str = ""

    @property
    def installed(self) -> str:
        """The versions as one text: "torch 2.13.0, numpy 2.4.6"."""
        return ", ".join(f"{name} {text}" for name, text in self.versions.items())


def facts() -> dict[str, Any]:
    """Returns the facts about the machine that records contain, by name: operating system, architecture,
    model, flags and number of CPUs, OMP_NUM_THREADS, and ONEDNN_MAX_CPU_ISA, which makes oneDNN ignore
    flags."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": cpu_model(),
        "cpu_flags": " ".join(flag for flag in MATMUL_CPU_FLAGS if flag in cpu_flags()),
        "onednn_isa": os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        "cpus": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", ""),
    }


def origin() -> dict[str, Any]:
    """Returns, by name, the fields of an `Origin` that describe this checkout and machine, and the
    present time."""
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
    """Returns the model name of the CPU; "" if it is unknown."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "")


def commit() -> tuple[str, bool]:
    """Returns the commit of the checkout, and True if files differ from it; ("", False) without git."""

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
    """Returns the CPU flags by Linux' names ("amx_bf16"); empty if they are unknown."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(flags, "").split())


def cpu_has_flags(wanted: Iterable[str]) -> bool:
    """True if the CPU has every flag, and lacks every flag that is written "!flag"."""
    return all((flag.removeprefix("!") in cpu_flags()) != flag.startswith("!") for flag in wanted)
