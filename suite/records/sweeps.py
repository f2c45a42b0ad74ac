"""Folders of sweeps: the result files (*.jsonl) of many runs, shards and searches."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from attention_conformance.suite.records import cells, searches
from attention_conformance.suite.records.cells import Header, IncompleteShards, Run, load, merge
from attention_conformance.suite.records.machine import Origin
from attention_conformance.suite.records.searches import SearchRun

INSTALLED = "installed"
"""The name of the installed packages, in place of a release."""

SWITCHES = ("audit", "optimized")
"""Options that the title of a run names if they are on."""

Key = tuple[str, str, int]
"""The key of a run in a sweep: title, release, seed."""


@dataclass(frozen=True)
class Shards:
    """The result files of one run, one per shard, and the header of the first."""

    header: Header
    paths: tuple[Path, ...]

    @property
    def key(self) -> Key:
        """Title, release and seed of the run."""
        return title_of(self.header), release_of(self.header), seed_of(self.header)

    def load(self, partial: bool = False, allow_missing: bool = True) -> Run:
        """Read and merge the files, and return the run. With `partial` files without a footer are read,
        too. If shards are missing, the run is not `complete`; without `allow_missing` RecordError is
        raised. Raises RecordError."""
        shard_runs = [load(path, partial) for path in self.paths]
        if not self.header.shard:
            return shard_runs[0]
        try:
            return merge(shard_runs)
        except IncompleteShards:
            if not allow_missing:
                raise
            cells = tuple(cell for run in shard_runs for cell in run.cells)
            diagnoses = tuple(diagnosis for run in shard_runs for diagnosis in run.diagnoses)
            header = replace(self.header, shard="")
            return Run(header, cells, str(self.paths[0]), complete=False, diagnoses=diagnoses)


def shards(paths: Iterable[Path]) -> list[Shards]:
    """Returns the result files grouped by run. Only headers are read. Shards belong to one run if case
    lists, commits, versions, title, release and seed are equal. Raises RecordError."""
    files_by_run: dict[object, list[tuple[Header, Path]]] = {}
    for path in paths:
        header = cells.FILE_SCHEMA.read_header(path)
        identity = (header.digest, header.commit, header.dirty, str(header.versions), header.python)
        run = (*Shards(header, (path,)).key, *identity) if header.shard else path
        files_by_run.setdefault(run, []).append((header, path))
    groups = files_by_run.values()
    return [Shards(group[0][0], tuple(path for _, path in group)) for group in groups]


def is_sweep(path: Path) -> bool:
    """True if a path is a folder with result files of runs or searches."""
    schemas = (cells.FILE_SCHEMA, searches.FILE_SCHEMA)
    return path.is_dir() and any(s.accepts(file) for file in files(path) for s in schemas)


def files(folder: Path) -> list[Path]:
    """Returns the result files below a folder, by name."""
    return sorted(folder.rglob("*.jsonl"))


def runs_below(folder: Path) -> list[Shards]:
    """Returns the runs below a folder. Raises RecordError for a file that belongs to no run and no
    search."""
    return shards(path for path in files(folder) if not searches.FILE_SCHEMA.accepts(path))


def load_searches(folder: Path) -> list[SearchRun]:
    """Returns the searches below a folder. Raises RecordError."""
    return [searches.load(path) for path in files(folder) if searches.FILE_SCHEMA.accepts(path)]


def title_of(header: Header) -> str:
    """Returns the title of a run: backends, level and other options, without release and seed, such as
    "torch tf standard"."""
    options = header.options
    words = [*options.get("backend", ()), options.get("level", "")]
    mode = options.get("mode", "")
    words += [mode] if mode != "eager" else []
    words += [*options.get("implementation", ()), *options.get("dtype", ())]
    words += [name for name in SWITCHES if options.get(name)]
    return " ".join(map(str, words))


def release_of(header: Header) -> str:
    """Returns the release that a run judged, or `INSTALLED`."""
    return str(header.options.get("release") or INSTALLED)


def with_release(text: str, release: str) -> str:
    """Returns the text of a result file with the release added to the options in its header. Unchanged
    for `INSTALLED`, or without a header."""
    header, _, lines = text.partition("\n")
    if release == INSTALLED or not header:
        return text
    fields = json.loads(header)
    fields["options"]["release"] = release
    return f"{json.dumps(fields, ensure_ascii=False)}\n{lines}"


def seed_of(header: Origin) -> int:
    """Returns the seed of a run or a search."""
    return int(header.options.get("seed", 0))
