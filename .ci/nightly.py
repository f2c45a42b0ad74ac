"""Hold a nightly run against the last whole one; where it is whole itself, it takes that one's place.

python .ci/nightly.py NEW.jsonl FOLDER

The last whole run is FOLDER/run.jsonl, the ones before it are in FOLDER/earlier. Exit code 0; 1 where
something regressed, or the run is not whole: `regression.md` then says what.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from attention_conformance.suite.records.cells import Run, load
from attention_conformance.suite.records.lines import RecordError
from attention_conformance.suite.report.diff import compare_runs, new_failures, summary
from attention_conformance.suite.report.render import as_markdown

NIGHTS = 6
"""How many runs before the last one are kept, for the history of the site."""

MOST = 50
"""How many changes are listed."""


def main(new_file: str, folder: str) -> int:
    """Compare, keep, and say what is wrong; returns the exit code."""
    last = Path(folder, "run.jsonl")
    try:
        new = load(new_file, partial=True)
        told = _unfinished(new) + (_regressions(load(last), new) if last.is_file() else "")
    except RecordError as error:
        new, told = None, f"{error}\n"
    if new is not None and _is_whole(new):
        _keep(last)
        shutil.copyfile(new_file, last)
    if told:
        Path("regression.md").write_text(told, encoding="utf-8")
        print(told)
    return 1 if told else 0


def _keep(last: Path) -> None:
    """Put the last whole run among the earlier ones, of which `NIGHTS` are kept."""
    earlier = last.parent / "earlier"
    earlier.mkdir(parents=True, exist_ok=True)
    if last.is_file():
        started = re.sub(r"\W", "", load(last).header.started)
        last.replace(earlier / f"{started}.jsonl")
    for old in sorted(earlier.glob("*.jsonl"))[:-NIGHTS]:
        old.unlink()


def _is_whole(run: Run) -> bool:
    return run.complete and not run.header.partial and not run.header.shard


def _unfinished(run: Run) -> str:
    """What is missing of a run; "" where it is whole."""
    if _is_whole(run):
        return ""
    return f"The run did not finish: {len(run.cells)} of {run.header.cells} cells were judged.\n\n"


def _regressions(last: Run, new: Run) -> str:
    """The tables of a comparison; "" without new failures."""
    changes = compare_runs(last, new)
    if not new_failures(changes):
        return ""
    versions = ", ".join(f"{name} {text}" for name, text in new.header.versions.items())
    return as_markdown({"summary": summary(changes), "changes": changes[:MOST]}, versions)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
