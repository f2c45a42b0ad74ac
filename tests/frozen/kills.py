"""What kills the faults: the first case that the check of a fault fails, and the kind of this failure.

A line is "FAULT: CHECK CASE KIND"; of a fault that the level does not see, "FAULT: CHECK survives".
"""

from __future__ import annotations

from functools import partial

from attention_conformance.backends.registry import load
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.run.kill_table import kill
from tests.frozen.part import Part, Texts, Wanted


def kills(level: str, wanted: Wanted) -> Texts:
    """The first kill of every wanted fault."""
    checks, mutants = (
        all_checks().values(),
        load("attention_conformance.suite.deviations:mutants").implementations(),
    )
    kills = [kill(mutant, checks, level) for mutant in mutants if wanted(mutant.name)]
    return {
        one.fault.name: f"{one.fault.killed_by} {f'{one.case} {one.kind}' if one.killed else 'survives'}"
        for one in kills
    }


KILLS = [
    Part("kills", "kills-smoke", partial(kills, "smoke")),
    Part("kills", "kills-standard", partial(kills, "standard")),
]
