"""Judge a function or a layer by the cases of a level."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from attention_conformance.backends.declared import UsageError
from attention_conformance.backends.registry import check_function
from attention_conformance.report import AttentionFailure, Report
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.records.cells import Run
from attention_conformance.suite.records.coverage import shortfalls
from attention_conformance.suite.run.diagnosing import diagnose_run
from attention_conformance.suite.run.loading import UserCode
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.recorded import header, record
from attention_conformance.suite.run.suggestions import joint_suggestions, suggestions
from attention_conformance.suite.spec.claims import CLAIMS
from attention_conformance.suite.spec.text import did_you_mean


def check_attention(
    function: Callable[..., Any],
    backend: str = "torch",
    level: str = "smoke",
    *,
    like: str | None = None,
    name: str | None = None,
    numerics: str | Mapping[str, str] | None = None,
    elect: Mapping[str, Any] | None = None,
    dtypes: Iterable[str] | None = None,
    expect: Iterable[str | Path] = (),
    checks: Iterable[str] = (),
    drop_in: bool = False,
    allow_unused: bool = False,
    inherit_known: bool = True,
    allow_refusals: bool = False,
    device: str = "cpu",
    seed: int = 0,
    timeout: float = 0.0,
    raises: bool = True,
    **claims: Any,
) -> Report:
    """Judge a function by the cases of a level, as `pytest suite --function` does, in this process.

    - `function`: a callable with the signature of the backend's own attention, or part of it
    - `backend`: "torch", "tf", "jax", "keras-torch", "keras-jax", "keras-numpy" or "module:object"
    - `level`: "smoke", "standard" or "full"
    - `like`: the operator if the function is not plain attention, or a layer if the function makes one
      (see `judge_module`)
    - `name`: the function's name in tables
    - `numerics`: the numerics class, or one for each dtype by name; `elect`: answers by election
      question; `dtypes`: supported dtypes
    - `expect`: manifests of expected failures
    - `checks`: names of checks, by default all
    - `drop_in`: the function replaces the framework's own attention, so it must refuse malformed problems
      and give the same implementation-defined answers
    - `allow_unused`: it may have parameters whose names are nearly those of arguments
    - `inherit_known`: a failure is known if the framework's own code is known to fail in the same way
    - `timeout`: seconds per cell, 0 for none. It uses SIGALRM, and ends the process if a cell holds the
      GIL.
    - `claims`: other claims, as `head_sizes=(64, 128)` (`suite.spec.claims.CLAIMS`)

    Returns the report, which says what is wrong if a cell fails (a few seconds more). Unless `raises` is
    False, raises AttentionFailure if a cell fails, no cell passes, or too little is judged: no cell of
    the check `values`, or (without `allow_refusals`) less than half of the cells that signature and
    claims allow. Raises UsageError for invalid arguments.
    """
    __tracebackhide__ = True
    if timeout < 0:
        raise UsageError(f"timeout must not be negative, got {timeout}")
    plan = plan_of(
        function, backend, level, like=like, name=name, numerics=numerics, elect=elect, dtypes=dtypes,
        expect=expect, drop_in=drop_in, allow_unused=allow_unused,
        inherit_known=inherit_known, allow_refusals=allow_refusals, device=device, seed=seed,
        timeout=timeout, **claims,
    )  # fmt: skip
    cells = cells_of(plan, checks)
    judged = tuple(record(cell, judge(cell, plan.policy(cell))) for cell in cells)
    run_header = header(plan.options, plan.identity(), partial=bool(checks or dtypes))
    names = [i.name for i in plan.functions]
    reasons = shortfalls(judged, names, allow_refusals=plan.options.allow_refusals)
    failures = diagnose_run(plan, judged, None)
    run = Run(run_header, judged, diagnoses=failures.diagnoses)
    advice = (*suggestions(judged, names), *joint_suggestions(judged, failures.diagnoses, names))
    report = Report(run, (*plan.notes, *failures.notes, *advice), tuple(reasons))
    if raises and not report.passed:
        raise AttentionFailure(report)
    return report


def judge_module(
    factory: Callable[..., Any], backend: str = "torch", like: str = "multi-head", **options: Any
) -> Report:
    """Judge the layer that a factory makes, as `pytest suite --function --like` does.

    `factory(**configuration)` returns the layer: a class as it is, or a function. The documentation of
    `--like` lists the names of the configuration and of the layer's arguments. The output is compared
    with the reference if the parameters are found by names and shapes, or if the layer has a method
    `load_attention(parameters)`. Otherwise only checks without a reference are made. `options`, result
    and errors are those of `check_attention`.
    """
    __tracebackhide__ = True
    return check_attention(factory, backend, like=like, **options)


def plan_of(
    function: Callable[..., Any],
    backend: str,
    level: str = "smoke",
    *,
    like: str | None = None,
    name: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    elect: Mapping[str, Any] | None = None,
    inherit_known: bool = True,
    allow_refusals: bool = False,
    timeout: float = 0.0,
    **claims: Any,
) -> Plan:
    """Returns the plan of a run that judges one function, with its `claims`. Raises UsageError."""
    if not isinstance(backend, str):
        raise UsageError(f"backend: expected a name such as 'torch', got {backend!r}")
    given_claims = {n: v for n, v in claims.items() if v is not None and v is not False}
    if unknown := sorted(set(given_claims) - set(CLAIMS)):
        hint = did_you_mean(unknown[0], CLAIMS)
        raise UsageError(f"unknown option {unknown[0]!r}{hint}; claims are {', '.join(CLAIMS)}")
    if elect:
        given_claims["elections"] = dict(elect)
    its_name = name_of(function) if name is None else name
    if not its_name:
        raise UsageError("name: expected one letter or more, got ''")
    check_function(function, repr(its_name))
    options = Options(
        (backend,), function=(its_name,), level=level, device=device, seed=seed, like=like or "",
        inherit_known="yes" if inherit_known else "no", allow_refusals=allow_refusals,
        cell_timeout=timeout,
        start_timeout=0.0,  # the watchdog would end the caller's process
    )  # fmt: skip
    plan = Plan.make(options, UserCode({its_name: function}, given_claims))
    if unmatched := plan.stale_expectations():
        raise UsageError("stale expectations: " + "; ".join(unmatched))
    return plan


def cells_of(plan: Plan, checks: Iterable[str] = ()) -> list[Cell]:
    """Returns the cells of a plan, check by check. Raises UsageError for the name of an unknown check."""
    known = all_checks()
    selected = (checks,) if isinstance(checks, str) else checks
    names = list(selected) or list(known)
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"unknown check {unknown[0]!r}; valid: {', '.join(known)}")
    return [cell for name in names for cell in plan.cells(known[name])]


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of a function or of its class, without characters that names in tables cannot
    have."""
    name = type(function).__name__
    with suppress(Exception):  # `check_function` says what a user's `__getattr__` raises
        unwrapped = getattr(function, "func", function)
        name = getattr(unwrapped, "__name__", type(unwrapped).__name__)
    return re.sub(r"[^A-Za-z0-9_.-]+", "", name) or "function"
