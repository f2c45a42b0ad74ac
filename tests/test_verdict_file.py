"""The verdict for programs agrees with the exit code, and a secret seed can be repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.records import cells as records
from attention_conformance.suite.report import frames
from attention_conformance.suite.run.options import SECRET, SECRET_SEEDS, Options, seed
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.process import SAME_INTERRUPT_SECONDS
from attention_conformance.suite.run.varied import cells_in_drawn_sizes
from attention_conformance.suite.spec.case import Case
from tests.processes import CONTROL, ROOT, python, run
from tests.test_isolation import plan

FEW = (
    "suite/test_values.py", "--level=smoke", "--dtype=f32", "-k", "q17k23",
)  # fmt: skip

ARRAYS = "--backend=tests.isolated:backend"


def judged(
    path: Path, *words: str, optimised: tuple[str, ...] = ()
) -> tuple[int, dict[str, Any], str]:
    """The exit code, the verdict and the output of a run."""
    out = python(*optimised, "-m", "pytest", "-q", *FEW, f"--verdict={path}", *words)
    return out.returncode, json.loads(path.read_bytes()), out.stdout + out.stderr


def test_a_secret_run_can_be_repeated_also_without_assertions(tmp_path: Path) -> None:
    path = "tests/exploits/function.py:honest_control"
    words = ("--backend=torch", f"--function={path}", "--untrusted", "--forbid=nothing")
    code, secret, said = judged(tmp_path / "a.json", *words, "--seed=secret", optimised=("-O",))
    assert (code, secret["verdict"], secret["first_failure"]) == (0, "right", None), said
    assert f"--seed={secret['seed']}" in said
    assert said.count(str(secret["seed"])) == 1
    code, again, _ = judged(tmp_path / "b.json", *words, f"--seed={secret['seed']}")
    assert (code, again) == (0, secret)


def test_a_secret_seed_has_64_bits() -> None:
    drawn = [seed(SECRET) for _ in range(64)]
    assert len({*drawn}) == 64
    assert min(drawn) < 2**62 < 2**63 < max(drawn) < 2**64
    SECRET_SEEDS.difference_update(drawn)


def test_records_and_workers_have_the_greatest_seed(tmp_path: Path) -> None:
    most, path = 2**64 - 1, tmp_path / "cells.jsonl"
    words = (ARRAYS, "--function=tests/isolated.py:attend", "-n1", f"--seed={most}")
    code, verdict, said = judged(tmp_path / "a.json", *words, f"--results={path}")
    assert (code, verdict["seed"]) == (0, most), said
    cells = frames.cells(records.load(path, partial=True))
    assert {*cells["seed"]} == {most}
    assert cells["seed"].dtype == "uint64"


def test_the_verdict_names_the_first_failure_and_the_worst_cell(tmp_path: Path) -> None:
    words = ("--function=tests/isolated.py:attend_too_much", "--isolate", "-q")
    code, verdict, _ = judged(tmp_path / "a.json", ARRAYS, *words)
    assert (code, verdict["verdict"], verdict["exit_code"]) == (1, "wrong", 1)
    assert verdict["first_failure"]["status"] == "fail"
    assert verdict["cells"]["fail"] > 1
    assert verdict["worst"]["error_ratio"] > 1


def test_a_usage_error_is_no_verdict_on_a_kernel(tmp_path: Path) -> None:
    words = (ARRAYS, "--function=tests/isolated.py:absent", "-n2")
    code, verdict, _ = judged(tmp_path / "a.json", *words)
    assert (code, verdict["verdict"]) == (4, "not judged")
    assert "has no 'absent'" in verdict["reasons"][0]


def test_the_verdict_of_a_run_that_dies_has_what_was_judged(tmp_path: Path) -> None:
    """The function ends its process, or somebody ends it from outside."""
    words = (ARRAYS, "-k", "q3k5 or q17k23")
    code, died, _ = judged(tmp_path / "a.json", *words, "--function=tests/isolated.py:ends")
    assert (code, died["verdict"], died["functions"]) == (1, "wrong", ["ends"])
    assert died["cells"].pop("crash") == 1
    assert died["first_failure"]["message"] == died["reasons"][0]
    assert died["missing"] > died["cells"].pop("pass") > 0
    assert {*died["cells"]} <= {"unsupported"}
    code, killed, _ = judged(tmp_path / "b.json", *words, "--function=tests/isolated.py:is_killed")
    assert (code, killed["verdict"], killed["first_failure"]) == (1, "not judged enough", None)
    assert "died of SIGKILL while it judged" in killed["reasons"][0]
    assert killed["cells"]["pass"] > 0


def test_the_verdict_goes_to_a_descriptor(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    asked = ("--function=tests/isolated.py:attend", f"--verdict-fd={writing}")
    run(*FEW, ARRAYS, *asked, pass_fds=[writing])
    os.close(writing)
    with os.fdopen(reading) as file:
        assert json.loads(file.read())["verdict"] == "right"


def test_a_verdict_without_room_fails_the_run() -> None:
    asked = (ARRAYS, "--function=tests/isolated.py:attend")
    with open("/dev/full", "wb") as full:
        out = run(*FEW, *asked, f"--verdict-fd={full.fileno()}", pass_fds=[full.fileno()])
    assert out.returncode == 2
    assert "the verdict cannot be written: No space left on device" in out.stdout + out.stderr
    assert "Traceback" not in out.stdout + out.stderr


def test_drawn_sizes_keep_within_claims() -> None:
    made = plan("attend", isolate=False, claim=("lengths_multiple_of=16", "head_sizes=64"))
    cells = made.cells(all_checks()["values"])
    asked = [cell for cell in cells if cell.check.unsupported(made.functions[0], cell.case) is None]
    others = [cell.case for cell in cells_in_drawn_sizes(cells)]
    assert len(others) > 0.9 * len(asked) > 30
    for case in others:
        assert isinstance(case, Case)
        assert (case.sizes.Lq % 16, case.sizes.Lk % 16, case.sizes.D) == (0, 0, 64)


TIMED = "--time=sdpa/none/mha/f32/b2h3q65k65d16"

LARGE_WRONG = """
from tests.isolated import attend, attend_too_much


