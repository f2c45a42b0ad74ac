"""The isolated judge gives the same records, believes no claim of its child, and outlives the child."""

from __future__ import annotations

import pickle
import re
import signal
import socket
import time
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from msgspec import msgpack

from attention_conformance.backends import registry
from attention_conformance.backends.implementation import Implementation
from attention_conformance.backends.prepared import ProcessDied
from attention_conformance.backends.protocol import Backend, BackendUnavailable
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.records import cells as records
from attention_conformance.suite.run.isolation import wire
from attention_conformance.suite.run.isolation.link import Link, called_in_child
from attention_conformance.suite.run.isolation.remote import Remote, RemoteCalls
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.catalogue import cases
from attention_conformance.suite.spec.dtypes import DTYPES, DType, round_to
from tests.enclosed import TRIED, enclosed, left_open
from tests.isolated import drawn
from tests.processes import run

CHECKS = (
    "values",
    "contract",
    "ambient",
    "gradient_passes",
    "elections",
    "layouts",
    "registration",
)


def of(path: Path, *words: str) -> dict[Any, records.CellRecord]:
    """The records of a run by key, without times."""
    files = [f"suite/test_{name}.py" for name in CHECKS]
    run("-q", *files, "--level=smoke", "--dtype=f32", f"--results={path}", *words)
    loaded = records.load(path)
    return {cell.key: replace(cell, seconds=0.0) for cell in loaded.cells}


RIGHT, WRONG = "tests/isolated.py:attend", "tests/isolated.py:attend_wrongly"


@pytest.mark.seldom
@pytest.mark.parametrize(
    ("backend", "function", "kinds"),
    [
        ("tests.isolated:backend", RIGHT, {""}),
        ("tests.isolated:backend", WRONG, {"", "value", "raised", "mutated-input", "type"}),
        ("torch", "tests/functions/faulty.py:other_dtype", {"", "non-finite"}),
        ("torch", "tests/functions/limited.py:contiguous", {"", "value"}),
        ("torch", "tests/functions/operators.py:writes", {"", "registration"}),
        ("torch --like=multi-head", "tests/functions/own_classes.py:ScaledByWidth", {"", "value"}),
        ("torch --like=cached", "tests/functions/caching.py:NoFuture", {"", "value"}),
    ],
)
def test_a_child_gives_the_same_records(
    tmp_path: Path, backend: str, function: str, kinds: set[str]
) -> None:
    words = (*f"--backend={backend}".split(), f"--function={function}")
    plain = of(tmp_path / "plain.jsonl", *words)
    isolated = of(tmp_path / "isolated.jsonl", *words, "--isolate")
    assert kinds <= {cell.kind for cell in plain.values()}
    assert isolated == plain


@pytest.mark.skipif(left_open() != "", reason=left_open())
def test_the_child_has_few_rights(tmp_path: Path) -> None:
    local = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with socket.create_server(("127.0.0.1", 0)) as server, local:
        local.bind(str(tmp_path / "socket"))
        port = str(server.getsockname()[1])
        places = {"OPEN_PORT": port, "OPEN_SOCKET": local.getsockname()}
        words = (
            "suite/test_values.py",
            "--level=smoke",
            "--dtype=f32",
            "-k",
            "k17d8",
            "--backend=torch",
            "-q",
        )
        judged = [
            run(*words, "--function=tests/enclosed.py:tries", *how, env=places)
            for how in ((), ("--untrusted", "--forbid=nothing"))
        ]
    left = Path(__file__).with_name(TRIED)
    assert left.read_text() == "x"
    left.unlink()
    assert [out.returncode for out in judged] == [1, 0], judged[1].stdout


@pytest.mark.skipif(left_open() != "", reason=left_open())
def test_what_a_child_started_ends_with_the_child() -> None:
    """Also in a session of its own, which the parent does not know."""
    seconds = f"{60 + time.time() % 1:.9f}"
    started = f"subprocess.Popen(['sleep', '{seconds}'], start_new_session=True); "
    done = enclosed(f"{started} print(os.getpid()); sys.stdout.flush(); os._exit(3)")
    assert (done.stdout.strip(), done.returncode) == ("2", 3)
    for _ in range(100):
        running = [seconds in text for text in map(_command_line, Path("/proc").glob("[1-9]*"))]
        if not any(running):
            break
        time.sleep(0.05)
    assert not any(running)


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


