"""The command `sweep`: what it refuses, and says in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from suite.__main__ import main
from suite.sweep import cluster


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cluster=remote"], "unknown cluster 'remote'; valid: local, auto, ray://HOST:PORT"),
        (["--hours=-1"], "--hours must not be negative"),
        (["--money=3"], "core_hour"),
        (["--cluster=auto", "--cores=2"], "--cores are those of --cluster=local"),
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
