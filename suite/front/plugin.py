"""pytest plugin: options, parametrisation, statuses and the record writer.

A test function marked with `suite.judge.cell.check` is a check; it is parametrised with the cells the
options ask for, and its outcome is the cell's verdict:

    pass -> passed, known -> xfailed, unsupported -> skipped, fail / error / crash -> failed

Under pytest-xdist every worker judges, and the records travel with the reports to the one process
that writes them; a worker that dies leaves a `crash` record for the cell it was judging.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import pytest

import suite
from backends.registry import UsageError
from suite.front.again import failure_text
from suite.front.options import Options, add_options
from suite.front.order import sort_for_workers
from suite.front.plan import Plan, cell_name, crashed, record
from suite.front.terminal import Terminal
from suite.judge.cell import Cell
from suite.judge.check import CHECKS, Check
from suite.records import cells as records
from suite.records import machine
from suite.records.lines import Writer

ROOT = Path(suite.__file__).resolve().parents[1]
PROPERTY = "attention-cell"
OPTIONS = pytest.StashKey[Options]()
RUN = pytest.StashKey["RunState"]()
RECORD = pytest.StashKey[records.CellRecord]()
FORGET_EVERY = 20
"""Cells after which `forget_lowered` is called."""
LOWERED = (
    ("jax._src.interpreters.pxla", "_cached_lowering_to_hlo"),
    ("jax._src.pjit", "_pjit_lower"),
)
"""Where JAX keeps what it lowered: module and function with a cache (see `forget_lowered`)."""


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser.getgroup("attention", "attention conformance").addoption)


class RunState:
    """What the writing process knows of the run: the plan's identity, records, the open file."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self.config = config
        self.options = options
        self.results: str = config.getoption("--results")
        self.cells: list[records.CellRecord] = []
        self.header: records.Header | None = None
        self.writer: Writer[records.Header, records.CellRecord] | None = None
        self.nodes: dict[tuple, str] = {}
        self.pending: list[records.CellRecord] = []
        self.stale: list[str] = []
        self.unavailable: dict[str, str] = {}
        self.terminal = Terminal(config, self)

    def take(self, cell: records.CellRecord, identity: dict[str, Any], node: str) -> None:
        """Keep a record, and write it; the first one that knows the plan opens the file.

        The record of a crash knows nothing of the plan and waits for one that does.
        """
        self.cells.append(cell)
        self.nodes[cell.key] = node
        self.terminal.take(cell, identity.get("owed", {}))
        self.pending.append(cell)
        if self.header is None and identity:
            self.open(identity)
        self.flush()

    def open(self, identity: dict[str, Any]) -> None:
        """Make the header and open the file."""
        self.header = _header(self.config, self.options, identity)
        if self.results:
            self.writer = records.writer(self.results, self.header)

    def flush(self) -> None:
        """Write what waits, where there is a file to write to."""
        if self.writer:
            for cell in self.pending:
                self.writer.write(cell)
            self.pending = []


def pytest_configure(config: pytest.Config) -> None:
    _refuse_impostors()
    config.addinivalue_line("markers", "slow: takes minutes; run with -m slow")
    options = Options.of(lambda name: config.getoption(f"--{name.replace('_', '-')}"))
    config.stash[OPTIONS] = options
    results = config.getoption("--results")
    if options.backend:
        _usage(options.check)
    elif results or options.function:
        raise pytest.UsageError("--results and --function need a --backend")
    if hasattr(config, "workerinput"):
        _share_cores(config.workerinput["workercount"])
        _share_compile_cache(config)
        return
    if results and Path(results).exists():
        raise pytest.UsageError(
            f"--results={results} exists, and nothing is overwritten; name a new file"
        )
    config.stash[RUN] = state = RunState(config, options)
    config.pluginmanager.register(state.terminal)
    _share_compile_cache(config)
    if options.backend and getattr(config.option, "maxworkerrestart", "") is None:
        # A crash is a verdict here: xdist's own limit, four a worker, would end the run.
        config.option.maxworkerrestart = "10000"


