"""Sweeps on Ray: on this machine, on a cluster of two nodes, and with processes that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from attention_conformance.suite.records.sweeps import runs_below
from attention_conformance.suite.sweep import GREEN, Submit, Task, ray_cluster, sweep, tasks_of
from tests.test_sweep import recorded

ray = pytest.importorskip("ray")

ROOT = Path(__file__).resolve().parents[1]


def parent(pid: int) -> int:
    """The process above one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="module")
def submit() -> Iterator[Submit]:
    with ray_cluster("local") as submit:
        yield submit


def task(seed: int) -> Task:
    """A run of some seconds, most of which it starts."""
    table = {"backends": ["numpy"], "level": "smoke", "dtypes": ["f64"], "seeds": seed}
    return tasks_of({"judge": [table]})[0]


def descendants(pid: int) -> list[int]:
    """The processes below one."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        child = int(path.parent.name)
        with suppress(OSError):
            pids += [child, *descendants(child)] if parent(child) == pid else []
    return pids


def command(pid: int) -> str:
    """The command line of a process, "" for one that has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def eventually(look: Callable[[], list[int]], seconds: float = 90.0) -> list[int]:
    """What `look` sees as soon as that is anything."""
    until = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return seen


def children_of_tasks(of: int) -> list[int]:
    """The processes below one that judge."""
    return [pid for pid in descendants(of) if " pytest -q -n1" in command(pid)]


@pytest.mark.seldom
@pytest.mark.parametrize("victim", ["Ray's process", "the child"])
def test_a_task_whose_process_is_killed_runs_again(
    submit: Submit, tmp_path: Path, victim: str
) -> None:
    """The system ends the child of a process of Ray that was killed."""
    one = task(0)
    future = submit(one)
    (child, *_) = eventually(lambda: children_of_tasks(os.getpid()))
    os.kill(child if victim == "the child" else parent(child), signal.SIGKILL)
    eventually(lambda: [] if command(child) else [child], 20.0)
    assert sweep([one], tmp_path, lambda same: future) == GREEN
    assert recorded(tmp_path)


PLAN = """
[[judge]]
backends = ["numpy"]
level = "smoke"
dtypes = ["f16", "f32"]
seeds = "0-3"
"""


def begin(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """A sweep of `PLAN` in a process of its own."""
    (folder / "plan.toml").write_text(PLAN)
    arguments = ["sweep", str(folder / "plan.toml"), f"--results={folder / 's'}", *words]
    return subprocess.Popen(
        [sys.executable, "-m", "suite", *arguments], cwd=ROOT, env=os.environ | variables, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


NODES = """
import sys
from ray.cluster_utils import Cluster

head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 2**27}
nodes = Cluster(True, head_node_args=head | {"ray_client_server_port": int(sys.argv[1])})
nodes.add_node(num_cpus=1, object_store_memory=2**27)
nodes.wait_for_nodes()
print("at", nodes.address, flush=True)
sys.stdin.read()
nodes.shutdown()
"""
"""A program that is a cluster of two nodes until its input ends; the head judges nothing. In the
process of the tests Ray would leave files open, of which a cell that is judged later would be told."""


@pytest.fixture
def nodes() -> Iterator[tuple[str, str]]:
    """The addresses, for auto and ray://, of a cluster of two nodes."""
    port = 20_000 + os.getpid() % 10_000
    process = subprocess.Popen(
        [sys.executable, "-c", NODES, str(port)], text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    said = next(line for line in process.stdout if line.startswith("at "))
    yield said.split()[1], f"ray://127.0.0.1:{port}"
    process.communicate(timeout=60)


@pytest.mark.slow
def test_a_cluster_of_two_nodes_is_sent_the_suite_and_records_come_back(
    nodes: tuple[str, str], tmp_path: Path
) -> None:
    address, client = nodes
    for name, words in (("auto", ["--cluster=auto"]), ("client", [f"--cluster={client}"])):
        (tmp_path / name).mkdir()
        done = begin(tmp_path / name, *words, RAY_ADDRESS=address)
        said, _ = done.communicate(timeout=240)
        assert done.returncode == 0, said
    assert recorded(tmp_path / "auto") == recorded(tmp_path / "client")
    assert len(runs_below(tmp_path / "auto")) == 4


@pytest.mark.slow
def test_kill_9_of_the_driver_loses_nothing_and_leaves_no_process(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="s-", ignore_cleanup_errors=True) as short:
        process = begin(tmp_path, TMPDIR=short)
        eventually(lambda: [1 for _ in (tmp_path / "s").glob("*.jsonl")])
        eventually(lambda: children_of_tasks(process.pid))
        below = descendants(process.pid)
        process.kill()
        process.communicate()
        # Ray's agents look for their raylet once in a while only.
        agents = [pid for pid in below if "agent" in command(pid).lower()]
        eventually(lambda: [1] if not any(map(command, {*below} - {*agents})) else [], 60.0)
        for agent in agents:
            with suppress(ProcessLookupError):
                os.kill(agent, signal.SIGKILL)
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("*.jsonl")}
        again = begin(tmp_path, TMPDIR=short)
        said, _ = again.communicate(timeout=240)
    assert again.returncode == 0, said
    assert f"4 tasks, {len(before)} of them recorded" in said
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [run.load().complete for run in runs_below(tmp_path / "s")] == [True] * 4
