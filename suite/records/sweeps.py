"""Folders of sweeps: the result files of many runs and searches.

    FOLDER/sweep.json    the plan, and which files of the suite carry it out
    FOLDER/NAME.jsonl    a run, a shard of one, or a search, as `--results` writes it

Any folder of result files can be read, those of an array of jobs, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from suite.records import cells, lines, searches
from suite.records.cells import Header, IncompleteShards, Run, load, merge
from suite.records.machine import Origin
from suite.records.searches import SearchRun

SWEEP = "sweep.json"

INSTALLED = "installed"
"""The release that stands for what the machines have."""

SWITCHES = ("audit", "optimized")
"""Options of a run that its title names where they are on."""

Key = tuple[str, str, int]
"""What identifies a run in a sweep: its title, its release, its seed."""


@dataclass(frozen=True)
class SweptRun:
    """One run of a sweep: its result files, one or one a shard, and the header of the first."""

    header: Header
    paths: tuple[Path, ...]

    @property
    def key(self) -> Key:
        """Its title, its release and its seed."""
        return title_of(self.header), release_of(self.header), seed_of(self.header)

    def load(self) -> Run:
        """The run; not complete if shards are missing. Raises RecordError."""
        parts = [load(path) for path in self.paths]
        if not self.header.shard:
            return parts[0]
        try:
            return merge(parts)
        except IncompleteShards:
            every = tuple(cell for part in parts for cell in part.cells)
            return Run(replace(self.header, shard=""), every, str(self.paths[0]), complete=False)


def is_sweep(path: Path) -> bool:
    """Whether a path is the folder of a sweep, or another folder of result files."""
    return path.is_dir() and ((path / SWEEP).is_file() or bool(files(path)))


def files(folder: Path) -> list[Path]:
    """The result files below a folder, by name."""
    return sorted(folder.rglob("*.jsonl"))


def runs(folder: Path) -> list[SweptRun]:
    """The runs below a folder, of which only headers are read yet. Raises RecordError."""
    shards: dict[object, list[tuple[Header, Path]]] = {}
    for path in files(folder):
        if lines.is_of(path, cells.FILE_SCHEMA):
            header = lines.header(path, cells.FILE_SCHEMA)
            one = SweptRun(header, (path,)).key if header.shard else path
            shards.setdefault(one, []).append((header, path))
    return [SweptRun(of[0][0], tuple(path for _, path in of)) for of in shards.values()]


def searched(folder: Path) -> list[SearchRun]:
    """The searches below a folder. Raises RecordError."""
    return [
        searches.load(path) for path in files(folder) if lines.is_of(path, searches.FILE_SCHEMA)
    ]


def title_of(header: Header) -> str:
    """Which run a header is of, but for the release and the seed: "torch tf standard", in one mode, of
    some implementations or dtypes."""
    options = header.options
    words = [*options.get("backend", ()), options.get("level", "")]
    mode = options.get("mode", "")
    words += [mode] if mode != "eager" else []
    words += [*options.get("implementation", ()), *options.get("dtype", ())]
    words += [name for name in SWITCHES if options.get(name)]
    return " ".join(map(str, words))


def release_of(header: Header) -> str:
    """The release that a run judged, `INSTALLED` for what the machine had."""
    return str(header.options.get("release") or INSTALLED)


def seed_of(header: Origin) -> int:
    """The seed of the values of a run, or of the cases of a search."""
    return int(header.options.get("seed", 0))
