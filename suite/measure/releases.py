"""Releases of frameworks: their lock files, and asv's configuration that measures them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from attention_conformance.suite.flags import CommandOptions, option
from attention_conformance.suite.records.files import write_new
from attention_conformance.suite.records.machine import ROOT

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
LOCKS = BENCHMARKS / "releases"
MODULES = {"torch": "bench_torch", "jax": "bench_jax", "tensorflow-cpu": "bench_tensorflow"}
"""The benchmark module of each distribution."""


class Release(NamedTuple):
    """One release of a framework, and the requirements that its lock file pins."""

    name: str
    version: str
    pins: tuple[str, ...]


def read(lock: str | Path) -> Release:
    """Returns the release in a lock file. `lock`: the path NAME-VERSION.txt, or NAME-VERSION for the
    project's own file.

    Lines of the file are requirements; one of them is NAME==VERSION. Raises OSError and ValueError.
    """
    path = Path(lock) if str(lock).endswith(".txt") else LOCKS / f"{lock}.txt"
    if not path.is_file():
        names = ", ".join(sorted(path.stem for path in LOCKS.glob("*.txt")))
        raise ValueError(f"unknown release {str(lock)!r}; valid: {names}, the path of a lock file")
    lines = (line.partition("#")[0].strip() for line in path.read_text("utf-8").splitlines())
    (name, _, version), pins = path.stem.rpartition("-"), tuple(filter(None, lines))
    if f"{name}=={version}" not in pins:
        raise ValueError(f"{path}: expected a line {name}=={version}, as in the file's name")
    return Release(name, version, pins)


def configuration(name: str, releases: Sequence[Release]) -> dict[str, Any]:
    """Returns asv's configuration, with an environment for each release of the framework `name`.

    Each environment also has the pins that all lock files share. pip chooses other versions, such as
    jaxlib's for jax. Raises ValueError without releases, for other frameworks, and without a checkout.
    """
    if {release.name for release in releases} != {name}:
        got = ", ".join(f"{release.name}-{release.version}" for release in releases)
        raise ValueError(f"expected lock files of {name}, got {got or 'none'}")
    if not (ROOT / ".git").exists():
        raise ValueError(f"asv needs a checkout of this project with its git history, got {ROOT}")
    shared_pins = sorted(set.intersection(*({*release.pins} for release in releases)))
    return {
        "version": 1,
        "project": f"attention in releases of {name}",
        "repo": str(ROOT),
        "branches": ["HEAD"],
        "environment_type": "virtualenv",
        "matrix": {"req": {name: [release.version for release in releases]}},
        "build_command": [],
        "install_command": [f"in-dir={{env_dir}} python -m pip install {' '.join(shared_pins)}"],
        "uninstall_command": [],
        "install_timeout": 1800,
        "benchmark_dir": str(BENCHMARKS),
        "launch_method": "spawn",
    }


@dataclass(frozen=True)
class ReleasesOptions(CommandOptions):
    """The options of `releases`."""

    folder: Path = option("", "FOLDER", kind=Path, nargs="1")
    framework: str = option("default: jax", default="jax", valid=tuple(MODULES), checked=True)
    lock: tuple[Path, ...] = option(
        "a lock file, repeatable; default: the project's own lock files of the framework",
        "NAME-VERSION.txt",
        many=True,
        kind=Path,
    )


def run(options: ReleasesOptions) -> int:
    """Run the command `releases`, and return its exit code."""
    name, path = options.framework, options.folder / "asv.conf.json"
    try:
        locks = options.lock or sorted(LOCKS.glob(f"{name}-*.txt"))
        text = json.dumps(configuration(name, [*map(read, locks)]), indent=4)
        write_new(path, f"{text}\n")
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"asv run --config {path} --bench {MODULES[name]} 'HEAD^!'")
    return 0
