"""Children: processes that answer requests, a line of JSON each, and whose end is seen.

A child reads requests from standard input; whatever frameworks print goes to standard error. Its parent
knows how it ended, and what it said last.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from suite.records.machine import ROOT

Fields = dict[str, Any]
"""A request, or the answer to one, as JSON has it."""


class ChildEnded(Exception):
    """A child ended instead of answering: its exit code (below 0: the number of the signal), the last
    line of its standard error, and whether its parent ended it, because it took too long."""

    def __init__(self, code: int, last: str, late: bool) -> None:
        super().__init__(f"the process ended with exit code {code}: {last}")
        self.code, self.last, self.late = code, last, late


class Child:
    """A running child: the module that `serve`s, in this interpreter or in another one.

    `variables` are those of its environment besides this process's own. Raises OSError where it cannot be
    started.
    """

    def __init__(self, module: str, variables: Mapping[str, str], python: str = "") -> None:
        environment = {**os.environ, **variables}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python or sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            env=environment,
        )

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it can answer no more."""
        return self._process.poll() is not None

    def ask(self, request: Fields, seconds: float = 0.0) -> Fields:
        """Its answer. A child that takes longer than `seconds`, 0 for no limit, is killed.

        Raises ChildEnded.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with _killed_after(seconds, self._process) as killed:
            try:
                stdin.write(json.dumps(request) + "\n")
                stdin.flush()
                line = stdout.readline()
            except BrokenPipeError:
                line = ""
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            last = (self._errors.read().strip().splitlines() or ["no message"])[-1]
            raise ChildEnded(code, last, killed.is_set())
        return json.loads(line)

    def end(self) -> None:
        """Close its input, and end it where it does not end of itself."""
        if self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._errors.close()


def serve(answer: Callable[[Fields], Fields]) -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


@contextlib.contextmanager
def _killed_after(seconds: float, process: subprocess.Popen[str]) -> Iterator[threading.Event]:
    """A context that kills a process after so many seconds, 0 for never; the event says that it did."""
    killed = threading.Event()

    def kill() -> None:
        killed.set()
        process.kill()

    timer = threading.Timer(seconds, kill)
    if seconds:
        timer.start()
    try:
        yield killed
    finally:
        timer.cancel()
