"""Start, ask and end worker processes (`suite.measure.worker`)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from attention_conformance.backends.threads import thread_variables
from attention_conformance.suite.measure.worker import cpus_for
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.process import environment
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.operators import OPERATORS


class WorkerFailure(Exception):
    """A request to a worker failed: `status` is a status of speed records, or "usage"."""

    def __init__(
        self, status: str, kind: str, message: str, error_ratio: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message
        self.error_ratio = error_ratio


class NothingToMeasure(Exception):
    """No implementation, backend or workload matches the options; the message lists valid names."""


@dataclass(frozen=True)
class Offer:
    """An implementation of a worker's backend."""

    name: str
    mode: str
    operator: Operator


class Worker:
    """A running worker process; as a context manager it ends the process on exit.

    Raises WorkerFailure "usage" if the backend cannot be loaded.
    """

    def __init__(self, options: Options, backend: str, python: str = "") -> None:
        """Start a worker of `backend`. `python` is another environment's interpreter; "" is this one."""
        self.options, self.backend, self.python = options, backend, python
        self.cpus = cpus_for(options.threads)
        self._start()

    def restart(self) -> None:
        """End the process and start a new one. Prepared calls are lost. Raises WorkerFailure if the new
        process does not start."""
        self.end()
        self._start()

    def _start(self) -> None:
        """Start the process of `suite.measure.worker`, and store its first answer in `hello`. Raises
        WorkerFailure."""
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [self.python or sys.executable, "-m", "attention_conformance.suite.measure.worker"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
                encoding="utf-8", env=environment(thread_variables(self.options.threads)),
            )  # fmt: skip
        except OSError as error:
            raise WorkerFailure("usage", "", f"{self.python} cannot be started: {error}") from error
        request = {"backend": self.backend, "options": asdict(self.options), "cpus": self.cpus}
        try:
            self.hello = self._request(request, self.options.start_timeout, "start")
        except BaseException:
            self.end()
            raise

    @property
    def offers(self) -> list[Offer]:
        """The implementations of the worker's backend."""
        return [
            Offer(each["name"], each["mode"], OPERATORS[each["operator"]])
            for each in self.hello["implementations"]
        ]

    @property
    def died(self) -> bool:
        """True if the process has ended."""
        return self._process.poll() is not None

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request to the worker, and return the answer. Raises WorkerFailure with the status that
        the worker reports, or "error" if the worker died or exceeded the time limit."""
        return self._request(request, self.options.cell_timeout, request["do"])

    def _request(self, request: dict[str, Any], seconds: float, method: str) -> dict[str, Any]:
        """Send a request as `ask`, with a time limit in seconds (0: none). `method` names the request in
        the error of the limit."""
        stdin, stdout, exceeded = self._process.stdin, self._process.stdout, list[float]()
        assert stdin is not None
        assert stdout is not None

        def kill() -> None:
            exceeded.append(seconds)
            self._process.kill()

        timer = threading.Timer(seconds, kill)
        if seconds:
            timer.start()
        line = ""
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            line = stdout.readline()
        timer.cancel()
        if line:
            answer = json.loads(line)
            if "failed" in answer:
                ratio = answer.get("error_ratio")
                raise WorkerFailure(answer["failed"], answer["kind"], answer["message"], ratio)
            return answer
        code = self._process.wait()
        if exceeded:
            message = f"the worker was ended: {method!r} took longer than {seconds:g} s"
            raise WorkerFailure("error", "timeout", message)
        self._errors.seek(0)
        last_line = (self._errors.read().strip().splitlines() or ["no message"])[-1]
        message = f"the worker ended with exit code {code}: {last_line}"
        raise WorkerFailure("error", "crash", message)

    def end(self) -> None:
        """End the process: close its standard input, and kill it if it does not exit within 10
        seconds."""
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


class Pool:
    """A context manager that starts one worker per backend and ends them.

    Entering raises NothingToMeasure if a worker cannot be started.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.workers: dict[str, Worker] = {}

    def __enter__(self) -> Self:
        try:
            for backend in self.options.backends:
                self.workers[backend] = Worker(self.options, backend)
        except WorkerFailure as error:
            self.__exit__()
            raise NothingToMeasure(error.message) from error
        return self

    def __exit__(self, *details: Any) -> None:
        for worker in self.workers.values():
            worker.end()

    def offers(self) -> list[tuple[str, Offer]]:
        """Returns pairs of a backend and an offer, for the selected implementations: those named by
        `options.implementation` ("sdpa", "torch:sdpa"); else user functions in the selected mode; else
        all implementations in this mode. Raises NothingToMeasure for an unknown name, or if nothing is
        selected."""
        names, mode = self.options.implementation, self.options.mode
        offers = [(b, offer) for b, worker in self.workers.items() for offer in worker.offers]
        names_of = {(b, o.name): {o.name, f"{b}:{o.name}"} for b, o in offers}
        if unknown := sorted(set(names) - set().union(*names_of.values())):
            valid = ", ".join(f"{b}:{o.name}" for b, o in offers)
            raise NothingToMeasure(f"unknown implementation {', '.join(unknown)}; valid: {valid}")
        if names:
            return [(b, o) for b, o in offers if names_of[b, o.name] & set(names)]
        selected = [(b, o) for b, o in offers if mode in ("all", o.mode)]
        if self.options.function:
            functions = self.options.function_names
            selected = [(b, o) for b, o in selected if o.name.partition("@")[0] in functions]
        if not selected:
            raise NothingToMeasure(f"no implementation in mode {mode}")
        return selected


def interpreter(place: str) -> str:
    """Returns the path of a Python interpreter. `place` is this path, or the folder of a virtual
    environment. Raises ValueError if the file does not exist.
    """
    path = Path(place).expanduser()
    python = path / "bin" / "python" if path.is_dir() else path
    if not python.is_file():
        raise ValueError(f"expected a virtual environment or an interpreter, got {place}")
    return str(python.absolute())
