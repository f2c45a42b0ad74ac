"""The commands that pages show, carried out: each block from top to bottom, in a checkout of its own.

The checkout holds what the pages name as there already: a reader's own files as the pages show them,
results of earlier runs, a plan. Some commands are carried out on less than they ask for
(`tests.shown.SMALLER`), some elsewhere or nowhere (`ELSEWHERE`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import pytest

from attention_conformance.backends import registry

shown = pytest.importorskip("tests.shown")
for module in ("torch", "tensorflow", "jax", "asv", "ray", "matplotlib"):
    pytest.importorskip(module)

pytestmark = pytest.mark.slow
ROOT = shown.ROOT

PLAN = """
[[judge]]
backends = ["numpy"]
level = "smoke"
dtypes = ["f32"]
seeds = "0-1"
"""

OUTPUTS = r"--(?:results|output|script|plots|attention-results)=(\S+)|releases (\S+)"
"""What a command writes, which must not be there before."""

FAILS = {
    r"pytest .*my_kernels\.py.*--elect .*--expect": {1},
    r"pytest (?=.*my_kernels\.py).*--mode=compiled": {0, 1},
    r"python -m suite search .*my_kernels": {0, 1},
    r"pytest .*my_kernels?\.py:(?!.*--expect=)": {1},
    r"python -m suite diff torch\.jsonl flash\.jsonl": {1},
    r"python -m suite bench .*--against": {0, 1, 4},
}
"""Exit codes besides 0 that are right, by the command: a wrong kernel is red, a short gate says anything
but that an answer is wrong or that nothing was measured."""

TODO = re.compile(r'^(cause|issue) = "TODO.*"$', re.MULTILINE)

Run = Callable[[Path, str], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Carry a command out in a checkout as its owner would: own home folder, this Python, its code."""
    home = tmp_path_factory.mktemp("home")

    def run(checkout: Path, text: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        places = {"PYTHONPATH": str(checkout), "ASV_PYTHONPATH": str(checkout), "HOME": str(home)}
        folder = checkout.parent / "elsewhere" if "--pyargs" in text else checkout
        folder.mkdir(exist_ok=True)
        return subprocess.run(
            ["bash", "-c", text], cwd=folder, capture_output=True, text=True, timeout=900,
            env={**os.environ, **places, "PATH": path, "RAY_USAGE_STATS_ENABLED": "0"},
        )  # fmt: skip

    return run


@pytest.fixture(scope="module")
def checkout(
    tmp_path_factory: pytest.TempPathFactory, run: Run, vectors_f16: Path, right_answers: Path
) -> Path:
    """The project as it stands here, with what its pages take for granted."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    place = tmp_path_factory.mktemp("shown") / "checkout"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(place)], check=True)

    def made(text: str, *right: int) -> None:
        done = run(place, text)
        assert done.returncode in (0, *right), f"{text}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"

    made("git checkout -q -B main")  # the branch that asv.conf.json names
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in names.splitlines():
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    for name, text in {**shown.files(), "plan.toml": PLAN, "my_failures.toml": ""}.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")
    shutil.copytree(vectors_f16, place / "vectors")
    shutil.copytree(right_answers, place / "answers")
    small = "-q --level=smoke --dtype=f32"
    made(f"pytest suite {small} --backend=torch --implementation=sdpa --results=torch.jsonl")
    made(f"pytest suite {small} --backend=tf --implementation=keras-ops --results=tf.jsonl")
    made(
        "pytest suite -q --level=smoke --backend=torch --function=my_kernels.py:flash "
        "--results=flash.jsonl",
        1,
    )
    made("pytest suite -q --level=smoke --backend=my_adapter.py:backend --results=mine.jsonl")
    made(
        f"pytest suite {small} --backend=torch --mode=compiled --implementation=sdpa@aot_eager "
        "--results=compiled.jsonl"
    )
    for part in (1, 2):
        results = f"results/torch-standard-0-{part}.jsonl"
        made(f"pytest suite {small} --backend=numpy --shard={part}/2 --results={results}")
    for name in ("yesterday", "today", "conformance"):
        shutil.copy(place / "torch.jsonl", place / f"{name}.jsonl")
    made(
        "python -m suite bench --backend=torch --implementation=sdpa --samples=2 --results=speed.jsonl "
        "--workload=sdpa/none/mha/f32/b1h2q8k8d8"
    )
    made("python -m suite sweep plan.toml --results=sweep")
    for name in ("monday", "tuesday"):
        shutil.copytree(place / "sweep", place / name)
    made("python -m suite expect --write flash.jsonl --output=flash.toml")
    filled_in(place / "flash.toml")
    made("asv machine --yes && asv run -E existing:same --quick --bench Versions "
         "--set-commit-hash $(git rev-parse HEAD)")  # fmt: skip
    who = "-c user.name=nobody -c user.email=nobody@localhost"
    made(f"git add -f . && git {who} commit -q -m inputs")
    return place


def filled_in(draft: Path) -> None:
    """Say causes and issues in a draft of a manifest, as a reader has to."""
    draft.write_text(TODO.sub(r'\1 = "none found"', draft.read_text(encoding="utf-8")))


def blocks() -> dict[str, list[shown.Shown]]:
    """The commands of every block, by its place; those in the text that no block has, alone."""
    every = [each for each in shown.commands() if not (each.is_a_name or each.is_a_pattern)]
    in_blocks = {each.text for each in every if each.block >= 0}
    found = {
        group[0].place: group
        for block, group in ((b, [*g]) for b, g in groupby(every, lambda each: each.block))
        if block >= 0
    }
    alone = {each.text: each for each in every if each.text not in in_blocks}
    return found | {f"{each.place} {each.text}": [each] for each in alone.values()}


def excuse(command: shown.Shown) -> str:
    """Why a command is not carried out here; "" where it is."""
    missing = {
        name for name in re.findall(r"--backend=([\w-]+)(?!\S*:)", command.text)
        if name in registry.registered() and name not in registry.installed()
    }  # fmt: skip
    missing |= (
        {"onnxscript"} if "-k onnx" in command.text and not find_spec("onnxscript") else set()
    )
    return command.elsewhere or (f"{', '.join(missing)} is not installed" if missing else "")


BLOCKS = blocks()


@pytest.mark.parametrize("place", BLOCKS)
def test_a_block_of_commands_can_be_carried_out(
    place: str, checkout: Path, run: Run, tmp_path: Path
) -> None:
    mine = tmp_path / "checkout"
    asked = [command for command in BLOCKS[place] if not excuse(command)]
    if not asked:
        pytest.skip("; ".join(dict.fromkeys(map(excuse, BLOCKS[place]))))
    subprocess.run(["git", "clone", "--quiet", str(checkout), str(mine)], check=True)
    for command in asked:
        text = command.smaller
        for name in re.findall(OUTPUTS, text):
            remove(mine / "".join(name))
        done = run(mine, text)
        right = next((c for start, c in FAILS.items() if re.match(start, text)), {0})
        said = f"{command.place}: {text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert done.returncode in right, f"exit code {done.returncode}, expected {right}; {said}"
        assert "Traceback" not in done.stderr, said
        for draft in re.findall(r"expect .*--output=(\S+)", text):
            filled_in(mine / draft)


def remove(place: Path) -> None:
    """Remove what an earlier run left, where it did."""
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
