"""Commands end with one line where they cannot do what is asked, and print nothing a terminal obeys."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.suite.__main__ import main
from attention_conformance.suite.flags import flags
from attention_conformance.suite.report import SITE
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.spec.text import UNREAD
from tests.processes import ROOT, Done, python
from tests.rows import cell, run

IN_CHECKOUT = os.environ | {"PYTHONPATH": str(ROOT)}
NEAREST = "sdpa/causal/mha/f32/b1h40q5k5d4"
"""A case that stands for another one, with fewer key heads, in functions of equal heads."""

NASTY = "\x1b[31mred\x00 \u202e \x9b2J"
SHOWN = r"red\x00 \u202e \x9b2J"
OBEYED = {"\x1b", "\x00", "\u202e", "\x9b"}


@pytest.mark.parametrize("command", ["report", "diff", "expect", "findings"])
def test_nothing_of_a_file_is_obeyed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    failing = cell(
        status="fail", kind="value", message=NASTY, backend=f"{NASTY}b", implementation=f"{NASTY}i"
    )
    path = run(failing).save(tmp_path / f"r{NASTY.replace(chr(0), '')}.jsonl")
    words = {"diff": [str(path), str(path)], "expect": ["--write", str(path)]}
    assert main([command, *words.get(command, [str(path)])]) == 0
    assert main([command, *words.get(command, [f"{path}.absent"])]) in (0, 2)
    captured = capsys.readouterr()
    assert not OBEYED & {*captured.out, *captured.err}
    if command == "report":
        assert SHOWN in captured.out
    for fmt in ("markdown", "html"):
        if command == "report":
            out = tmp_path / fmt
            assert main(["report", str(path), f"--format={fmt}", f"--output={out}"]) == 0
            assert not OBEYED & {*out.read_text(encoding="utf-8")}


@pytest.fixture
def odd_files(tmp_path: Path) -> Path:
    """A folder of files that people hand over by mistake, and `r.jsonl`."""
    good = run(cell(error_ratio=0.5), cell(NEAREST.replace("f32", "f16"), status="fail")).save(
        tmp_path / "r.jsonl"
    )
    text = good.read_text()
    (tmp_path / "bom.jsonl").write_text("\ufeff" + text)
    (tmp_path / "negative.jsonl").write_text(
        text.replace('"error_ratio": 0.5', '"error_ratio": -1')
    )
    (tmp_path / "f7.jsonl").write_text(text.replace('"dtype": "f16"', '"dtype": "f7"'))
    (tmp_path / "cut.jsonl").write_text("\n".join(text.splitlines()[:2]))
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


REPORT, ODD = ["report", "--table=runs"], "expected a regular file or standard input, got a device"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([*REPORT, "/dev/zero"], 2, ODD),
        ([*REPORT, "pipe"], 2, ODD),
        (["diff", "r.jsonl", "/dev/zero"], 2, ODD),
        (["expect", "--write=/dev/zero"], 2, ODD),
        (["findings", "pipe"], 2, ODD),
        (["sweep", "/dev/zero", "--results=s"], 2, ODD),
        ([*REPORT, "bom.jsonl"], 0, "whole"),
        ([*REPORT, "cut.jsonl", "--partial"], 0, "extent   unfinished: 1 of 2 cells"),
        ([*REPORT, "negative.jsonl"], 2, "expected an error ratio from 0 on, got -1"),
        ([*REPORT, "f7.jsonl"], 2, "unknown dtype 'f7'; valid: f64, f32, bf16, f16"),
        (["report", "empty"], 2, "expected result files, a sweep, or asv's results_dir"),
    ],
)
def test_files_that_are_not_what_they_should_be(
    odd_files: Path, words: list[str], code: int, said: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(odd_files)
    try:
        assert main(words) == code
    except SystemExit as ended:  # argparse
        assert ended.code == code  # noqa: PT017
    out = capsys.readouterr()
    assert said in out.out + out.err


@pytest.mark.parametrize("name", ["/dev/stdin", "-"])
def test_records_are_read_from_standard_input(odd_files: Path, name: str) -> None:
    out = of_process([*REPORT, name], odd_files)
    assert (out.returncode, "whole" in out.stdout) == (0, True), out.stderr


VECTORS = ["vectors", "--operator=concat", "--dtype=f32"]


@pytest.mark.parametrize(
    "words",
    [VECTORS, *(["report", "r.jsonl", f"--format={f}"] for f in ("html", SITE, "csv"))],
    ids=lambda words: words[-1].removeprefix("--"),
)
def test_a_full_disk_is_named_and_blocks_no_other_try(odd_files: Path, words: list[str]) -> None:
    if words is VECTORS:
        pytest.importorskip("safetensors")
    words = [*words, "--output=page"]
    out = of_process(words, odd_files, limit=64)
    assert out.returncode == 2
    assert "page cannot be written: File too large; nothing of it is left" in out.stderr
    assert "Traceback" not in out.stderr
    assert of_process(words, odd_files).returncode == 0


def test_a_reader_that_goes_ends_a_command_in_silence(odd_files: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "suite", "list", "--level=standard"], cwd=ROOT, env=IN_CHECKOUT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline().startswith("sdpa/")
        child.stdout.close()
        assert child.stderr.read() == ""
        assert child.wait(timeout=60) == UNREAD


def test_standard_output_without_room_is_named() -> None:
    with open("/dev/full", "w") as full:
        out = subprocess.run(
            [sys.executable, "-m", "suite", "list", "--words"], cwd=ROOT, env=IN_CHECKOUT,
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert out.returncode == 2
    assert out.stderr == "<stdout> cannot be written: No space left on device\n"


def of_process(words: list[str], folder: Path, limit: int = -1) -> Done:
    """A command in a process of its own, in a folder, with `r.jsonl` at a pipe as standard input; files
    can have `limit` bytes."""
    program = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, -1)); "
        "from attention_conformance.suite.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    given = (folder / "r.jsonl").read_text()
    return python(
        "-B", "-c", program, *words, cwd=folder, env={"PYTHONPATH": str(ROOT)}, input=given
    )


def test_what_is_said_again_is_all_but_what_chooses_cells() -> None:
    values: dict[str, Any] = {}
    for name, option in flags(Options).items():
        other = option.valid[-1] if option.valid else option.kind("7")
        values[name.replace("-", "_")] = (
            True if option.switch else (other,) if option.many else other
        )
    names = {
        word.removeprefix("--").partition("=")[0]
        for word in Options.from_lookup(values.get).command_line()
    }
    chosen_by = {"implementation", "dtype", "shard"}
    assert names == flags(Options).keys() - chosen_by - {"allow-refusals", "start-timeout"}
    assert Options(("torch",)).command_line() == ["--backend=torch"]
