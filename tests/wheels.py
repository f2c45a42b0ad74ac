"""The wheel as people get it: built from what git tracks, in virtual environments of its own.

Frameworks come from the environment at hand, the suite from the wheel alone; nothing is downloaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]

WAYS = ("pytest", "python -m pytest")
"""How people start pytest; only the second one puts the folder where it starts on sys.path."""

PYTEST = """#!{python}
import sys

from pytest import console_main

sys.exit(console_main())
"""


def tracked(*places: str) -> list[str]:
    """The files below some places of the checkout that git tracks or would track, by their paths."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *places]
    out = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    there = [name for name in out.split("\0") if name and (ROOT / name).exists()]
    return there if not places else [name for name in there if (ROOT / name).is_file()]


def build(folder: Path) -> Path:
    """Build the wheel, with the setuptools that is installed, from a copy: `build` in the checkout would
    be packed, too."""
    for name in tracked():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        copyfile(ROOT / name, folder / "source" / name, follow_symlinks=False)
    words = ["wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    words += ["--wheel-dir", str(folder), str(folder / "source")]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=300)
    (path,) = folder.glob("*.whl")
    return path


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the wheel in it, and with all else that is installed here."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, wheel: Path) -> Environment:
        """Make the environment in a new folder."""
        venv.create(folder, symlinks=True)
        python = folder / "bin" / "python"
        words = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
        subprocess.run(
            [sys.executable, "-m", "pip", "--python", str(python), *words], check=True, timeout=300
        )
        (packages,) = folder.glob("lib/python*/site-packages")
        # What this file names is not asked for .pth files of its own: an editable install stays outside.
        (packages / "at-hand.pth").write_text(sysconfig.get_path("purelib") + "\n")
        script = folder / "bin" / "pytest"
        script.write_text(PYTEST.format(python=python))
        script.chmod(0o755)
        return cls(folder)

    def run(
        self, command: str, *words: str, where: Path, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run one of the environment's commands, such as "python -m pytest", in a folder."""
        program, *first = command.split()
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PYTEST")) and name != "KERAS_BACKEND"
        }
        return subprocess.run(
            [str(self.folder / "bin" / program), *first, *words],
            cwd=where, capture_output=True, text=True, timeout=timeout, env=environment,
        )  # fmt: skip

    def place(self, where: Path) -> Path:
        """Where the suite is imported from, as a program in a folder sees it."""
        code = "from attention_conformance import suite; print(suite.__file__)"
        return Path(self.run("python", "-c", code, where=where).stdout.strip())


def outcomes(report: Path) -> dict[str, Counter[str]]:
    """How often each test function passed, failed, was skipped or failed as expected, read from what
    `--junitxml` wrote."""
    counts: dict[str, Counter[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = [child.get("type") or child.tag for child in case if child.tag != "properties"]
        kinds = ["failed" if kind in ("failure", "error") else kind for kind in kinds]
        name = str(case.get("name")).partition("[")[0]
        counts.setdefault(name, Counter())[kinds[0] if kinds else "passed"] += 1
    return counts
