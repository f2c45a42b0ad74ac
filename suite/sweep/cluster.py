"""Tasks on Ray, on this machine or on a cluster. Ray is imported when a `Cluster` is created."""

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

from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.records.machine import ROOT
from attention_conformance.suite.sweep.child import ChildDied, Outcome, carry_out
from attention_conformance.suite.sweep.plan import Task, lock

MISSING = 'a sweep needs Ray: pip install "attention-conformance[cluster]"'

RETRIES = 3
"""How often Ray runs a task again if its process or machine died. After an out-of-memory Ray follows
RAY_task_oom_retries."""

STORE_BYTES = 256 * 2**20
"""The size of Ray's object store on this machine. Result files are small."""

QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
"""Environment variables that switch off Ray's usage statistics."""

ANSWER_SECONDS = 5.0
"""Seconds within which the address of a cluster must accept a connection."""

CLIENT_PORT = 10001
"""Ray's default port for ray://."""

TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")
"""Environment variables for Ray's token authentication."""


class Lost(Exception):
    """Ray gave up a task; the message says why."""


class Cluster:
    """Runs tasks on Ray; a context manager.

    - `where`: "local" (this machine), "auto" (the cluster of this machine) or "ray://HOST:PORT"
    - `cores`: the number of cores for "local", 0 for all
    - `compiled`: the folder of JAX's compilation cache, for "local"

    Raises UsageError if Ray is not installed or the cluster cannot be reached.
    """

    def __init__(self, where: str, cores: int = 0, compiled: Path | None = None) -> None:
        os.environ.update(QUIET)
        if where == "local" and not any(name in os.environ for name in TOKENS):
            # A token for this process; otherwise Ray writes one into the home folder.
            os.environ[TOKENS[0]] = secrets.token_hex(32)
        try:
            import ray
        except ImportError as error:
            raise UsageError(MISSING) from error
        self._ray, self._local, self._compiled = ray, where == "local", compiled
        _check_answers(where)
        # Not below the results folder: paths of sockets must be short.
        self._folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        options = self._begun(cores) if self._local else self._sent(where)
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            self.end()
            raise UsageError(f"--cluster={where}: no cluster of Ray: {error}") from error
        self._carry_out = ray.remote(carry_out)

    def _begun(self, cores: int) -> dict[str, Any]:
        """Options that start Ray on this machine, with its files in a temporary folder."""
        return {
            "address": "local", "num_cpus": cores or os.cpu_count(), "include_dashboard": False,
            "object_store_memory": STORE_BYTES, "_temp_dir": self._folder.name,
        }  # fmt: skip

    def _sent(self, where: str) -> dict[str, Any]:
        """Options that connect to a cluster and send it this checkout."""
        shutil.copytree(
            ROOT / "attention_conformance", Path(self._folder.name, "attention_conformance"),
            ignore=shutil.ignore_patterns("__pycache__"),
        )  # fmt: skip
        return {"address": where, "runtime_env": {"working_dir": self._folder.name}}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.end()

    def end(self) -> None:
        """Leave the cluster; stop it if it was started here."""
        self._ray.shutdown()
        self._folder.cleanup()

    def submit(self, task: Task) -> Any:
        """Start a task; returns its handle."""
        remote: Any = self._carry_out.options(
            name=task.title, num_cpus=1, max_retries=RETRIES, retry_exceptions=[ChildDied],
            runtime_env=self.environment(task),
        )  # fmt: skip
        return remote.remote(task, str(self._compiled) if self._local and self._compiled else "")

    def environment(self, task: Task) -> dict[str, Any]:
        """Ray's `runtime_env` of a task: the path of the suite and the pins of the release."""
        runtime_env: dict[str, Any] = {"env_vars": dict(QUIET)}
        if self._local:
            # Only a checkout's root: site-packages would hide the packages of the release.
            paths = [str(ROOT)] if (ROOT / "pyproject.toml").is_file() else []
            paths += filter(None, [os.environ.get("PYTHONPATH")])
            runtime_env["env_vars"]["PYTHONPATH"] = os.pathsep.join(paths)
        if task.release:
            runtime_env["pip"] = {"packages": pins(task.release), "pip_check": False}
        return runtime_env

    def ended(self, handles: Sequence[Any], seconds: float) -> list[Any]:
        """Wait until a task ends; returns its handle in a list, an empty list after `seconds`."""
        return self._ray.wait(list(handles), timeout=seconds)[0]

    def outcome(self, handle: Any) -> Outcome:
        """The outcome of a task that ended. Raises Lost."""
        try:
            return self._ray.get(handle)
        except self._ray.exceptions.RayError as error:
            raise Lost(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}") from error

    def cancel(self, handle: Any) -> None:
        """Cancel a task."""
        self._ray.cancel(handle, force=True)


def _check_answers(where: str) -> None:
    """Raise UsageError if the address of a cluster accepts no connection.

    Ray itself would retry for minutes. "auto" without an address is not tested here.
    """
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
    """The requirements in the lock file of a release. Raises UsageError."""
    lines = (line.partition("#")[0].strip() for line in lock(release).text.splitlines())
    return [line for line in lines if line]
