"""Ray, on this machine or on a cluster. Nothing of Ray is imported before a `Cluster` is made."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from backends.registry import UsageError
from suite.records.machine import PACKAGES, ROOT
from suite.sweep.child import ChildDied, Outcome, carry_out
from suite.sweep.plan import Task, lock

MISSING = 'a sweep needs Ray: pip install "attention-conformance[cluster]"'

RETRIES = 3
"""How often Ray runs a task again whose process or machine died. For want of memory it does so by its own
rules (RAY_task_oom_retries)."""

STORE_BYTES = 256 * 2**20
"""Ray's object store on this machine: result files are small, and fetched at once."""

QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
"""What keeps Ray from telling its makers that it is used."""

ANSWER_SECONDS = 5.0
"""Seconds in which somebody has to listen where a cluster is said to be."""

CLIENT_PORT = 10001
"""Where Ray listens for ray://, unless it is told otherwise."""

TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")
"""Where Ray looks for the token without which nobody may use a cluster."""


class Lost(Exception):
    """Ray gave a task up; the message says why."""


class Cluster:
    """Carries out tasks: `where` is "local" (this machine alone), "auto" (the cluster that this machine
    is part of) or "ray://HOST:PORT". `cores` are those of this machine that "local" takes, 0 for all.
    `compiled` is the folder where JAX keeps what it compiles on this machine.

    A context that ends what it has begun. Raises UsageError if there is no Ray, or no cluster.
    """

    def __init__(self, where: str, cores: int = 0, compiled: Path | None = None) -> None:
        os.environ.update(QUIET)
        if where == "local" and not any(name in os.environ for name in TOKENS):
            # Of this process alone; Ray would write one into the home folder.
            os.environ[TOKENS[0]] = secrets.token_hex(32)
        try:
            import ray
        except ImportError as error:
            raise UsageError(MISSING) from error
        self._ray, self._local, self._compiled = ray, where == "local", compiled
        _check_answers(where)
        # Sockets have short names: not below a folder of the person's.
        self._folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        options = self._begun(cores) if self._local else self._sent(where)
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            self.end()
            raise UsageError(f"--cluster={where}: no cluster of Ray: {error}") from error
        self._carry_out = ray.remote(carry_out)

    def _begun(self, cores: int) -> dict[str, Any]:
        """How Ray is started on this machine: its files go with it."""
        return {
            "address": "local", "num_cpus": cores or os.cpu_count(), "include_dashboard": False,
            "object_store_memory": STORE_BYTES, "_temp_dir": self._folder.name,
        }  # fmt: skip

    def _sent(self, where: str) -> dict[str, Any]:
        """How a cluster is joined, and sent the suite as this machine has it."""
        for name in PACKAGES:
            shutil.copytree(
                ROOT / name, Path(self._folder.name, name),
                ignore=shutil.ignore_patterns("__pycache__"),
            )  # fmt: skip
        return {"address": where, "runtime_env": {"working_dir": self._folder.name}}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.end()

    def end(self) -> None:
        """Leave the cluster; end it if it was started here."""
        self._ray.shutdown()
        self._folder.cleanup()

    def submit(self, task: Task) -> Any:
        """Have a task carried out; returns its handle."""
        remote: Any = self._carry_out.options(
            name=task.title, num_cpus=1, max_retries=RETRIES, retry_exceptions=[ChildDied],
            runtime_env=self.environment(task),
        )  # fmt: skip
        return remote.remote(task, str(self._compiled) if self._local and self._compiled else "")

    def environment(self, task: Task) -> dict[str, Any]:
        """Ray's `runtime_env` of a task: the suite, and an environment with the pins of its release."""
        runtime_env: dict[str, Any] = {"env_vars": dict(QUIET)}
        if self._local:
            # Of a checkout; what is installed would hide what the release's environment has.
            paths = [str(ROOT)] if (ROOT / "pyproject.toml").is_file() else []
            paths += filter(None, [os.environ.get("PYTHONPATH")])
            runtime_env["env_vars"]["PYTHONPATH"] = os.pathsep.join(paths)
        if task.release:
            runtime_env["pip"] = {"packages": pins(task.release), "pip_check": False}
        return runtime_env

    def ended(self, handles: Sequence[Any], seconds: float) -> list[Any]:
        """The handles of tasks that have ended: one, or none after so many seconds."""
        return self._ray.wait(list(handles), timeout=seconds)[0]

    def outcome(self, handle: Any) -> Outcome:
        """What a task gave. Raises Lost."""
        try:
            return self._ray.get(handle)
        except self._ray.exceptions.RayError as error:
            raise Lost(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}") from error

    def cancel(self, handle: Any) -> None:
        """Give up a task."""
        self._ray.cancel(handle, force=True)


def _check_answers(where: str) -> None:
    """Raise UsageError if nobody listens at the address of a cluster, of which Ray would ask for minutes.
    "auto" without an address is Ray's to find, at once."""
    address = os.environ.get("RAY_ADDRESS", "") if where == "auto" else where
    match = re.fullmatch(r"(?:ray://)?(\[.+\]|[^:/]+)(?::(\d{1,5}))?(?:/.*)?", address)
    if match is None or address in ("auto", "local"):
        return
    host, port = match[1].strip("[]"), int(match[2] or CLIENT_PORT)
    try:
        socket.create_connection((host, port), timeout=ANSWER_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        named = " (RAY_ADDRESS)" if where == "auto" else ""
        raise UsageError(
            f"--cluster={where}: expected a cluster of Ray at {host}:{port}{named}, got: {error}; "
            f"start one there (`ray start --head`, for ray:// port {CLIENT_PORT}), or name another"
        ) from error


def pins(release: str) -> list[str]:
    """What is installed in the environment of a release: the lines of its lock file. Raises
    UsageError."""
    lines = (line.partition("#")[0].strip() for line in lock(release).text.splitlines())
    return [line for line in lines if line]
