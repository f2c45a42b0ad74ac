"""How well faults are named by their family if the catalogue lacks them.

python -m tests.withheld [EVERY [OPERATOR]]     every n-th fault of an operator; default: 6 sdpa

Each kernel is judged by `values`, `gradients` and the check that must kill it, at smoke, and is then
diagnosed without itself. A line for each that is not named by its family, then the shares.
"""

from __future__ import annotations

import sys
from collections import Counter

from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.faults import all_faults
from attention_conformance.suite.faults.backend import KernelBackend
from attention_conformance.suite.faults.fault import Fault
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.diagnosis.diagnose import diagnose
from attention_conformance.suite.judge.diagnosis.finding import Diagnosis
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.spec.vocabulary import GRADIENTS, VALUES


def diagnosed(fault: Fault, seconds: float = 5.0) -> tuple[int, list[Diagnosis]]:
    """The number of failing cells of a fault, and what is said of it without itself in so many processor
    seconds."""
    (kernel,) = KernelBackend("mine", (fault.kernel,)).implementations()
    failing: list[Cell] = []
    passing: list[Cell] = []
    for check in all_checks().values():
        if check.name not in (VALUES, *GRADIENTS, fault.killed_by):
            continue
        for cell in check.cells("smoke", [kernel]):
            status = judge(cell).status
            if status in ("fail", "pass"):
                (failing if status == "fail" else passing).append(cell)
    if not failing:
        return 0, []
    return len(failing), diagnose(kernel.backend, kernel, failing, passing, seconds, fault.name)


def outcome(fault: Fault, failures: int, said: list[Diagnosis]) -> str:
    """green (smoke does not see the fault), silent, right (the first sentence is of its family), later,
    or wrong."""
    if not failures:
        return "green"
    families = [one.family for one in said]
    if not families:
        return "silent"
    return (
        "right" if families[0] == fault.family else "later" if fault.family in families else "wrong"
    )


def main() -> None:
    every, operator = (
        int([*sys.argv, "6"][1]),
        [*sys.argv, "", "sdpa"][-1 if len(sys.argv) < 3 else 2],
    )
    faults = [f for f in all_faults() if f.kernel.operator.name == operator][::every]
    counts: Counter[str] = Counter()
    for fault in faults:
        failures, said = diagnosed(fault)
        found = outcome(fault, failures, said)
        counts[found] += 1
        if found not in ("right", "green"):
            first = said[0] if said else None
            what = "" if first is None else f": {first.family}, {first.source}: {first.sentence}"
            print(f"{found:7}{fault.name} ({fault.family}: {fault.sentence}){what}", flush=True)
    seen = sum(counts.values()) - counts["green"]
    said = ", ".join(f"{name} {n}" for name, n in counts.most_common())
    print(f"{said}; right {counts['right'] / seen:.0%} of the {seen} that fail")


if __name__ == "__main__":
    main()
