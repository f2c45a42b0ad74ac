"""What other repositories use: the action and the hook of pre-commit, run as their files say on a
right and on a wrong function."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
EXAMPLES = {
    text.partition("\n")[0].split()[1].rstrip(","): yaml.safe_load(text)
    for text in re.findall(
        r"```yaml\n(# \..*?)```", (ROOT / "docs/python.md").read_text("utf-8"), re.DOTALL
    )
}
"""The examples of docs/python.md by the file in which they belong."""

KERNELS = """
def right(query, key, value, attn_mask=None, is_causal=False, scale=None):
    from torch.nn.functional import scaled_dot_product_attention
    return scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal, scale=scale)


def launches(query, key, value, attn_mask=None, is_causal=False, scale=None):
    return right(query, key, value, attn_mask, is_causal, scale)


def wrong(query, key, value, attn_mask=None, is_causal=False, scale=None):
    return right(query, key, value, attn_mask, is_causal, 1.0 if scale is None else scale)
"""

FEW = "--attention-dtype=f32 -k values"
"""Arguments that leave few cells."""


def shell(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A script run as GitHub runs `shell: bash`, with this checkout as the installed project."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def acted(folder: Path, **inputs: str) -> tuple[int, str]:
    """The exit code of the judging step, and the job's summary, for these inputs of the action."""
    values = {name: about.get("default", "") for name, about in ACTION["inputs"].items()} | inputs
    summary = folder / "summary.md"
    codes = []
    for step in ACTION["runs"]["steps"][1:4]:
        variables = {}
        for name, text in step["env"].items():
            text = text.replace("${{ runner.temp }}", str(folder))
            variables[name] = re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda m: values[m[1]], text)
        done = shell(step["run"], folder, GITHUB_STEP_SUMMARY=str(summary), **variables)
        codes.append(done.returncode)
    assert codes[1:] == [0, 0]
    return codes[0], summary.read_text("utf-8")


@pytest.mark.seldom
@pytest.mark.parametrize(("name", "code", "word"), [("right", 0, "RIGHT"), ("wrong", 1, "WRONG")])
def test_the_action_judges_a_function(name: str, code: int, word: str, tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(KERNELS, encoding="utf-8")
    came, summary = acted(
        tmp_path, backend="torch", function=f"kernels.py:{name}", arguments=FEW, name="mine",
        claims="head_sizes=8 value_sizes=8",
    )  # fmt: skip
    assert came == code
    assert summary.startswith(f"```text\n{word}: ")
    assert summary.rstrip().endswith("```")
    folder = tmp_path / "attention"
    verdict = json.loads((folder / "mine.json").read_text("utf-8"))
    assert (verdict["exit_code"], verdict["functions"]) == (code, [name])
    assert not (folder / "mine.svg").exists(), "a run of few cells has no badge"
    records = (folder / "mine.jsonl").read_text("utf-8")
    assert '"claim": ["head_sizes=8", "value_sizes=8"]' in records.partition("\n")[0]


def test_the_summary_says_why_a_run_never_began(tmp_path: Path) -> None:
    code, summary = acted(tmp_path, backend="torch", function="none.py:none")
    assert code != 0
    assert "none.py" in summary


def test_no_message_leaves_the_fence_of_the_summary(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("WRONG: 1\n```\n# A heading\n", encoding="utf-8")
    summary = tmp_path / "summary.md"
    step = ACTION["runs"]["steps"][2]
    shell(step["run"], tmp_path, FOLDER=".", NAME="a", GITHUB_STEP_SUMMARY=str(summary))
    assert summary.read_text("utf-8") == "```text\nWRONG: 1\n~~~\n# A heading\n```\n"


def test_the_action_installs_its_own_ref_and_uploads_what_it_wrote() -> None:
    first, *_, last = ACTION["runs"]["steps"]
    path = shlex.split(first["run"])[-1].replace("$GITHUB_ACTION_PATH", str(ROOT))
    assert Path(path).resolve() == ROOT
    assert last["with"]["path"] == ACTION["runs"]["steps"][1]["env"]["FOLDER"]
    assert "always()" in last["if"]


def test_the_examples_use_what_there_is() -> None:
    *_, step = EXAMPLES[".github/workflows/attention.yml"]
    required = {name for name, about in ACTION["inputs"].items() if about.get("required")}
    owner, _, repository = step["uses"].partition("@")[0].partition("/")
    assert owner
    assert repository == "attention-conformance", "the action lies at the root of the repository"
    assert required <= step["with"].keys() <= ACTION["inputs"].keys()
    (repository,) = EXAMPLES[".pre-commit-config.yaml"]
    assert [hook["id"] for hook in repository["hooks"]] == [HOOK["id"]]


@pytest.mark.seldom
@pytest.mark.parametrize(("name", "code"), [("right", 0), ("wrong", 1)])
def test_the_hook_judges_a_function(name: str, code: int, tmp_path: Path) -> None:
    (hook,) = EXAMPLES[".pre-commit-config.yaml"][0]["hooks"]
    assert re.match(hook["files"], "my_kernels.py")
    assert HOOK["pass_filenames"] is False
    (tmp_path / "my_kernels.py").write_text(KERNELS, encoding="utf-8")
    arguments: Any = [text.replace("flash", name) for text in hook["args"]]
    done = shell(shlex.join([*shlex.split(HOOK["entry"]), *arguments, *FEW.split()]), tmp_path)
    assert done.returncode == code, done.stdout
