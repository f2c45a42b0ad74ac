"""The pytest plugin: options, parametrisation, verdicts as outcomes, and records.

A test function that is marked with `suite.judge.check.check` is a check. It is parametrised with the
cells that the options select. The outcome of a test is the verdict of its cell:

    pass -> passed, known -> xfailed, unsupported -> skipped, fail / error / crash -> failed

Under pytest-xdist every worker judges, and the records travel with the reports to the process that
writes them. If a worker dies, its cell has a `crash` record.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

from attention_conformance import suite
from attention_conformance.backends.registry import UsageError
from attention_conformance.backends.threads import limit_threads
from attention_conformance.suite.flags import flags
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import CHECKS, Check
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import first_line
from attention_conformance.suite.records import cells as records
from attention_conformance.suite.records.coverage import NOT_JUDGED_ENOUGH
from attention_conformance.suite.records.machine import ROOT
from attention_conformance.suite.run import jax_caches
from attention_conformance.suite.run.log import RunLog, filtered
from attention_conformance.suite.run.options import NAMES, OUTSIDE, SECRET, SECRET_SEEDS, Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.process import YOUNG, is_orphaned, write_stacks
from attention_conformance.suite.run.recorded import cell_name, crashed, record
from attention_conformance.suite.run.supervision import (
    BOARD,
    IDENTITY,
    PROPERTY,
    SEED,
    STACKS,
    Controller,
    InWorker,
    RecordReader,
    death_reporter,
)
from attention_conformance.suite.run.supervision import pytest_cmdline_main as pytest_cmdline_main
from attention_conformance.suite.run.terminal import failure_text
from attention_conformance.suite.spec.text import printable

FOLDER = Path(suite.__file__).resolve().parent
"""The folder of the checks."""

OPTIONS = pytest.StashKey[Options]()
RUN_LOG = pytest.StashKey[RunLog]()
RECORD = pytest.StashKey[records.CellRecord | None]()
TIME_LIMIT = pytest.StashKey[float]()
IS_LAST = pytest.StashKey[bool]()
PLAN = pytest.StashKey[Plan]()
PLAN_IDENTITY = pytest.StashKey[dict[str, Any]]()
JUDGED, OWED = pytest.StashKey[int](), pytest.StashKey[dict[str, int]]()
"""The number of judged cells, and the numbers of cells to judge by backend."""
USAGE_ERROR = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attention", "attention conformance")
    file_flags = {name: OUTSIDE[name] for name in ("results", "verdict", "verdict-fd", "time")}
    for name, flag in (flags(Options) | file_flags).items():
        names = [NAMES.prefixed(name), *([f"--{name}"] if NAMES.short else [])]
        group.addoption(*names, dest=NAMES.destination(name), **flag.arguments)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes minutes; run with -m slow")
    # A read-only checkout has no cache, which changes no verdict.
    config.addinivalue_line("filterwarnings", "ignore::pytest.PytestCacheWarning")
    options = Options.from_lookup(lambda name: config.getoption(NAMES.destination(name)))
    worker_input = getattr(config, "workerinput", None)
    if worker_input is not None:
        options = replace(options, seed=worker_input[SEED])  # a secret one is drawn once
    config.stash[OPTIONS] = options
    if not __debug__ and not options.isolates:
        raise pytest.UsageError(
            "expected a Python that executes assertions, got one with -O or PYTHONOPTIMIZE: functions "
            "under test may check their arguments by assertions; run without it, or with --isolate"
        )
    if options.backend:
        _as_usage_error(config, options.check)
        limit_threads(options.threads, getattr(config.option, "numprocesses", None) or 1)
        _share_compile_cache(config)
    elif config.getoption(NAMES.destination("results")) or options.function:
        raise pytest.UsageError(
            "{} and {} need a {}".format(*NAMES.in_pytest(["--results", "--function", "--backend"]))
        )
    if BOARD not in config.stash:
        write_stacks((worker_input or {}).get(STACKS, ""))
    if worker_input is not None:
        config.pluginmanager.register(InWorker())
        return
    config.stash[RUN_LOG] = log = RunLog(config, options)
    config.pluginmanager.register(log.terminal)
    if (results := log.open_results()) and BOARD in config.stash:
        config.stash[BOARD].say(results=results)
    if options.backend and getattr(config.option, "maxworkerrestart", "") is None:
        # A crash is a verdict here: xdist's own limit, four a worker, would end the run.
        config.option.maxworkerrestart = "10000"
    controller = None
    if _has_workers(config):
        _refuse_bytes(config)
        controller = Controller(config, log)
        config.pluginmanager.register(controller)
    config.pluginmanager.register(RecordReader(log, controller))


def pytest_report_header(config: pytest.Config) -> list[str]:
    options = config.stash[OPTIONS]
    if not options.backend:
        return []
    function = f", function {', '.join(options.function)}" if options.function else ""
    seed = SECRET if options.seed in SECRET_SEEDS else options.seed
    line = (
        f"attention: {', '.join(options.backends)} on {options.device}{function}, level "
        f"{options.level}, seed {seed}; {_versions_line()}"
    )
    return [printable(line)]


class CheckModule(pytest.Module):
    """A module of checks. A checkout has its file outside the package, too."""

    def _getobj(self) -> ModuleType:
        return import_module(f"{suite.__name__}.{self.path.stem}")


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    if module_path.resolve().parent != FOLDER:
        return None
    return CheckModule.from_parent(parent, path=module_path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    check = CHECKS.get(metafunc.function)
    if check is None or "cell" not in metafunc.fixturenames:
        return
    plan = _plan(metafunc.config)
    cells = plan.cells(check)
    metafunc.parametrize("cell", cells, ids=[cell_name(cell) for cell in cells])


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Judge the cell of a check's test, and store its record. Skips, xfails or fails the test by the
    verdict. Returns True, or None for other tests, which pytest calls."""
    if pyfuncitem.function not in CHECKS:
        return None
    cell = cast(Cell, pyfuncitem.callspec.params["cell"])
    pyfuncitem.stash[RECORD] = None
    plan = _plan(pyfuncitem.config)
    _report_progress(pyfuncitem)
    verdict = judge(cell, plan.policy(cell, pyfuncitem.stash.get(TIME_LIMIT, None)))
    if pyfuncitem.stash.get(IS_LAST, False):
        gc.collect()
        if _is_dedicated(pyfuncitem.config):
            gc.freeze()  # pytest looks for cycles twice more
        verdict = leaks.fail_for_leaks(verdict, [], leaks.background_errors())
    cell_record = record(cell, verdict)
    pyfuncitem.stash[RECORD] = cell_record
    stash = pyfuncitem.config.stash
    stash[JUDGED] = stash.get(JUDGED, 0) + 1
    jax_caches.forget(stash[JUDGED])
    if cell_record.status == "unsupported":
        pytest.skip(cell_record.message)
    if cell_record.status == "known":
        pytest.xfail(cell_record.message)
    if cell_record.status != "pass":
        pytest.fail(failure_text(cell_record, pyfuncitem.nodeid, plan.options), pytrace=False)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    """Add the cell's record and the plan's identity to the report of a check's test."""
    report = yield
    check: Check | None = CHECKS.get(getattr(item, "function", None))
    if check is None or call.when != "call":
        return report
    cell_record = item.stash.get(RECORD, None)
    plan = _plan(item.config)
    if cell_record is None:
        name = cell_name(item.callspec.params["cell"])  # type: ignore[attr-defined]
        line = first_line(call.excinfo.value) if call.excinfo else "no verdict"
        cell_record = crashed(check.name, name, "crash", printable(line), plan.options)
        report.outcome, report.longrepr = "failed", cell_record.message
    report.user_properties.append(
        (PROPERTY, {"cell": asdict(cell_record), "run": _identity(item.config)})
    )
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Raise a usage error before any worker starts if checks are named without a backend."""
    config = session.config
    options, worker = config.stash[OPTIONS], hasattr(config, "workerinput")
    if not options.backend and not worker and _names_checks(config):
        _as_usage_error(config, options.check)
    if not _has_workers(config):
        config.add_cleanup(leaks.record_deaths())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Raise a usage error before any cell is judged if entries of manifests match no cell of the
    catalogue."""
    stash = session.config.stash
    plan = stash.get(PLAN, None)
    if plan is None:
        return
    callspecs = [getattr(item, "callspec", None) for item in session.items]
    cells = [callspec.params.get("cell") for callspec in callspecs if callspec is not None]
    counts = Counter(cell.implementation.backend.name for cell in cells if isinstance(cell, Cell))
    stash[OWED] = dict(counts)
    worker_input = getattr(session.config, "workerinput", None)
    if worker_input is None or worker_input["workerid"] == "gw0":
        stale = plan.stale_expectations(filtered(session.config))
        if stale:
            raise pytest.UsageError("stale expectations:\n  " + "\n  ".join(stale))
    if worker_input is None:
        stash[RUN_LOG].set_test_ids(item.nodeid for item in session.items)
        stash[RUN_LOG].write_header(_identity(session.config))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Mark the last test of this process: after it background errors are collected."""
    item.stash[IS_LAST] = nextitem is None


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """Use --timeout of pytest-timeout as the time limit of a cell, like --cell-timeout. Returns True: the
    plugin sets no timer of its own. None for other tests."""
    if getattr(item, "function", None) not in CHECKS:
        return None
    item.stash[TIME_LIMIT] = float(settings.timeout)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Load backends before anything is collected, so that a usage error is one line."""
    config = session.config
    if not config.stash[OPTIONS].backend or _has_workers(config):
        return
    if not _is_dedicated(config):
        _plan(config)
        return
    # Frameworks are half a million objects, and stay: a tenth of a short run's time went into looking for
    # cycles among them. What cells leave is looked through more seldom than Python does by itself.
    gc.disable()
    try:
        _plan(config)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(YOUNG)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Write diagnoses, times, records and verdict, and set the exit status; a worker sends its plan."""
    stash = session.config.stash
    log = stash.get(RUN_LOG, None)
    if log is None:
        if PLAN in stash and OWED in stash:
            session.config.workeroutput[IDENTITY] = _identity(session.config)  # type: ignore[attr-defined]
        return
    if exitstatus == pytest.ExitCode.TESTS_FAILED:
        log.diagnose(None if _has_workers(session.config) else stash.get(PLAN, None))
    cut_short = bool(session.shouldstop or session.shouldfail or log.missing)
    log.close(finished=exitstatus in (0, 1) and not cut_short)
    judging = log.options.backend and not session.config.option.collectonly
    if judging and exitstatus == 0:
        log.time_functions()
        if log.failures():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif log.shortfalls():
            session.exitstatus = NOT_JUDGED_ENOUGH
    log.write_verdict(int(session.exitstatus), stash.get(USAGE_ERROR, ""))
    if BOARD in stash:
        stash[BOARD].say(verdict=True)


def _report_progress(item: pytest.Item) -> None:
    """Write the next cell's test id and the numbers of judged and of all cells to the `Board`, which the
    parent process reads. End the run if that process is gone."""
    stash = item.config.stash
    if (board := stash.get(BOARD, None)) is not None:
        total = sum(stash[OWED].values())
        board.say(cell=item.nodeid, judged=stash.get(JUDGED, 0), owed=total)
        if is_orphaned(board):
            pytest.exit("the process that started this one is gone")


def _is_dedicated(config: pytest.Config) -> bool:
    """True if this process runs this session alone: a fork for it, or a worker of pytest-xdist."""
    return BOARD in config.stash or hasattr(config, "workerinput")


def _has_workers(config: pytest.Config) -> bool:
    return any(getattr(config.option, name, None) for name in ("numprocesses", "tx"))


def _plan(config: pytest.Config) -> Plan:
    """Returns the plan of this process. The first call makes it. Raises pytest.UsageError."""
    if PLAN not in config.stash:
        options = config.stash[OPTIONS]
        on_death = death_reporter(config)
        config.stash[PLAN] = _as_usage_error(config, lambda: Plan.make(options, on_death=on_death))
    return config.stash[PLAN]


def _as_usage_error(config: pytest.Config, action: Any) -> Any:
    """Returns the result of `action()`. A UsageError becomes pytest.UsageError, and its text is
    stored."""
    try:
        return action()
    except UsageError as error:
        config.stash[USAGE_ERROR] = printable(str(error))
        raise pytest.UsageError(config.stash[USAGE_ERROR]) from error


def _identity(config: pytest.Config) -> dict[str, Any]:
    """Returns `Plan.identity` with "owed", the numbers of cells to judge by backend. Made once."""
    stash = config.stash
    if PLAN_IDENTITY not in stash:
        stash[PLAN_IDENTITY] = stash[PLAN].identity() | {"owed": stash[OWED]}
    return stash[PLAN_IDENTITY]


def _versions_line() -> str:
    versions = []
    for name in ("torch", "tensorflow", "tensorflow-cpu", "jax", "keras", "numpy"):
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    return ", ".join(versions)


def _refuse_bytes(config: pytest.Config) -> None:
    """Raise pytest.UsageError for arguments that are not UTF-8: they cannot be sent to workers."""
    for word in map(str, config.invocation_params.args):
        if not word.isascii() and word.encode(errors="ignore").decode() != word:
            raise pytest.UsageError(
                f"{printable(word)} cannot be handed to workers: it is not UTF-8"
            )


def _names_checks(config: pytest.Config) -> bool:
    """True if the arguments name this checkout, the folder of the checks, or anything in that folder."""
    for argument in config.args:
        place = argument.partition("::")[0]
        if config.option.pyargs and f"{place}.".startswith(f"{suite.__name__}."):
            return True
        path = (config.invocation_params.dir / place).resolve()
        if path == ROOT or path.is_relative_to(FOLDER):
            return True
    return False


def _share_compile_cache(config: pytest.Config) -> None:
    """Let JAX keep compiled programs in pytest's cache folder, so that a second run compiles nothing."""
    cache = getattr(config, "cache", None)
    if cache is not None and jax_caches.FOLDER not in os.environ:
        with suppress(OSError):  # a read-only checkout
            jax_caches.keep_compilations(cache.mkdir("jax-compilations"))
