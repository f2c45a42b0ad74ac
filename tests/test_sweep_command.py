"""The command `sweep`: what it refuses, and says in one sentence."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.sweep import cluster


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cluster=remote"], "unknown cluster 'remote'; valid: local, auto, ray://HOST:PORT"),
        (["--hours=-1"], "--hours must not be negative"),
        (["--cluster=auto", "--cores=2"], "--cores is only for --cluster=local"),
    ],
)
def test_usage_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("[[judge]]\nbackends = ['numpy']\n")
    assert main(["sweep", str(path), f"--results={tmp_path / 's'}", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not (tmp_path / "s").exists()


def test_without_ray_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    path = tmp_path / "plan.toml"
    path.write_text("[[judge]]\nbackends = ['numpy']\n")
    assert main(["sweep", str(path), f"--results={tmp_path / 's'}"]) == 2
    assert capsys.readouterr().err.strip() == cluster.MISSING


@pytest.mark.parametrize(
    ("cluster", "address", "said"),
    [
        ("ray://127.0.0.1:{port}", "", "expected a cluster of Ray at 127.0.0.1:{port}, got: "),
        ("ray://[::1]:{port}", "", "expected a cluster of Ray at ::1:{port}, got: "),
        ("auto", "127.0.0.1:{port}", "at 127.0.0.1:{port} (RAY_ADDRESS), got: "),
        ("auto", "ray://127.0.0.1:{port}", "at 127.0.0.1:{port} (RAY_ADDRESS), got: "),
    ],
)
def test_where_no_cluster_is_it_is_said_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    cluster: str, address: str, said: str,
) -> None:  # fmt: skip
    pytest.importorskip("ray")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
    monkeypatch.setenv("RAY_ADDRESS", address.format(port=port))
    path = tmp_path / "plan.toml"
    path.write_text("[[judge]]\nbackends = ['numpy']\n")
    where = f"--cluster={cluster.format(port=port)}"
    began = time.monotonic()
    assert main(["sweep", str(path), f"--results={tmp_path / 's'}", where]) == 2
    assert time.monotonic() - began < 10
    told = capsys.readouterr().err
    assert said.format(port=port) in told
    assert "ray start --head" in told
