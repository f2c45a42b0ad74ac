"""Commands end with one line where they cannot do what is asked, and print nothing a terminal obeys."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from suite.__main__ import main
from suite.flags import CommandOptions, Flag, flags
from suite.run.options import OUTSIDE, Options, shared
from tests.records_by_hand import cell, run, write

NASTY = "\x1b[31mred\x00 \u202e \x9b2J"
SHOWN = r"red\x00 \u202e \x9b2J"
OBEYED = {"\x1b", "\x00", "\u202e", "\x9b"}


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("sdpa/none/gqa0/f32/b2h3q5k7d8", "bad heads 'gqa0'"),
        ("sdpa/none/mha/f32/b2h3q5k7d8/scalenan", "unknown option 'scalenan'"),
        ("sdpa/none/mha/f32/b" + "9" * 400 + "h3q5k7d8", ""),
        ("sdpa/none/mha/f32/b99999999999h3q99999k99999d8", "cannot be drawn here"),
    ],
)
def test_cases_that_cannot_be_described(
    case: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["describe", case]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_a_draft_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "r.jsonl", run(cell(status="fail", kind="value", message="off")))
    words = ["expect", "--write", str(path), "--output"]
    assert main([*words, str(tmp_path / "missing" / "draft.toml")]) == 0
    assert main([*words, str(path / "draft.toml")]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert str(path) in captured.err


@pytest.mark.parametrize("command", ["report", "diff", "expect", "findings"])
def test_nothing_of_a_file_is_obeyed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    failing = cell(
        status="fail", kind="value", message=NASTY, backend=f"{NASTY}b", implementation=f"{NASTY}i"
    )
    path = write(tmp_path / f"r{NASTY.replace(chr(0), '')}.jsonl", run(failing))
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


def test_what_is_said_again_is_all_but_what_chooses_cells() -> None:
    values: dict[str, Any] = {}
    for name, option in flags(Options).items():
        other = option.valid[-1] if option.valid else option.kind("7")
        values[name.replace("-", "_")] = (
            True if option.switch else (other,) if option.many else other
        )
    names = {
        word.removeprefix("--").partition("=")[0] for word in Options.of(values.get).command_line()
    }
    chosen_by = {"implementation", "dtype", "shard"}
    assert names == flags(Options).keys() - chosen_by - {"allow-refusals", "start-timeout"}
    assert Options(("torch",)).command_line() == ["--backend=torch"]


def test_options_say_their_defaults_once(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True)
    class Few(CommandOptions):
        level: str = shared("level", default="smoke", checked=True)
        backend: str = shared("backend", many=False)
        case: tuple[str, ...] = shared("case", help="this one")

    parser = argparse.ArgumentParser(prog="x")
    Few.declare(parser.add_argument)
    read = parser.parse_args(["--backend=numpy", "--case=a", "--case=b"])
    assert vars(read) == {"level": "smoke", "backend": "numpy", "case": ["a", "b"]}
    assert "(default smoke)" in parser.format_help()
    with pytest.raises(SystemExit):
        parser.parse_args(["--level=no-level"])
    assert "smoke, standard, full" in capsys.readouterr().err.replace("'", "")
    spoken = Flag("the last one by default", default="x").arguments
    assert spoken["help"] == "the last one by default"
    assert Flag("so many", default=1.5).arguments["help"] == "so many (default 1.5)"
    for name, option in (flags(Options) | OUTSIDE).items():
        assert option.arguments["help"].count("default") <= 1, name
