"""Workers as their driver sees them: started, asked, and ended by their own process id."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from suite.measure.worker import cpus_for, thread_variables
from suite.records.machine import ROOT

DEFAULT_FUNCTION_NUMERICS = "stepwise"


class Failed(Exception):
    """A worker could not do what it was asked: `status` is a status of speed records, or "usage"."""

    def __init__(self, status: str, kind: str, message: str, error_ratio: float | None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message
        self.error_ratio = error_ratio


@dataclass(frozen=True)
class Asked:
    """The worker that is wanted. `threads` 0 means one for every CPU; `python` the interpreter of another
    environment, "" this one."""

    backend: str
    device: str = "cpu"
    threads: int = 1
    functions: tuple[str, ...] = ()
    numerics: str = DEFAULT_FUNCTION_NUMERICS
    python: str = ""

    @property
    def cpus(self) -> list[int]:
        """The CPUs it may run on."""
        return cpus_for(self.threads)


class Worker:
    """A running worker; a context that ends it. Raises Failed "usage" where the backend cannot be
    loaded."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        environment = os.environ | thread_variables(asked.threads)
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [asked.python or sys.executable, "-m", "suite.measure.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                encoding="utf-8",
                env=environment,
            )
        except OSError as error:
            raise Failed("usage", "", f"{asked.python} cannot be started: {error}", None) from error
        try:
            self.hello = self.ask(
                backend=asked.backend,
                device=asked.device,
                functions=list(asked.functions),
                numerics=asked.numerics,
                cpus=asked.cpus,
            )
        except BaseException:
            self.end()
            raise

    def ask(self, **request: Any) -> dict[str, Any]:
        """The worker's answer. Raises Failed with what it says, or "error" where it died."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
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
            raise Failed("error", "crash", f"the worker ended with exit code {code}: {last}", None)
        answer = json.loads(line)
        if "failed" in answer:
            ratio = answer.get("error_ratio")
            raise Failed(answer["failed"], answer["kind"], answer["message"], ratio)
        return answer

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: Any) -> None:
        self.end()


def interpreter(place: str) -> str:
    """The Python of a virtual environment, given as its folder or as the interpreter itself.

    Raises ValueError where there is none.
    """
    path = Path(place).expanduser()
    found = path / "bin" / "python" if path.is_dir() else path
    if not found.is_file():
        raise ValueError(f"expected a virtual environment or an interpreter, got {place}")
    return str(found.absolute())