@pytest.mark.skipif(left_open() != "", reason=left_open())
def test_a_signal_that_ends_the_child_is_told() -> None:
    assert enclosed("os.abort()").returncode == -signal.SIGABRT
    assert enclosed("os.kill(os.getpid(), 9)").returncode == -signal.SIGKILL


LOADED = """
import os, sys
from pathlib import Path
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish():
    yield
    found = {"torch", "jax", "tensorflow", "keras"} & sys.modules.keys()
    Path(os.environ["LOADED"]).write_text(repr(found))
"""
"""A plugin of pytest that writes which frameworks a process that judges has imported at its end."""


@pytest.mark.parametrize(
    ("function", "words", "code", "found"),
    [
        ("tests/functions/of_torch.py:textbook", (), 0, {"torch"}),
        ("tests/functions/own_attention.py:torch_own", ("--isolate", "--drop-in"), 0, set()),
        ("tests/functions/faulty.py:too_narrow", ("--untrusted",), 1, set()),
    ],
)
def test_what_judges_imports_no_framework(
    tmp_path: Path, function: str, words: tuple[str, ...], code: int, found: set[str]
) -> None:
    """Neither for elections beside its own attention, nor for what is inherited, nor for a diagnosis."""
    pytest.importorskip("torch")
    (tmp_path / "loaded.py").write_text(LOADED)
    files = [f"suite/test_{name}.py" for name in ("elections", "values", "malformed")]
    told = tmp_path / "told"
    out = run(
        *files, "--level=smoke", "--dtype=f32", "-p", "loaded", "--backend=torch",
        f"--function={function}", *words,
        env={"LOADED": str(told), "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[1]}"},
    )  # fmt: skip
    assert (out.returncode, eval(told.read_text())) == (code, found), out.stdout


def test_every_call_of_an_implementation_is_made_in_the_child() -> None:
    """Also those that most implementations inherit, such as the steps of a cache that raises."""
    methods = vars(Implementation).items()
    returned = {n: getattr(m, "__annotations__", {}).get("return") or "" for n, m in methods}
    made = {
        name for name, kind in returned.items() if re.search("PreparedCall|Callable|Mapping", kind)
    }
    assert {"prepare", "refusing", "paths", "refused", "broken_rules"} <= made
    assert made <= vars(RemoteCalls).keys()


@pytest.mark.seldom
@pytest.mark.parametrize("name", registry.registered())
def test_a_backend_without_its_framework_declares_the_same(name: str) -> None:
    """Whether or not the framework is installed, its absence is not noticed."""
    remote = called_in_child(Remote, registry.without_framework(name, "cpu"), Link({}), "backend")

    def declared(one: Backend) -> list[Any]:
        facts = ("name", "native", "device", "expectations", "refusals", "compilers", "ambient")
        modes = {n: [(m, *a[1:]) for m, a in s.modes.items()] for n, s in one.settings.items()}
        natives = [
            (
                i.name, i.operator, i.declared, i.textbook, i.axis_order, i.postponed,
                [(compiler, one.lacking_through(i, compiler)) for compiler in one.compilers_of(i)],
                [i.unsupported(case) for case in cases("smoke") if case.operator is i.operator],
            )
            for i in registry.implementations(one)
        ]  # fmt: skip
        return [*(getattr(one, fact) for fact in facts), modes, natives]

    without = declared(remote)
    if name in ("numpy", "torch", "tf", "jax"):  # more would be engines of Keras in one process
        try:
            backend = registry.load(name)
        except BackendUnavailable as error:
            pytest.skip(str(error))
        assert without == declared(backend)


def plan(function: str, isolate: bool = True, claim: tuple[str, ...] = ()) -> Plan:
    """The plan of a run of a function of `tests.isolated`."""
    return Plan.make(
        Options(
            backend=("tests.isolated:backend",), function=(f"tests/isolated.py:{function}",),
            level="smoke", dtype=("f32",), isolate=isolate, claim=claim,
        )
    )  # fmt: skip


