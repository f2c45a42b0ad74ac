"""Sweeps: many runs and searches on Ray (docs/sweeps.md). Importing this module does not import Ray.

A plan, a TOML file, lists runs and searches. Each task is a command in a child process, `pytest suite` or
the command `search`, and leaves one result file. Ray places the tasks, and runs a task again if its
process or its machine dies. A task that has a result file does not run again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.flags import CommandOptions, flags, number, option
from attention_conformance.suite.measure.releases import read
from attention_conformance.suite.records import cells, lines, searches
from attention_conformance.suite.records.files import locked, require_regular_file
from attention_conformance.suite.records.machine import ROOT
from attention_conformance.suite.records.sweeps import INSTALLED, with_release
from attention_conformance.suite.run.jax_caches import compilations_in
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.process import how_it_ended, run_module
from attention_conformance.suite.search.options import SearchOptions
from attention_conformance.suite.spec.text import printable, uncoloured
from attention_conformance.suite.spec.vocabulary import BROKEN

GREEN, FAILED, USAGE, UNFINISHED = 0, 1, 2, 3

SUITE = "attention_conformance.suite"

# -n 1: if a cell ends its process, the run continues in a new one.
JUDGE_COMMAND = f"pytest -q -n1 -p {SUITE}.plugin -p no:cacheprovider --pyargs {SUITE}"


class Kind(NamedTuple):
    """A kind of task, and of table in a plan.

    - `command`: the words after `python -m`
    - `options`: the class of the command's options
    - `schema`: the schema of its result files
    - `refused`: its exit code for wrong arguments
    """

    command: str
    options: type[Any]
    schema: lines.FileSchema[Any, Any]
    refused: int


KINDS = {
    "judge": Kind(JUDGE_COMMAND, Options, cells.FILE_SCHEMA, 4),
    "search": Kind(f"{SUITE} search", SearchOptions, searches.FILE_SCHEMA, 2),
}

PLURALS = {"backends": "backend", "implementations": "implementation", "dtypes": "dtype"}
"""Options that a plan names in the plural."""


class Task(NamedTuple):
    """A command with the options of one run or search: `words` follow `python -m`, without --results;
    `pins` are the requirements of `release`."""

    kind: str
    title: str
    words: tuple[str, ...]
    release: str
    pins: tuple[str, ...]

    @property
    def file(self) -> str:
        """The name of the result file."""
        digest = hashlib.sha256(repr((self.words, self.pins)).encode()).hexdigest()[:8]
        return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', self.title)[:100]}-{digest}.jsonl"


class Outcome(NamedTuple):
    """The result of a task: exit code, last lines of its output, text of its result file ("" if there is
    none)."""

    code: int
    output_lines: str
    records: str


Submit = Callable[[Task], "Future[Outcome]"]


class ChildDied(Exception):
    """A signal killed the child. Ray runs the task again."""


def load_plan(path: Path) -> list[Task]:
    """Returns the tasks of a plan file. Raises UsageError."""
    try:
        return tasks_of(tomllib.loads(require_regular_file(path).read_text(encoding="utf-8-sig")))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: expected a plan in TOML: {error}") from error


def tasks_of(plan: Mapping[str, Any]) -> list[Task]:
    """Returns the tasks of a plan: runs, then searches, each in the order of the plan. Raises UsageError
    and ValueError."""
    if not plan or plan.keys() - KINDS:
        got = ", ".join(plan) or "none"
        raise ValueError(f"expected tables [[judge]] and [[search]], got {got}")
    return [task for kind in KINDS for table in plan.get(kind, ()) for task in _tasks(kind, table)]


def _tasks(kind: str, table: Mapping[str, Any]) -> Iterator[Task]:
    """Yields the tasks of one table of a plan: one for each seed, release and shard. The table's other
    fields are options. Raises UsageError and ValueError."""
    command, options_type, *_ = KINDS[kind]
    fields = {PLURALS.get(name, name): value for name, value in table.items()}
    seeds, releases = seeds_of(fields.pop("seeds", 0)), fields.pop("releases", [INSTALLED])
    shards = fields.pop("shards", 1) if kind == "judge" else 1
    set_by_tasks = {"seed", "shard", "results"}
    valid = {name.replace("-", "_") for name in flags(options_type)} - set_by_tasks
    if unknown := fields.keys() - valid:
        raise ValueError(
            f"[[{kind}]]: unknown field {', '.join(sorted(unknown))}; valid: {', '.join(PLURALS)}, "
            "seeds, releases, shards (of [[judge]]), and the other options of the command"
        )
    options = options_type.from_lookup(fields.get)
    options.check()
    options = replace(options, backend=tuple(options.backends))
    title = [kind, *options.backend, options.level if kind == "judge" else "", options.mode]
    shards_of_run = [f"{number}/{shards}" if shards > 1 else "" for number in range(1, shards + 1)]
    for name, seed, shard in product(releases, seeds, shards_of_run):
        task_options = replace(options, seed=seed, shard=shard)
        words = *command.split(), *task_options.command_line(every=True)
        title_words = filter(None, [*title, name, f"seed {seed}", shard and f"part {shard}"])
        lock = None if name == INSTALLED else read(name)
        release, pins = (f"{lock.name}-{lock.version}", lock.pins) if lock else (INSTALLED, ())
        yield Task(kind, " ".join(title_words), words, release, pins)


def seeds_of(value: int | str) -> range:
    """Parse seeds: a number, or a range "0-19". Raises ValueError."""
    match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", str(value))
    seeds = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
    if not seeds:
        raise ValueError(f'seeds: expected a number or a range as "0-19", got {value!r}')
    return seeds


def run_task(words: Sequence[str]) -> Outcome:
    """Run the command of a task in a child process, on the machine that Ray chose. Returns its outcome.
    Raises ChildDied if a signal killed the child."""
    with tempfile.TemporaryDirectory(prefix="attention-") as folder:
        results = Path(folder, "records.jsonl")
        variables = compilations_in(Path(tempfile.gettempdir(), "attention-conformance-jax"))
        code, output = run_module([*words, f"--results={results}"], Path(folder), variables)
        records = results.read_text(encoding="utf-8") if results.is_file() else ""
    assert code is not None, "there is no time limit"
    if code < 0:
        raise ChildDied(f"the child {how_it_ended(code)}")
    last_lines = [line for line in output.splitlines() if line.strip()][-12:]
    return Outcome(code, "\n".join(last_lines), records)


@contextmanager
def ray_cluster(address: str) -> Iterator[Submit]:
    """A context that is connected to Ray at an address of --cluster. Its value is a function that starts
    a task, and returns the future of its outcome. Raises UsageError without Ray or without a cluster."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Without a token a local Ray writes one into the home folder.
    os.environ |= {"RAY_AUTH_TOKEN": secrets.token_hex(32)} if address == "local" else {}
    try:
        import ray
    except ImportError as error:
        advice = 'pip install "attention-conformance[cluster]"'
        raise UsageError(f"a sweep needs Ray: {advice}") from error
    # Not below the results folder: paths of sockets must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        options: dict[str, Any] = {"runtime_env": {"working_dir": folder}}
        if address == "local":
            options = {"include_dashboard": False, "_temp_dir": folder}
        else:
            name, ignored = "attention_conformance", shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, Path(folder, name), ignore=ignored)
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(f"--cluster={address}: no cluster of Ray: {error}") from error
        remote: Any = ray.remote(run_task)
        task_options = {"num_cpus": 1, "max_retries": 3, "retry_exceptions": [ChildDied]}

        def submit(task: Task) -> Future[Outcome]:
            pins = {"packages": [*task.pins], "pip_check": False}
            environment = {"pip": pins} if task.pins else {}
            named_task = remote.options(**task_options, name=task.title, runtime_env=environment)
            return named_task.remote(task.words).future()

        try:
            yield submit
        finally:
            ray.shutdown()  # this ends the tasks that still run