def pytest_report_header(config: pytest.Config) -> list[str]:
    options = config.stash[OPTIONS]
    if not options.backend:
        return []
    function = f", function {', '.join(options.function)}" if options.function else ""
    return [
        f"attention: {', '.join(options.backends)} on {options.device}{function}, level "
        f"{options.level}, seed {options.seed}; {_versions_line()}"
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    check = CHECKS.get(metafunc.function)
    if check is None or "cell" not in metafunc.fixturenames:
        return
    plan = _plan(metafunc.config)
    found = plan.cells(check)
    metafunc.parametrize("cell", found, ids=[cell_name(cell) for cell in found])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        sort_for_workers(items)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if pyfuncitem.function not in CHECKS:
        return None
    cell = cast(Cell, pyfuncitem.callspec.params["cell"])
    plan = _plan(pyfuncitem.config)
    verdict = plan.judge(cell)
    found = record(cell, verdict)
    pyfuncitem.stash[RECORD] = found
    _STATE["judged"] = judged = _STATE.get("judged", 0) + 1
    if judged % FORGET_EVERY == 0:
        forget_lowered()
    if found.status == "unsupported":
        pytest.skip(found.message)
    if found.status == "known":
        pytest.xfail(found.message)
    if found.status != "pass":
        pytest.fail(failure_text(found, pyfuncitem.nodeid, plan.options), pytrace=False)
    return True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    outcome = yield
    report = outcome.get_result()
    check: Check | None = CHECKS.get(getattr(item, "function", None))
    if check is None or call.when != "call":
        return
    found = item.stash.get(RECORD, None)
    plan = _plan(item.config)
    if found is None:
        # The verdict never came: pytest-timeout stopped the cell, or the harness let an exit through.
        text = str(call.excinfo.value) if call.excinfo else "no verdict"
        kind = "timeout" if "Timeout" in text else "crash"
        name = cell_name(item.callspec.params["cell"])  # type: ignore[attr-defined]
        line = next(iter(text.splitlines()), "no message")[:300]
        found = crashed(check.name, name, kind, line, plan.options)
    report.user_properties.append((PROPERTY, {"cell": asdict(found), "run": _identity(plan)}))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    state = _STATE.get("run")
    if state is None:
        return
    for name, value in report.user_properties:
        if name == PROPERTY and isinstance(value, dict):
            state.take(records.CellRecord(**value["cell"]), value["run"], report.nodeid)
            return
    if report.when == "???" or (report.failed and "crashed while running" in str(report.longrepr)):
        check, _, parameter = report.nodeid.partition("::test_")[2].partition("[")
        if parameter:
            message = "the process judging this cell died (segmentation fault, abort or time-out)"
            found = crashed(check, parameter[:-1], "crash", message, state.options)
            state.take(found, {}, report.nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Before any worker starts: checks without a backend are one usage error."""
    config = session.config
    options, worker = config.stash[OPTIONS], hasattr(config, "workerinput")
    if not options.backend and not worker and _names_checks(config):
        _usage(options.check)
    _STATE["run"] = session.config.stash.get(RUN, None)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Entries of the manifests that match nothing in the catalogue end the run before it starts."""
    plan = _STATE.get("plan")
    if not isinstance(plan, Plan):
        return
    asked = [getattr(item, "callspec", None) for item in session.items]
    cells = [spec.params.get("cell") for spec in asked if spec is not None]
    owed = Counter(cell.implementation.backend.name for cell in cells if isinstance(cell, Cell))
    _STATE["owed"] = dict(owed)
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        stale = plan.stale_expectations()
        if stale:
            raise pytest.UsageError("stale expectations:\n  " + "\n  ".join(stale))
        _STATE["run"].unavailable = plan.unavailable
    elif worker["workerid"] == "gw0":
        session.config.workeroutput["attention"] = {  # type: ignore[attr-defined]
            "stale": plan.stale_expectations(),
            "unavailable": plan.unavailable,
        }


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """What a worker alone could know of the plan: stale expectations, missing frameworks."""
    state = _STATE.get("run")
    told = getattr(node, "workeroutput", {}).get("attention")
    if state is not None and told:
        state.stale, state.unavailable = told["stale"], told["unavailable"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Load what was asked for before anything is collected: a usage error is one line then."""
    config = session.config
    if config.stash[OPTIONS].backend and not getattr(config.option, "numprocesses", None):
        _plan(config)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    state = session.config.stash.get(RUN, None)
    if state is None:
        return
    if state.header is None and state.pending:
        state.open({})
        state.flush()
    if state.writer:
        cut_short = bool(session.shouldstop or session.shouldfail)
        state.writer.close(finished=exitstatus in (0, 1) and not cut_short)
    if state.stale and exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    passed = any(cell.status == "pass" for cell in state.cells)
    if state.options.backend and exitstatus == 0 and not passed:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


_STATE: dict[str, Any] = {}
"""The plan is made once a process: hooks that parametrise and judge share it."""


def _plan(config: pytest.Config) -> Plan:
    if "plan" not in _STATE:
        options = config.stash[OPTIONS]
        _STATE["plan"] = _usage(lambda: Plan.make(options))
    return _STATE["plan"]


def _usage(action: Any) -> Any:
    try:
        return action()
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error


def _identity(plan: Plan) -> dict[str, Any]:
    if "identity" not in _STATE:
        digest, count = plan.digest()
        _STATE["identity"] = {
            "digest": digest, "cells": count, "versions": plan.versions, "owed": _STATE["owed"],
        }  # fmt: skip
    return _STATE["identity"]


def _header(config: pytest.Config, options: Options, identity: dict[str, Any]) -> records.Header:
    invocation = config.invocation_params.args
    filters = ("-k", "-m", "--deselect", "--lf", "--ff", "--last-failed", "--ignore", "--sw")
    filtered = any("::" in a or a.startswith(filters) for a in map(str, invocation))
    return records.Header(
        digest=identity.get("digest", ""),
        cells=identity.get("cells", 0),
        versions=identity.get("versions", {}) | {"numpy": metadata.version("numpy")},
        options=asdict(options) | {"xdist": str(getattr(config.option, "numprocesses", None))},
        partial=filtered or bool(options.implementation or options.dtype),
        shard=options.shard,
        **machine.origin(),
    )


def forget_lowered() -> None:
    """Have JAX forget the modules it lowered. Executables stay: nothing is compiled again.

    JAX keeps the modules of the last 2048 compilations, each with an MLIR context of over a megabyte.
    Among these 3 GB every further lowering takes three times as long. No public function drops them
    alone; where a release keeps them elsewhere this does nothing.
    """
    for module, name in LOWERED:
        cache = getattr(sys.modules.get(module), name, None)
        if cache is not None and hasattr(cache, "cache_clear"):
            cache.cache_clear()


def _versions_line() -> str:
    found = []
    for name in ("torch", "tensorflow", "tensorflow-cpu", "jax", "keras", "numpy"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def _refuse_impostors() -> None:
    """`suite`, `backends` and `references` are common names: all three must be this checkout's."""
    import importlib.util

    for name in ("suite", "backends", "references"):
        spec = importlib.util.find_spec(name)
        place = Path(spec.origin).resolve().parents[1] if spec and spec.origin else None
        if place != ROOT:
            raise pytest.UsageError(
                f"the package {name!r} is imported from {place or 'nowhere'}, expected {ROOT}; "
                f"remove the other one from sys.path (first entries: {sys.path[:3]})"
            )


def _names_checks(config: pytest.Config) -> bool:
    """Whether the arguments name the folder of the checks, this checkout, or anything in that folder."""
    for argument in config.args:
        place = argument.partition("::")[0]
        if config.option.pyargs and place.partition(".")[0] == suite.__name__:
            return True
        path = (config.invocation_params.dir / place).resolve()
        if path == ROOT or path.is_relative_to(ROOT / "suite"):
            return True
    return False


def _share_cores(workers: int) -> None:
    """Divide the cores among workers: threads that wait for one another spin, and cost more than
    they give. Read by the frameworks when they are imported, so that it must be set before."""
    share = max(1, (os.cpu_count() or 1) // workers)
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
        os.environ.setdefault(name, str(share))


def _share_compile_cache(config: pytest.Config) -> None:
    """Let JAX keep its compilations in pytest's cache folder: a second run then compiles nothing."""
    cache = getattr(config, "cache", None)
    if cache is None or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(cache.mkdir("jax-compilations"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
