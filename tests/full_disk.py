"""A sweep onto a disk that gets full, and on with more of it: `python -m tests.full_disk WAY FOLDER`.

WAY is `tmpfs`, a file system of some pages that is mounted over the folder (who calls this gives it a
name space of its own), or `limit`, what the system lets this process write into a file.
"""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from suite.records import sweeps
from suite.sweep import driver
from suite.sweep.run import GREEN
from suite.sweep.tasks import JudgeTask, Task
from tests.sweeps_by_hand import Here, few, plainly, recorded, sweep

SMALL, ROOMY = "56k", "16m"

UNLIMITED = resource.getrlimit(resource.RLIMIT_FSIZE)


def main(way: str, folder: Path) -> None:
    """Sweep, meet the end of the disk, and go on; says what was written before, and of what error."""
    count = itertools.count()

    def fate(task: Task[Any]) -> None:
        if way == "limit" and isinstance(task, JudgeTask) and next(count) == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, UNLIMITED[1]))

    if way == "tmpfs":
        mount = ["mount", "-t", "tmpfs", "-o"]
        subprocess.run([*mount, f"size={SMALL}", "none", str(folder)], check=True)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    driver.BATCH_SECONDS = driver.SHORTEST = 1e-9
    error = None
    try:
        sweep(folder / "s", few(), Here(fate))
    except OSError as met:
        error = met
    assert error is not None, "the disk is not full"
    written = {path: path.read_bytes() for path in folder.rglob("*.parquet")}
    assert not [*folder.rglob("*.part")]
    for run in sweeps.runs(folder):
        assert not run.complete
    if way == "tmpfs":
        subprocess.run([*mount, f"remount,size={ROOMY}", "none", str(folder)], check=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, UNLIMITED)
    assert sweep(folder / "s", few())[0] == GREEN
    assert written.items() <= {p: p.read_bytes() for p in folder.rglob("*.parquet")}.items()
    assert recorded(folder / "s") == plainly(0)[1]
    print(f"{len(written)} files, then {os.strerror(error.errno or 0)}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