def test_every_cell_begins_with_the_same_seeds() -> None:
    """One message ends a cell and begins the next one."""
    backend = plan("attend").functions[0].backend
    link, numbers, counts = cast(Any, backend).link, [], []
    for _ in range(4):
        with leaks.restored_settings(backend):
            numbers.append(link.ask(drawn))
        counts.append(link.count)
        if len(counts) == 3:
            link.kill(False)  # the next child begins, too
    assert len(set(numbers)) == 1
    assert counts[1:3] == [counts[0] + 2, counts[0] + 4]


def test_a_child_that_dies_or_hangs_costs_one_cell() -> None:
    made = plan("ends")
    check = all_checks()["values"]
    cells = made.cells(check)
    outcomes = {}
    for queries in (17, 9, 1, 3):
        cell = next(
            c for c in cells
            if c.case.sizes.Lq == queries and not check.unsupported(c.implementation, c.case)
        )  # fmt: skip
        verdict = judge(cell, made.policy(cell, 2.0))
        outcomes[queries] = (verdict.status, verdict.kind)
    link = made.functions[0].backend.link
    link.close()
    assert outcomes == {
        17: ("crash", "crash"), 9: ("crash", "timeout"), 1: ("pass", ""), 3: ("pass", "")
    }  # fmt: skip
    assert link.deaths == 3
    assert not Path(link.limits.folder).exists()


def held(**facts: Any) -> dict[str, Any]:
    """An answer with an object of the child."""
    return {"value": {"type": "Reference", "number": 1, "kind": ["a", "b"]} | facts}


@pytest.mark.parametrize(
    "answer",
    [
        b"no answer", msgpack.encode([]), pickle.dumps(print), b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        *map(msgpack.encode, (
            {"value": {"pickle": "x"}}, {"value": {"type": "Call", "fields": {}}},
            held(number="1"), held(kind=["a\x1b[2J", "b"]), held(shape=[-1]),
            {"raised": {"type": "Error", "kinds": [], "text": "x"}},
        )),
    ],
)  # fmt: skip
def test_what_no_child_says_ends_the_child(answer: bytes) -> None:
    link = Link({})
    parent, child = socket.socketpair()
    link._channel, link._child = wire.as_file(parent), cast(Any, Dead())
    link.errors = BytesIO()
    with wire.as_file(child) as channel:
        wire.send(channel, answer)
        with pytest.raises(ProcessDied, match="answered what is no answer"):
            link.at("anything")
    assert link.dead


@pytest.mark.parametrize("lengths", [(wire.MOST[0] + 1, 0), (0, wire.MOST[1] + 1)])
def test_an_answer_that_is_too_long_is_refused_before_it_is_read(lengths: tuple[int, int]) -> None:
    message = BytesIO(wire.HEAD.pack(*lengths))
    with pytest.raises(wire.Garbled, match="an answer of"):
        wire.receive(cast(Any, message))


class Dead:
    """A process that was killed."""

    pid = 1 << 30

    def wait(self, timeout: float = 0.0) -> int:
        return -9


def test_no_error_of_a_child_interrupts_the_run() -> None:
    link = Link({})
    for name in (
        "KeyboardInterrupt", "GeneratorExit", "BaseException", "TimeOver", "UnicodeDecodeError"
    ):  # fmt: skip
        error = link.error(wire.Error((("builtins", name),), "stop"))
        assert type(error).__name__ == name
        assert isinstance(error, Exception)


@pytest.mark.parametrize("fmt", DTYPES.values(), ids=str)
def test_values_travel_exactly(fmt: DType) -> None:
    values = round_to(np.random.default_rng(0).standard_normal((3, 4)), fmt)
    values[0] = [np.nan, np.inf, -0.0, fmt.smallest_subnormal]
    raw = wire.to_bytes(values, fmt.long_name)
    assert len(raw) == 12 * fmt.itemsize
    np.testing.assert_array_equal(wire.from_bytes(raw, fmt.long_name, (3, 4)), values)
    assert np.signbit(wire.from_bytes(raw, fmt.long_name, (3, 4))[0, 2])
