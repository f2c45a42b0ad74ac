"""A timed call: prepare one implementation's call of one case, time it, and judge its answers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import Any

import numpy as np

from attention_conformance.backends.compilers import Compiled
from attention_conformance.backends.protocol import Implementation, PreparedCall
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.answer import Answer
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.judge.derivative import (
    judge_gradients,
    names_of,
    native_cotangent,
    read_gradients,
    read_output,
)
from attention_conformance.suite.judge.verdict import Deviation, Measured, NotApplicable
from attention_conformance.suite.measure import protocol
from attention_conformance.suite.measure.clock import Rotation, clock_of
from attention_conformance.suite.measure.own import OwnCode
from attention_conformance.suite.measure.protocol import RefusedTime, UnsupportedCall
from attention_conformance.suite.measure.seen import Seen, digest_of
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.features import ARRAYS
from attention_conformance.suite.spec.inputs import Inputs, draw, draw_cotangent
from attention_conformance.suite.spec.operator import Work

FRESH_SEED = 7001
"""Added to a case's seed to draw fresh inputs."""

UNTIMED = ("bias", *ARRAYS)
"""Arrays whose gradients are not timed, because many kernels return none."""

_CHECK = Check("speed", lambda cell: None, lambda level: ())


@dataclass(frozen=True)
class Preparation:
    """Seconds of preparing a call, and the size of a sample.

    - `first_call`: seconds of the first call, with tracing and compilation
    - `inner`: calls per sample
    - `settled`: True if times settled during the warm-up
    - `work`: operations and bytes; None if the operator does not count them
    """

    first_call: float
    inner: int
    settled: bool
    work: Work | None


@dataclass(frozen=True)
class Reading:
    """The NumPy values that a call returned, before judging; `failure` if they cannot be read."""

    output: Answer | None = None
    gradients: dict[str, np.ndarray] | None = None
    failure: Exception | None = None


