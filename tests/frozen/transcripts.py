"""What commands of the README and of docs print: the command, its exit code and its first lines.

The lines are the first of the output; of a run, those from its verdict on. `commands.toml` lists the
commands. OWN is a folder with the files that pages show (`tests.shown`) and with records made by hand.
Folders, times and versions are left out, and decimals have two digits.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path

from attention_conformance.suite.deviations import all_faults
from attention_conformance.suite.deviations.backend import KernelBackend
from tests.frozen.part import FOLDER, SETTINGS, Folder, Texts, Wanted, one_in
from tests.rows import cell, elect, run

ROOT = FOLDER.parents[1]

FIRST = 12
"""The number of lines."""

few = KernelBackend(
    "few", tuple(one.kernel for one in all_faults() if one.killed_by == "key_permutation")
)
"""The faults of one check."""

COMMANDS = tomllib.loads((FOLDER / "commands.toml").read_text(encoding="utf-8"))
"""The commands by the name of their file."""


def transcripts(wanted: Wanted) -> Texts:
    """What the wanted commands print."""
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder) / "own"
        own.mkdir()
        fill(own)
        return {name: transcript(text, own) for name, text in COMMANDS.items() if wanted(name)}


def fill(own: Path) -> None:
    """Write the files of pages, and records of few cells."""
    from tests import shown

    for name, text in shown.files().items():
        (own / name).parent.mkdir(exist_ok=True)
        (own / name).write_text(text, encoding="utf-8")
    (own / "dies.py").write_text("import os\n\nos.abort()\n", encoding="utf-8")
    right, other = cell(), cell("sdpa/causal/mha/f32/b2h3q5k5d8")
    wrong = replace(
        other, status="fail", kind="value", message="1 of 240 elements", error_ratio=3.5
    )
    answers = elect("fully-masked-row", {"f32": "zeros", "f16": "nan"})
    later = {"started": "2026-11-21T10:15:00+00:00"}
    run(right, other, *answers).save(own / "yesterday.jsonl")
    run(right, wrong, *answers, **later).save(own / "today.jsonl")
    run(right, wrong, *answers).save(own / "torch.jsonl")
    run(replace(right, backend="tf", implementation="keras-ops")).save(own / "tf.jsonl")
    flash = (replace(one, implementation="flash") for one in (right, other))
    run(*flash).save(own / "flash.jsonl")


def transcript(command: str, own: Path) -> str:
    """A command with its exit code and its first lines.

    pytest runs in the checkout. Other programs run in OWN, so that tables are as wide for every folder.
    """
    program, *words = shlex.split(command)
    judges = program == "pytest"
    settings = {**SETTINGS, "PYTEST_ADDOPTS": "-p no:cacheprovider", "COLUMNS": "100"}
    places = {"OWN/": f"{own}/"} if judges else {"OWN/": "", "tests/": f"{ROOT}/tests/"}
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    done = subprocess.run(
        [sys.executable, *(["-m", "pytest"] if judges else []), *words],
        cwd=ROOT if judges else own, env={**os.environ, **settings, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    begin = next((n for n, line in enumerate(lines) if re.match(VERDICT, line)), 0)
    shown = [plainly(line, own) for line in lines[begin:] if not re.match(BY_CLOCK, line)]
    return "\n".join([command, f"exit code {done.returncode}", *shown[:FIRST]]) + "\n"


VERDICT = r"(WRONG|BROKEN|NOT JUDGED ENOUGH|RIGHT|ERROR)\b"
"""How the verdict of a run begins."""

BY_CLOCK = r" +smaller "
"""Lines that hang on the speed of the machine: how far a case was made smaller in a second."""

PLAIN = {
    r"\b\d+(\.\d+)? ?(s|ms|a second|seconds)\b": "# s",
    r"\b([a-zA-Z-]+)[ -]\d+\.\d+\.\d+[\w.+]*": r"\1 #",
    r"^=+ (.*) =+$": r"== \1 ==",
    r"\bline \d+": "line #",
    r"digest [0-9a-f]{12}": "digest #",
    r"at most \S+ of their bounds": "at most # of their bounds",
}
"""What stands in place of times, versions, and figures that differ between CPUs."""


def plainly(line: str, own: Path) -> str:
    """A line without folders and what `PLAIN` lists; long decimals have two digits."""
    line = line.replace(f"{own}/", "OWN/").replace(f"{ROOT}/", "")
    for pattern, text in PLAIN.items():
        line = re.sub(pattern, text, line)
    decimals = r"(?<![\w./])\d+\.\d+(e[-+]\d+)?(?![\w.%])"
    return re.sub(decimals, lambda number: f"{float(number[0]):.2g}", line).rstrip()


TRANSCRIPTS = Folder("transcripts", "transcripts", transcripts, quick=one_in(12))
