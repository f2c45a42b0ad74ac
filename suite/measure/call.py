"""A timed call: one implementation's call of one case, made ready, timed, and judged on its answer."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from backends.compilation import Compiled
from backends.protocol import Implementation, PreparedCall
from suite.judge.answer import Answer
from suite.judge.cell import Cell
from suite.judge.check import Check
from suite.judge.derivative import (
    judge_gradients,
    names_of,
    native_cotangent,
    read_gradients,
    read_output,
)
from suite.judge.verdict import Deviation, Measured, NotApplicable
from suite.measure import protocol
from suite.measure.seen import Seen, arrays_of, digest_of
from suite.spec.case import Case
from suite.spec.features import ARRAYS
from suite.spec.inputs import Inputs, draw, draw_cotangent
from suite.spec.operator import Work

FRESH_SEED = 7001
"""Added to a case's seed for inputs that the call has not seen."""

UNTIMED = ("bias", *ARRAYS)
"""Arrays whose gradients are not timed: many kernels give none."""

_CHECK = Check("speed", lambda cell: None, lambda level: ())


class RefusedTime(Exception):
    """A time that must not be reported: `kind` in a word, and why."""

    def __init__(self, kind: str, message: str, error_ratio: float | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.error_ratio = kind, message, error_ratio


class UnsupportedCall(Exception):
    """The implementation does not compute the case, or not in this direction; the message says why."""


@dataclass(frozen=True)
class Accuracy:
    """How right the answer was that was timed."""

    error_ratio: float | None
    grade: str


@dataclass(frozen=True)
class Preparation:
    """What getting ready took, in seconds, and what the call works on.

    `first_call` is that of the first call, tracing and compilation included; `inner` calls make a
    sample; `settled`: warming up came to rest. `work` is None where nobody has counted it.
    """

    convert: float
    first_call: float
    inner: int
    settled: bool
    work: Work | None


@dataclass(frozen=True)
class Reading:
    """What a call returned, read and not yet judged; `failure` where it cannot be read."""

    output: Answer | None = None
    gradients: dict[str, np.ndarray] | None = None
    failure: Exception | None = None


class TimedCall:
    """One implementation's call of a case in one of `suite.spec.vocabulary.DIRECTIONS`.

    A backward pass is that of the output by the operands and by the parameters that the call is handed.
    Raises UnsupportedCall where the implementation declares that it does not compute the case.
    """

    def __init__(
        self,
        implementation: Implementation,
        case: Case,
        direction: str = "forward",
        seed: int = 0,
    ) -> None:
        self.implementation, self.case, self.direction = implementation, case, direction
        self.backend = implementation.backend
        self.cell = Cell(_CHECK, case, implementation, seed)
        if implementation.operator is not case.operator:
            raise UnsupportedCall(f"computes {implementation.operator}, not {case.operator}")
        needs = () if direction == "forward" else ("gradient",)
        reason = implementation.unsupported(case) or implementation.missing(needs)
        if reason is not None:
            raise UnsupportedCall(reason)
        self.seen = Seen[Reading](seed)
        self.compiled = False
        self.slowest = 0.0
        self.fresh = math.inf
        self.slow = 0.0

    @property
    def wrt(self) -> list[str]:
        """The arrays whose gradients are timed."""
        return [n for n in names_of(self.prepared, self.cell.inputs) if n not in UNTIMED]

    @property
    def work(self) -> Work | None:
        """The operations and bytes of a call; None where nobody has counted those of the operator."""
        count = self.case.operator.work
        return None if count is None else count(self.cell.inputs, self.direction)

    def prepare(self) -> Preparation:
        """Make the arrays, call once, and warm up. Raises RefusedTime where the call raises."""
        start = time.perf_counter()
        self.prepared = self._prepared(self.implementation, self.cell.inputs)
        self.backend.profiler.sync(list(self.prepared.arguments.values()))
        convert = time.perf_counter() - start
        with _quiet():
            step = self.backend.profiler.step
            self.step = self._attempt(lambda: step(self.prepared, self.direction, self.wrt))
            start = time.perf_counter()
            self.call = self._attempt(
                lambda: self.step(self.prepared.arguments, self._cotangent(0))
            )
            self._attempt(lambda: protocol.timed(self.call, self.backend.profiler.sync, 1))
            first = time.perf_counter() - start
            again, _ = protocol.timed(self.call, self.backend.profiler.sync, 1)
            self.inner, settled, _ = protocol.warm(self._seconds, again)
        return Preparation(convert, first, self.inner, settled, self.work)

    def sample(self, inner: int | None = None) -> float:
        """Seconds of one call, averaged over as many as a sample has."""
        before = self.backend.profiler.compilations(self.prepared)
        with _quiet():
            seconds = self._seconds(inner or self.inner)
        self.compiled |= before != self.backend.profiler.compilations(self.prepared)
        self.slowest = max(self.slowest, seconds)
        return seconds

    def device_sample(self) -> float | None:
        """Seconds of one call by the device's own clock, its caches emptied; None where it has none."""
        self.backend.profiler.empty_caches()
        return self.backend.profiler.device_seconds(self.call)

    def judge(self) -> Accuracy:
        """Judge what was timed, every answer that was different, and those to inputs that the call has
        not seen.

        Raises RefusedTime: "value", "non-finite" and the other kinds of wrong answers; "compiled" where
        something was compiled while the clock ran; "not-synced" where it stopped before the work;
        "stale" where fresh inputs take much longer, or get the old answer.
        """
        with _quiet():
            if self.compiled:
                raise RefusedTime("compiled", "something was compiled while the clock ran")
            self.look(self._judge_sync())
            self._call_on()
            measured = self.judge_seen()
            for number in range(1, protocol.FRESH + 1):
                self._judge_fresh(number)
            # What the implementation declares decides; a grade of gradients costs an oracle a class.
            return Accuracy(measured.error_ratio, measured.grade)

    def judge_seen(self) -> Measured:
        """Judge the answers that were looked at. Raises RefusedTime."""
        self.cell.measured = Measured()
        with _quiet():
            for count, reading in self.seen.kept():
                of = f" (in {count} of {self.seen.counts.total()} calls that were looked at)"
                self._hold(reading, self.cell.inputs, 0, of if len(self.seen.counts) > 1 else "")
        return self.cell.measured

    def look(self, out: Any) -> None:
        """Take in an answer of the timed call, to be judged later."""
        self.seen.take(
            digest_of(out, self.backend),
            lambda: self._read(out, self.cell.inputs, self.prepared),
        )

    def peak_bytes(self) -> int | None:
        """The most memory a call holds at a time, by the framework's own account; None where it has
        none."""
        with _quiet():
            return self.backend.profiler.peak_bytes(self.call, self.prepared)

    def kernels(self) -> str:
        """Which kernels ran, in the framework's own words; empty where it does not say."""
        try:
            with _quiet():
                return self.backend.profiler.kernels(self.prepared)
        except Exception:
            return ""

    def _prepared(self, implementation: Implementation, inputs: Inputs) -> PreparedCall:
        if self.direction == "forward":
            return implementation.prepare(inputs)
        return implementation.differentiable(inputs)

    def _seconds(self, inner: int) -> float:
        call = self._slowed if self.slow else self.call
        seconds, out = protocol.timed(call, self.backend.profiler.sync, inner)
        self.look(out)
        return seconds

    def _call_on(self) -> None:
        """Look at more answers in a row: what is wrong in one call of twenty is hardly the last of a
        sample."""
        end = time.perf_counter() + protocol.MORE_SECONDS
        for _ in range(protocol.MORE):
            self.look(protocol.timed(self.call, self.backend.profiler.sync, 1)[1])
            if time.perf_counter() > end:
                break

    def _slowed(self) -> Any:
        """The call, kept up by the share `slow` of what it took."""
        start = time.perf_counter()
        out = self.call()
        self.backend.profiler.sync(out)
        end = start + (time.perf_counter() - start) * (1.0 + self.slow)
        while time.perf_counter() < end:
            pass
        return out

    def _attempt(self, call: Callable[[], Any]) -> Any:
        try:
            return self.cell.attempt(call)
        except NotApplicable as error:
            raise UnsupportedCall(str(error)) from error
        except Deviation as error:
            raise RefusedTime(error.kind, error.message) from error

    def _cotangent(self, number: int) -> Any:
        if self.direction == "forward":
            return None
        values = native_cotangent(self._cotangent_values(number), self.cell.inputs, self.prepared)
        return self.backend.array(np.ascontiguousarray(values), self.case.dtype)

    def _cotangent_values(self, number: int) -> np.ndarray:
        return draw_cotangent(self.case, self.cell.seed + FRESH_SEED * number)

    def _fresh(self, number: int) -> Inputs:
        """Inputs like the case's own with other values, and the same mask and parameters."""
        other = draw(self.case, self.cell.seed + FRESH_SEED * number)
        return self.cell.inputs.replace(query=other.query, key=other.key, value=other.value)

    def _judge_sync(self) -> Any:
        """The last of three answers, each of which must be finished when its clock has stopped.

        A busy machine can delay one reading, and hardly that of the same answer in every trial.
        """
        for _ in range(protocol.TRIALS):
            outputs = [protocol.timed(self.call, self.backend.profiler.sync, 1) for _ in range(3)]
            took = min(seconds for seconds, _ in outputs)
            self._read_all(outputs[0][1])
            waited = self._read_all(outputs[2][1]) - self._read_all(outputs[1][1])
            allowed = max(protocol.UNSYNCED * max(took, self.slowest), protocol.STALE_SECONDS)
            if waited <= allowed:
                return outputs[2][1]
        raise RefusedTime(
            "not-synced",
            f"the clock stopped after {took * 1e3:.3g} ms, and the answer was there "
            f"{waited * 1e3:.3g} ms later",
        )

    def _read_all(self, out: Any) -> float:
        start = time.perf_counter()
        for array in arrays_of(out, self.backend):
            self.backend.to_numpy(array)
        return time.perf_counter() - start

    def _judge_fresh(self, number: int) -> None:
        inputs, cotangent = self._fresh(number), self._cotangent(number)
        implementation = self.implementation
        if isinstance(implementation, Compiled):
            # The program is the one that was timed: arguments alone are taken.
            arguments = implementation.inner.prepare(inputs).arguments
        else:
            arguments = self._prepared(implementation, inputs).arguments
        call = self._attempt(lambda: self.step(arguments, cotangent))
        compilations = self.backend.profiler.compilations(self.prepared)
        # Drawing inputs emptied the caches that the timed calls had found full.
        self._attempt(lambda: protocol.timed(self.call, self.backend.profiler.sync, 1))
        seconds, out = self._attempt(lambda: protocol.timed(call, self.backend.profiler.sync, 1))
        if compilations != self.backend.profiler.compilations(self.prepared):
            raise RefusedTime("compiled", "fresh inputs of the same shapes are compiled anew")
        if number == 1:
            # Judged once: the oracle of a large case takes longer than all its samples.
            prepared = replace(self.prepared, arguments=arguments)
            self.cell.measured = Measured()
            self._hold(self._read(out, inputs, prepared), inputs, number, " (fresh inputs)")
        self.fresh = min(seconds, self.fresh)
        beyond = self.fresh - self.slowest
        slow = self.fresh > protocol.STALE_FACTOR * self.slowest and beyond > protocol.STALE_SECONDS
        if number == protocol.FRESH and self.slowest and slow:
            raise RefusedTime(
                "stale",
                f"calls with fresh inputs take {self.fresh * 1e3:.3g} ms or more, the timed ones at most "
                f"{self.slowest * 1e3:.3g} ms: what was timed was not computed anew",
            )

    def _read(self, out: Any, inputs: Inputs, prepared: PreparedCall) -> Reading:
        """The values of what a call returned, in memory of their own."""
        cell, gradients = self.cell, None
        answer: Answer | None
        try:
            if self.direction == "forward":
                answer = cell.read(out, inputs, prepared)
            else:
                output, native = out
                answer = None if output is None else read_output(cell, output, inputs, prepared)
                read = read_gradients(cell, native, inputs, prepared, self.wrt)
                gradients = {name: array.copy() for name, array in read.items()}
        except (Deviation, NotApplicable) as error:
            return Reading(failure=error)
        if answer is not None:
            answer = Answer({n: array.copy() for n, array in answer.arrays.items()}, None)
        return Reading(answer, gradients)

    def _hold(self, reading: Reading, inputs: Inputs, number: int, of: str) -> None:
        """Hold what a call returned against the oracle; raises RefusedTime with the worst element. `of`
        says which call it was."""
        cell = self.cell
        try:
            if reading.failure is not None:
                raise reading.failure
            if reading.output is not None:
                cell.judge(reading.output, inputs)
            if reading.gradients is not None:
                judge_gradients(cell, reading.gradients, inputs, self._cotangent_values(number))
        except NotApplicable as error:
            raise UnsupportedCall(str(error)) from error
        except Deviation as error:
            ratio = cell.measured.error_ratio
            raise RefusedTime(error.kind, error.message + of, ratio) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """A context in which warnings are not shown and NumPy says nothing of NaN."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield
