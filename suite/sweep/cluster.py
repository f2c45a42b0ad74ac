"""The engine: Ray, on this machine or on a cluster.

Nothing of Ray is imported before an engine is made. Tasks never run again by Ray's own doing: what
becomes of one that died is the driver's business.
"""

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
from suite.front.jax_caches import FOLDER
from suite.records.machine import PACKAGES, ROOT
from suite.sweep.driver import Died
from suite.sweep.plan import lock
from suite.sweep.tasks import SweepError, Task

MISSING = 'a sweep needs Ray: pip install "attention-conformance[cluster]"'

STORE_BYTES = 256 * 2**20
"""Ray's object store on this machine: results are small, and fetched at once."""

QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
"""What keeps Ray from telling its makers that it is used."""

ANSWER_SECONDS = 5.0
"""Seconds in which somebody has to listen where a cluster is said to be."""

ATTEMPTS = 3
"""How often a cluster is joined. A server that Ray forks for a client may die as it begins, while
another thread calls into gRPC; half a minute later the client is told."""

CLIENT_PORT = 10001
"""Where Ray listens for ray://, unless it is told otherwise."""

TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")
"""Where Ray looks for the token without which nobody may use a cluster."""


class RayEngine:
    """Tasks on Ray: `cluster` is "local" (this machine alone), "auto" (the cluster that this machine is
    part of) or "ray://HOST:PORT". `cores` are those of this machine that "local" takes, 0 for all;
    `compiled` the folder where JAX keeps what it compiles there.

    A context that ends what it has begun. Raises UsageError where there is no Ray, or no cluster.
    """

    def __init__(self, cluster: str, cores: int = 0, compiled: Path | None = None) -> None:
        os.environ.update(QUIET)
        if cluster == "local" and not any(name in os.environ for name in TOKENS):
            # Of this process alone; Ray would write one into the home folder.
            os.environ[TOKENS[0]] = secrets.token_hex(32)
        try:
            import ray
        except ImportError as error:
            raise UsageError(MISSING) from error
        self._ray, self._local = ray, cluster == "local"
        self._compiled = compiled
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        try:
            if self._local:
                self._begin(cores)
            else:
                self._join(cluster)
        except (ConnectionError, ValueError, RuntimeError) as error:
            self.end()
            raise UsageError(f"--cluster={cluster}: no cluster of Ray: {error}") from error

        def carry_out(task: Task[Any]) -> Any:
            from suite.sweep.loaded import begin_process

            begin_process()
            return task.run()

        self._remote = ray.remote(carry_out)

    def _begin(self, cores: int) -> None:
        """Start a cluster on this machine, whose files go with it."""
        # Sockets have short names: not below a folder of the person's.
        self._folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        self._ray.init(
            address="local", num_cpus=cores or os.cpu_count(), include_dashboard=False,
            log_to_driver=False, logging_level=logging.ERROR, object_store_memory=STORE_BYTES,
            _temp_dir=self._folder.name,
        )  # fmt: skip

    def _join(self, cluster: str) -> None:
        """Connect to a cluster, and send it the suite: machines have what the driver has."""
        check_answers(cluster)
        self._folder = tempfile.TemporaryDirectory(prefix="attention-")
        for name in PACKAGES:
            shutil.copytree(
                ROOT / name, Path(self._folder.name, name),
                ignore=shutil.ignore_patterns("__pycache__"),
            )  # fmt: skip
        for attempt in range(ATTEMPTS):
            try:
                self._ray.init(
                    address=cluster, log_to_driver=False, logging_level=logging.ERROR,
                    runtime_env={"working_dir": self._folder.name},
                )  # fmt: skip
                return
            except ConnectionError:
                self._ray.shutdown()
                if attempt + 1 == ATTEMPTS:
                    raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.end()

    def end(self) -> None:
        """Leave the cluster; end it where it was started here."""
        self._ray.shutdown()
        if self._folder is not None:
            self._folder.cleanup()

    def cores(self) -> float:
        return float(self._ray.cluster_resources().get("CPU", 0.0))

    def submit(self, task: Task[Any]) -> Any:
        options: dict[str, Any] = {
            "name": task.name, "num_cpus": 1, "max_retries": 0,
            "runtime_env": self.environment(task),
        }  # fmt: skip
        return self._remote.options(**options).remote(task)

    def environment(self, task: Task[Any]) -> dict[str, Any]:
        """Ray's `runtime_env` of a task: its variables, the suite, and the release."""
        variables = {**task.variables, **QUIET, "ATTENTION_GROUP": task.group}
        runtime_env: dict[str, Any] = {"env_vars": variables}
        if self._local:
            # Of a checkout; what is installed would hide what the release's environment has.
            paths = [str(ROOT)] if (ROOT / "pyproject.toml").is_file() else []
            paths += filter(None, [os.environ.get("PYTHONPATH")])
            variables["PYTHONPATH"] = os.pathsep.join(paths)
            if self._compiled is not None:
                variables.setdefault(FOLDER, str(self._compiled))
        if task.release:
            runtime_env["pip"] = {"packages": pins(task.release), "pip_check": False}
        return runtime_env

    def wait(self, handles: Sequence[Any], seconds: float) -> list[Any]:
        _, rest = self._ray.wait(list(handles), timeout=seconds)
        if len(rest) == len(handles):
            return []
        return self._ray.wait(list(handles), num_returns=len(handles), timeout=0)[0]

    def result(self, handle: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(handle)
        except errors.RayTaskError as error:
            if isinstance(error.cause, UsageError | SweepError):
                raise error.cause from error
            kind = type(error.cause).__name__
            raise SweepError(f"a task failed with {kind}: {error.cause}") from error
        except errors.RuntimeEnvSetupError as error:
            raise SweepError(f"an environment cannot be made: {error}") from error
        except errors.OutOfMemoryError as error:
            raise Died("Ray ended it, as its machine was short of memory", memory=True) from error
        except errors.RayError as error:
            raise Died(" ".join(str(error).split())[:300]) from error

    def cancel(self, handle: Any) -> None:
        self._ray.cancel(handle, force=True)


def check_answers(cluster: str) -> None:
    """Raise UsageError where nobody listens at the address of a cluster, of which Ray would ask for
    minutes. "auto" without an address is Ray's to find, at once."""
    address = os.environ.get("RAY_ADDRESS", "") if cluster == "auto" else cluster
    match = re.fullmatch(r"(?:ray://)?(\[.+\]|[^:/]+)(?::(\d{1,5}))?(?:/.*)?", address)
    if match is None or address in ("auto", "local"):
        return
    host, port = match[1].strip("[]"), int(match[2] or CLIENT_PORT)
    try:
        socket.create_connection((host, port), timeout=ANSWER_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        named = " (RAY_ADDRESS)" if cluster == "auto" else ""
        raise UsageError(
            f"--cluster={cluster}: expected a cluster of Ray at {host}:{port}{named}, got: {error}; "
            f"start one there (`ray start --head`, for ray:// port {CLIENT_PORT}), or name another"
        ) from error


def pins(release: str) -> list[str]:
    """What is installed in the environment of a release: the lines of its lock file. Raises
    UsageError."""
    lines = (line.partition("#")[0].strip() for line in lock(release).text.splitlines())
    return [line for line in lines if line]
