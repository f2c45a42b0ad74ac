"""Processor seconds of a run by operator: of the implementations' own calls, and of the suite.

    python -m tests.studies.costs --backend=torch --level=standard
    python -m tests.studies.costs --backend=jax --level=smoke --operator cached

`calls` are the implementations' forward calls and derivatives, with tracing and compilation. The suite's
part is the rest: `prepare` converts arrays and finds functions, `draw` draws values, `reference` computes
answers with bounds, `judge` is all else.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any

import pandas as pd

from attention_conformance.backends.protocol import PreparedCall
from attention_conformance.backends.threads import limit_threads
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge import cell as judging
from attention_conformance.suite.judge import oracle
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.report.render import as_markdown
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.spec.operators import OPERATORS

PARTS = ("calls", "prepare", "draw", "reference", "judge")


class Clock:
    """Processor seconds by operator and part. What a part spends in another part counts there."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._now, self._since = ("", "judge"), time.process_time()

    def switch(self, operator: str, part: str) -> tuple[str, str]:
        """Count for an operator and a part from now on; returns those that were counted for."""
        before, since = self._now, self._since
        self._now, self._since = (operator, part), time.process_time()
        self.seconds[before[0]][before[1]] += self._since - since  # type: ignore[assignment]
        return before

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Count the calls of the owner's function for a part."""
        function: Callable[..., Any] = getattr(owner, name)

        @wraps(function)
        def watched(*arguments: Any, **named: Any) -> Any:
            before = self.switch(self._now[0], part)
            try:
                return function(*arguments, **named)
            finally:
                self.switch(*before)

        setattr(owner, name, watched)


def costs(options: Options, operators: Collection[str]) -> pd.DataFrame:
    """A row for every operator: cells, seconds by part, the suite's seconds over those of calls."""
    limit_threads(options.threads)
    plan, clock = Plan.make(options), Clock()
    clock.watch(PreparedCall, "call", "calls")
    clock.watch(judging, "draw", "draw")
    clock.watch(oracle, "_cached", "reference")
    for one in plan.loaded:
        for name in ("vjp", "pullback", "jvp"):
            clock.watch(one.backend, name, "calls")
    for implementation in plan.implementations:
        clock.watch(implementation, "prepare", "prepare")
    asked: Counter[str] = Counter()
    for check in all_checks().values():
        for cell in plan.cells(check):
            name = cell.implementation.operator.name
            if name in operators:
                asked[name] += 1
                clock.switch(name, "judge")
                judge(cell, plan.policy(cell))
                clock.switch("", "judge")
    rows = {name: {"cells": asked[name], **clock.seconds[name]} for name in asked}
    table = pd.DataFrame.from_dict(rows, orient="index", columns=["cells", *PARTS]).fillna(0.0)
    table.index.name = "operator"
    table["suite / calls"] = table[[*PARTS[1:]]].sum(axis=1) / table["calls"]
    return table


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m tests.studies.costs")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--level", default="standard")
    parser.add_argument("--operator", nargs="+", choices=[*OPERATORS], default=[*OPERATORS])
    args = parser.parse_args(words)
    table = costs(Options(backend=(args.backend,), level=args.level), args.operator)
    print(as_markdown({f"{args.backend} at {args.level}": table}, "Processor seconds"), end="")


if __name__ == "__main__":
    main()