class TimedCall:
    """One implementation's call of a case in one of `suite.spec.vocabulary.DIRECTIONS`.

    A backward pass computes the gradients of the arrays `wrt`. `own` says what else is asked of a user's
    function. Raises UnsupportedCall if the implementation declares the case unsupported.
    """

    def __init__(
        self,
        implementation: Implementation,
        case: Case,
        direction: str = "forward",
        seed: int = 0,
        own: OwnCode | None = None,
    ) -> None:
        self.implementation, self.case, self.direction = implementation, case, direction
        self.backend, self.own = implementation.backend, own or OwnCode()
        self.clock = clock_of(self.backend, self.own.trip)
        self.cell = Cell(_CHECK, case, implementation, seed)
        if implementation.operator is not case.operator:
            raise UnsupportedCall(f"computes {implementation.operator}, not {case.operator}")
        needs = () if direction == "forward" else ("gradient",)
        reason = implementation.unsupported(case) or implementation.missing(needs)
        if reason is not None:
            raise UnsupportedCall(reason)
        self.compiled = False
        self.samples: list[float] = []
        self.slow = 0.0

    @property
    def wrt(self) -> list[str]:
        """The arrays whose gradients are timed."""
        return [n for n in names_of(self.prepared, self.cell.inputs) if n not in UNTIMED]

    @property
    def work(self) -> Work | None:
        """The operations and bytes of a call; None if the operator does not count them."""
        count = self.case.operator.work
        return None if count is None else count(self.cell.inputs, self.direction)

    def prepare(self) -> Preparation:
        """Make the arrays, call once, and warm up. Raises RefusedTime if the call raises."""
        self.prepared = self._prepared(self.implementation, self.cell.inputs)
        self.backend.profiler.sync(list(self.prepared.arguments.values()))
        with leaks.quiet():
            step = self.backend.profiler.step
            self.step = self._attempt(lambda: step(self.prepared, self.direction, self.wrt))
            start = protocol.now()
            cotangent = self._cotangent(0)
            ready = self._attempt(lambda: self.step(self.prepared.arguments, cotangent))
            self._timed(ready)
            first = protocol.now() - start
            others = [self._arguments(self._fresh(n)) for n in range(1, self._sets())]
            calls = [ready, *(self.step(arguments, cotangent) for arguments in others)]
            self.calls = Rotation(calls)
            self.seen = [Seen[Reading](self.cell.seed + n) for n in range(len(calls))]
            again, _ = self._timed(self.calls)
            self.inner, settled, _ = protocol.warm(self._seconds, again)
        return Preparation(first, self.inner, settled, self.work)

    def sample(self, inner: int | None = None) -> float:
        """Time one sample: seconds of one call, averaged over `inner` calls."""
        before = self.backend.profiler.compilations(self.prepared)
        with leaks.quiet():
            seconds = self._seconds(inner or self.inner)
        self.compiled |= before != self.backend.profiler.compilations(self.prepared)
        self.samples.append(seconds)
        return seconds

    def judge(self) -> float | None:
        """The error ratio of the timed answer. Judges the answers of a part of the sets, every answer
        that differs from another one to the same inputs, and an answer to new inputs.

        Raises RefusedTime with one of these kinds:

        - "value", "non-finite" and the other kinds of wrong answers
        - "compiled": the framework compiled during a sample
        - "not-synced": the clock stopped before the call had finished
        - "lazy": the answer is computed as it is read
        - "stale": new inputs take much longer than known inputs
        """
        with leaks.quiet():
            if self.compiled:
                raise RefusedTime("compiled", "the framework compiled during a sample")
            self.look(self._judge_sync())
            self._call_on()
            measured = self.judge_seen()
            self._judge_fresh()
            if self.own.watched is not None:
                for number in range(self._sets()):
                    self._attempt(self.own.watched.prepare(self._fresh(number)))
            return measured.error_ratio

    def judge_seen(self) -> Measured:
        """Judge answers that `look` kept: those to the first set of inputs, to a random part of the other
        sets, and to sets with several answers. Raises RefusedTime.

        The figures are those of the first set: they do not depend on chance.
        """
        recorded = [number for number, seen in enumerate(self.seen) if seen.counts]
        part = SystemRandom().sample(recorded, math.ceil(len(recorded) * protocol.JUDGED))
        several = [number for number in recorded if len(self.seen[number].counts) > 1]
        measured = None
        with leaks.quiet():
            for number in dict.fromkeys((*recorded[:1], *part, *several)):
                self.cell.measured = Measured()
                seen = self.seen[number]
                for count, reading in seen.answers():
                    of = f" (in {count} of {seen.counts.total()} recorded calls)"
                    of = of if len(seen.counts) > 1 else ""
                    self._hold(reading, self._fresh(number), 0, of)
                measured = measured or self.cell.measured
        return measured or Measured()

    def look(self, out: Any) -> None:
        """Record an answer of the last call for `judge_seen`. Raises RefusedTime if the answer cannot be
        read."""
        self.seen[self.calls.turn].take(
            self._attempt(lambda: digest_of(out, self.backend)),
            lambda: self._read(out, self.cell.inputs, self.prepared),
        )

    def peak_bytes(self) -> int | None:
        """Peak bytes of a call as the framework counts them; None if the framework does not count."""
        with leaks.quiet():
            return self.backend.profiler.peak_bytes(self.calls, self.prepared)

    def kernels(self) -> str:
        """The framework's names of the kernels that ran; empty if the framework does not tell."""
        try:
            with leaks.quiet():
                return self.backend.profiler.kernels(self.prepared)
        except Exception:
            return ""

    def _prepared(self, implementation: Implementation, inputs: Inputs) -> PreparedCall:
        if self.direction == "forward":
            return implementation.timed(inputs)
        return implementation.differentiable(inputs)

    def _seconds(self, inner: int) -> float:
        seconds, out = self._timed(self.calls, inner, self.slow)
        self.look(out)
        return seconds

    def _timed(self, call: Any, inner: int = 1, slow: float = 0.0) -> tuple[float, Any]:
        """`Clock.timed`. Raises RefusedTime if a call raises."""
        return self._attempt(lambda: self.clock.timed(call, inner, slow))

    def _sets(self) -> int:
        """The number of sets of inputs."""
        size = (
            sum(array.size for array in self.cell.inputs.arrays.values()) * self.case.dtype.itemsize
        )
        return max(2, min(protocol.SETS, protocol.SETS_BYTES // max(size, 1)))

    def _call_on(self) -> None:
        """Record the answers of more calls. Otherwise an error in one call of twenty is often missed."""
        end = protocol.now() + protocol.MORE_SECONDS
        for _ in range(protocol.MORE):
            self.look(self._timed(self.calls)[1])
            if protocol.now() > end:
                break

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
        """Inputs of the case with a query, key and value of their own; those of the case for 0."""
        if not number:
            return self.cell.inputs
        other = draw(self.case, self.cell.seed + FRESH_SEED * number)
        return self.cell.inputs.replace(**{name: other.arrays[name] for name in other.operands})

    def _judge_sync(self) -> Any:
        """The answer of the last call. Raises RefusedTime "not-synced" if a call is unfinished when the
        clock stops, and "lazy" if an answer is read more slowly than a plain array."""
        readings = protocol.Readings(self.clock.unsure)
        samples = self.samples or [self._timed(self.calls)[0]]

        def called() -> Any:
            return self.clock.timed(self.calls, 1)[1]

        def read_later(out: Any) -> float:
            protocol.wait(max(protocol.PAUSE, 2 * protocol.allowed(max(samples))))
            return self.clock.reading(out)

        def trial() -> Any:
            at_once = self.clock.reading(called())
            later = read_later(last := called())
            plain, last = self.clock.plain(last), called()
            again = (self.clock.reading(plain) for _ in range(1, protocol.COPIES))
            readings.take(at_once, later, [read_later(plain), *again])
            return last

        last = self._attempt(trial)
        while not readings.accepted(samples):
            last = self._attempt(trial)
        return last

    def _arguments(self, inputs: Inputs) -> Any:
        """The native arguments of other inputs of the case."""
        implementation = self.implementation
        if isinstance(implementation, Compiled):
            # Only the arguments are new: the compiled program must be the one that is timed.
            return implementation.inner.prepare(inputs).arguments
        return self._prepared(implementation, inputs).arguments

    def _judge_fresh(self) -> None:
        """Compare times of new inputs with known ones, and judge the fastest answer. Raises RefusedTime.

        A machine that is busy slows some calls and trials; reused results show in every one.
        """
        usual, first = statistics.median(self.samples or [math.inf]), protocol.SETS
        unsure = protocol.STALE_SECONDS + self.clock.unsure
        # The framework may compile the product with the signs.
        call, _ = self._new(self.cell.inputs, self.prepared.arguments, self._cotangent(0))
        self._timed(call)
        for trial in range(protocol.TRIALS):
            if trial:
                protocol.pause(protocol.TRIAL_PAUSE * 2 ** (trial - 1))
            numbers = range(first + trial * protocol.FRESH, first + (trial + 1) * protocol.FRESH)
            times = [self._times(number) for number in numbers]
            known, new = (min(seconds) for seconds in list(zip(*times, strict=True))[:2])
            beyond = new > protocol.STALE * known or new > protocol.STALE_SAMPLE * usual
            if not beyond or new - min(known, usual) <= unsure:
                return min(times, key=lambda one: one[1])[2]()
        raise RefusedTime(
            "stale",
            f"calls with new inputs take {new * 1e3:.3g} ms, calls with known inputs "
            f"{known * 1e3:.3g} ms, samples took {usual * 1e3:.3g} ms: the timed calls reused earlier "
            "results",
        )

    def _times(self, number: int) -> tuple[float, float, Callable[[], None]]:
        """Seconds of calls with known and with new inputs, and what judges the answer to new ones."""
        drawn = self._fresh(number)
        arguments, cotangent = self._arguments(drawn), self._cotangent(number)
        (warm, _), (call, inputs) = (self._new(drawn, arguments, cotangent) for _ in range(2))
        compilations = self.backend.profiler.compilations(self.prepared)
        # Drawing inputs evicted the CPU caches, which were warm for the timed calls.
        if inputs is not drawn:
            self._timed(warm)
        self._timed(self.calls)
        known, _ = self._timed(self.calls)
        new, out = self._timed(call)
        if compilations != self.backend.profiler.compilations(self.prepared):
            raise RefusedTime("compiled", "inputs of the same shapes were compiled for anew")

        def judge() -> None:
            prepared = replace(self.prepared, arguments=arguments)
            self.cell.measured = Measured()
            read = self._read(out, inputs, prepared)
            self._hold(read, inputs, number, " (fresh inputs)")

        return known, new, judge

    def _new(self, inputs: Inputs, arguments: Any, cotangent: Any) -> tuple[Any, Inputs]:
        """A call with new arguments, and the inputs that it answers (`Clock.turned`). A backward pass
        alone answers those that are given, as do calls without an operand among their arguments."""
        name, prepared = inputs.operands[0], replace(self.prepared, arguments=arguments)
        whole = name in inputs.operator.array_kinds.integers
        if self.direction == "backward" or whole or prepared.argument(name) not in arguments:
            return self._attempt(lambda: self.step(arguments, cotangent)), inputs
        return self.clock.turned(inputs, name, self.step, prepared, cotangent)

    def _read(self, out: Any, inputs: Inputs, prepared: PreparedCall) -> Reading:
        """Copies of the values that a call returned."""
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
        """Judge a reading by the oracle. Raises RefusedTime; `of` ends its message and names the call."""
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
