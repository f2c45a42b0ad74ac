"""Sweeps on a cluster that others started: ray:// and auto, with `ray start` on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from backends.registry import UsageError
from suite.records import sweeps
from suite.sweep import cluster as clusters

pytest.importorskip("ray")

ROOT = Path(__file__).resolve().parents[1]

PLAN = """
[[judge]]
backends = ["numpy"]
level = "smoke"
dtypes = ["f16"]
"""


@dataclass(frozen=True)
class Cluster:
    """The ports of a running cluster."""

    client: int
    head: int


def free(count: int) -> list[int]:
    """Ports that nobody listens at."""
    with ExitStack() as open_ones:
        sockets = [open_ones.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster with one core, which ends with the tests."""
    client, head, agent, metrics = free(4)
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        words = [
            "--head", "--block", f"--port={head}", f"--ray-client-server-port={client}",
            f"--dashboard-agent-listen-port={agent}", f"--metrics-export-port={metrics}",
            "--node-ip-address=127.0.0.1", "--num-cpus=1", "--include-dashboard=false",
            "--disable-usage-stats", f"--temp-dir={folder}", f"--object-store-memory={2**27}",
        ]  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", *words], start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            for port in (head, client):
                wait_for(port, process)
            yield Cluster(client, head)
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            finally:
                # Its session has its processes alone.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until somebody listens."""
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, "the cluster ended"
            assert time.monotonic() < until
            time.sleep(0.1)


@pytest.mark.parametrize("way", ["ray", "auto"])
def test_a_sweep_on_a_cluster(cluster: Cluster, tmp_path: Path, way: str) -> None:
    """It is sent the suite, and records come back to the driver's folder."""
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    where = f"ray://127.0.0.1:{cluster.client}" if way == "ray" else "auto"
    environment = dict(os.environ)
    environment.pop("RAY_ADDRESS", None)
    if way == "auto":
        environment["RAY_ADDRESS"] = f"127.0.0.1:{cluster.head}"
    words = ["sweep", str(plan), f"--results={tmp_path / 's'}", f"--cluster={where}"]
    done = subprocess.run(
        [sys.executable, "-m", "suite", *words], cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    (run,) = sweeps.runs(tmp_path / "s")
    run.check()
    assert run.complete


@pytest.mark.parametrize("failures", [0, 2, 3])
def test_a_server_that_died_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    import ray

    addresses: list[str] = []

    def init(address: str, **options: object) -> None:
        addresses.append(address)
        if len(addresses) <= failures:
            raise ConnectionError("Starting Ray client server failed.")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(clusters, "check_answers", lambda cluster: None)
    if failures < clusters.ATTEMPTS:
        with clusters.RayEngine("ray://there"):
            assert addresses == ["ray://there"] * (failures + 1)
    else:
        with pytest.raises(UsageError, match="client server failed"):
            clusters.RayEngine("ray://there")
        assert len(addresses) == clusters.ATTEMPTS
