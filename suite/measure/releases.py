"""An asv project whose time axis is framework releases: a git repository with one lock file per commit.

asv installs each commit of a repository and runs the benchmarks. Here a commit holds only the lock file
of one release; the benchmarks are this project's. All locks pin the other distributions alike.
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

from attention_conformance.suite.flags import CommandOptions, option
from attention_conformance.suite.records.files import new_folder

SUITE = Path(__file__).resolve().parents[1]
LOCKS = SUITE / "benchmarks" / "releases"
MODULES = {"torch": "bench_torch", "jax": "bench_jax", "tensorflow-cpu": "bench_tensorflow"}
"""The benchmark module of each distribution."""

_AUTHOR = {"NAME": "releases", "EMAIL": "releases@localhost"}


class LockError(ValueError):
    """A lock file cannot be used; the message names the file and the reason."""


@dataclass(frozen=True)
class Release:
    """One release of a framework: distribution, version, release day, and text of the lock file."""

    name: str
    version: Version
    day: date
    text: str

    @property
    def tag(self) -> str:
        return f"{self.name}-{self.version}"


def read(path: Path) -> Release:
    """Read a lock file NAME-VERSION.txt.

    Line 1 is '# released: YYYY-MM-DD'; every other line is DISTRIBUTION==VERSION, one of them
    NAME==VERSION. Raises LockError for another content, OSError if the file cannot be read.
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
    raise LockError(f"{path}: expected one line NAME==VERSION as in the file's name")


def make_project(releases: Sequence[Release], folder: Path) -> Path:
    """Make `folder` with a repository `repo` and `asv.conf.json`; returns the path of the latter.

    Commits have their release's date and stand in that order. A commit's hash depends only on the lock
    files, so results of several machines can be merged.

    Raises LockError without releases or with several distributions, FileExistsError if the folder is not
    empty, OSError or CalledProcessError if git fails.
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
    """Run git without the user's configuration (hooks, signing, line endings, name)."""
    environment = {key: text for key, text in os.environ.items() if not key.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    for role in ("AUTHOR", "COMMITTER"):
        environment |= {f"GIT_{role}_{key}": text for key, text in _AUTHOR.items()}
        environment |= {f"GIT_{role}_DATE": when} if when else {}
    subprocess.run(
        ("git", *words), cwd=repo, env=environment, check=True, capture_output=True, text=True
    )


@dataclass(frozen=True)
class ReleasesOptions(CommandOptions):
    """The options of `releases`."""

    framework: str = option("default: jax", default="jax", valid=tuple(MODULES), checked=True)
    lock: tuple[Path, ...] = option(
        "a lock file, repeatable; default: the project's own lock files of the framework",
        "NAME-VERSION.txt", many=True, kind=Path,
    )  # fmt: skip


def add_releases_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Add `releases FOLDER` to the subparsers of `argparse`; sets `run`."""
    parser = subparsers.add_parser(
        "releases",
        help="make an asv project whose time axis is the releases of a framework",
        description="Makes the new or empty FOLDER with a git repository of lock files, one commit and "
        "tag per release, and an asv.conf.json that measures each with this project's benchmarks.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    ReleasesOptions.declare(parser.add_argument)
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run `releases`; returns the exit code."""
    name = arguments.framework
    try:
        releases = [read(path) for path in arguments.lock or sorted(LOCKS.glob(f"{name}-*.txt"))]
        if strange := [release.tag for release in releases if release.name != name]:
            raise LockError(f"expected lock files of {name}, got {', '.join(strange)}")
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