def flash(query, key, value, is_causal=False, mask=None, bias=None, scale=None):
    function = attend_too_much if query.shape[1] == 65 else attend
    return function(query, key, value, is_causal, mask, bias, scale)
"""


def test_a_right_function_is_timed_for_its_verdict(tmp_path: Path) -> None:
    words = (ARRAYS, "--function=tests/isolated.py:attend", "--isolate", TIMED)
    code, verdict, said = judged(tmp_path / "a.json", *words)
    (time,) = verdict["times"]
    assert (code, verdict["verdict"], time["implementation"]) == (0, "right", "attend"), said
    assert 0 < time["low"] <= time["seconds"] <= time["high"]
    assert ":attend on sdpa/none/mha/f32/b2h3q65k65d16: median " in said


def test_a_time_of_a_wrong_answer_fails_the_run(tmp_path: Path) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(LARGE_WRONG)
    code, verdict, said = judged(
        tmp_path / "a.json", ARRAYS, f"--function={path}:flash", TIMED, "-q"
    )
    assert (code, verdict["verdict"], verdict["times"]) == (1, "not judged enough", []), said
    assert "no time of sdpa/none/mha/f32/b2h3q65k65d16: element" in verdict["reasons"][0]
    words = ("--function=tests/isolated.py:attend_too_much", TIMED, "-q")
    code, verdict, _ = judged(tmp_path / "b.json", ARRAYS, *words)
    assert (code, verdict["verdict"], verdict["times"]) == (1, "wrong", [])


@pytest.mark.parametrize(
    ("words", "reason"),
    [((ARRAYS, TIMED), "speaks of a --function"), ((ARRAYS, "--time=none"), "unknown workload")],
)
def test_what_cannot_be_timed_is_a_usage_error(words: tuple[str, ...], reason: str) -> None:
    out = run(*FEW, *words)
    assert (out.returncode, reason in out.stderr) == (4, True), out.stderr


DRAWS_ITSELF = """
from importlib import import_module

import numpy as np


def zero(name, seed):
    return np.random.Generator(np.random.PCG64(0))


# The references are hidden from the child, and with them what imports them.
for place, name, other in (
    ("spec.recipes", "generator", zero), ("spec.inputs", "generator", zero),
    ("run.varied", "generator", zero), ("run.varied", "drawn", lambda case, seed: case.sizes),
    ("judge.cell", "draw", None), ("checks", "all_checks", dict),
):
    try:
        setattr(import_module(f"attention_conformance.suite.{place}"), name, other)
    except ImportError:
        assert not place.startswith("spec.")