def sweep(tasks: Sequence[Task], folder: Path, submit: Submit, hours: float = 0.0) -> int:
    """Run the tasks that have no result file in `folder`, for at most `hours` (0: no limit). Returns the
    exit code. Raises UsageError if a task refuses its arguments, BlockingIOError if another process runs
    this sweep, and OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        codes = {task: _recorded_code(folder / task.file, task) for task in tasks}
        unrecorded = [task for task, code in codes.items() if code is None]
        say(f"{len(codes)} tasks, {len(codes) - len(unrecorded)} of them recorded")
        futures = {submit(task): task for task in unrecorded}
        try:
            for count, future in enumerate(as_completed(futures, 3600 * hours or None), 1):
                task = futures[future]
                codes[task], result = _write_result(folder / task.file, task, future)
                say(f"{count}/{len(unrecorded)} {task.title}: {result}")
        except TimeoutError:
            say(f"--hours={hours:g} is reached")
    if lost := [*codes.values()].count(None):
        say(f"{lost} tasks are not recorded; the same command continues the sweep")
        return UNFINISHED
    say(f"tables: attention-conformance report {folder}")
    return FAILED if FAILED in codes.values() else GREEN


def _recorded_code(path: Path, task: Task) -> int | None:
    """Returns the exit code of a task, from its result file; None without the file. A damaged file is
    renamed, and counts as none."""
    try:
        return _code(path, task) if path.is_file() else None
    except lines.RecordError as error:
        renamed = path.replace(path.with_suffix(".damaged"))
        say(f"{error}\nrenamed to {renamed.name}; {task.title} runs again")
        return None


def _write_result(path: Path, task: Task, future: Future[Outcome]) -> tuple[int | None, str]:
    """Write the result file of a finished task. Returns its exit code, None if it has no complete result
    file, and a text for people. Raises UsageError if the command refused its arguments."""
    try:
        code, output, records = future.result()
    except Exception as error:  # Ray's own, after its last attempt
        return None, f"not recorded: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    result = f"exit code {code}; its last lines:\n{output}"
    if not records and code == KINDS[task.kind].refused:
        raise UsageError(f"{task.title}: {result}")
    new_path = path.with_suffix(".new")
    new_path.write_text(with_release(records, task.release), encoding="utf-8")
    with suppress(lines.RecordError):
        # A red run without a failed cell: no record says why, so its output is shown.
        if code == _code(new_path, task):
            new_path.replace(path)
            return code, f"recorded, exit code {code}"
    new_path.unlink()
    return None, f"not recorded: {result}"


def _code(path: Path, task: Task) -> int:
    """Returns the exit code that follows from a result file: `FAILED` if a record fails, else `GREEN`.
    Raises RecordError."""
    records = KINDS[task.kind].schema.load(path).records
    return FAILED if any(record.status in BROKEN for record in records) else GREEN


def say(text: str) -> None:
    """Print without colours, and flush."""
    print(printable(uncoloured(text)), flush=True)


@dataclass(frozen=True)
class SweepOptions(CommandOptions):
    """The options of `sweep`."""

    plan: Path = option("the runs and searches", "PLAN.toml", kind=Path, nargs="1")
    results: Path = option("the folder of result files", "FOLDER", None, kind=Path, required=True)
    cluster: str = option(
        "local (this machine, default), auto (the cluster of this machine), or ray://HOST:PORT",
        "WHERE",
        "local",
    )
    hours: float = option("the limit; default: none", "H", 0.0, kind=number)


def run(options: SweepOptions) -> int:
    """Run the command `sweep`, and return its exit code."""
    try:
        tasks = load_plan(options.plan)
        with ray_cluster(options.cluster) as submit:
            return sweep(tasks, options.results, submit, options.hours)
    except (UsageError, BlockingIOError) as error:
        print(uncoloured(str(error)), file=sys.stderr)
        return USAGE
    except (OSError, KeyboardInterrupt) as error:
        message = f"{type(error).__name__} {error}: the same command continues the sweep"
        print(message, file=sys.stderr)
        return UNFINISHED
