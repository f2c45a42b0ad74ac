"""Judge the kernels of the corpus one by one, and print how well their faults are named.

python -m tests.diagnosed                       all
python -m tests.diagnosed masks healthy         those whose names contain one of the words
python -m tests.diagnosed --only-colours        whether faulty kernels fail and right ones pass
python -m tests.diagnosed --output=table.jsonl  a line of JSON a kernel, too
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from tests.diagnosed.expected import Kernel
from tests.diagnosed.kernels import FAULTY, HEALTHY, KERNELS, PAIRS
from tests.diagnosed.running import Outcome, judge, verdict


def row(kernel: Kernel, outcome: Outcome) -> dict[str, object]:
    """What the table says of a kernel."""
    return {
        "name": kernel.name,
        "expected": " + ".join(fault.families[0] for fault in kernel.faults) or "none",
        "verdict": verdict(kernel, outcome.diagnoses),
        "first": outcome.first,
        "family": outcome.diagnoses[0]["family"] if outcome.diagnoses else "",
        "lines": outcome.lines,
        "seconds": round(outcome.seconds, 1),
        "code": outcome.code,
        "failures": len(outcome.failures),
        "diagnoses": outcome.diagnoses,
    }


def print_totals(rows: list[dict[str, object]]) -> None:
    """Verdicts, lines and seconds of each class of kernels."""
    for title, kernels in (
        ("one fault", FAULTY),
        ("two faults", PAIRS),
        ("right", HEALTHY),
    ):
        names = {kernel.name for kernel in kernels}
        these = [r for r in rows if r["name"] in names]
        if not these:
            continue
        counts = Counter(str(r["verdict"]) for r in these)
        lines, seconds = (sorted(float(str(r[key])) for r in these) for key in ("lines", "seconds"))
        shares = ", ".join(f"{n} {v} ({n / len(these):.0%})" for v, n in counts.most_common())
        middle = len(these) // 2
        print(
            f"{title}: {len(these)} kernels: {shares}; lines {lines[middle]:.0f} "
            f"(at most {lines[-1]:.0f}), CPU seconds {seconds[middle]:.1f} (at most {seconds[-1]:.1f})"
        )


def main() -> None:
    """Judge the kernels asked for, a line each, then the totals."""
    parser = argparse.ArgumentParser(prog="python -m tests.diagnosed")
    parser.add_argument("words", nargs="*", help="parts of names; default: all kernels")
    parser.add_argument("--level", default="smoke", help="default: smoke")
    parser.add_argument("--only-colours", action="store_true", help="only whether a run fails")
    parser.add_argument("--output", type=Path, help="a new file of JSON lines")
    asked = parser.parse_args()
    rows = []
    for kernel in KERNELS:
        if asked.words and not any(word in kernel.name for word in asked.words):
            continue
        stop = ["-x"] if asked.only_colours and kernel.faults else []
        outcome = judge(kernel, asked.level, *stop)
        rows.append(row(kernel, outcome))
        if asked.output:
            with asked.output.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
        right = (outcome.code == 0) == (not kernel.faults)
        if asked.only_colours:
            colour = "ok" if right else "GREEN" if kernel.faults else "RED"
            shown = outcome.failures[:3]
            print(f"{colour:6}{kernel.name:52}{len(outcome.failures):4} {shown}", flush=True)
            continue
        r = rows[-1]
        print(
            f"{r['verdict']:7}{r['name']:50}{r['expected']:18}{r['lines']:4}{r['seconds']:6} "
            f"{'' if right else 'COLOUR! '}{r['first']}",
            flush=True,
        )
    if not asked.only_colours:
        print_totals(rows)


if __name__ == "__main__":
    main()
