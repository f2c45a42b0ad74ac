"""Commands that README.md, CONTRIBUTING.md and the pages of docs show, and the files that they name.

A line of a block is a command where its first word is one of `PROGRAMS`; in the text, code of a line is.
`ELSEWHERE` and `SMALLER` say which commands no test runs as they stand, and why.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

markdown_it = pytest.importorskip("markdown_it")

ROOT = Path(__file__).resolve().parents[1]

FOLDERS = ("attention_conformance", "suite", "backends", "references")
"""The folders of code that is installed."""
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "operators").glob("*.md")),
    *sorted((ROOT / "docs" / "data").glob("*.md")),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]

PROGRAMS = {
    "./runtime", "./wrong", "asv", "attention-conformance", "cc", "eval", "kubectl", "lint-imports",
    "mkdir", "mypy", "pip", "pre-commit", "pytest", "python", "rm", "ruff", "sbatch", "sha256sum",
    "sphinx-build",
}  # fmt: skip

PLACEHOLDERS = {
    "NAME": "torch", "ID": "sdpa/causal/mha/f32/b2h3q5k5d8", "CASE": "sdpa/causal/mha/f32/b2h3q5k5d8",
    "RESULTS...": "torch.jsonl", "RESULTS": "torch.jsonl", "OLD": "yesterday.jsonl",
    "NEW": "today.jsonl", "FOLDER": "folder", "ANSWERS": "answers",
    "--backend=...": "--backend=torch", "--function=...": "--function=my_kernels.py:flash",
    "--framework=NAME": "--framework=torch", "--case=ID": "--case=sdpa/causal/mha/f32/b2h3q5k5d8",
    "--output=FOLDER": "--output=folder", "--vectors=FOLDER": "--vectors=folder",
    "...": "--backend=torch", "--seed=S": "--seed=1", "--shard=I/N": "--shard=1/2",
}  # fmt: skip
"""Words that stand for what a reader writes there, with what a test writes."""

ELSEWHERE = {
    r"pip install ": "needs a package registry; .ci/run and the workflows install",
    r"(ruff|lint-imports|mypy|pytest tests)\b": ".ci/run runs it",
    r"python -m tests\.frozen ": "tests/test_frozen.py runs it",
    r"python -m tests\.studies\.together": "tests/test_studies.py makes its page",
    r"sphinx-build ": "tests/test_site.py builds the site",
    r"docs/vectors\.md:": "tests/test_vectors_judge.py runs the page as it stands",
    r".* --device=cuda": "needs a GPU",
    r"pytest -n 1$": "is said of other people's tests",
    r"kubectl |(OF=40 )?sbatch ": "needs Kubernetes or Slurm; tests/test_sweep_tables.py holds its files",
    r".* --cluster=(auto|ray://)": "needs a cluster",
    r"asv (run HEAD|run --config|continuous)": "builds environments from a package registry",
    r"asv (compare|publish --config)|.* build/releases/results": "reads what such a run leaves",
    r"asv preview": "serves pages until somebody interrupts it",
}  # fmt: skip
"""Commands that no run of these tests carries out, by how they or their places begin, and why."""

SMALLER = {
    r"^(.*pytest suite(?!.*--level=).*)": r"\1 --level=smoke",
    # A report takes no single part of a run.
    r"^(pytest suite --backend=(?:tf|jax) --results=.*)": r"\1 -k values",
    r"^(.*pytest suite(?!.* -k ).*(--backend=(all|tf|jax)|--mode=).*)": r"\1 --shard=1/8",
    r"^(pytest --pyargs attention_conformance.suite.*)": r"\1 --attention-shard=1/8",
    r"^(python -m suite search (?!.*--case=).*)": r"\1 --examples=5",
    r"--workload=all": "--workload=whisper-cross-decode --samples=1",
    r"(--against=\S+)": r"\1 --seconds=0.2",
    r"^(asv run .*--quick)": r"\1 --bench Backward",
}
"""What becomes of commands that take long, in the order in which it does."""


@dataclass(frozen=True)
class Shown:
    """A command of a page: `place` is the page with the line, `block` the number of the block that it
    stands in, -1 in the text."""

    place: str
    block: int
    text: str

    @property
    def words(self) -> list[str]:
        """Its words as a shell reads them; what a reader writes, written, and results of commands."""
        plain = re.sub(r"\$\([^)]*\)", "HEAD", self.text.partition(" > ")[0])
        words = [PLACEHOLDERS.get(word, word) for word in shlex.split(plain)]
        return words[next(i for i, word in enumerate(words) if word in PROGRAMS) :]

    @property
    def is_a_pattern(self) -> bool:
        """Whether some word stands for what a reader writes there."""
        return not PLACEHOLDERS.keys().isdisjoint(self.text.split())

    @property
    def is_a_name(self) -> bool:
        """Whether it only names a program, or one of its commands, in the text."""
        words = self.words[3 if self.words[:2] == ["python", "-m"] else 1 :]
        return self.block < 0 and all(word.isalpha() and word.islower() for word in words)

    @property
    def elsewhere(self) -> str:
        """Why no test carries it out; "" where one does."""
        begins = (self.text, self.place)
        reasons = (w for start, w in ELSEWHERE.items() if any(re.match(start, b) for b in begins))
        return next(reasons, "")

    @property
    def smaller(self) -> str:
        """The command as a test carries it out."""
        text = self.text
        for pattern, becomes in SMALLER.items():
            text = re.sub(pattern, becomes, text)
        return text


def program_of(line: str) -> str:
    """The program of a command, behind a prompt and variables; "" where a line is no command."""
    match = re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*(\S+)", line)
    return match[1] if match and match[1] in PROGRAMS else ""


def commands() -> Iterator[Shown]:
    """All commands, page by page."""
    number = 0
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        tokens = markdown_it.MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8"))
        for token in tokens:
            first = token.map[0] + 1 if token.map else 0
            if token.type in ("fence", "code_block"):
                number += 1
                first += token.type == "fence"
                lines = token.content.splitlines() if token.info in ("", "console") else []
                yield from _of_lines(name, first, number, lines)
                if token.type == "fence" and not token.info and any(map(program_of, lines)):
                    strange = [line for line in lines if not program_of(line)]
                    assert not strange, f"{name}:{first}: no known program: {strange}"
            for child in token.children or ():
                if child.type == "code_inline" and program_of(child.content):
                    yield from _of_lines(name, first, -1, [child.content])


def _of_lines(name: str, first: int, block: int, lines: list[str]) -> Iterator[Shown]:
    for line, text in enumerate(lines, first):
        if program_of(text):
            plain = re.sub(r"\s+#\s.*$", "", text.removeprefix("$ "))
            for part in re.split(r" (?:&&|\|\|) ", plain):
                if program_of(part):
                    yield Shown(f"{name}:{line}", block, part)


def files() -> dict[str, str]:
    """The files that blocks of Python show, by the name in their first line; an adapter is a package's,
    too."""
    found = {
        match[2]: match[1]
        for page in PAGES
        for match in re.finditer(
            r"^```python\n(# ([\w/]+\.py)\n.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S
        )
    }
    return found | {"my_package/__init__.py": "", "my_package/adapter.py": found["my_adapter.py"]}
