"""A time axis of framework releases for asv: a git repository of lock files, a tag for each release.

asv walks the commits of a repository and installs each before it runs the benchmarks. Here a commit holds
nothing but the lock file of one release; the benchmarks come from this project, and stay the same.
Everything but the framework is pinned alike in all locks, so that only the framework changes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from suite.records.files import new_folder

SUITE = Path(__file__).resolve().parents[1]
LOCKS = SUITE / "benchmarks" / "releases"
MODULES = {"torch": "bench_torch", "jax": "bench_jax", "tensorflow-cpu": "bench_tensorflow"}
"""The module of benchmarks that a distribution's releases are measured by."""

_AUTHOR = {"NAME": "releases", "EMAIL": "releases@localhost"}


class LockError(ValueError):
    """A lock file cannot be used; the message names it and says why."""


@dataclass(frozen=True)
class Release:
    """One release of a framework: its distribution, version, day of release, and the lock's text."""

    name: str
    version: Version
    day: date
    text: str

    @property
    def tag(self) -> str:
        return f"{self.name}-{self.version}"


def read(path: Path) -> Release:
    """The release that a lock file named NAME-VERSION.txt holds.

    Its first line is "# released: YYYY-MM-DD"; every other one pins a distribution with ==, NAME at
    VERSION among them. Raises LockError where it is not so, OSError where the file cannot be read.
    """
    text = path.read_text(encoding="utf-8")
    first, *lines = text.splitlines() or [""]
    stated = re.fullmatch(r"# released: (\d{4}-\d{2}-\d{2})", first)
    try:
        day = date.fromisoformat(stated[1]) if stated else None
    except ValueError:
        day = None
    if day is None:
        raise LockError(f'{path}: the first line is "# released: YYYY-MM-DD", got {first!r}')
    pins: dict[str, Version] = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in lines)):
        try:
            pin = Requirement(line)
            (exact,) = pin.specifier
            if exact.operator != "==" or "*" in exact.version:
                raise ValueError
        except (InvalidRequirement, ValueError):
            raise LockError(f"{path}: expected NAME==VERSION, got {line!r}") from None
        pins[pin.name] = Version(exact.version)
    for name, version in pins.items():
        if path.stem == f"{name}-{version}":
            return Release(name, version, day, text)
    raise LockError(f"{path}: no pin is of the release that the name of the file says")


def make_project(releases: Sequence[Release], folder: Path) -> Path:
    """Make `folder`, new or empty, with a repository `repo` and `asv.conf.json`; returns the latter.

    Commits are dated by the day of release, in its order; their hashes hang on the locks alone, so that
    results from several machines, or of another day, fit together. Releases appended later keep what
    was measured.

    Raises LockError without releases or with several distributions, FileExistsError where the folder
    holds anything, OSError or CalledProcessError where git cannot be run.
    """
    names = {release.name for release in releases}
    if len(names) != 1:
        raise LockError(f"expected the releases of one framework, got {sorted(names) or 'none'}")
    if len({release.tag for release in releases}) < len(releases):
        raise LockError("a release is given twice")
    repo = new_folder(folder) / "repo"
    repo.mkdir()
    _git(repo, "init", "--quiet", "--initial-branch=main")
    for release in sorted(releases, key=lambda r: (r.day, r.version)):
        (repo / "lock.txt").write_text(release.text, encoding="utf-8", newline="\n")
        _git(repo, "add", "lock.txt")
        when = f"{release.day.isoformat()}T12:00:00+00:00"
        _git(repo, "commit", "--quiet", "--allow-empty", "-m", release.tag, when=when)
        _git(repo, "tag", release.tag)
    path = folder / "asv.conf.json"
    path.write_text(json.dumps(_configuration(names.pop()), indent=4) + "\n", encoding="utf-8")
    return path


def _configuration(name: str) -> dict[str, Any]:
    return {
        "version": 1,
        "project": f"attention in releases of {name}",
        "repo": "repo",
        "branches": ["main"],
        "dvcs": "git",
        "environment_type": "virtualenv",
        "pythons": [f"{sys.version_info.major}.{sys.version_info.minor}"],
        "build_command": [],
        "install_command": [
            "in-dir={env_dir} python -m pip install --no-deps -r {build_dir}/lock.txt"
        ],
        "uninstall_command": [],
        "install_timeout": 1800,
        "benchmark_dir": str(SUITE / "benchmarks"),
        "env_dir": "env",
        "results_dir": "results",
        "html_dir": "html",
        "launch_method": "spawn",
    }


def _git(repo: Path, *words: str, when: str = "") -> None:
    """Run git without what the user has configured: hooks, signing, line endings, a name."""
    environment = {key: text for key, text in os.environ.items() if not key.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for role in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{role}_{key}": text for key, text in _AUTHOR.items()}
        environment |= {f"GIT_{role}_DATE": when} if when else {}
    subprocess.run(
        ("git", *words), cwd=repo, env=environment, check=True, capture_output=True, text=True
    )


def add_releases_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `releases FOLDER` to the subparsers of `argparse`; sets `run`."""
    parser = subparsers.add_parser(
        "releases",
        help="make an asv project whose time axis is the releases of a framework",
        description="Makes FOLDER, new or empty, with a git repository of lock files, one commit and tag "
        "per release, and an asv.conf.json that measures each with this project's benchmarks.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--framework", choices=MODULES, default="jax", help="default: jax")
    parser.add_argument(
        "--lock", type=Path, action="append", metavar="NAME-VERSION.txt",
        help="a lock file, repeatable; default: those of the framework that come with the project",
    )  # fmt: skip
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run `releases`; returns the exit code."""
    name = arguments.framework
    try:
        releases = [read(path) for path in arguments.lock or sorted(LOCKS.glob(f"{name}-*.txt"))]
        if strange := [release.tag for release in releases if release.name != name]:
            raise LockError(f"--framework={name}, but a lock of {', '.join(strange)}")
        path = make_project(releases, arguments.folder)
    except (LockError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"git failed: {error.stderr.strip()}", file=sys.stderr)
        return 2
    print(f"{len(releases)} releases of {name}. Measure them, one after another:")
    print(f"asv run --config {path} ALL --bench {MODULES[name]}")
    return 0
