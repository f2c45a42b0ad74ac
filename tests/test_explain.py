"""`python -m suite explain`: what a function computes as a table, and two functions side by side."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.judge.diagnosis import facts
from attention_conformance.suite.records.facts import load
from tests.runtimes import user_function

KERNELS = """
import torch
from torch.nn.functional import scaled_dot_product_attention

def odd(query, key, value, attn_mask=None, is_causal=False, enable_gqa=False):
    key, value = (x.repeat(1, query.shape[1] // x.shape[1], 1, 1) for x in (key, value))
    scores = query.bfloat16().to(query.dtype) @ key.mT / query.shape[-1]
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(1), -torch.inf)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(attn_mask, -torch.inf)
        else:
            scores = scores + 2 * attn_mask
    raised = scores.exp()
    return raised / raised.sum(-1, keepdim=True) @ value

def in_turn(query, key, value):
    weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
    out = torch.zeros_like(query)
    for j in range(key.shape[2]):
        out = out + weights[..., j, None] * value[..., j : j + 1, :]
    return out

def unlike(query, key, value, attn_mask=None):
    scores = (query[:, :, :, None] - key[:, :, None]).abs().sum(-1)
    return (scores if attn_mask is None else scores + attn_mask ** 3).softmax(-1) @ value

def sleeps(query, key, value):
    import time
    time.sleep(0.2)
    return value[..., :1, :] + query * 0
"""


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    path = tmp_path / "kernels.py"
    path.write_text(KERNELS)
    return path


def rows(text: str) -> dict[str, str]:
    """The cells of a printed table with one column, by the names of rows."""
    pairs = (re.match(r"[! ] (\S+(?: \S+)*?)  +(\S.*)", line) for line in text.splitlines())
    return {pair[1]: pair[2] for pair in pairs if pair is not None}


def test_a_wrong_function_is_read(kernels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = time.process_time()
    assert main(["explain", f"{kernels}:odd", "--backend=torch"]) == 0
    assert time.process_time() - start < 20
    said = rows(capsys.readouterr().out)
    assert said["causal flag"] == "query i sees keys up to i + 1"
    assert said["grouped heads"].startswith("Query head 1 reads value head 1, expected 0")
    assert said["boolean mask"].startswith("A boolean mask is read the other way round")
    assert said["argument scale"] == said["softcap"] == "not taken"
    assert said["inside float32"] == "rounds query bfloat16"
    assert said["large scores"].startswith("The maximum is not subtracted")
    assert said["side effects"].startswith("none")
    assert said.keys() == facts.FACTS.keys()


def test_a_failed_regression_is_no_fact(kernels: Path) -> None:
    read = facts.read_facts(user_function(f"{kernels}:unlike"), 60)
    assert read["scale"] == "not read: scores are no linear function of q.k"
    assert read["bias"] == "not read: scores are no linear function of q.k and the bias"
    assert read["softmax"] == "over the keys, rows sum to 1"


def test_two_functions_stand_side_by_side(
    kernels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["explain", f"{kernels}:in_turn", "--backend=torch", "--implementation=sdpa-math"])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["in_turn", "sdpa-math"]
    (scale,) = (line for line in lines if line.startswith("  scale"))
    assert scale.count("0.354 = 1/sqrt(D)") == 2
    (flag,) = (line for line in lines if "causal flag" in line)
    assert flag.startswith("! causal flag")
    assert flag.split("flag")[1].split() == [
        "not", "taken", "top-left:", "query", "i", "sees", "keys", "up", "to", "i"
    ]  # fmt: skip
    assert max(map(len, lines)) <= 112


def test_facts_are_written_for_reports(
    kernels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {name: tmp_path / f"{name}.jsonl" for name in ("odd", "in_turn")}
    for name, path in paths.items():
        assert main(["explain", f"{kernels}:{name}", "--backend=torch", f"--results={path}"]) == 0
    assert capsys.readouterr().out == ""
    run = load(paths["odd"])
    (record,) = run.records
    assert (record.backend, record.implementation, record.device) == ("torch", "odd", "cpu")
    assert record.facts["scale"] == "0.125 = 1/D"
    assert "torch" in run.header.versions
    assert main(["report", *map(str, paths.values()), "--format=markdown"]) == 0
    shown = capsys.readouterr().out
    assert "| fact | torch:odd | torch:in\\_turn |" in shown
    assert "| scale | 0.125 = 1/D | 0.354 = 1/sqrt(D) |" in shown
    both = [f"{kernels}:odd", f"{paths['odd'].with_name('other.py')}:odd"]
    (tmp_path / "other.py").write_text(KERNELS)
    assert main(["explain", *both, "--backend=torch", f"--results={tmp_path}/x.jsonl"]) == 2
    assert "write them to two files" in capsys.readouterr().err
    assert not (tmp_path / "x.jsonl").exists()


def test_a_slow_function_ends_in_time(kernels: Path) -> None:
    slow = user_function(f"{kernels}:sleeps")
    start = time.monotonic()
    found = facts.read_facts(slow, 1)
    assert time.monotonic() - start < 5
    assert "not measured in time" in found.values()