from tests.isolated import attend
"""


def test_the_import_of_a_file_changes_no_question(tmp_path: Path) -> None:
    """Cases, sizes, order and values are those of a file that does nothing, of the same signature."""
    path = tmp_path / "kernel.py"
    asked = []
    for text in ("from tests.isolated import attend\n", DRAWS_ITSELF):
        path.write_text(text)
        made = Plan.make(
            Options(
                ("tests.isolated:backend",), function=(f"{path}:attend",), level="smoke",
                dtype=("f32",), seed=77, untrusted=True,
            )
        )  # fmt: skip
        cells = made.cells(all_checks()["values"])
        values = [cell.inputs.query.tobytes() for cell in cells]
        asked.append((made.digest(), [cell.case.id for cell in cells], values))
        made.functions[0].backend.link.close()  # type: ignore[attr-defined]
    assert asked[0] == asked[1]
    assert len(asked[0][1]) > 100


def test_sizes_hang_on_the_seed_and_keep_what_is_equal() -> None:
    made = plan("attend")
    made.functions[0].backend.link.close()  # type: ignore[attr-defined]
    check = all_checks()["values"]
    cells = made.cells(check)
    by_seed = [
        [
            other.case.id
            for other in cells_in_drawn_sizes(
                Cell(check, c.case, c.implementation, seed) for c in cells
            )
        ]
        for seed in (0, 0, 1)
    ]
    assert len(by_seed[0]) > 20
    assert by_seed[0] == by_seed[1] != by_seed[2]
    assert not {*by_seed[0]} & {cell.case.id for cell in cells}
    for name in by_seed[0]:
        assert Case.parse(name).id == name


PARENT, GROUP = os.kill, os.killpg


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        ((), [(PARENT, signal.SIGINT)]),
        (("-n", "2"), [(PARENT, signal.SIGTERM)]),
        (("-n", "2"), [(GROUP, signal.SIGINT)]),
    ],
    ids=["INT to the parent", "TERM", "INT from a terminal"],
)
def test_a_run_that_people_end_has_a_verdict(
    tmp_path: Path, words: tuple[str, ...], sent: list[tuple[Any, int]]
) -> None:
    returned, out = ended(tmp_path / "v.json", words, sent)
    assert returned == 2, out
    assert "Traceback" not in out
    verdict = json.loads((tmp_path / "v.json").read_bytes())
    assert (verdict["verdict"], verdict["exit_code"]) == ("not judged enough", 2)
    assert "the run did not finish" in verdict["reasons"][0]
    assert verdict["missing"] > 500


SLOW_TO_END = """
import time, pytest

@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish():
    time.sleep(20)
"""


@pytest.mark.parametrize(
    ("words", "code", "said"), [((), 2, "died of SIGINT"), (("-n", "2"), -signal.SIGINT, "")]
)
def test_a_second_interrupt_ends_a_run_at_once(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "slow.py").write_text(SLOW_TO_END)
    twice = [(GROUP, signal.SIGINT), (GROUP, signal.SIGINT)]
    returned, out = ended(tmp_path / "v.json", ("-p", "slow", *words), twice)
    assert returned == code, out
    assert said in out
    assert "Traceback" not in out
    assert json.loads((tmp_path / "v.json").read_bytes())["exit_code"] == 2


def ended(path: Path, words: Sequence[str], sent: Iterable[tuple[Any, int]]) -> tuple[int, str]:
    """Exit code and output of a run that is sent signals after it printed its first verdicts."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", FEW[0], *words]
    command += [*CONTROL, f"--verdict={path}"]
    said, env = path.with_suffix(".txt"), os.environ | {"PYTHONPATH": str(path.parent)}
    with said.open("w") as file, subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
    ) as child:  # fmt: skip
        until = time.monotonic() + 120
        while "....." not in said.read_text() and time.monotonic() < until:
            time.sleep(0.1)
        for send, number in sent:
            send(child.pid, number)
            time.sleep(2 * SAME_INTERRUPT_SECONDS)
        code = child.wait(timeout=60)
    return code, said.read_text()
